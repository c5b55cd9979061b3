"""From groups of attempts to the rows of one update.

Group = same task, same harness. Advantages come from the group's own rewards; every row of an
attempt carries the attempt's advantage. Groups without contrast are left out and counted; an
ungraded attempt is in no baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from armillary.record.outcomes import reward_of
from armillary.record.rows import TrainingRow
from armillary.rollout.scheduler import Group
from armillary.train.advantages import Normalisation, group_advantages


@dataclass(frozen=True, slots=True)
class Batch:
    """What one update trains, and what was left out."""

    rows: tuple[TrainingRow, ...]
    attempts: tuple[str, ...]
    """Names of the attempts that `rows` came from."""
    groups: Counter[str] = field(default_factory=Counter[str])
    """`used`, `skipped_equal` or `too_few_graded` -> number of groups."""


def make_batch(groups: Sequence[Group], normalisation: Normalisation = "std") -> Batch:
    """The rows of one update over `groups`."""
    rows: list[TrainingRow] = []
    attempts: list[str] = []
    counts: Counter[str] = Counter()
    for group in groups:
        rewards = [reward_of(member.outcome) for member in group.members]
        result = group_advantages(rewards, normalisation)
        counts[result.skipped or "used"] += 1
        for member, advantage in zip(group.members, result.advantages, strict=True):
            if advantage is None or advantage == 0.0:
                continue
            own = [row.with_advantage(advantage) for row in member.rows()]
            if own:
                rows += own
                attempts.append(member.opened.attempt)
    return Batch(tuple(rows), tuple(attempts), counts)
