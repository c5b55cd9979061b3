"""Sampled ids to an assistant turn, one id at a time.

What it guarantees: feeding ids one by one, in any chunks, or all at once gives the same events and
the same turn; tool arguments are the model's own bytes; whatever the model wrote, nothing is lost:
a call that cannot be read comes back as text, with a finding that names the fault.

Format: Hermes JSON calls, `<tool_call>\n{"name": ..., "arguments": ...}\n</tool_call>`, with
`<think>` reasoning where the vocabulary has it. Control texts inside a call belong to its JSON,
those inside reasoning to the reasoning: a call that is only thought of is not made.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from armillary.chat.json_scan import CallScanner
from armillary.chat.messages import AssistantTurn, ToolCall
from armillary.chat.template import CALL, CALL_END, IM_END, THINK, THINK_END
from armillary.chat.tokenizer import Tokenizer

MALFORMED = "malformed tool call"
UNCLOSED = "unclosed tool call"
BROKEN_ARGUMENTS = "tool arguments are not a JSON object"


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    index: int


ParserEvent = TextDelta | ReasoningDelta | CallOpened | ArgumentsDelta | CallClosed


def turn_events(turn: AssistantTurn) -> list[ParserEvent]:
    """The events of a turn that is already whole."""
    events: list[ParserEvent] = []
    if turn.reasoning:
        events.append(ReasoningDelta(turn.reasoning))
    if turn.content:
        events.append(TextDelta(turn.content))
    for index, call in enumerate(turn.tool_calls):
        events += [CallOpened(index, call.id, call.name), ArgumentsDelta(index, call.arguments)]
        events.append(CallClosed(index))
    return events


class HermesParser:
    """Incremental parser of one assistant turn."""

    def __init__(self, tokenizer: Tokenizer, mint: Callable[[int], str]) -> None:
        """`mint(k)` gives the id of the turn's k-th call."""
        self._tokenizer = tokenizer
        self._mint = mint
        self._text = _Trimmed()
        self._reasoning: _Trimmed | None = None
        self._thought = ""
        self._scanner: CallScanner | None = None
        self._utf8 = _utf8_decoder()
        self._calls: list[ToolCall] = []
        self._findings: list[str] = []

    def feed(self, ids: Iterable[int]) -> list[ParserEvent]:
        """Events that these ids complete."""
        events: list[ParserEvent] = []
        for token in ids:
            control = self._tokenizer.control_text.get(int(token))
            if control == IM_END:
                continue
            if control is None or not self._switch(control, events):
                piece = self._utf8.decode(self._tokenizer.bytes_of(int(token)))
                self._take(piece, events)
        return events

    def finish(self) -> tuple[list[ParserEvent], AssistantTurn]:
        """Last events, and the whole turn."""
        events: list[ParserEvent] = []
        self._flush(events)
        if self._scanner is not None:
            self._findings.append(UNCLOSED)
            self._close_call(events, closing="")
        if self._reasoning is not None:
            self._thought += self._reasoning.whole
        turn = AssistantTurn(
            self._text.whole, self._thought, tuple(self._calls), tuple(self._findings)
        )
        return events, turn

    def _switch(self, control: str, events: list[ParserEvent]) -> bool:
        """Whether a control text changed what is being read; else it is ordinary text."""
        if self._scanner is not None:
            if control != CALL_END:
                return False
            self._flush(events)
            self._close_call(events, closing=CALL_END)
        elif self._reasoning is not None:
            if control != THINK_END:
                return False
            self._flush(events)
            self._thought += self._reasoning.whole
            self._reasoning = None
        elif control in (CALL, THINK):
            self._flush(events)
            if control == CALL:
                self._scanner = CallScanner()
            else:
                self._reasoning = _Trimmed()
        else:
            return False
        return True

    def _flush(self, events: list[ParserEvent]) -> None:
        """Bytes of a character that was never finished."""
        self._take(self._utf8.decode(b"", final=True), events)
        self._utf8 = _utf8_decoder()

    def _take(self, piece: str, events: list[ParserEvent]) -> None:
        if not piece:
            return
        if self._scanner is not None:
            opened, arguments = self._scanner.feed(piece)
            index = len(self._calls)
            if opened is not None:
                events.append(CallOpened(index, self._mint(index), opened))
            if arguments:
                events.append(ArgumentsDelta(index, arguments))
        elif self._reasoning is not None:
            if shown := self._reasoning.feed(piece):
                events.append(ReasoningDelta(shown))
        elif shown := self._text.feed(piece):
            events.append(TextDelta(shown))

    def _close_call(self, events: list[ParserEvent], *, closing: str) -> None:
        scanner = self._scanner
        assert scanner is not None
        self._scanner = None
        if scanner.name is None or not scanner.began_arguments:
            self._findings.append(MALFORMED)
            self._take(CALL + scanner.raw + closing, events)
            return
        if not scanner.complete:
            self._findings.append(MALFORMED)
        self._keep(scanner.name, scanner.arguments, events)
        # The call was announced before it broke; what follows the break is kept as text.
        self._take(scanner.rest, events)

    def _keep(self, name: str, arguments: str, events: list[ParserEvent]) -> None:
        index = len(self._calls)
        if not is_json_object(arguments):
            self._findings.append(BROKEN_ARGUMENTS)
        self._calls.append(ToolCall(self._mint(index), name, arguments))
        events.append(CallClosed(index))


def is_json_object(text: str) -> bool:
    """Whether `text` is one JSON object."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


class _Trimmed:
    """Text without white space at either end, given out as soon as it is certain."""

    def __init__(self) -> None:
        self._given: list[str] = []
        self._space: list[str] = []

    @property
    def whole(self) -> str:
        return "".join(self._given)

    def feed(self, piece: str) -> str:
        if not self._given:
            piece = piece.lstrip()
        solid = piece.rstrip()
        if not solid:
            self._space.append(piece)
            return ""
        shown = "".join(self._space) + solid
        self._space = [piece[len(solid) :]]
        self._given.append(shown)
        return shown


def _utf8_decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")
