"""A little disk kept back, so that a policy that fills the disk can still be graded.

Without it a full disk would make the grader's own files fail, and a failure of ours is never a
reward: filling the disk would be a way out of a wrong answer. The reserve is nameless files, which
hold blocks and inodes and cannot be found or removed; it is given back when the processes of the
attempt have been ended.
"""

from __future__ import annotations

import os

MEGABYTES = 1
_FILES = 32
_BYTES = (MEGABYTES << 20) // _FILES


class Reserve:
    """Holds the reserve until `release`."""

    def __init__(self, folder: str) -> None:
        self._held: list[int] = []
        for _ in range(_FILES):
            fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
            os.posix_fallocate(fd, 0, _BYTES)
            self._held.append(fd)

    def release(self) -> None:
        while self._held:
            os.close(self._held.pop())
