"""Matching an incoming history against what was recorded.

A request carries the whole conversation again. If it is a recorded conversation plus something
new, the prompt must be the *recorded ids* plus only the new text; if not, that is a fork, and the
record says at which message and why. Matching is by meaning: call ids we minted, text, tool name
and parsed arguments, so that an agent which re-serialises arguments or drops an empty content does
not break the prefix.

Cost: one digest per message of the request, then one dictionary look-up. Only a fork is compared
with the earlier calls, to say where it left the nearest of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from armillary.chat.messages import AssistantTurn, ImagePart, Message, Tool, text_of
from armillary.record.calls import Fork, ForkReason

Digest = bytes


@dataclass(frozen=True, slots=True)
class History:
    """One recorded call: the messages it was asked with and its reply, as digests."""

    call: int
    messages: tuple[Digest, ...]
    """Digest of each prompt message, in order, then of the reply."""
    plain: tuple[Digest, ...]
    """The same, reasoning left out."""
    system: bool
    """The first message is a system turn."""
    tools: Digest
    reply_ids: tuple[str, ...]
    """Minted ids of the reply's tool calls."""


@dataclass(frozen=True, slots=True)
class Match:
    """How a request continues the record."""

    parent: History | None
    """The call whose messages and reply begin the request; None = render it all."""
    new_from: int
    """Index of the first message that is not recorded."""
    fork: Fork | None
    """None = a conversation goes on from its latest reply."""


class Conversation:
    """The recorded calls of one session."""

    def __init__(self) -> None:
        self._calls: list[History] = []
        self._by_chain: dict[Digest, list[History]] = {}
        self._prompts: set[Digest] = set()
        self._continued: set[int] = set()

    def match(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Match:
        """Find the longest recorded beginning of `messages`."""
        own = [digest(m) for m in messages]
        chains = chain(_tools_digest(tools), own)
        for count in range(len(messages), 0, -1):
            candidates = self._by_chain.get(chains[count])
            if candidates:
                parent = _by_reply_ids(candidates, messages[count - 1])
                return Match(parent, count, self._fork(parent, own, messages, tools, chains[-1]))
        return Match(None, 0, self._fork(None, own, messages, tools, chains[-1]))

    def record(
        self,
        call: int,
        parent: int | None,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        reply: AssistantTurn,
    ) -> None:
        """Remember a call that continued call `parent` and was answered with `reply`."""
        said = [*messages, reply.message()]
        own = tuple(digest(m) for m in said)
        tools_digest = _tools_digest(tools)
        *_, prompt, whole = chain(tools_digest, own)
        history = History(
            call=call,
            messages=own,
            plain=tuple(_plain(m, d) for m, d in zip(said, own, strict=True)),
            system=said[0].role == "system",
            tools=tools_digest,
            reply_ids=tuple(c.id for c in reply.tool_calls),
        )
        self._calls.append(history)
        self._by_chain.setdefault(whole, []).append(history)
        self._prompts.add(prompt)
        if parent is not None:
            self._continued.add(parent)

    def _fork(
        self,
        parent: History | None,
        own: list[Digest],
        messages: Sequence[Message],
        tools: Sequence[Tool],
        whole: Digest,
    ) -> Fork | None:
        if not self._calls:
            return Fork(0, "first")
        if parent is not None and parent.call not in self._continued:
            return None
        if whole in self._prompts:
            return Fork(len(messages), "retry")
        at, nearest = self._nearest(own)
        if at and _tools_digest(tools) != nearest.tools:
            return Fork(0, "tools changed")
        return Fork(at, _reason(nearest, own, messages, at))

    def _nearest(self, own: list[Digest]) -> tuple[int, History]:
        """The latest of the calls that share most messages with `own`, and how many."""
        best = 0, self._calls[-1]
        for history in reversed(self._calls):
            at = _first_difference(own, history.messages)
            if at > best[0]:
                best = at, history
        return best


def _reason(old: History, own: list[Digest], messages: Sequence[Message], at: int) -> ForkReason:
    """Why `messages` is not `old` plus something new; `at` is the first difference."""
    if at == 0:
        systems = messages[0].role == "system" and old.system
        return "system changed" if systems and own[1:2] == [*old.messages[1:2]] else (
            "new conversation"
        )  # fmt: skip
    if at == len(own):
        return "truncated"
    if at < len(old.plain) and own[at] == old.plain[at]:
        return "reasoning dropped"
    asked = len(old.messages) - 1
    if at == asked and messages[at].role != "assistant":
        return "turn deleted"
    return "compacted" if len(own) < asked else "rewritten"


def _first_difference(a: Sequence[Digest], b: Sequence[Digest]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def _by_reply_ids(candidates: list[History], message: Message) -> History:
    """Among calls with equal content, the one whose minted ids came back; else the latest."""
    ids = tuple(c.id for c in message.tool_calls)
    for history in candidates:
        if ids and history.reply_ids == ids:
            return history
    return candidates[-1]


def digest(message: Message) -> Digest:
    """A digest of what a message means; equal for every faithful echo of it."""
    calls = [(c.name, _parsed(c.arguments)) for c in message.tool_calls]
    content = text_of(message.content)
    parts = () if isinstance(message.content, str) else message.content
    images = [part.sha256 for part in parts if isinstance(part, ImagePart)]
    data = json.dumps(
        [message.role, content, images, message.reasoning, calls, message.tool_call_id]
    )
    return hashlib.blake2b(data.encode(), digest_size=16).digest()


def _plain(message: Message, whole: Digest) -> Digest:
    """The digest of `message` without its reasoning; `whole` is the one with it."""
    if not message.reasoning:
        return whole
    return digest(msgspec.structs.replace(message, reasoning=""))


def chain(start: Digest, links: Sequence[Digest]) -> list[Digest]:
    """Running digests: entry k stands for `start` and the first k links."""
    out = [start]
    for link in links:
        out.append(_link(out[-1], link))
    return out


def _link(before: Digest, link: Digest) -> Digest:
    return hashlib.blake2b(before + link, digest_size=16).digest()


def _tools_digest(tools: Sequence[Tool]) -> Digest:
    data = "\0".join(tool.schema for tool in tools).encode()
    return hashlib.blake2b(data, digest_size=16).digest()


def _parsed(arguments: str) -> str:
    """Arguments in one form, so that spacing and key order do not matter; broken ones as they are.

    Every number is a float: an agent in JavaScript sends 1.0 back as 1.
    """
    try:
        return json.dumps(json.loads(arguments, parse_int=float), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
