"""The template seam, and the Hermes / ChatML template that ships.

A template turns messages into token ids and knows which of them an assistant would have sampled.
It also renders only what is *new* after a recorded turn, so that sampled ids are never
re-tokenised. New text is cut at control ids only: between two control ids it is encoded as one
string, exactly as the model family's own template would be.

The format is the one Qwen2.5 and Qwen3 models use (their published chat templates): ChatML turns,
tools as JSON lines in the system turn, calls in `<tool_call>`, neighbouring results in one user
turn, each in `<tool_response>`. The control texts in the template's own explanation of calls are
control ids, as the families' tokenizers read them; those in anybody else's text never are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np

from armillary.chat.messages import ImagePart, Message, Tool, ToolCall, text_of
from armillary.chat.tokenizer import Tokenizer
from armillary.errors import TemplateError
from armillary.record.tokens import Ids, TokenSequence, as_ids

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
RESPONSE, RESPONSE_END = "<tool_response>", "</tool_response>"
THINK, THINK_END = "<think>", "</think>"
CALL_CLOSING = '"}}\n'
"""How a call with one string argument ends."""
CONTROL_TEXTS = ("<|endoftext|>", IM_START, IM_END, CALL, CALL_END, RESPONSE, RESPONSE_END)

_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and "
    "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


class Rendered(NamedTuple):
    """A rendered conversation."""

    tokens: TokenSequence
    assistant: tuple[tuple[int, int], ...]
    """`[start, stop)` of what an assistant samples in each turn, its end token included."""


class Template(Protocol):
    """Messages to token ids."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""
        ...

    @property
    def banned_ids(self) -> tuple[int, ...]:
        """Ids the policy must never sample."""
        ...

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, reply: bool = True
    ) -> Rendered:
        """The whole conversation; with `reply`, up to where the assistant begins to sample."""
        ...

    def suffix(self, *, ended: bool, new: Sequence[Message]) -> TokenSequence:
        """What follows a sampled turn: its closing if it was cut (`ended` False), `new`, and the
        opening of the next assistant turn. An assistant turn in `new` was not sampled here; it
        is context like any other."""
        ...


@dataclass(frozen=True, slots=True)
class _Piece:
    """A control text, or text that is encoded together with its neighbours."""

    text: str
    control: bool = False


class _Segment(NamedTuple):
    """Pieces that are encoded together."""

    pieces: list[_Piece]
    sampled: bool = False
    """What an assistant samples in one turn."""


def _control(text: str) -> _Piece:
    return _Piece(text, control=True)


