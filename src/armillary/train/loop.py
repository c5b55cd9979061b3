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
from armillary.record.outcomes import Graded
from armillary.rollout.attempt import FinishedAttempt
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
    _uncommitted: list[str] = field(default_factory=list[str])
    """Attempts trained since the last checkpoint."""
    _version: int = -1
    """Policy version of the latest publish."""

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
                waited = time.monotonic() - began
                values = {**await self._update(step, groups), "time/rollout": waited}
                values["time/step"] = time.monotonic() - began
                self.tracker.log(step + 1, values)
                if on_step is not None:
                    on_step(step + 1, values)
                if after_update is not None:
                    await after_update(step + 1)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _update(self, step: int, groups: Sequence[Group]) -> dict[str, Any]:
        began = time.monotonic()
        attempts = [a for g in groups for a in g.members]
        values = rollout_metrics(attempts)
        self._refuse_cut(step, values)
        batch = make_batch(groups, self.settings.normalisation)
        metrics = await self._learn(batch)
        values |= {f"groups/{name}": count for name, count in batch.groups.items()}
        values |= metrics.values
        values["tokens/trained"] = sum(row.trained_tokens for row in batch.rows)
        if metrics.applied:
            self._version = values["policy/version"] = await self.learner.publish()
        await self._commit(step, batch)
        values["time/update"] = time.monotonic() - began
        return values

    async def _learn(self, batch: Batch) -> StepMetrics:
        if not batch.rows:
            return StepMetrics(applied=False, refused="no group had contrast")
        metrics = await self.learner.step(
            batch.rows, loss=self.settings.loss, optimizer=self.settings.optimizer
        )
        if not metrics.applied:
            raise LearnerError(f"the update was refused: {metrics.refused}")
        return metrics

    async def _commit(self, step: int, batch: Batch) -> None:
        """Save and commit update `step`; see the module's opening."""
        self._uncommitted += batch.attempts
        done = step + 1
        if done % self.settings.checkpoint_every and done != self.settings.steps:
            return
        trained, self._uncommitted = tuple(self._uncommitted), []
        await self.learner.save(self.checkpoints.folder(done))
        await asyncio.to_thread(self.checkpoints.commit, done, trained, self._version)
        await self.recorder.append(UpdateApplied(done, self._version, trained))

    def _refuse_cut(self, step: int, values: Mapping[str, Any]) -> None:
        share = values["length/cut_share"]
        if share > self.settings.cut_share_limit:
            raise LearnerError(
                f"step {step}: {share:.0%} of the completions were cut by the length limit; raise "
                "[budget] output_tokens or train the format first (the limit for this share is "
                f"{self.settings.cut_share_limit:.0%})"
            )


def rollout_metrics(attempts: Sequence[FinishedAttempt]) -> dict[str, Any]:
    """`area/name` -> value over the attempts of one step, in all and per harness."""
    values = _metrics_of(attempts)
    for harness in sorted({a.opened.harness for a in attempts}):
        own = [a for a in attempts if a.opened.harness == harness]
        values |= {f"{name}/{harness}": v for name, v in _metrics_of(own).items()}
    return values


def _metrics_of(attempts: Sequence[FinishedAttempt]) -> dict[str, Any]:
    graded = [a for a in attempts if isinstance(a.outcome, Graded)]
    rewards = [a.outcome.reward for a in graded if isinstance(a.outcome, Graded)]
    endings = [a.outcome.stop_reason for a in graded if isinstance(a.outcome, Graded)]
    right = [a.outcome.correct for a in graded if isinstance(a.outcome, Graded)]

    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values)) if values else float("nan")

    calls = sum(a.facts["model_calls"] for a in attempts)
    return {
        "reward/mean": mean(rewards),
        "reward/correct": mean([float(r) for r in right]),
        "rollout/graded": len(graded),
        "rollout/ungraded": len(attempts) - len(graded),
        "rollout/tool_calls": mean([a.facts["tool_calls"] for a in graded]),
        "rollout/turns": mean([a.facts["model_calls"] for a in graded]),
        "rollout/output_tokens": mean([a.facts["output_tokens"] for a in graded]),
        "rollout/submitted": mean([float(reason == "submitted") for reason in endings]),
        "rollout/seconds": mean([a.facts["seconds"] for a in graded]),
        "length/cut_share": sum(a.facts["cut_calls"] for a in attempts) / max(calls, 1),
    }
