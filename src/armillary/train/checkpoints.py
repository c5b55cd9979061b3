"""Checkpoints of a training run, and which of them counts.

The learner writes a folder, all or nothing; then `latest.json` is replaced in one rename. That
rename is the moment an update has happened: whatever was killed before it is done again from the
recorded attempts, whatever comes after it is never trained again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

LATEST = "latest.json"


class Latest(msgspec.Struct, frozen=True):
    """The last update that happened."""

    step: int
    """Updates applied so far."""
    folder: str
    attempts: tuple[str, ...] = ()
    """Attempts trained since the checkpoint before."""
    version: int = -1
    """Policy version of the weights; -1 = not a step of reinforcement learning."""


class Checkpoints:
    """The checkpoint folder of one run."""

    def __init__(self, root: Path, *, keep: int = 2) -> None:
        self.root = root
        self._keep = keep
        root.mkdir(parents=True, exist_ok=True)

    def folder(self, step: int) -> Path:
        return self.root / f"step-{step:05d}"

    def latest(self) -> Latest | None:
        path = self.root / LATEST
        return msgspec.json.decode(path.read_bytes(), type=Latest) if path.exists() else None

    def commit(self, step: int, attempts: tuple[str, ...] = (), version: int = -1) -> None:
        """Make the saved folder of `step` the one that counts, and drop old ones."""
        write_atomically(
            self.root / LATEST,
            msgspec.json.encode(Latest(step, self.folder(step).name, attempts, version)),
        )
        steps = sorted(self.root.glob("step-*"))
        for old in steps[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, on disk before it is visible."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
