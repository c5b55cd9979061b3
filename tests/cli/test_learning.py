"""One short seed of the whole loop: the model learns through both harnesses, really."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from armillary.report.parquet import read_attempts
from armillary.train.tracker import read_metrics

pytestmark = [pytest.mark.needs_bwrap, pytest.mark.needs_mini, pytest.mark.needs_learn]

METRICS_PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
TASKS, STEPS = 64, 12
SHORT = {
    "name": "short", "seed": 0, "tasks.train": 2300, "tasks.validation": 4, "tasks.test": TASKS,
    "sft.demonstrations": 2000, "sft.steps": 400, "train.steps": STEPS,
    "rollout.groups.loop": 6, "rollout.groups.mini-swe-agent": 2, "eval.tasks": TASKS,
    "eval.validation_tasks": 4, "eval.validation_every": 5,
}  # fmt: skip


def test_a_short_run_learns_in_both_harnesses_and_reports_it(tmp_path: Path) -> None:
    options = [part for key, value in SHORT.items() for part in (f"--{key}", str(value))]
    program = "from armillary.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "quickstart", *options, "--json"], cwd=tmp_path, text=True,
        capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=1200, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert [s["name"] for s in result["stages"]] == ["base", "sft", "grpo"]
    for stage in result["stages"]:
        for harness in ("loop", "mini-swe-agent"):
            measured = stage["harnesses"][harness]
            assert (measured["graded"], measured["total"]) == (TASKS, TASKS)
    for harness in ("loop", "mini-swe-agent"):
        gain = result["gains"][harness]
        assert gain["ci95"][0] > 0, gain
        assert gain["points"] > 10, gain

    run = tmp_path / "runs" / "short-0"
    points = read_metrics(run / "metrics.jsonl")
    assert [p["step"] for p in points] == list(range(1, STEPS + 1))
    # Trained probabilities are those of the record: the ratio of a first pass over it is 1.
    assert max(p["ratio/max_abs_diff"] for p in points if "ratio/max_abs_diff" in p) < 1e-3
    assert all(math.isfinite(p["reward/mean"]) for p in points)
    versions = [p["policy/version"] for p in points if "policy/version" in p]
    assert versions == sorted(set(versions))

    explained = re.findall(r"^\| `([a-z_0-9]+/[a-z_0-9]+)` \|", METRICS_PAGE.read_text(), re.M)
    logged = {"/".join(name.split("/")[:2]) for p in points for name in p if name != "step"}
    assert logged <= set(explained)

    page = (run / "report.html").read_text()
    assert "mini-swe-agent" in page
    assert "loop" in page
    attempts = read_attempts(run / "attempts.parquet")
    trained = [a for a in attempts if a.split == "train"]
    assert len(trained) == STEPS * 8 * 8
    assert {a.harness for a in trained if a.supervised_tokens} == {"loop", "mini-swe-agent"}
