"""What is to be run: attempts, groups of attempts, and which harness each group is played in.

The schedule is a pure function of the step, and an attempt's name says stage, harness and task, so
the record of the attempts is the record of the schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from armillary.tasks.folder import Task


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """One attempt to be made. Its name is unique in a run and says where it belongs."""

    stage: str
    """`train/NNNN` (rollout step) or `eval/NAME`."""
    task: Task
    harness: str
    repeat: int = 0
    """Member number within its group."""
    number: int = 0
    """Which of several groups with the same stage, harness and task."""
    try_number: int = 0
    """How often it was tried before without being graded."""
    lost: int = 0
    """How often it was begun before and never ended, because the run was killed."""

    @property
    def group(self) -> str:
        """Same task, same harness, same stage: comparable attempts."""
        again = f"~{self.number}" if self.number else ""
        return f"{self.stage}/{self.harness}/{self.task.id}{again}"

    @property
    def attempt(self) -> str:
        return f"{self.group}#{self.repeat}.{self.try_number + self.lost}"

    @property
    def seed_name(self) -> str:
        """What its random numbers hang on: an attempt begun again samples as it would have."""
        return f"{self.group}#{self.repeat}.{self.try_number}"

    def again(self) -> AttemptPlan:
        """The next try after an ungraded one."""
        return replace(self, try_number=self.try_number + 1)

    def begun_again(self) -> AttemptPlan:
        """The same try under a new number, after one that never ended."""
        return replace(self, lost=self.lost + 1)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """`size` attempts at one task in one harness."""

    stage: str
    task: Task
    harness: str
    size: int
    number: int = 0
    """Tells groups with the same stage, harness and task apart."""

    def attempts(self) -> list[AttemptPlan]:
        members = range(self.size)
        return [AttemptPlan(self.stage, self.task, self.harness, i, self.number) for i in members]


def training_groups(
    step: int, tasks: Sequence[Task], groups: dict[str, int], size: int
) -> list[GroupPlan]:
    """The groups of one rollout step: `groups[harness]` groups each, tasks taken in turn.

    Every harness gets its own tasks, and step k continues where step k - 1 stopped, so the
    schedule is a pure function of the step and repeats under the same run file.
    """
    per_step = sum(groups.values())
    plans: list[GroupPlan] = []
    seen: Counter[tuple[str, str]] = Counter()
    at = step * per_step
    for harness, count in groups.items():
        for _ in range(count):
            task = tasks[at % len(tasks)]
            number = seen[harness, task.id]
            seen[harness, task.id] += 1
            plans.append(GroupPlan(f"train/{step:04d}", task, harness, size, number))
            at += 1
    return plans
