"""`kill -9` at random moments: the same command finishes, nothing is lost or trained twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from armillary.cli.verbs import EXIT_INTERRUPTED
from armillary.record.journal import read_journal
from armillary.record.outcomes import Graded
from armillary.record.store import replay
from armillary.train.checkpoints import Latest

pytestmark = [pytest.mark.needs_bwrap, pytest.mark.needs_mini, pytest.mark.needs_learn]

STEPS, EVAL = 3, 6
SHORT = {
    "name": "kill", "tasks.train": 260, "tasks.validation": 2, "tasks.test": 8,
    "sft.demonstrations": 200, "sft.warmup_steps": 60, "sft.steps": 100, "train.steps": STEPS,
    "rollout.groups.loop": 1, "rollout.groups.mini-swe-agent": 1, "eval.tasks": EVAL,
    "eval.validation_tasks": 0,
}  # fmt: skip


def start(folder: Path) -> subprocess.Popen[str]:
    options = [part for key, value in SHORT.items() for part in (f"--{key}", str(value))]
    program = "from armillary.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", program, "quickstart", *options, "--json"], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def end_when(process: subprocess.Popen[str], run: Path, moment: float, how: int) -> int:
    """Signal the process group once the journal holds `moment` bytes; the exit status."""
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        if progress(run) >= moment:
            os.killpg(process.pid, how)
            return process.wait(timeout=60)
        time.sleep(0.02)
    pytest.fail(f"the run ended or hung before it could be stopped at {moment:.0f} bytes")


def progress(run: Path) -> float:
    """How far a run is: bytes in its journal."""
    journal = run / "journal" / "run.journal"
    return journal.stat().st_size if journal.exists() else 0.0


def test_ctrl_c_and_three_kills_then_the_same_command_finishes(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "kill-0"
    rng = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID", "0"))
    # In the first evaluation, in the second one or early training, later in training.
    moments = sorted(rng.uniform(low, low + 20_000) for low in (4_000, 40_000, 70_000))
    assert end_when(start(tmp_path), run, moments[0] / 2, signal.SIGINT) == EXIT_INTERRUPTED
    for moment in moments:
        assert end_when(start(tmp_path), run, moment, signal.SIGKILL) == -signal.SIGKILL

    process = start(tmp_path)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    result = json.loads(out.splitlines()[-1])
    assert [s["name"] for s in result["stages"]] == ["base", "sft", "grpo"]
    for stage in result["stages"]:
        for harness in stage["harnesses"].values():
            assert (harness["graded"], harness["total"]) == (EVAL, EVAL)

    record = replay(read_journal(run / "journal" / "run.journal").entries)
    updates = {update.step: update for update in record.updates}
    assert sorted(updates) == list(range(1, STEPS + 1))
    assert len(record.updates) == STEPS
    trained = Counter(name for update in updates.values() for name in update.attempts)
    assert set(trained.values()) <= {1}
    finished = record.finished()
    assert set(trained) <= set(finished)
    graded = [n for n, a in finished.items() if isinstance(graded_outcome(a), Graded)]
    members = Counter(n.rpartition(".")[0] for n in graded)
    assert set(members.values()) == {1}, "an attempt was graded twice"
    assert len(members) == STEPS * 2 * 8 + 3 * 2 * EVAL, "an attempt was lost"
    latest = msgspec.json.decode((run / "checkpoints/grpo/latest.json").read_bytes(), type=Latest)
    assert latest.step == STEPS
    assert (run / "report.html").stat().st_size > 10_000


def graded_outcome(attempt):
    return attempt.closed.outcome if attempt.closed else None
