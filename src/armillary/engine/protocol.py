"""The engine seam: token ids in, token ids and logprobs out.

An engine knows nothing about text. Whatever samples (a local model, a remote server, a script) is
behind this protocol, so a rollout never learns which one it is. Adding an engine is one new file;
the command line chooses between engines where it brings a run up (`cli.pipeline`, `cli.rollout`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from armillary.errors import EngineError
from armillary.record.calls import CaptureLevel, Sampling, StopReason
from armillary.record.tokens import Ids, Logprobs, TokenSequence


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do, proved at start where it can be."""

    name: str
    level: CaptureLevel
    context: int
    """Most tokens of prompt and output together."""
    images: bool = False
    logprobs_processed: bool = True
    """Logprobs are those of the distribution sampled from (after temperature)."""
    branches: bool = True
    """`n > 1` is supported."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some sampled tokens of one branch, in order, all from one policy version."""

    branch: int
    ids: Ids
    logprobs: Logprobs
    """float32, one per id; empty below capture level `logprobs`."""
    policy_version: int


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that needed no computation."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Last event of a branch."""

    branch: int
    reason: StopReason
    usage: Usage


EngineEvent = Span | Finish


class Engine(Protocol):
    """Samples continuations of token sequences."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def failure(self) -> EngineError | None:
        """Why every later call will fail, or None while the engine is there."""
        ...

    def generate(
        self, prompt: TokenSequence, sampling: Sampling, *, n: int = 1, session: str = ""
    ) -> AsyncGenerator[EngineEvent]:
        """Sample `n` branches of `prompt`; each ends with one `Finish`.

        The end token, when sampled, is part of the last span. `session` lets the engine keep the
        KV cache of a conversation between calls; it changes no result. Closing the iterator
        cancels the call.

        Raises:
            EngineError: the engine failed or refused; `retryable` says which.
        """
        ...

    async def end_session(self, session: str) -> None:
        """Forget what is kept for `session`."""
        ...

    async def close(self) -> None: ...
