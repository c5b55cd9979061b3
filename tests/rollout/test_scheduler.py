"""Names, retries and resumes: what the scheduler decides, with attempts played by a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from armillary.engine.scripted import ScriptedEngine
from armillary.errors import EngineError
from armillary.record.codec import AttemptClosed, AttemptOpened
from armillary.record.outcomes import Graded, Outcome, Ungraded
from armillary.record.store import AttemptRecord
from armillary.record.tree import TokenTree
from armillary.rollout import scheduler as scheduling
from armillary.rollout.attempt import FinishedAttempt, Station
from armillary.rollout.plan import AttemptPlan, GroupPlan, training_groups
from armillary.rollout.scheduler import Scheduler
from armillary.tasks.folder import Task

TASK = Task("test/t1", Path("nowhere"), "do it", {}, 1.0, {})
GOOD = Graded(1.0, "submitted", {"reward": 1.0})
HICCUP = Ungraded("engine", "hiccup", retryable=True)
BROKEN = Ungraded("harness", "broken", retryable=False)


def opened(plan: AttemptPlan) -> AttemptOpened:
    number = plan.try_number + plan.lost
    return AttemptOpened(
        plan.attempt, plan.stage, "test", "test/t1", "loop", plan.group, plan.repeat, number, 0.0
    )


class Stage:
    """Plays attempts: outcomes in order, then good ones."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes: Iterator[Outcome] = iter(outcomes)
        self.played: list[str] = []
        self.seeds: list[str] = []
        self.engine = ScriptedEngine(lambda *_: pytest.fail("nothing is sampled here"))

    async def run_attempt(self, plan: AttemptPlan, station: Station) -> FinishedAttempt:
        self.played.append(plan.attempt.rpartition("#")[2])
        self.seeds.append(plan.seed_name.rpartition("#")[2])
        return FinishedAttempt(opened(plan), next(self.outcomes, GOOD), {}, TokenTree())

    def scheduler(self, known: dict[str, AttemptRecord], retries: int = 2) -> Scheduler:
        station = SimpleNamespace(policy=SimpleNamespace(engine=self.engine))
        stations = {"loop": cast(Station, station)}
        return Scheduler(stations, {"loop": 1}, retries=retries, known=known)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch):
    def make(*outcomes: Outcome) -> Stage:
        stage = Stage(list(outcomes))
        monkeypatch.setattr(scheduling, "run_attempt", stage.run_attempt)
        return stage

    return make


def record(name: str, outcome: Outcome | None) -> dict[str, AttemptRecord]:
    """One attempt of an earlier start; None = it never ended."""
    plan = AttemptPlan("eval/x", TASK, "loop", 0, try_number=int(name.rpartition(".")[2]))
    closed = None if outcome is None else AttemptClosed(plan.attempt, outcome, {})
    return {plan.attempt: AttemptRecord(opened(plan), closed=closed)}


GROUP = [GroupPlan("eval/x", TASK, "loop", 1)]


async def test_failures_of_an_earlier_start_cost_no_retry_of_this_one(play) -> None:
    known = {**record("0.0", HICCUP), **record("0.1", HICCUP), **record("0.2", HICCUP)}
    stage = play(HICCUP)
    (group,) = await stage.scheduler(known, retries=1).run_groups(GROUP)
    assert stage.played == ["0.3", "0.4"]
    assert group.members[0].outcome == GOOD
    assert len(group.tries) == 5


async def test_a_lost_try_then_a_failed_one_never_share_a_name(play) -> None:
    stage = play(HICCUP, HICCUP)
    (group,) = await stage.scheduler(record("0.0", None)).run_groups(GROUP)
    assert stage.played == ["0.1", "0.2", "0.3"]
    # The try that was lost is sampled as it would have been; a retry is not.
    assert stage.seeds == ["0.0", "0.1", "0.2"]
    assert group.members[0].outcome == GOOD


async def test_what_cannot_be_retried_stays_as_recorded(play) -> None:
    stage = play()
    known = {**record("0.0", BROKEN)}
    groups = [*GROUP, GroupPlan("eval/x", TASK, "loop", 1, number=1)]
    (kept, new) = await stage.scheduler(known).run_groups(groups)
    assert kept.members[0].outcome == BROKEN
    assert new.members[0].outcome == GOOD
    assert stage.played == ["0.0"]


async def test_a_cancelled_try_is_begun_again(play) -> None:
    stage = play()
    await stage.scheduler(record("0.0", Ungraded("cancelled", "x", False))).run_groups(GROUP)
    assert stage.played == ["0.1"]


async def test_a_dead_engine_ends_the_run_instead_of_shrinking_it(play) -> None:
    stage = play()
    stage.engine.failure = EngineError("the model process ended with signal 9", retryable=True)
    with pytest.raises(ExceptionGroup) as caught:
        await stage.scheduler({}).run_groups([GroupPlan("eval/x", TASK, "loop", 4)])
    assert caught.group_contains(EngineError, match="signal 9")
    assert stage.played == []


def test_groups_that_share_a_task_in_one_step_have_their_own_names() -> None:
    groups = training_groups(3, [TASK, TASK], {"loop": 6}, 8)
    names = [a.attempt for g in groups for a in g.attempts()]
    assert len(set(names)) == 48
