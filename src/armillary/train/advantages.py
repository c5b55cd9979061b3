"""Advantages of a group: how much better than its siblings an attempt was.

A group is several attempts at the same task. Only graded members count: an ungraded one has no
reward, gets no advantage and moves no baseline. A group whose graded rewards are exactly equal, or
that has fewer than two, says nothing: it is skipped, and the reason is part of the result.

Formulas, r the graded rewards of one group of size n:

    none            A_i = r_i - mean(r)                         (Dr. GRPO, arXiv 2503.20783)
    std             A_i = (r_i - mean(r)) / std(r, ddof=1)      (GRPO, arXiv 2402.03300)
    leave-one-out   A_i = r_i - mean(r without r_i)             (RLOO, arXiv 2402.14740)

Dividing by the standard deviation makes every group's advantages equally large, so it blows a
small gap in efficiency up to the size of right against wrong. That is a choice of the run file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from armillary.errors import RecordError

Normalisation = Literal["std", "none", "leave-one-out"]
SkipReason = Literal["skipped_equal", "too_few_graded"]


class GroupResult(NamedTuple):
    advantages: tuple[float | None, ...]
    """One per member; None for ungraded members, and for all of a skipped group."""
    skipped: SkipReason | None
    """Why the group teaches nothing, or None."""


def group_advantages(
    rewards: Sequence[float | None], normalisation: Normalisation = "std"
) -> GroupResult:
    """Advantages of one group; a reward of None is an ungraded member.

    Raises:
        RecordError: a reward is not finite.
    """
    graded = np.array([r for r in rewards if r is not None], dtype=np.float64)
    if not np.isfinite(graded).all():
        raise RecordError(f"a reward is not finite: {list(rewards)}")
    nothing = (None,) * len(rewards)
    if len(graded) < 2:
        return GroupResult(nothing, "too_few_graded")
    if (graded == graded[0]).all():
        return GroupResult(nothing, "skipped_equal")
    values = iter(_normalised(graded, normalisation).tolist())
    return GroupResult(tuple(None if r is None else next(values) for r in rewards), None)


def _normalised(graded: np.ndarray, normalisation: Normalisation) -> np.ndarray:
    advantages = graded - graded.mean()
    if normalisation == "leave-one-out":
        return advantages * len(graded) / (len(graded) - 1)
    if normalisation == "std":
        # In units of the largest gap, so that the squares of tiny gaps do not vanish.
        gap = np.ptp(graded)
        return (advantages / gap) / (graded / gap).std(ddof=1)
    return advantages
