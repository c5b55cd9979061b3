"""Real parts for harness tests: a proxy, a byte tokenizer, sessions on a scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from armillary.capture.app import CaptureApp
from armillary.capture.listener import ProxyServer
from armillary.capture.session import Policy, Session, SessionBudget
from armillary.capture.sessions import SessionRegistry
from armillary.chat.messages import AssistantTurn, Message, Tool
from armillary.chat.parser import HermesParser
from armillary.chat.raw import raw_ids, turn_ids
from armillary.chat.template import HermesTemplate
from armillary.chat.tokenizer import Tokenizer
from armillary.chat.train_tokenizer import train_tokenizer
from armillary.engine.scripted import ScriptedEngine
from armillary.harness.mini_swe_agent import Wires
from armillary.record.calls import Sampling
from armillary.record.journal import NullRecorder
from armillary.record.tokens import Ids

Reply = AssistantTurn | str
"""A turn, or raw text in which control texts are control ids."""


@dataclass(frozen=True)
class Bench:
    """A tokenizer and what makes sessions with it."""

    tokenizer: Tokenizer
    template: HermesTemplate

    @classmethod
    def make(cls, folder: Path) -> Bench:
        tokenizer = train_tokenizer([], [], folder)
        return cls(tokenizer, HermesTemplate(tokenizer))

    def ids(self, reply: Reply) -> Ids:
        if isinstance(reply, str):
            return raw_ids(self.tokenizer, reply)
        return turn_ids(self.template, reply)

    def policy(self, replies: Sequence[Reply], *, max_tokens: int = 4000) -> Policy:
        """A policy that gives `replies` in order, the last one for ever."""
        ids = [self.ids(r) for r in replies]
        return self.playing(lambda _, n: ids[min(n, len(ids) - 1)], max_tokens=max_tokens)

    def playing(self, play: Callable[[str, int], Ids], *, max_tokens: int = 4000) -> Policy:
        engine = ScriptedEngine(lambda session, number, _: play(session, number))
        sampling = Sampling(max_tokens=max_tokens)
        return Policy(self.template, self.parser, engine, sampling)

    def parser(self, mint: Callable[[int], str]) -> HermesParser:
        return HermesParser(self.tokenizer, mint)

    def session(
        self, name: str, replies: Sequence[Reply], closing: AssistantTurn, *, calls: int = 20,
        max_tokens: int = 4000,
    ) -> Session:  # fmt: skip
        policy = self.policy(replies, max_tokens=max_tokens)
        return Session(name, policy, NullRecorder(), SessionBudget(calls), closing)


class RecordedRequest(msgspec.Struct):
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


def recorded(session: Session) -> list[RecordedRequest]:
    """What each call added to its parent."""
    calls = session.tree.calls()
    return [msgspec.json.decode(c.request, type=RecordedRequest) for c in calls]


def wires() -> Wires:
    sessions = SessionRegistry()
    return Wires(ProxyServer(CaptureApp(sessions)), sessions)
