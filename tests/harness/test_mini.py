"""The real mini-SWE-agent: the flow that writes demonstrations is byte-equal to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from harness_rig import Bench, Reply, recorded, wires

from armillary.chat.messages import AssistantTurn, Message, ToolCall
from armillary.errors import HarnessError
from armillary.harness.locks import installed_environment
from armillary.harness.mini_flow import MARKER, MiniActions, MiniFlow
from armillary.harness.mini_swe_agent import MiniSweAgent
from armillary.harness.protocol import Budget
from armillary.record.outcomes import Ending
from armillary.sandbox.dockerfile import image_spec
from armillary.sandbox.protocol import SandboxProvider
from armillary.tasks.data.demonstrations import EmulatedShell
from armillary.tasks.data.family import DataFamily, write_task
from armillary.tasks.data.labbook import Labbook, draw
from armillary.tasks.folder import Task, load_task
from armillary.tasks.protocol import DemonstrationStyle
from armillary.train.demonstrations import demonstrate

pytestmark = [pytest.mark.needs_bwrap, pytest.mark.needs_mini]


@dataclass
class Mini:
    harness: MiniSweAgent
    provider: SandboxProvider
    bench: Bench


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mini(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mini]:
    harness = MiniSweAgent(wires(), installed_environment("mini-swe-agent"))
    provider = harness.provider()
    await harness.prepare(provider)
    yield Mini(harness, provider, Bench.make(tmp_path_factory.mktemp("tokenizer")))
    await provider.close()


def task_of(seed: int, folder: Path) -> tuple[Labbook, Task]:
    book = draw(seed)
    write_task(folder / "train" / f"t{seed}", book)
    return book, load_task(folder / "train" / f"t{seed}")


@dataclass
class Played:
    ending: Ending
    seen: list[list[Message]]
    """Messages of each request, whole."""
    answer: bytes | None


async def play(mini: Mini, task: Task, replies: Sequence[Reply], max_tokens: int = 4000) -> Played:
    session = mini.bench.session(task.id, replies, mini.harness.closing, max_tokens=max_tokens)
    sandbox = await mini.provider.open(image_spec(task.environment))
    try:
        ending = await mini.harness.run(task.instruction, session, sandbox, Budget(calls=20))
        answer = await sandbox.read("/workdir/answer.txt")
    finally:
        await sandbox.close()
    return Played(ending, whole_requests(session), answer)


def whole_requests(session) -> list[list[Message]]:
    """Every request's messages, put together from parents and what they added."""
    requests, whole = recorded(session), []
    for call, own in zip(session.tree.calls(), requests, strict=True):
        before: list[Message] = []
        if call.prompt.parent is not None:
            reply = json.loads(session.tree.call(call.prompt.parent).response)
            calls = tuple(
                ToolCall(c["id"], c["name"], c["arguments"]) for c in reply.get("tool_calls", ())
            )
            before = [*whole[call.prompt.parent], Message("assistant", tool_calls=calls)]
        whole.append([*before, *own.messages])
    return whole


def emulate(mini: Mini, book: Labbook, task: Task, turns: Sequence[tuple[AssistantTurn, bool]]):
    """Requests the emulated flow would make, and the answer file."""
    shell = EmulatedShell(book)
    flow = mini.harness.flow(shell.run)
    assert isinstance(flow, MiniFlow)
    messages = list(flow.start(task.instruction))
    seen = []
    for number, (turn, cut) in enumerate(turns):
        seen.append(list(messages))
        minted = tuple(
            ToolCall(f"call_{number}_{k}", c.name, c.arguments)
            for k, c in enumerate(turn.tool_calls)
        )
        step = flow.step(AssistantTurn(tool_calls=minted), cut=cut)
        if step.kept:
            messages.append(Message("assistant", tool_calls=minted))
        messages += step.messages
        if step.done:
            break
    return seen, shell.answer


