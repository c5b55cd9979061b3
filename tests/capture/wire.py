"""A real session, proxy and scripted engine, for the tests of this room.

The replies an engine plays are texts in which control texts are control ids; each call of a
session plays the next one. The recorder is a list, or one that holds every commit back until it
is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from armillary.capture.session import (
    ChatRequest,
    Policy,
    Session,
    SessionBudget,
    SessionEvent,
    TurnFinished,
)
from armillary.chat.messages import AssistantTurn, Message, Tool
from armillary.chat.parser import HermesParser
from armillary.chat.raw import raw_ids
from armillary.chat.template import HermesTemplate
from armillary.chat.tokenizer import Tokenizer
from armillary.engine.protocol import Engine, EngineEvent
from armillary.engine.scripted import ScriptedEngine
from armillary.errors import EngineError, RecordError
from armillary.record.calls import ModelCall, Sampling
from armillary.record.codec import Delivery, Entry
from armillary.record.tokens import Ids, TokenSequence

END = "<|im_end|>"
TOOL = Tool("bash", '{"type": "function", "function": {"name": "bash"}}')
ASK = (Message("system", "S"), Message("user", "ask"))
CLOSING = AssistantTurn("The budget is spent.")


def call_text(command: str) -> str:
    return f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "{command}"}}}}\n</tool_call>'


@dataclass
class Shelf:
    """A recorder that keeps entries in memory."""

    entries: list[Entry] = field(default_factory=list[Entry])
    gate: asyncio.Event | None = None
    """While set and not open, no commit is finished."""
    full: bool = False
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Something was appended."""

    async def append(self, entry: Entry) -> None:
        if self.full:
            raise RecordError("the disk is full")
        self.entries.append(entry)
        self.arrived.set()
        if self.gate is not None:
            await self.gate.wait()

    def append_soon(self, entry: Entry) -> None:
        self.entries.append(entry)

    @property
    def calls(self) -> list[ModelCall]:
        return [e for e in self.entries if isinstance(e, ModelCall)]

    @property
    def lost(self) -> list[int]:
        """Calls marked undelivered, in the order of their marks."""
        return [e.index for e in self.entries if isinstance(e, Delivery) and not e.delivered]


@dataclass
class Wire:
    """Makes sessions over one tokenizer."""

    tokenizer: Tokenizer

    def ids(self, text: str) -> Ids:
        return raw_ids(self.tokenizer, text)

    def engine(self, replies: Sequence[str | Ids], **options: float) -> ScriptedEngine:
        said = [self.ids(r) if isinstance(r, str) else r for r in replies]
        context = int(options.pop("context", 1 << 20))
        return ScriptedEngine(lambda _, k, __: said[k], context=context, **options)

    def policy(self, engine: Engine, **sampling: float) -> Policy:
        template = HermesTemplate(self.tokenizer)
        used = Sampling(**{"max_tokens": 1000, **sampling})  # pyright: ignore[reportArgumentType]
        return Policy(template, lambda mint: HermesParser(self.tokenizer, mint), engine, used)

    def session(
        self,
        replies: Sequence[str | Ids] | Engine,
        *,
        shelf: Shelf | None = None,
        budget: SessionBudget | None = None,
        attempt: str = "a",
        closing: AssistantTurn = CLOSING,
    ) -> Session:
        engine = self.engine(replies) if isinstance(replies, Sequence) else replies
        return Session(
            attempt, self.policy(engine), shelf or Shelf(), budget or SessionBudget(0), closing
        )


class FailingEngine(ScriptedEngine):
    """Plays like a scripted engine, but each of the first calls fails after some tokens."""

    def __init__(self, policy: Callable[[], Ids], *, after: int, error: Exception) -> None:
        super().__init__(lambda *_: policy())
        self._after = after
        self._error = error

    async def generate(
        self, prompt: TokenSequence, sampling: Sampling, *, n: int = 1, session: str = ""
    ) -> AsyncGenerator[EngineEvent]:
        count = 0
        async for event in super().generate(prompt, sampling, n=n, session=session):
            if count == self._after:
                raise self._error
            count += 1
            yield event


def retryable() -> EngineError:
    return EngineError("the engine is gone", retryable=True)


async def events_of(session: Session, request: ChatRequest) -> list[SessionEvent]:
    return [event async for event in session.call(request)]


async def ask(
    session: Session, messages: Sequence[Message], tools: Sequence[Tool] = (TOOL,)
) -> TurnFinished:
    *_, last = await events_of(session, ChatRequest(tuple(messages), tuple(tools)))
    assert isinstance(last, TurnFinished)
    return last


async def converse(
    session: Session, opening: Sequence[Message], answers: Sequence[str]
) -> list[Message]:
    """Play a conversation: after each reply, the next of `answers` (to its call, or as a user)."""
    messages = list(opening)
    for text in (*answers, None):
        turn = (await ask(session, messages)).turn
        messages.append(turn.message())
        if text is None:
            break
        called = turn.tool_calls
        messages += [Message("tool", text, tool_call_id=c.id) for c in called]
        if not called:
            messages.append(Message("user", text))
    return messages
