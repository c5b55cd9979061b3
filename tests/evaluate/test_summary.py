"""The JSON object of a run, and several of them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from armillary.errors import RecordError
from armillary.evaluate.attempts import AttemptResult
from armillary.evaluate.summary import Summary, aggregate_seeds, summarise

SOLVED = {"base": 0, "sft": 8, "grpo": 18}
TASKS = 20


def attempts(solved: dict[str, int] = SOLVED, split: str = "test") -> list[AttemptResult]:
    return [
        AttemptResult(
            attempt_id=f"{stage}-{harness}-{task}",
            stage=stage,
            split=split,
            task=f"t{task}",
            harness=harness,
            graded=True,
            correct=task < count,
            reward=float(task < count),
            stop_reason="submitted",
            tool_calls=3 + (task % 2),
        )
        for stage, count in solved.items()
        for harness in ("mini-swe-agent", "loop")
        for task in range(TASKS)
    ]


def summary(seed: int = 0, solved: dict[str, int] = SOLVED) -> Summary:
    return summarise(
        attempts(solved) + attempts({"grpo": 0}, split="train"),
        seed=seed,
        seconds=301.234,
        cpu_seconds=410.5,
        report=Path("runs/quickstart/report.html"),
    )


def test_the_json_has_the_promised_shape():
    value: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(summary()))
    assert list(value) == ["seed", "seconds", "cpu_seconds", "stages", "gains", "report"]
    assert [stage["name"] for stage in value["stages"]] == ["base", "sft", "grpo"]
    for stage in value["stages"]:
        assert list(stage) == ["name", "harnesses"]
        assert list(stage["harnesses"]) == ["loop", "mini-swe-agent"]
        for harness in stage["harnesses"].values():
            assert list(harness) == ["pass_at_1", "ci95", "graded", "total", "tool_calls"]
            assert harness["ci95"][0] <= harness["pass_at_1"] <= harness["ci95"][1]
            assert (harness["graded"], harness["total"]) == (TASKS, TASKS)
            assert harness["tool_calls"] == 3.5
    assert value["report"] == "runs/quickstart/report.html"
    assert value["seconds"] == 301.23


def test_values_are_shares_and_percentage_points():
    result = summary()
    assert [s.harnesses["loop"].pass_at_1 for s in result.stages] == [0.0, 0.4, 0.9]
    assert set(result.gains) == {"loop", "mini-swe-agent"}
    found = result.gains["loop"]
    assert found.points == 50.0
    assert 0 < found.ci95[0] < 50.0 < found.ci95[1] < 100


def test_without_both_stages_there_are_no_gains():
    assert summary(solved={"base": 1, "sft": 5}).gains == {}


def test_a_stage_where_nothing_was_graded_says_so():
    lost = [
        AttemptResult(
            attempt_id="x",
            stage="sft",
            split="test",
            task="t",
            harness="loop",
            graded=False,
            failure_kind="sandbox",
        )
    ]
    result = summarise(lost, seed=0, seconds=1, cpu_seconds=1, report=Path("r.html"))
    only = result.stages[0].harnesses["loop"]
    assert (only.pass_at_1, only.ci95, only.graded, only.total) == (None, None, 0, 1)
    assert only.tool_calls is None


def test_seeds_are_shown_with_every_value():
    runs = [summary(0), summary(1, {**SOLVED, "grpo": 16}), summary(2, {**SOLVED, "grpo": 8})]
    together = aggregate_seeds(runs)
    assert together.seeds == [0, 1, 2]
    assert together.seconds == pytest.approx(3 * 301.23)
    last = together.stages[-1].harnesses["loop"]
    assert last.pass_at_1 is not None
    assert last.pass_at_1.values == [0.9, 0.8, 0.4]
    assert (last.pass_at_1.mean, last.pass_at_1.low, last.pass_at_1.high) == (0.7, 0.4, 0.9)
    assert (last.graded, last.total) == (3 * TASKS, 3 * TASKS)
    assert together.gains["loop"].points.values == [50.0, 40.0, 0.0]
    assert together.gains["loop"].above_zero == 2


def test_seeds_that_do_not_belong_together_are_refused():
    for runs in ([], [summary(0), summary(0)], [summary(0), summary(1, {"sft": 1})]):
        with pytest.raises(RecordError, match="cannot aggregate"):
            aggregate_seeds(runs)
