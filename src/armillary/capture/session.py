"""A session: one attempt's model calls, recorded exactly.

Our own loop calls it in process; each HTTP dialect is an adapter on it. So there is one path from
a request to the engine and one record, whoever asks.

What it guarantees: the engine gets recorded ids plus newly rendered text, never re-tokenised
samples; the run's sampling replaces the caller's; a call is in the journal before `TurnFinished`
is given out, hence before the last byte of a reply; a call that does not get so far is recorded as
undelivered; when the budget is spent, the reply is ours and is not recorded as the model's.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec
import numpy as np

from armillary.chat.continuation import Conversation, Match
from armillary.chat.messages import AssistantTurn, Message, Tool, text_of
from armillary.chat.parser import ParserEvent, turn_events
from armillary.chat.template import Template
from armillary.engine.protocol import Engine, Finish, Span, Usage
from armillary.errors import CaptureError, EngineError, RecordError, TemplateError
from armillary.record.calls import ModelCall, PolicySpan, PromptRef, Sampling, StopReason, Times
from armillary.record.codec import Delivery, Entry
from armillary.record.outcomes import EndReason
from armillary.record.tokens import TokenSequence
from armillary.record.tree import TokenTree


class Recorder(Protocol):
    """Where entries go; a `Journal` is one."""

    async def append(self, entry: Entry) -> None: ...

    def append_soon(self, entry: Entry) -> None: ...


class TurnParser(Protocol):
    """Sampled ids to events; `chat.parser.HermesParser` is one."""

    def feed(self, ids: list[int]) -> list[ParserEvent]: ...

    def finish(self) -> tuple[list[ParserEvent], AssistantTurn]: ...


ParserFactory = Callable[[Callable[[int], str]], TurnParser]


class ChatRequest(msgspec.Struct, frozen=True):
    """A request in internal form."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    dialect: str = "session"
    asked: dict[str, object] = {}
    """Sampling fields as the harness named them."""
    findings: tuple[str, ...] = ()
    """What the dialect could not honour but could do without."""


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """Last event of a call."""

    turn: AssistantTurn
    stop_reason: StopReason
    usage: Usage
    call: int | None
    """Index of the recorded call; None = the reply is ours."""


SessionEvent = ParserEvent | TurnFinished


@dataclass(frozen=True, slots=True)
class SessionBudget:
    """What a session may spend on the model."""

    calls: int
    """0 = no limit."""
    output_tokens: int = 0
    """Sampled tokens of the whole session; 0 = no limit."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How a session talks to the model."""

    template: Template
    parser: ParserFactory
    engine: Engine
    sampling: Sampling
    """`seed` is the attempt's; each call derives its own."""


