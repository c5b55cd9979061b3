"""The command line as a user runs it, and run folders as a run leaves them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from armillary.cli.runfile import RunFile
from armillary.cli.workspace import LAST_STAGE, Mark, Marks
from armillary.record.codec import AttemptClosed, AttemptOpened
from armillary.record.journal import Journal
from armillary.record.outcomes import Graded

PROGRAM = "from armillary.cli import main; main()"


def armillary(
    folder: Path, *words: str, program: str = PROGRAM, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, text=True, capture_output=True,
        stdin=subprocess.DEVNULL, check=False, timeout=300, env=os.environ | environment,
    )  # fmt: skip


def last_json(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def options(values: Mapping[str, object]) -> list[str]:
    return [part for key, value in values.items() for part in (f"--{key}", str(value))]


def finished_run(
    folder: Path, run: RunFile, solved: Mapping[str, int], *, done: bool = True
) -> Path:
    """A run folder as a quickstart of `run` leaves it, `solved[stage]` of its tasks right."""
    root = folder / run.folder
    root.mkdir(parents=True)
    (root / "run.toml").write_text(run.to_toml())
    stages = {f"eval/{stage}": Mark(10.0) for stage in solved}
    if done:
        stages |= {"sft": Mark(20.0), "finished": Mark(0.0), LAST_STAGE: Mark(1.0)}
    marks = Marks(stages, seconds=61.5, cpu_seconds=70.25)
    (root / "stages.json").write_bytes(msgspec.json.encode(marks))
    asyncio.run(_write_attempts(root / "journal" / "run.journal", run, solved))
    return root


async def _write_attempts(path: Path, run: RunFile, solved: Mapping[str, int]) -> None:
    journal = Journal(path)
    for stage, right in solved.items():
        for number in range(run.eval.tasks):
            for harness in run.harness.names:
                task = f"test/labbook-{number:05d}"
                group = f"eval/{stage}/{harness}/{task}"
                name, reward = f"{group}#0.0", float(number < right)
                await journal.append(
                    AttemptOpened(name, f"eval/{stage}", "test", task, harness, group, 0, 0, 0.0)
                )
                facts = {"tool_calls": 3, "model_calls": 3, "seconds": 1.0}
                outcome = Graded(reward, "submitted", {"reward": reward})
                await journal.append(AttemptClosed(name, outcome, facts))
    journal.close()
