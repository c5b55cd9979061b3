"""One model call, as it really happened.

A `ModelCall` keeps the exact prompt ids, the exact sampled ids, and the behaviour policy's
log-probability of each sampled id. The prompt is stored as a reference to an earlier call of the
same session plus the ids that are new, so a long conversation costs memory and disk in proportion
to its new tokens, never to turns x tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from armillary.errors import RecordError
from armillary.record.tokens import Ids, Logprobs, TokenSequence

CaptureLevel = Literal["text", "logprobs", "tokens"]
"""What an engine gives back. Only `tokens` (ids and logprobs) can train."""

StopReason = Literal["stop", "tool_calls", "length", "context", "cancelled", "error"]
"""Why sampling ended. `length` = the output limit, `context` = the model's window was full."""

ForkReason = Literal[
    "first",
    "retry",
    "turn deleted",
    "rewritten",
    "reasoning dropped",
    "compacted",
    "truncated",
    "system changed",
    "tools changed",
    "new conversation",
]
"""Why a prompt is not simply the latest recorded conversation plus something new."""


@dataclass(frozen=True, slots=True)
class PolicySpan:
    """Sampled tokens `[start, start + length)` of one call came from one policy version."""

    start: int
    length: int
    version: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Where and why a prompt left the recorded history."""

    at_message: int
    """Index of the first message that differs."""
    reason: ForkReason


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. The run's own replace the harness's; both are recorded."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = no limit."""
    max_tokens: int = 256
    """Most tokens one call may sample, end token included."""
    seed: int = 0
    """Seed of this call's random numbers, derived from attempt and call number."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds since the epoch."""

    queued: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class PromptRef:
    """A prompt as `(prompt + output of call `parent`) + delta`; `parent` None = a root."""

    parent: int | None
    delta: TokenSequence


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of one session. Arrays are read-only; lengths are checked on construction."""

    session: str
    index: int
    """Arrival number in its session, from 0, without gaps."""
    prompt: PromptRef
    prompt_length: int
    """Length of the whole prompt, so that a broken reference is noticed."""
    output_ids: Ids
    output_logprobs: Logprobs
    """Log-probability of each sampled id under the behaviour policy, after temperature and
    truncation: the distribution that was really sampled from."""
    policy: tuple[PolicySpan, ...]
    """Covers the output exactly, in order."""
    stop_reason: StopReason
    dialect: str = "session"
    engine: str = ""
    level: CaptureLevel = "tokens"
    fork: Fork | None = None
    """None = exact continuation of the parent."""
    n_tools: int = 0
    system_digest: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    """Used."""
    sampling_asked: dict[str, object] = field(default_factory=dict[str, object])
    """What the harness asked for, by its own field names."""
    request: bytes = b""
    """The request as received, without the messages that the parent already holds."""
    response: bytes = b""
    """The assistant turn as returned, JSON."""
    times: Times = field(default_factory=Times)
    findings: tuple[str, ...] = ()
    """What of the request could not be honoured."""
    faults: tuple[str, ...] = ()
    """What was wrong with the turn the model sampled."""
    trainable: bool = True
    untrainable_reason: str = ""
    delivered: bool = True
    """False: the agent hung up before the last byte. Such a call never trains."""

    def __post_init__(self) -> None:
        n = len(self.output_ids)
        where = f"call {self.index} of session {self.session}"
        if self.level == "tokens" and len(self.output_logprobs) != n:
            raise RecordError(f"{where}: {n} sampled ids but {len(self.output_logprobs)} logprobs")
        if sum(span.length for span in self.policy) != n:
            raise RecordError(f"{where}: policy spans do not cover the {n} sampled ids")
        lp = self.output_logprobs
        if len(lp) and not bool(np.all(np.isfinite(lp) & (lp <= 0))):
            raise RecordError(f"{where}: a logprob is positive or not finite")
        for array in (self.output_ids, self.output_logprobs):
            array.flags.writeable = False

    @property
    def policy_version(self) -> int:
        """Version at the first sampled token, -1 if nothing was sampled."""
        return self.policy[0].version if self.policy else -1