@dataclass(slots=True)
class SessionCounts:
    """What happened so far."""

    calls: int = 0
    tool_calls: int = 0
    """Readable calls of offered tools."""
    unknown_tools: int = 0
    """Readable calls of tools that were not offered."""
    malformed: int = 0
    """Calls with findings of the policy's fault."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cut: int = 0
    """Calls that hit the output limit."""
    closing_replies: int = 0
    engine_seconds: float = 0.0
    """Waited for the engine, in calls that ended and calls that did not."""

    def add(self, call: ModelCall, turn: AssistantTurn, offered: frozenset[str]) -> None:
        known = sum(c.name in offered for c in turn.tool_calls)
        self.calls += 1
        self.tool_calls += known
        self.unknown_tools += len(turn.tool_calls) - known
        self.malformed += bool(turn.findings)
        self.prompt_tokens += call.prompt_length
        self.output_tokens += len(call.output_ids)
        self.cut += call.stop_reason == "length"


@dataclass(slots=True)
class Session:
    """One attempt's calls. Not thread-safe; calls may overlap within one event loop."""

    attempt: str
    """Name of the attempt; this is what the record calls the session."""
    policy: Policy
    recorder: Recorder
    budget: SessionBudget
    closing: AssistantTurn
    """Our reply when the budget is spent: it ends the harness's loop."""
    seed_name: str = ""
    """What the calls' random numbers hang on; empty = the attempt's name."""
    tree: TokenTree = field(default_factory=TokenTree)
    counts: SessionCounts = field(default_factory=SessionCounts)
    spent: EndReason | None = None
    """Which budget ended the session, if one did."""
    fault: EngineError | CaptureError | None = None
    """The first failure of ours that a call met; such an attempt is not graded."""
    _conversation: Conversation = field(default_factory=Conversation)
    _next: int = 0
    _broken: CaptureError | None = None

    async def call(self, request: ChatRequest) -> AsyncGenerator[SessionEvent]:
        """One model call as a stream of events; the last is `TurnFinished`.

        Closing the iterator early cancels the call and records it as undelivered.

        Raises:
            EngineError: the engine failed.
            CaptureError: the call, or an earlier one, could not be recorded.
        """
        if self._broken is not None:
            # The record has a hole; a later call would continue ids that nobody can read.
            raise self._broken
        self.spent = self.spent or self._exhausted()
        match = self._conversation.match(request.messages, request.tools)
        prompt = self._prompt(match, request)
        room = self.policy.engine.capabilities.context - prompt.length
        if self.spent is None and room < 1:
            self.spent = "context_overflow"
        if self.spent is not None:
            self.counts.closing_replies += 1
            for event in turn_events(self.closing):
                yield event
            reason = "tool_calls" if self.closing.tool_calls else "stop"
            yield TurnFinished(self.closing, reason, Usage(prompt.length, 0), None)
            return
        index = self._next
        self._next += 1
        asked = _Asked(request, match, prompt, self._sampling(index, room), index)
        async with aclosing(self._sample(asked)) as events:
            async for event in events:
                yield event

    def mark_undelivered(self, index: int) -> None:
        """The agent hung up before the last byte of call `index`."""
        self.tree.replace(replace(self.tree.call(index), delivered=False))
        self.recorder.append_soon(Delivery(self.attempt, index, delivered=False))

    async def close(self) -> None:
        """Let the engine forget the conversation."""
        await self.policy.engine.end_session(self.attempt)

    def _fail(self, error: CaptureError) -> CaptureError:
        """Note that this session can keep no exact record any more."""
        self._broken = error
        self.fault = self.fault or error
        return error

    def _exhausted(self) -> EndReason | None:
        if self.budget.calls and self._next >= self.budget.calls:
            return "call_budget"
        if self.budget.output_tokens and self.counts.output_tokens >= self.budget.output_tokens:
            return "token_budget"
        return None

    def _prompt(self, match: Match, request: ChatRequest) -> _Prompt:
        try:
            return self._rendered(match, request)
        except TemplateError as error:
            broken = CaptureError(f"a request of {self.attempt} has no prompt: {error}")
            raise self._fail(broken) from error

    def _rendered(self, match: Match, request: ChatRequest) -> _Prompt:
        template = self.policy.template
        if match.parent is None:
            tokens = template.render(request.messages, request.tools).tokens
            return _Prompt(PromptRef(None, tokens), tokens, len(tokens))
        parent = self.tree.call(match.parent.call)
        ended = len(parent.output_ids) > 0 and int(parent.output_ids[-1]) in template.end_ids
        delta = template.suffix(ended=ended, new=request.messages[match.new_from :])
        whole = self.tree.sequence(parent.index) + delta
        return _Prompt(PromptRef(parent.index, delta), whole, len(whole))

    async def _sample(self, asked: _Asked) -> AsyncGenerator[SessionEvent]:
        parser = self.policy.parser(lambda k: f"call_{asked.index}_{k}")
        sampled = _Sampled(started=time.time())
        stream = self.policy.engine.generate(
            asked.prompt.tokens, asked.sampling, session=self.attempt
        )
        given = False
        try:
            async with aclosing(stream):
                async for event in stream:
                    if isinstance(event, Finish):
                        sampled.finish = event
                        continue
                    sampled.add(event)
                    for parsed in parser.feed(event.ids.tolist()):
                        yield parsed
            if sampled.finish is None:
                raise EngineError("the engine ended a call without saying why", retryable=True)
            last, turn = parser.finish()
            call = self._note(asked, sampled, turn)
            await self._commit(call)
            for parsed in last:
                yield parsed
            given = True
            yield TurnFinished(turn, call.stop_reason, sampled.finish.usage, call.index)
        except EngineError as error:
            sampled.failed = True
            self.fault = self.fault or error
            raise
        except CaptureError as error:
            raise self._fail(error) from error.__cause__
        except Exception as error:
            what = f"call {asked.index} of {self.attempt}: {type(error).__name__}: {error}"
            raise self._fail(CaptureError(what)) from error
        finally:
            self.counts.engine_seconds += time.time() - sampled.started
            if not given:
                self._note_undelivered(asked, sampled, parser)

    def _sampling(self, index: int, room: int) -> Sampling:
        base = self.policy.sampling
        seed = call_seed(base.seed, self.seed_name or self.attempt, index)
        return replace(base, max_tokens=min(base.max_tokens, room), seed=seed)

    def _note(
        self, asked: _Asked, sampled: _Sampled, turn: AssistantTurn, *, delivered: bool = True
    ) -> ModelCall:
        """Put a call into the session's own record."""
        request, engine = asked.request, self.policy.engine.capabilities
        clamped = asked.sampling.max_tokens < self.policy.sampling.max_tokens
        call = ModelCall(
            session=self.attempt,
            index=asked.index,
            prompt=asked.prompt.ref,
            prompt_length=asked.prompt.length,
            output_ids=np.concatenate([np.zeros(0, np.int32), *(s.ids for s in sampled.spans)]),
            output_logprobs=np.concatenate(
                [np.zeros(0, np.float32), *(s.logprobs for s in sampled.spans)]
            ),
            policy=sampled.policy(),
            stop_reason=sampled.reason(turn, clamped=clamped),
            dialect=request.dialect,
            engine=engine.name,
            level=engine.level,
            fork=asked.match.fork,
            n_tools=len(request.tools),
            system_digest=_system_digest(request.messages),
            sampling=asked.sampling,
            sampling_asked=request.asked,
            request=_request_bytes(request, asked.match),
            response=msgspec.json.encode(turn),
            times=sampled.times(),
            findings=(*request.findings, *_foreign_turns(asked)),
            faults=turn.findings,
            delivered=delivered,
        )
        self.tree.add(call)
        parent = call.prompt.parent
        self._conversation.record(call.index, parent, request.messages, request.tools, turn)
        self.counts.add(call, turn, frozenset(tool.name for tool in request.tools))
        return call

    async def _commit(self, call: ModelCall) -> None:
        try:
            await self.recorder.append(call)
        except RecordError as error:
            self.tree.replace(replace(call, delivered=False))
            raise CaptureError(
                f"call {call.index} of {self.attempt} could not be recorded: {error}"
            ) from error

    def _note_undelivered(self, asked: _Asked, sampled: _Sampled, parser: TurnParser) -> None:
        if self._broken is not None:
            return
        if asked.index in self.tree:
            self.mark_undelivered(asked.index)
            return
        _, turn = parser.finish()
        try:
            call = self._note(asked, sampled, turn, delivered=False)
        except RecordError as error:
            # What ends the call is on its way to the caller; this is noted beside it.
            self._fail(CaptureError(f"call {asked.index} of {self.attempt}: {error}"))
            return
        self.recorder.append_soon(call)
        self.recorder.append_soon(Delivery(self.attempt, call.index, delivered=False))


