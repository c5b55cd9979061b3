"""One stage at a time, for real: SFT, training in two goes, an evaluation after each.

Also what keeps apart who played: a scripted policy, and every checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import armillary, last_json, options

from armillary.cli.results import RunResults

pytestmark = [pytest.mark.needs_bwrap, pytest.mark.needs_learn]

CELLS = 2
SHORT = options(
    {
        "name": "one", "harness": "loop", "tasks.train": 230, "tasks.validation": 2,
        "tasks.test": 4, "sft.demonstrations": 200, "sft.warmup_steps": 60, "sft.steps": 100,
        "rollout.groups": "{loop = 1}", "rollout.group_size": 4, "eval.tasks": CELLS,
        "eval.validation_tasks": 0,
    }
)  # fmt: skip
NAMED = ["--name", "one"]


def stages(folder: Path, *words: str) -> list[str]:
    result = last_json(armillary(folder, *words, "--json"))
    for stage in result["stages"]:
        assert stage["harnesses"]["loop"]["total"] == CELLS
    return [stage["name"] for stage in result["stages"]]


def test_stages_one_by_one_and_a_quickstart_that_takes_up_what_they_left(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one-0"

    # A script plays first, on a fresh folder and under the run's own name.
    assert stages(tmp_path, "rollout", "--engine", "scripted", *SHORT) == ["rollout@scripted"]
    assert not run.exists()

    assert last_json(armillary(tmp_path, "sft", *SHORT, "--json"))["updates"] == 100
    # The weights play under the name the script played under: their own attempts.
    assert stages(tmp_path, "rollout", *NAMED) == ["rollout@sft-00100"]

    # Kept settings need not be said again, and those of a later stage may still be chosen.
    train = ["train", *NAMED, "--train.steps"]
    assert last_json(armillary(tmp_path, *train, "1", "--json"))["updates"] == 1
    assert stages(tmp_path, "eval", *NAMED) == ["eval@grpo-00001"]
    recorded = set(RunResults(run).record.attempts)
    assert stages(tmp_path, "eval", *NAMED) == ["eval@grpo-00001"]
    assert set(RunResults(run).record.attempts) == recorded, "nothing is played twice"
    assert last_json(armillary(tmp_path, *train, "2", "--json"))["updates"] == 2
    assert stages(tmp_path, "eval", *NAMED) == ["eval@grpo-00002"]
    assert len(RunResults(run).record.attempts) == len(recorded) + 4 + CELLS

    refused = armillary(tmp_path, "eval", *NAMED, "--budget.calls", "3")
    assert refused.returncode == 2
    assert "budget.calls = 7 there, 3 asked for" in refused.stderr

    done = armillary(tmp_path, "quickstart", *SHORT, "--train.steps", "2", "--json")
    result = last_json(done)
    assert [stage["name"] for stage in result["stages"]] == ["base", "sft", "grpo"]
    assert result["stages"][0]["harnesses"]["loop"]["total"] == CELLS

    reported = last_json(armillary(tmp_path, "report", str(run), "--json"))
    names = [stage["name"] for stage in reported["stages"]]
    assert names[:3] == ["base", "sft", "grpo"]
    assert "rollout@scripted" not in names
    assert "Traceback" not in done.stderr


def test_an_update_that_is_refused_says_how_to_go_on(tmp_path: Path) -> None:
    """An untrained policy only rambles; its attempts are recorded, so again would be the same."""
    words = [*SHORT, "--sft.warmup_steps", "1", "--sft.steps", "1"]
    assert last_json(armillary(tmp_path, "sft", *words, "--json"))["updates"] == 1
    done = armillary(tmp_path, "train", *NAMED)
    assert done.returncode == 1
    assert "were cut by the length limit" in done.stderr
    assert "change the setting under a new --name" in done.stderr
    assert "Traceback" not in done.stderr
