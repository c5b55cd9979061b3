"""What one start of a command costs: wall clock and processor time.

The first run of a command is charged from the start of the process, imports included; a repetition
(`--seeds`) from its own beginning. So the costs of several runs add up to that of the command.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_LONGEST_START = 60.0
"""Seconds; a process that seems to have taken longer to get here has an untrue clock."""
_STAT_START_TIME = 19
"""Field of `/proc/self/stat` behind the program's name: start in ticks since boot."""


@dataclass(frozen=True, slots=True)
class Meter:
    """Counts from the moment it was made for."""

    began: float
    """Of `time.monotonic`."""
    cpu_before: float
    """Processor time of this process that is not ours."""

    @classmethod
    def of_process(cls) -> Meter:
        """Counts from the start of this process."""
        return cls(time.monotonic() - _process_age(), 0.0)

    @classmethod
    def from_now(cls) -> Meter:
        return cls(time.monotonic(), _cpu_of_process())

    @property
    def seconds(self) -> float:
        """Wall clock."""
        return time.monotonic() - self.began

    @property
    def cpu_seconds(self) -> float:
        """Processor time of this process and of its ended children."""
        return _cpu_of_process() - self.cpu_before


def _cpu_of_process() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _process_age() -> float:
    """Seconds since this process started; 0 where the system does not say."""
    try:
        stat = Path("/proc/self/stat").read_text()
        ticks = int(stat.rpartition(")")[2].split()[_STAT_START_TIME])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
    return age if 0 <= age < _LONGEST_START else 0.0
