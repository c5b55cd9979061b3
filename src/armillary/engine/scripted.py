"""An engine that plays a given policy: for wire tests and demonstrations.

Deterministic, so every sampled id has probability 1 and logprob 0. It samples nothing and learns
nothing; it exists so that a real harness, proxy and sandbox can run without a model.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable

import numpy as np

from armillary.engine.protocol import Capabilities, EngineEvent, Finish, Span, Usage
from armillary.errors import EngineError
from armillary.record.calls import Sampling
from armillary.record.tokens import Ids, TokenSequence

Policy = Callable[[str, int, TokenSequence], Ids]
"""(session, number of this call in its session from 0, prompt) -> ids of the whole reply."""


class ScriptedEngine:
    """Plays `policy`."""

    def __init__(
        self, policy: Policy, *, context: int = 1 << 20, seconds_per_token: float = 0.0
    ) -> None:
        self._policy = policy
        self._calls: defaultdict[str, int] = defaultdict(int)
        self._seconds_per_token = seconds_per_token
        self.capabilities = Capabilities("scripted", "tokens", context)
        self.failure: EngineError | None = None
        """A test may set it: the engine is then gone."""

    async def generate(
        self, prompt: TokenSequence, sampling: Sampling, *, n: int = 1, session: str = ""
    ) -> AsyncGenerator[EngineEvent]:
        number = self._calls[session]
        self._calls[session] += 1
        reply = self._policy(session, number, prompt)
        ids = reply[: sampling.max_tokens]
        for branch in range(n):
            for token in ids:
                await asyncio.sleep(self._seconds_per_token)
                yield Span(branch, np.array([token], np.int32), np.zeros(1, np.float32), 0)
            reason = "length" if len(ids) < len(reply) else "stop"
            yield Finish(branch, reason, Usage(len(prompt), len(ids)))

    async def end_session(self, session: str) -> None:
        self._calls.pop(session, None)

    async def close(self) -> None:
        self._calls.clear()
