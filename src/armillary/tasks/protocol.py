"""The task-family seam: where tasks come from and how a scripted policy would solve them.

A family builds task folders in splits, and can play a demonstration of any task it built. Adding a
family is one new package and one line in `tasks.registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from armillary.tasks.folder import Task, TaskSet


class CommandResult(NamedTuple):
    """What a tool command printed (stdout and stderr, merged) and returned."""

    output: str
    code: int


RunCommand = Callable[[str], CommandResult]
"""Runs one shell command line in the attempt's work folder."""

Demonstration = Generator[str, str, str]
"""Yields command lines, is sent their output, returns the answer."""


@dataclass(frozen=True, slots=True)
class DemonstrationStyle:
    """How good the scripted policy is. A perfect teacher would leave nothing to learn."""

    careless: float = 0.5
    """Share of demonstrations that guess a file name instead of looking."""
    wrong_operation: float = 0.15
    """Share that uses a random operation."""


class TaskFamily(Protocol):
    name: str

    def build(self, root: Path, *, train: int, validation: int, test: int, seed: int) -> TaskSet:
        """Write the splits under `root`; what is already there and complete is kept."""
        ...

    def demonstrate(self, task: Task, style: DemonstrationStyle, seed: int) -> Demonstration: ...

    def phrases(self) -> tuple[str, ...]:
        """Fixed texts of its instructions and tools, for a tokenizer of our own."""
        ...

    def emulate(self, task: Task) -> RunCommand:
        """The task's work folder without a process, for the commands a demonstration uses."""
        ...
