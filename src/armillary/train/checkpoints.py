"""Checkpoints of a training run, and which of them counts.

The learner writes a folder, all or nothing; then `latest.json` is replaced in one rename. That
rename, once it is on disk, is the moment an update has happened: whatever was killed before it is
done again from the recorded attempts, whatever comes after it is never trained again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import msgspec

from armillary.errors import RecordError
from armillary.record.disk import sync_folder, write_refused

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
        """
        Raises:
            RecordError: the folder cannot be made.
        """
        self.root = root
        self._keep = keep
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_refused(root, error) from error

    def folder(self, step: int) -> Path:
        return self.root / f"step-{step:05d}"

    def latest(self) -> Latest | None:
        """The last update that happened, None before the first.

        Raises:
            RecordError: the file that says so is damaged.
        """
        path = self.root / LATEST
        if not path.exists():
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=Latest)
        except msgspec.MsgspecError as error:
            raise RecordError(
                f"{path} is damaged ({error}); put back a copy, or train under another --name"
            ) from error

    def commit(self, step: int, attempts: tuple[str, ...] = (), version: int = -1) -> None:
        """Make the saved folder of `step` the one that counts, and drop old ones.

        Raises:
            RecordError: the disk refused; see `write_atomically`.
        """
        write_atomically(
            self.root / LATEST,
            msgspec.json.encode(Latest(step, self.folder(step).name, attempts, version)),
        )
        steps = sorted(self.root.glob("step-*"))
        for old in steps[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: a reader, and a start after a power cut, finds the old or the new
    content and nothing between; on return the new content is on disk under its name.

    Raises:
        RecordError: the disk refused. What is there is whole: the old content, or the new one if
            only its name could not be made safe.
    """
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise write_refused(path, error) from error
