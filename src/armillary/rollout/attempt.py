"""One attempt, from an opened sandbox to a recorded outcome. The same for every harness.

What it guarantees: an attempt that was opened in the record is closed there, with an outcome;
whatever fails is a typed value and reaches nobody else's attempt; the verifier runs after every
ending that the policy caused, and after no other. Where the policy left the verifier nothing to
run in, the reward is 0: if that were ungraded, it would be a way out of a wrong answer.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from armillary.capture.session import Policy, Recorder, Session, SessionBudget
from armillary.errors import RecordError, SandboxError
from armillary.harness.protocol import Budget, Harness
from armillary.record.codec import AttemptClosed, AttemptOpened
from armillary.record.outcomes import Ending, Graded, Outcome, Ungraded
from armillary.record.rows import TrainingRow
from armillary.record.tree import TokenTree
from armillary.rollout.failures import classify
from armillary.rollout.grading import VERIFIER_FOLDERS, SpoiledError, grade
from armillary.rollout.plan import AttemptPlan
from armillary.rollout.rewards import RewardRule
from armillary.sandbox.dockerfile import image_spec
from armillary.sandbox.protocol import Limits, Sandbox, SandboxProvider, Spec

OUR_SHARE_LIMIT = 0.5
"""An attempt that ran out of time is ungraded if our engine took more than this share of it."""
NOT_VERIFIED: dict[str, float] = {"reward": 0.0}
"""Scores of an attempt that used up what the verifier would run in."""


@dataclass(frozen=True, slots=True)
class Station:
    """Everything attempts of one harness share."""

    harness: Harness
    provider: SandboxProvider
    policy: Policy
    budget: Budget
    reward: RewardRule
    recorder: Recorder
    limits: Limits = field(default_factory=Limits)
    our_share_limit: float = OUR_SHARE_LIMIT


@dataclass(frozen=True, slots=True)
class FinishedAttempt:
    """An attempt that is over, as the record has it."""

    opened: AttemptOpened
    outcome: Outcome
    facts: dict[str, Any]
    tree: TokenTree

    def rows(self) -> list[TrainingRow]:
        return self.tree.rows(attempt=self.opened.attempt, harness=self.opened.harness)


async def run_attempt(plan: AttemptPlan, station: Station) -> FinishedAttempt:
    """Run, grade and record one attempt.

    Where the journal takes no entries (a full disk), the attempt is ungraded and the run goes on;
    what is not in the journal as closed will be run again.

    Raises:
        asyncio.CancelledError: it was cancelled; the record says so.
    """
    opened = AttemptOpened(
        attempt=plan.attempt, stage=plan.stage, split=plan.task.split, task=plan.task.id,
        harness=plan.harness, group=plan.group, repeat=plan.repeat,
        try_number=plan.try_number + plan.lost, opened_at=time.time(),
    )  # fmt: skip
    session = Session(
        plan.attempt, station.policy, station.recorder,
        SessionBudget(station.budget.calls, station.budget.total_tokens), station.harness.closing,
        seed_name=plan.seed_name,
    )  # fmt: skip
    began = time.monotonic()

    def finished(outcome: Outcome) -> FinishedAttempt:
        return FinishedAttempt(opened, outcome, _facts(session, began), session.tree)

    try:
        await station.recorder.append(opened)
        done = finished(await _outcome(plan, station, session))
    except asyncio.CancelledError as error:
        closed = AttemptClosed(plan.attempt, classify(error), _facts(session, began))
        station.recorder.append_soon(closed)
        raise
    except RecordError as error:
        return finished(classify(error))
    try:
        # Once this is asked for, it is written: a cancellation now must not add a second outcome.
        await station.recorder.append(AttemptClosed(plan.attempt, done.outcome, done.facts))
    except RecordError as error:
        return finished(classify(error))
    return done


async def _outcome(plan: AttemptPlan, station: Station, session: Session) -> Outcome:
    try:
        return await _graded(plan, station, session)
    except Exception as error:
        return classify(error)
    finally:
        await session.close()


async def _graded(plan: AttemptPlan, station: Station, session: Session) -> Outcome:
    spec = await asyncio.to_thread(_spec, plan.task.environment, station.limits)
    sandbox = await station.provider.open(spec)
    try:
        began = time.monotonic()
        ending = await _ended(plan, station, session, sandbox)
        if session.fault is not None:
            raise session.fault
        seconds, ours = time.monotonic() - began, session.counts.engine_seconds
        if ending.reason == "agent_time" and ours > station.our_share_limit * seconds:
            return Ungraded("engine", f"our engine took {ours:.1f} s of {seconds:.1f} s")
        ending, scores = await _scored(plan, session, sandbox, spec.workdir, ending)
    finally:
        await sandbox.close()
    reward = station.reward(scores, session.counts.tool_calls)
    return Graded(reward, ending.reason, scores)


async def _ended(plan: AttemptPlan, station: Station, session: Session, sandbox: Sandbox) -> Ending:
    """How the attempt ended; afterwards no process of it is left."""
    try:
        ending = await _run(plan, station, session, sandbox)
        # Here and not only before grading: what these processes still use is the attempt's.
        await sandbox.end_processes()
    except SandboxError as fault:
        if fault.kind != "limit" or not _acted(session):
            raise
        return Ending("resource_limit", str(fault))
    return ending


async def _scored(
    plan: AttemptPlan, session: Session, sandbox: Sandbox, workdir: str, ending: Ending
) -> tuple[Ending, dict[str, float]]:
    """The scores, and the ending that they count for."""
    if ending.reason == "resource_limit":
        return ending, dict(NOT_VERIFIED)
    try:
        return ending, await grade(plan.task, sandbox, workdir)
    except SpoiledError as spoiled:
        if not _acted(session):
            raise
        return Ending("resource_limit", str(spoiled)), dict(NOT_VERIFIED)


def _acted(session: Session) -> bool:
    """Whether the policy has run anything; before that, what goes wrong is never its doing."""
    return session.counts.tool_calls > 0


async def _run(plan: AttemptPlan, station: Station, session: Session, sandbox: Sandbox) -> Ending:
    limit = station.budget.seconds
    try:
        async with asyncio.timeout(limit):
            return await station.harness.run(
                plan.task.instruction, session, sandbox, station.budget
            )
    except TimeoutError:
        return Ending("agent_time", f"over after {limit:g} s")


def _spec(environment: Path, limits: Limits) -> Spec:
    spec = image_spec(environment)
    folders = (*spec.folders, *VERIFIER_FOLDERS)
    return Spec(spec.files, spec.env, folders, spec.workdir, limits)


def _facts(session: Session, began: float) -> dict[str, Any]:
    """What the report wants to know and the calls alone do not say."""
    counts = session.counts
    rows = session.tree.rows()
    forks = [c.fork.reason for c in session.tree.calls() if c.fork and c.fork.reason != "first"]
    return {
        "seconds": time.monotonic() - began,
        "model_calls": counts.calls,
        "tool_calls": counts.tool_calls,
        "unknown_tool_calls": counts.unknown_tools,
        "malformed_calls": counts.malformed,
        "cut_calls": counts.cut,
        "closing_replies": counts.closing_replies,
        "prompt_tokens": counts.prompt_tokens,
        "output_tokens": counts.output_tokens,
        "engine_seconds": counts.engine_seconds,
        "rows": len(rows),
        "row_tokens": sum(len(row.tokens) for row in rows),
        "supervised_tokens": sum(row.trained_tokens for row in rows),
        "policy_version": min((row.policy_version for row in rows), default=-1),
        "forks": forks,
    }
