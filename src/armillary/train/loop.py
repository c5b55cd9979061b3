"""The training loop: rollouts on one side, updates on the other, a staleness limit between.

Rollout step k may start once update k - `max_staleness` has happened, so the limit is kept before
the cost is paid; 0 is in step. Each update is: rows from the groups, one learner step, publish
(the engine's probe proves that it has the weights), save, commit. The commit is the moment the
update counts; a run killed anywhere continues from the last one with the recorded attempts of the
open step.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from armillary.capture.session import Recorder
from armillary.errors import LearnerError
from armillary.record.codec import UpdateApplied
from armillary.record.outcomes import Graded, Ungraded
from armillary.rollout.plan import GroupPlan
from armillary.rollout.scheduler import Group, Scheduler
from armillary.train.advantages import Normalisation
from armillary.train.checkpoints import Checkpoints
from armillary.train.grpo import Batch, make_batch
from armillary.train.protocol import Learner, Optimizer, PolicyLoss, StepMetrics
from armillary.train.tracker import Tracker


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How a training run goes."""

    steps: int
    """Updates."""
    optimizer: Optimizer
    loss: PolicyLoss = field(default_factory=PolicyLoss)
    normalisation: Normalisation = "std"
    max_staleness: int = 0
    """Updates by which an attempt's start may lag behind the update that trains it."""
    cut_share_limit: float = 0.9
    """A step in which more of the completions hit the length limit stops the run."""
    checkpoint_every: int = 1
    """Updates between checkpoints; a kill repeats at most so many updates."""


_NEW_NAME = (
    "The attempts of this step are recorded and would be used again: after a change of settings, "
    "start under a new --name"
)
PlanStep = Callable[[int], Sequence[GroupPlan]]
AfterUpdate = Callable[[int], Awaitable[None]]
OnStep = Callable[[int, Mapping[str, Any]], None]


@dataclass(slots=True)
class TrainingLoop:
    """Runs rollout steps and updates."""

    settings: LoopSettings
    plan: PlanStep
    scheduler: Scheduler
    learner: Learner
    checkpoints: Checkpoints
    recorder: Recorder
    tracker: Tracker
    version: int = -1
    """Policy version of the latest publish; at first, of the loaded weights."""
    _uncommitted: list[str] = field(default_factory=list[str])
    """Attempts trained since the last checkpoint."""

    async def run(
        self,
        first: int,
        *,
        on_step: OnStep | None = None,
        after_update: AfterUpdate | None = None,
    ) -> None:
        """Updates `first` .. `settings.steps`; `after_update` runs after each commit.

        Raises:
            LearnerError: an update was refused, or the policy does nothing but hit the length
                limit; the message has the numbers.
        """
        if first and after_update is not None:
            await after_update(first)  # a kill may have cut it short; what is done is not redone
        pending: deque[asyncio.Task[list[Group]]] = deque()
        started = first
        try:
            for step in range(first, self.settings.steps):
                while started <= min(step + self.settings.max_staleness, self.settings.steps - 1):
                    plans = self.plan(started)
                    pending.append(asyncio.ensure_future(self.scheduler.run_groups(plans)))
                    started += 1
                began = time.monotonic()
                groups = await pending.popleft()
                arrived = time.monotonic()
                values = await self._update(step, groups)
                done = time.monotonic()
                times = {"rollout": arrived - began, "update": done - arrived, "step": done - began}
                self.tracker.log(step + 1, {f"time/{name}": t for name, t in times.items()})
                if on_step is not None:
                    on_step(step + 1, values)
                if after_update is not None:
                    await after_update(step + 1)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _update(self, step: int, groups: Sequence[Group]) -> dict[str, Any]:
        values = rollout_metrics(groups)
        self._refuse_cut(step, values)
        batch = make_batch(groups, self.settings.normalisation)
        metrics = await self._learn(batch)
        values |= {f"groups/{name}": count for name, count in batch.groups.items()}
        values |= metrics.values
        values["tokens/trained"] = sum(row.trained_tokens for row in batch.rows)
        if metrics.applied:
            self.version = values["policy/version"] = await self.learner.publish()
        # Before the commit: an update that counts has its metrics.
        self.tracker.log(step + 1, values)
        await self._commit(step, batch)
        return values

    async def _learn(self, batch: Batch) -> StepMetrics:
        if not batch.rows:
            return StepMetrics(applied=False, refused="no group had contrast")
        metrics = await self.learner.step(
            batch.rows, loss=self.settings.loss, optimizer=self.settings.optimizer
        )
        if not metrics.applied:
            raise LearnerError(f"the update was refused: {metrics.refused}. {_NEW_NAME}")
        return metrics

    async def _commit(self, step: int, batch: Batch) -> None:
        """Save and commit update `step`; see the module's opening."""
        self._uncommitted += batch.attempts
        done = step + 1
        if done % self.settings.checkpoint_every and done != self.settings.steps:
            return
        trained, self._uncommitted = tuple(self._uncommitted), []
        await self.learner.save(self.checkpoints.folder(done))
        await asyncio.to_thread(self.checkpoints.commit, done, trained, self.version)
        await self.recorder.append(UpdateApplied(done, self.version, trained))

    def _refuse_cut(self, step: int, values: Mapping[str, Any]) -> None:
        share = values["length/cut_share"]
        if share > self.settings.cut_share_limit:
            raise LearnerError(
                f"step {step}: {share:.0%} of the completions were cut by the length limit; raise "
                "[budget] output_tokens or train the format first (the limit for this share is "
                f"{self.settings.cut_share_limit:.0%}). {_NEW_NAME}"
            )


def rollout_metrics(groups: Sequence[Group]) -> dict[str, Any]:
    """`area/name` -> value over one rollout step, in all and per harness.

    A mean over nothing has no value and is left out.
    """
    values = _metrics_of(groups)
    for harness in sorted({m.opened.harness for g in groups for m in g.members}):
        own = [g for g in groups if g.members[0].opened.harness == harness]
        values |= {f"{name}/{harness}": value for name, value in _metrics_of(own).items()}
    return values


def _metrics_of(groups: Sequence[Group]) -> dict[str, Any]:
    members = [m for g in groups for m in g.members]
    graded = [(m.outcome, m.facts) for m in members if isinstance(m.outcome, Graded)]
    calls = sum(m.facts["model_calls"] for m in members)
    values: dict[str, Any] = {
        "rollout/graded": len(graded),
        "rollout/ungraded": sum(isinstance(t.outcome, Ungraded) for g in groups for t in g.tries),
        "length/cut_share": sum(m.facts["cut_calls"] for m in members) / max(calls, 1),
    }
    if graded:
        means = {
            "reward/mean": [outcome.reward for outcome, _ in graded],
            "reward/correct": [outcome.correct for outcome, _ in graded],
            "rollout/submitted": [outcome.stop_reason == "submitted" for outcome, _ in graded],
            "rollout/tool_calls": [facts["tool_calls"] for _, facts in graded],
            "rollout/turns": [facts["model_calls"] for _, facts in graded],
            "rollout/output_tokens": [facts["output_tokens"] for _, facts in graded],
            "rollout/seconds": [facts["seconds"] for _, facts in graded],
        }
        values |= {name: float(np.mean(of)) for name, of in means.items()}
    return values