@pytest.mark.asyncio(loop_scope="module")
async def test_fifteen_real_runs_are_byte_equal_to_the_flow(mini: Mini, tmp_path: Path) -> None:
    run = MiniActions().run
    scripts: list[tuple[int, list[AssistantTurn]]] = []
    for seed in range(100, 112):
        _, task = task_of(seed, tmp_path)
        style = DemonstrationStyle(careless=0.4, wrong_operation=0.3)
        messages, _ = demonstrate(task, DataFamily(), mini.harness, style, seed)
        turns = [m.tool_calls for m in messages if m.role == "assistant"]
        scripts.append((seed, [AssistantTurn(tool_calls=t) for t in turns]))
    book, _ = task_of(112, tmp_path)
    a = f"agg {book.file}"
    scripts.append(
        (112, [
            run(command) for command in (
                "head -2 nofile.csv", f"{a} bad x y z", f"{a} mean nocol y z",
                f"{a} mean {book.column} {book.category} nobody", "frobnicate 1",
                f"agg none.csv mean {book.column} {book.category} {book.value}",
                "echo 5 > answer.txt", "ls", f"echo {MARKER}",
            )
        ])
    )  # fmt: skip

    def odd(name: str, arguments: str) -> AssistantTurn:
        return AssistantTurn(tool_calls=(ToolCall("", name, arguments),))

    text = AssistantTurn(content="I am done.")
    end = run(f"echo {MARKER}")
    scripts.append(
        (113, [run("ls"), text, run("ls"), odd("bash", '{"command": ls}'), odd("bash", '{"c": 1}'),
               run("echo 7 > answer.txt"), end])
    )  # fmt: skip
    scripts.append((114, [text, odd("bash", "[]"), odd("other", '{"command": "ls"}'), end]))

    for seed, turns in scripts:
        book, task = task_of(seed, tmp_path / "run")
        played = await play(mini, task, turns)
        expected, answer = emulate(mini, book, task, [(turn, False) for turn in turns])
        assert played.seen == expected, seed
        assert (played.answer or b"").decode() == (answer or ""), seed
        assert played.ending.reason == ("malformed_calls" if seed == 114 else "submitted")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_cut_turn_is_answered_as_the_flow_says(mini: Mini, tmp_path: Path) -> None:
    book, task = task_of(200, tmp_path)
    long, end = AssistantTurn(content="word " * 60), MiniActions().run(f"echo {MARKER}")
    played = await play(mini, task, [long, end], max_tokens=200)
    expected, _ = emulate(mini, book, task, [(AssistantTurn(content="x"), True), (end, False)])
    assert played.seen == expected


@pytest.mark.asyncio(loop_scope="module")
async def test_a_malformed_turn_is_its_own_row_and_the_fork_is_named(
    mini: Mini, tmp_path: Path
) -> None:
    _, task = task_of(201, tmp_path)
    turns = [MiniActions().run("ls"), AssistantTurn(content="hm"), MiniActions().run("ls"),
             MiniActions().run(f"echo {MARKER}")]  # fmt: skip
    session = mini.bench.session(task.id, turns, mini.harness.closing)
    sandbox = await mini.provider.open(image_spec(task.environment))
    await mini.harness.run(task.instruction, session, sandbox, Budget(calls=20))
    await sandbox.close()
    calls = session.tree.calls()
    assert [c.fork.reason if c.fork else None for c in calls] == [
        "first", None, "turn deleted", None,
    ]  # fmt: skip
    assert [r.calls for r in session.tree.rows()] == [(0, 1), (0, 2, 3)]
    sampled = sum(len(c.output_ids) for c in calls)
    assert sum(r.trained_tokens for r in session.tree.rows()) == sampled


@pytest.mark.asyncio(loop_scope="module")
async def test_the_step_limit_ends_a_run_as_a_spent_call_budget(mini: Mini, tmp_path: Path) -> None:
    _, task = task_of(202, tmp_path)
    session = mini.bench.session(task.id, [MiniActions().run("ls")], mini.harness.closing)
    sandbox = await mini.provider.open(image_spec(task.environment))
    ending = await mini.harness.run(task.instruction, session, sandbox, Budget(calls=3))
    await sandbox.close()
    assert ending.reason == "call_budget"
    assert len(session.tree) == 3


@pytest.mark.asyncio(loop_scope="module")
async def test_it_must_be_prepared(mini: Mini) -> None:
    fresh = MiniSweAgent(wires(), installed_environment("mini-swe-agent"))
    with pytest.raises(HarnessError, match="not prepared"):
        fresh.phrases()
