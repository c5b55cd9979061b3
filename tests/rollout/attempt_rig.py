"""Attempts of the loop harness in real sandboxes, played by a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from armillary.capture.session import Policy, Recorder
from armillary.chat.messages import AssistantTurn
from armillary.chat.parser import HermesParser
from armillary.chat.raw import turn_ids
from armillary.chat.template import HermesTemplate
from armillary.chat.train_tokenizer import train_tokenizer
from armillary.engine.scripted import ScriptedEngine
from armillary.harness.loop import LoopActions, LoopHarness
from armillary.harness.protocol import Budget
from armillary.record.calls import Sampling
from armillary.rollout.attempt import Station
from armillary.rollout.plan import AttemptPlan
from armillary.rollout.rewards import correctness
from armillary.sandbox.protocol import SandboxProvider
from armillary.tasks.folder import Task

ACT = LoopActions()

Play = Callable[[str, int], AssistantTurn]
"""(session, call number) -> the policy's turn."""


def station(
    tmp_path: Path, provider: SandboxProvider, recorder: Recorder, play: Play, **budget: float
) -> Station:
    tokenizer = train_tokenizer([], [], tmp_path / "tokenizer")
    template = HermesTemplate(tokenizer)
    engine = ScriptedEngine(lambda s, n, _: turn_ids(template, play(s, n)))
    policy = Policy(
        template, lambda mint: HermesParser(tokenizer, mint), engine, Sampling(max_tokens=2000)
    )
    limits = replace(Budget(calls=6), **budget)
    return Station(LoopHarness("bubblewrap"), provider, policy, limits, correctness, recorder)


def in_order(*turns: AssistantTurn) -> Play:
    """`turns` one after the other, the last one for ever."""
    return lambda _, number: turns[min(number, len(turns) - 1)]


def answering(answer: str) -> Play:
    return in_order(ACT.run("ls"), *ACT.finish(answer))


def plan(task: Task, repeat: int = 0) -> AttemptPlan:
    return AttemptPlan("eval/x", task, "loop", repeat)
