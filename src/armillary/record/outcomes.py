"""How an attempt ended, and whether that counts.

The rule: what the *policy* caused is graded, what *we* caused is not. An ungraded attempt has no
reward; it never becomes 0, never enters a baseline, and always shows in the denominators. An
ending nobody foresaw is ungraded. The table of endings is `docs/outcomes.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

FailureKind = Literal["sandbox", "harness", "verifier", "capture", "engine", "cancelled"]
"""Whose fault an ungraded attempt was."""

EndReason = Literal[
    "submitted",
    "gave_up",
    "call_budget",
    "token_budget",
    "context_overflow",
    "malformed_calls",
    "agent_time",
    "agent_killed",
    "resource_limit",
]
"""What the policy did last. Every one of these is graded."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What a harness reports when its attempt is over and the verifier may run."""

    reason: EndReason
    detail: str = ""


class Graded(msgspec.Struct, frozen=True, tag="graded"):
    """The verifier ran and gave a finite reward, or the policy left nothing to run it in."""

    reward: float
    """The reward that trains: the run's reward rule applied to `scores`."""
    stop_reason: EndReason
    scores: dict[str, float] = {}
    """What the verifier wrote, by key; `reward` is correctness in [0, 1]."""

    @property
    def correct(self) -> bool:
        return self.scores.get("reward", 0.0) >= 1.0


class Ungraded(msgspec.Struct, frozen=True, tag="ungraded"):
    """Nobody knows how good the attempt was."""

    kind: FailureKind
    detail: str
    retryable: bool = True


Outcome = Graded | Ungraded


def reward_of(outcome: Outcome) -> float | None:
    """The reward, or None where nothing was graded."""
    return outcome.reward if isinstance(outcome, Graded) else None