@dataclass(frozen=True, slots=True)
class _Prompt:
    ref: PromptRef
    tokens: TokenSequence
    length: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """One call before it is answered."""

    request: ChatRequest
    match: Match
    prompt: _Prompt
    sampling: Sampling
    index: int


@dataclass(slots=True)
class _Sampled:
    """What the engine gave so far."""

    started: float
    spans: list[Span] = field(default_factory=list[Span])
    finish: Finish | None = None
    failed: bool = False
    """The call ended with an error."""
    first_token: float = 0.0

    def add(self, span: Span) -> None:
        if not self.spans:
            self.first_token = time.time()
        self.spans.append(span)

    def reason(self, turn: AssistantTurn, *, clamped: bool) -> StopReason:
        """`clamped`: the window allowed less than the run's output limit."""
        if self.finish is None:
            return "error" if self.failed else "cancelled"
        if self.finish.reason == "stop" and turn.tool_calls:
            return "tool_calls"
        if self.finish.reason == "length" and clamped:
            return "context"
        return self.finish.reason

    def policy(self) -> tuple[PolicySpan, ...]:
        """Runs of one policy version."""
        runs: list[PolicySpan] = []
        for span in self.spans:
            n = len(span.ids)
            if runs and runs[-1].version == span.policy_version:
                runs[-1] = replace(runs[-1], length=runs[-1].length + n)
            else:
                start = runs[-1].start + runs[-1].length if runs else 0
                runs.append(PolicySpan(start, n, span.policy_version))
        return tuple(runs)

    def times(self) -> Times:
        return Times(self.started, self.started, self.first_token, time.time())


def _foreign_turns(asked: _Asked) -> list[str]:
    """A finding if the new text holds assistant turns: nobody sampled them in this place."""
    new = asked.request.messages[asked.match.new_from :]
    count = sum(message.role == "assistant" for message in new)
    return [f"{count} assistant turns are context, not as sampled"] if count else []


def call_seed(seed: int, attempt: str, index: int) -> int:
    """The seed of one call: 63 bits from run seed, attempt and call number."""
    data = f"{seed}\0{attempt}\0{index}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1


def _system_digest(messages: tuple[Message, ...]) -> str:
    system = "".join(text_of(m.content) for m in messages if m.role == "system")
    return hashlib.blake2b(system.encode(), digest_size=8).hexdigest()


def _request_bytes(request: ChatRequest, match: Match) -> bytes:
    """The request without what the parent already holds."""
    new = {"messages": request.messages[match.new_from :]}
    return msgspec.json.encode(new if match.parent else {**new, "tools": request.tools})
