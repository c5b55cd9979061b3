"""How much memory and how many processes an attempt uses.

Resident memory of all processes is cheap to add up but counts shared pages once per process; so
only when that sum is over the limit are the pages divided among their users (PSS), which is exact
and slower. Reads /proc of the attempt's own pid namespace: nothing of other attempts is in it.
"""

# pathlib would slow every start, and has no descriptors.
# ruff: noqa: PTH123, PTH208
from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    processes: int
    memory: int
    """Bytes."""


def usage(limit: int) -> Usage:
    """What is used now. `memory` is exact where it matters: at and above `limit` bytes."""
    processes = memory = 0
    for pid in _pids():
        processes += 1
        memory += _resident(pid)
    if memory > limit:
        memory = sum(_proportional(pid) for pid in _pids())
    return Usage(processes, memory)


def _pids() -> Iterator[str]:
    """All processes of the attempt but its first, which is ours."""
    return (name for name in os.listdir("/proc") if name.isdigit() and name != "1")


def _resident(pid: str) -> int:
    statm = _read(f"/proc/{pid}/statm")
    return int(statm.split()[1]) * _PAGE if statm else 0


def _proportional(pid: str) -> int:
    for line in (_read(f"/proc/{pid}/smaps_rollup") or b"").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) << 10
    return _resident(pid)


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16)
    except OSError:
        return None  # it ended meanwhile, or runs a program that nobody may look into
