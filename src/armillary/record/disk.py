"""Writing to a disk that may refuse: how a refusal is told, and what makes a change durable.

Every file of a run that is written while it goes on uses these, so that a full disk is one message
that says what to do, wherever it strikes first.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from armillary.errors import RecordError

_ADVICE = {
    errno.ENOSPC: "free disk space",
    errno.EDQUOT: "free disk space, or ask for a larger quota",
    errno.EFBIG: "raise the file size limit (`ulimit -f`)",
    errno.EROFS: "mount the disk writable, or choose another folder for runs",
    errno.EACCES: "make the run folder writable for this user",
    errno.EPERM: "make the run folder writable for this user",
}


def write_refused(path: Path, error: Exception) -> RecordError:
    """What to raise when the disk did not take `path`: the reason, and what to do."""
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number else str(error) or type(error).__name__
    advice = _ADVICE.get(number or 0, "check the disk (is it full?)")
    return RecordError(
        f"{path}: could not be written: {reason}; {advice}, then give the same command again: it "
        "goes on from what is on disk"
    )


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` to an unbuffered file; a refusal may leave a part of it there."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(folder: Path) -> None:
    """Put the names in `folder` on disk: without it a power cut may undo a rename or a new file."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