class HermesTemplate:
    """ChatML with Hermes tool calls."""

    phrases = (_TOOLS_HEAD, _TOOLS_TAIL, CALL_CLOSING)
    """Its own fixed texts, for a tokenizer of our own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """
        Raises:
            TemplateError: the vocabulary lacks one of the control tokens.
        """
        self._tokenizer = tokenizer
        self._end = tokenizer.control_id(IM_END)
        may_sample = {IM_END, CALL, CALL_END, THINK, THINK_END}
        self._banned = tuple(
            sorted(i for text, i in tokenizer.control.items() if text not in may_sample)
        )
        for text in CONTROL_TEXTS[1:]:
            tokenizer.control_id(text)
        phrase = len(tokenizer.encode(_TOOLS_TAIL)) == 1
        self._tools_tail = [_Piece(_TOOLS_TAIL)] if phrase else _cut(_TOOLS_TAIL)

    @property
    def end_ids(self) -> tuple[int, ...]:
        return (self._end,)

    @property
    def banned_ids(self) -> tuple[int, ...]:
        return self._banned

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, reply: bool = True
    ) -> Rendered:
        parts: list[Ids] = []
        spans: list[tuple[int, int]] = []
        length = 0
        for segment in self._segments(messages, tools, reply=reply):
            parts.append(self._encode(segment.pieces))
            if segment.sampled:
                spans.append((length, length + len(parts[-1])))
            length += len(parts[-1])
        return Rendered(TokenSequence(np.concatenate(parts)), tuple(spans))

    def suffix(self, *, ended: bool, new: Sequence[Message]) -> TokenSequence:
        closing = [_Piece("\n")] if ended else [_control(IM_END), _Piece("\n")]
        segments = self._segments(new, (), reply=True)
        parts = [self._encode(closing), *(self._encode(s.pieces) for s in segments)]
        return TokenSequence(np.concatenate(parts))

    def _segments(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, reply: bool
    ) -> Iterator[_Segment]:
        """The conversation, cut where an assistant begins and ends to sample."""
        rest = list(messages)
        context: list[_Piece] = []
        if tools:
            system = rest.pop(0) if rest and rest[0].role == "system" else None
            context = self._tools_turn(system, tools)
        for role, group in groupby(rest, key=lambda m: m.role):
            if role == "tool":
                context += _results_turn(group)
            elif role != "assistant":
                context += [piece for message in group for piece in _turn(message)]
            else:
                for message in group:
                    yield _Segment([*context, *_opening()])
                    yield _Segment(_assistant_body(message), sampled=True)
                    context = [_Piece("\n")]
        yield _Segment([*context, *(_opening() if reply else [])])

    def _tools_turn(self, system: Message | None, tools: Sequence[Tool]) -> list[_Piece]:
        """The system turn, made if there is none, with the tool list at its end."""
        text = "" if system is None else f"{_text(system)}\n\n"
        listing = _TOOLS_HEAD + "".join("\n" + tool.schema for tool in tools)
        opening = [_control(IM_START), _Piece(f"system\n{text}{listing}")]
        return [*opening, *self._tools_tail, _control(IM_END), _Piece("\n")]

    def _encode(self, pieces: Iterable[_Piece]) -> Ids:
        # A vocabulary without reasoning marks gets them as text: nobody samples them there.
        known = self._tokenizer.control
        parts: list[Ids] = [as_ids(())]
        for control, group in groupby(pieces, key=lambda p: p.control and p.text in known):
            if control:
                parts.append(as_ids([known[p.text] for p in group]))
            else:
                parts.append(self._tokenizer.encode("".join(p.text for p in group)))
        return as_ids(np.concatenate(parts))


def _opening() -> list[_Piece]:
    return [_control(IM_START), _Piece("assistant\n")]


def _turn(message: Message) -> list[_Piece]:
    """A system or user turn, with the newline after it."""
    body = _Piece(f"{message.role}\n{_text(message)}")
    return [_control(IM_START), body, _control(IM_END), _Piece("\n")]


def _results_turn(messages: Iterable[Message]) -> list[_Piece]:
    """Neighbouring tool results: one user turn."""
    pieces = [_control(IM_START), _Piece("user")]
    for message in messages:
        pieces += [_Piece("\n"), _control(RESPONSE), _Piece(f"\n{_text(message)}\n")]
        pieces.append(_control(RESPONSE_END))
    return [*pieces, _control(IM_END), _Piece("\n")]


def _assistant_body(message: Message) -> list[_Piece]:
    """What the assistant samples: reasoning, text, calls, end."""
    pieces: list[_Piece] = []
    if message.reasoning:
        pieces += [_control(THINK), _Piece(f"\n{message.reasoning}\n")]
        pieces += [_control(THINK_END), _Piece("\n\n")]
    text = _text(message)
    pieces.append(_Piece(text))
    for number, call in enumerate(message.tool_calls):
        if number or text:
            pieces.append(_Piece("\n"))
        pieces += [_control(CALL), _Piece(call_text(call)), _control(CALL_END)]
    return [*pieces, _control(IM_END)]


def call_text(call: ToolCall) -> str:
    """What stands between the control texts of a call."""
    return f'\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n'


def call_opening(tool: str, argument: str) -> str:
    """How a call of `tool` with one string argument begins: a phrase worth one id."""
    return f'\n{{"name": "{tool}", "arguments": {{"{argument}": "'


def _cut(text: str) -> list[_Piece]:
    """One of our own texts, its control texts as control."""
    pattern = "|".join(map(re.escape, CONTROL_TEXTS))
    pieces = re.split(f"({pattern})", text)
    return [_Piece(piece, control=piece in CONTROL_TEXTS) for piece in pieces if piece]


def _text(message: Message) -> str:
    if not isinstance(message.content, str) and any(
        isinstance(part, ImagePart) for part in message.content
    ):
        raise TemplateError("this model takes no images; the Hermes template is for text")
    return text_of(message.content)
