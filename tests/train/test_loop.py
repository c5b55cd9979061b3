"""The training loop: pacing, commits, refusals. Rollouts and learner are stand-ins that count."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from armillary.errors import LearnerError
from armillary.record.calls import ModelCall, PolicySpan, PromptRef
from armillary.record.codec import AttemptOpened, UpdateApplied
from armillary.record.journal import Journal, read_journal
from armillary.record.outcomes import Graded, Outcome, Ungraded
from armillary.record.tokens import TokenSequence
from armillary.record.tree import TokenTree
from armillary.rollout.attempt import FinishedAttempt
from armillary.rollout.plan import GroupPlan
from armillary.rollout.scheduler import Group, Scheduler
from armillary.train.checkpoints import Checkpoints
from armillary.train.grpo import make_batch
from armillary.train.loop import LoopSettings, TrainingLoop
from armillary.train.protocol import Learner, Optimizer, StepMetrics
from armillary.train.tracker import JsonlTracker, read_metrics


def attempt(name: str, outcome: Outcome, cut: int = 0) -> FinishedAttempt:
    tree = TokenTree()
    tree.add(
        ModelCall(
            session=name, index=0, prompt=PromptRef(None, TokenSequence([1, 2])), prompt_length=2,
            output_ids=np.array([3], np.int32), output_logprobs=np.array([-1], np.float32),
            policy=(PolicySpan(0, 1, 0),), stop_reason="stop",
        )
    )  # fmt: skip
    opened = AttemptOpened(name, "train/0", "train", "t", "loop", "g", 0, 0, 0.0)
    facts = {"model_calls": 1, "tool_calls": 1, "seconds": 0.1, "cut_calls": cut}
    facts["output_tokens"] = 1
    return FinishedAttempt(opened, outcome, facts, tree)


def group(step: int, rewards: list[float | None], cut: int = 0) -> Group:
    members = tuple(
        attempt(
            f"s{step}#{i}",
            Ungraded("engine", "x") if r is None else Graded(r, "submitted", {"reward": r}),
            cut,
        )
        for i, r in enumerate(rewards)
    )
    return Group(cast(GroupPlan, None), members, members)


class CountingLearner:
    def __init__(self) -> None:
        self.updates = 0
        self.trained: list[str] = []
        self.refuse = ""

    async def step(self, rows: Any, **_: Any) -> StepMetrics:
        if self.refuse:
            return StepMetrics(False, self.refuse)
        self.updates += 1
        self.trained += [row.attempt for row in rows]
        return StepMetrics(True, values={"loss/policy": 0.5})

    async def publish(self) -> int:
        return self.updates

    async def save(self, path: Path) -> None:
        path.mkdir()


class Rollouts:
    """Notes at which update each rollout step began."""

    def __init__(self, learner: CountingLearner, rewards: list[float | None], cut: int = 0) -> None:
        self.learner = learner
        self.rewards = rewards
        self.cut = cut
        self.began: list[tuple[int, int]] = []

    async def run_groups(self, plans: list[int]) -> list[Group]:
        (step,) = plans
        self.began.append((step, self.learner.updates))
        await asyncio.sleep(0.002)
        return [group(step, self.rewards, self.cut)]


def loop_of(tmp_path: Path, journal: Journal, rollouts: Rollouts, **settings: Any) -> TrainingLoop:
    return TrainingLoop(
        LoopSettings(settings.pop("steps", 5), Optimizer(1e-3, 0), **settings),
        lambda step: cast("list[GroupPlan]", [step]),
        cast(Scheduler, rollouts),
        cast(Learner, rollouts.learner),
        Checkpoints(tmp_path / "checkpoints"),
        journal,
        JsonlTracker(tmp_path / "metrics.jsonl"),
    )


@pytest.mark.parametrize("staleness", [0, 1, 3])
async def test_the_staleness_limit_is_kept_before_the_cost_is_paid(
    tmp_path: Path, staleness: int
) -> None:
    journal = Journal(tmp_path / "j")
    rollouts = Rollouts(CountingLearner(), [0.0, 1.0])
    await loop_of(tmp_path, journal, rollouts, max_staleness=staleness).run(0)
    journal.close()
    lags = [step - updates for step, updates in rollouts.began]
    assert [step for step, _ in rollouts.began] == list(range(5))
    assert max(lags) == min(staleness, 4)
    assert min(lags) >= 0


async def test_each_attempt_is_committed_once_and_a_resume_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    rollouts = Rollouts(CountingLearner(), [0.0, 1.0, None])
    await loop_of(tmp_path, journal, rollouts, steps=3, checkpoint_every=2).run(0)
    await loop_of(tmp_path, journal, rollouts, steps=5).run(3)
    journal.close()
    updates = [e for e in read_journal(tmp_path / "j").entries if isinstance(e, UpdateApplied)]
    assert [u.step for u in updates] == [2, 3, 4, 5]
    committed = Counter(name for u in updates for name in u.attempts)
    assert committed == Counter(rollouts.learner.trained)
    assert set(committed.values()) == {1}
    latest = Checkpoints(tmp_path / "checkpoints").latest()
    assert latest is not None
    assert (latest.step, latest.attempts) == (5, ("s4#0", "s4#1"))
    points = read_metrics(tmp_path / "metrics.jsonl")
    assert [p["step"] for p in points] == [1, 2, 3, 4, 5]
    assert points[0]["reward/mean"] == 0.5
    assert points[0]["rollout/ungraded"] == 1
    assert points[0]["groups/used"] == 1


async def test_a_step_with_nothing_graded_has_no_means(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    rollouts = Rollouts(CountingLearner(), [None, None])
    await loop_of(tmp_path, journal, rollouts, steps=1).run(0)
    journal.close()
    (point,) = read_metrics(tmp_path / "metrics.jsonl")
    assert "reward/mean" not in point
    assert point["rollout/ungraded"] == 2


async def test_a_resume_measures_what_a_kill_cut_short(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    measured: list[int] = []

    async def measure(step: int) -> None:
        measured.append(step)

    loop = loop_of(tmp_path, journal, Rollouts(CountingLearner(), [0.0, 1.0]), steps=4)
    await loop.run(2, after_update=measure)
    journal.close()
    assert measured == [2, 3, 4]


async def test_completions_that_are_nearly_all_cut_stop_the_run_with_the_share(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "j")
    rollouts = Rollouts(CountingLearner(), [0.0, 1.0], cut=1)
    with pytest.raises(LearnerError, match=r"100% of the completions were cut.*output_tokens"):
        await loop_of(tmp_path, journal, rollouts).run(0)
    assert rollouts.learner.updates == 0
    journal.close()


async def test_a_refused_update_stops_the_run_and_commits_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    rollouts = Rollouts(CountingLearner(), [0.0, 1.0])
    rollouts.learner.refuse = "the gradient is not finite"
    with pytest.raises(LearnerError, match="the gradient is not finite"):
        await loop_of(tmp_path, journal, rollouts).run(0)
    assert Checkpoints(tmp_path / "checkpoints").latest() is None
    journal.close()


async def test_a_step_without_contrast_is_counted_and_committed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    rollouts = Rollouts(CountingLearner(), [1.0, 1.0])
    await loop_of(tmp_path, journal, rollouts, steps=2).run(0)
    journal.close()
    assert rollouts.learner.updates == 0
    points = read_metrics(tmp_path / "metrics.jsonl")
    assert [p["groups/skipped_equal"] for p in points] == [1, 1]


def test_a_batch_leaves_out_what_teaches_nothing_and_counts_it() -> None:
    groups = [
        group(0, [0.0, 1.0, None]), group(1, [1.0, 1.0]), group(2, [None, 1.0]),
        group(3, [0.0, 0.0, 1.0, 1.0]),
    ]  # fmt: skip
    batch = make_batch(groups)
    assert batch.groups == {"used": 2, "skipped_equal": 1, "too_few_graded": 1}
    assert batch.attempts == ("s0#0", "s0#1", "s3#0", "s3#1", "s3#2", "s3#3")
    by_attempt = {row.attempt: row.advantage for row in batch.rows}
    assert by_attempt["s0#1"] == pytest.approx(0.7071, abs=1e-4)
    assert sum(by_attempt.values()) == pytest.approx(0, abs=1e-9)
