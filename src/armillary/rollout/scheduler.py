"""Many attempts at once, within limits, without losing or repeating any.

Attempts that the record already holds as finished are used as they are; one that was begun and
never ended is begun again under a new number. An ungraded attempt is tried again, a bounded number
of times. Every try stays in the record.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from armillary.errors import RolloutError
from armillary.record.codec import AttemptClosed
from armillary.record.outcomes import Graded, Ungraded
from armillary.record.store import AttemptRecord
from armillary.rollout.attempt import FinishedAttempt, Station, run_attempt
from armillary.rollout.plan import AttemptPlan, GroupPlan

OnFinished = Callable[[FinishedAttempt], None]


@dataclass(frozen=True, slots=True)
class Group:
    """All tries of all members of one group."""

    plan: GroupPlan
    members: tuple[FinishedAttempt, ...]
    """The last try of each member."""
    tries: tuple[FinishedAttempt, ...]
    """Every try, in order of member and try."""


class Scheduler:
    """Runs plans on stations with bounded concurrency per harness."""

    def __init__(
        self,
        stations: Mapping[str, Station],
        concurrency: Mapping[str, int],
        *,
        retries: int,
        known: Mapping[str, AttemptRecord] | None = None,
    ) -> None:
        """`known`: attempts of earlier starts of this run, by name."""
        self._stations = stations
        self._slots = {name: asyncio.Semaphore(n) for name, n in concurrency.items()}
        self._retries = retries
        self._known = dict(known or {})

    async def run_groups(
        self, plans: Sequence[GroupPlan], on_finished: OnFinished | None = None
    ) -> list[Group]:
        """Run all groups; results in the order of `plans`.

        Raises:
            RolloutError: not one attempt of several was graded; going on would measure nothing.
            EngineError: the engine is gone.
        """
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._group(plan, on_finished)) for plan in plans]
        groups = [task.result() for task in running]
        _refuse_all_ungraded(groups)
        return groups

    async def _group(self, plan: GroupPlan, on_finished: OnFinished | None) -> Group:
        async with asyncio.TaskGroup() as tasks:
            members = [
                tasks.create_task(self._member(attempt, on_finished)) for attempt in plan.attempts()
            ]
        tries = [task.result() for task in members]
        return Group(plan, tuple(t[-1] for t in tries), tuple(x for t in tries for x in t))

    async def _member(
        self, plan: AttemptPlan, on_finished: OnFinished | None
    ) -> list[FinishedAttempt]:
        """Tries of one member until one is graded or no retry is left."""
        tries: list[FinishedAttempt] = []
        retries = self._retries
        while True:
            plan, done, now = await self._once(plan)
            tries.append(done)
            if on_finished is not None:
                on_finished(done)
            outcome = done.outcome
            if isinstance(outcome, Graded) or not outcome.retryable:
                return tries
            if not now:
                # What stood in the way then may be gone: an earlier start's failure costs no
                # retry of this one.
                plan = plan.begun_again()
                continue
            if retries == 0:
                return tries
            retries -= 1
            plan = plan.again()

    async def _once(self, plan: AttemptPlan) -> tuple[AttemptPlan, FinishedAttempt, bool]:
        """One try: the plan it was made under, how it ended, and whether it was made now.

        Raises:
            EngineError: the engine is gone, so no attempt can be graded any more.
        """
        while (kept := self._known.get(plan.attempt)) is not None:
            if kept.closed is not None and not _was_cancelled(kept.closed):
                closed = kept.closed
                done = FinishedAttempt(kept.opened, closed.outcome, closed.facts, kept.tree)
                return plan, done, False
            plan = plan.begun_again()
        station = self._stations[plan.harness]
        async with self._slots[plan.harness]:
            if (failure := station.policy.engine.failure) is not None:
                raise failure
            return plan, await run_attempt(plan, station), True


def _refuse_all_ungraded(groups: Sequence[Group]) -> None:
    failures = [m.outcome for g in groups for m in g.members if isinstance(m.outcome, Ungraded)]
    members = sum(len(g.members) for g in groups)
    if len(failures) < members or members < 2:
        return
    ((kind, detail), times) = Counter((f.kind, f.detail) for f in failures).most_common(1)[0]
    raise RolloutError(
        f"none of {members} attempts was graded; most often ({times} times) {kind}: {detail}"
    )


def _was_cancelled(closed: AttemptClosed) -> bool:
    return isinstance(closed.outcome, Ungraded) and closed.outcome.kind == "cancelled"
