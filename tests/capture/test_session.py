"""The one path of every call: exact prompts, budgets, cancellation, faults, the record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from wire import (
    ASK,
    CLOSING,
    END,
    TOOL,
    FailingEngine,
    Shelf,
    Wire,
    ask,
    call_text,
    converse,
    events_of,
    retryable,
)

from armillary.capture.session import ChatRequest, Session, SessionBudget, TurnFinished, call_seed
from armillary.chat.messages import AssistantTurn, ImagePart, Message, ToolCall
from armillary.chat.parser import TextDelta
from armillary.chat.template import HermesTemplate
from armillary.engine.protocol import EngineEvent, Finish, Span, Usage
from armillary.engine.scripted import ScriptedEngine
from armillary.errors import CaptureError, EngineError
from armillary.record.calls import PolicySpan, Sampling
from armillary.record.codec import AttemptOpened, decode, encode
from armillary.record.journal import Journal, read_journal
from armillary.record.store import replay
from armillary.record.tokens import TokenSequence, as_ids


async def test_sampled_ids_are_never_tokenised_again(wire: Wire) -> None:
    """A model may spell a text in other ids than the tokenizer would; they come back as sampled."""
    text = call_text("ls")
    by_byte = {wire.tokenizer.bytes_of(i): i for i in range(wire.tokenizer.size)}
    inner = text.removeprefix("<tool_call>").removesuffix("</tool_call>")
    spelled = [by_byte[bytes([b])] for b in inner.encode()]
    control = wire.tokenizer.control
    odd = as_ids([control["<tool_call>"], *spelled, control["</tool_call>"], control[END]])
    assert odd.tolist() != wire.ids(text + END).tolist()
    session = wire.session([odd, "done" + END])
    await converse(session, ASK, ["out"])
    first, second = session.tree.calls()
    assert second.prompt.parent == 0
    sent = session.tree.prompt(1).ids.tolist()
    assert sent[: first.prompt_length + len(odd)] == [
        *session.tree.prompt(0).ids.tolist(),
        *odd.tolist(),
    ]
    (row,) = session.tree.rows()
    assert row.trained_tokens == len(odd) + len(second.output_ids)


async def test_the_record_of_a_conversation(wire: Wire) -> None:
    shelf = Shelf()
    session = wire.session(
        [call_text("ls") + END, call_text("cat x") + END, "42" + END], shelf=shelf
    )
    await converse(session, ASK, ["x", "42"])
    assert [c.prompt.parent for c in shelf.calls] == [None, 0, 1]
    assert [c.fork.reason if c.fork else None for c in shelf.calls] == ["first", None, None]
    assert [c.stop_reason for c in shelf.calls] == ["tool_calls", "tool_calls", "stop"]
    assert [(c.index, c.n_tools, c.delivered) for c in shelf.calls] == [
        (0, 1, True), (1, 1, True), (2, 1, True),
    ]  # fmt: skip
    assert all(decode(encode(entry)) is not None for entry in shelf.entries)
    assert session.counts.calls == 3
    assert session.counts.tool_calls == 2
    assert session.counts.output_tokens == sum(len(c.output_ids) for c in shelf.calls)
    (row,) = session.tree.rows()
    assert row.calls == (0, 1, 2)
    sampled = np.concatenate([c.output_ids for c in shelf.calls])
    assert row.tokens.ids[row.mask].tolist() == sampled.tolist()
    new = msgspec.json.decode(shelf.calls[1].request)["messages"]
    assert [m["role"] for m in new] == ["tool"]


async def test_a_cut_turn_is_continued_with_an_end_that_is_not_trained(wire: Wire) -> None:
    session = Session(
        "a", wire.policy(wire.engine(["one two three four" + END, "five" + END]), max_tokens=3),
        Shelf(), SessionBudget(0), CLOSING,
    )  # fmt: skip
    await converse(session, ASK, ["more"])
    first, second = session.tree.calls()
    assert first.stop_reason == "length"
    assert len(first.output_ids) == 3
    end = wire.tokenizer.control_id(END)
    assert int(second.prompt.delta.ids[0]) == end
    (row,) = session.tree.rows()
    assert not row.mask[first.prompt_length + 3]
    assert session.counts.cut == 2


async def test_interleaved_subagents_are_two_rows_of_two_turns(wire: Wire) -> None:
    replies = [call_text("a") + END, call_text("b") + END, "A" + END, "B" + END]
    session = wire.session(replies)
    helper = (Message("system", "helper"), Message("user", "part"))
    first = (await ask(session, ASK)).turn
    other = (await ask(session, helper)).turn
    await ask(session, (*ASK, first.message(), Message("tool", "1", tool_call_id="call_0_0")))
    await ask(session, (*helper, other.message(), Message("tool", "2", tool_call_id="call_1_0")))
    rows = session.tree.rows()
    assert sorted(row.calls for row in rows) == [(0, 2), (1, 3)]
    assert sum(row.trained_tokens for row in rows) == session.counts.output_tokens


async def test_a_turn_nobody_sampled_is_masked_and_found(wire: Wire) -> None:
    session = wire.session([call_text("ls") + END, "yes" + END, "done" + END])
    first = (await ask(session, ASK)).turn
    said = (*ASK, first.message(), Message("tool", "x", tool_call_id="call_0_0"))
    foreign = (*said, Message("assistant", "I am sorry."), Message("user", "go on"))
    reply = (await ask(session, foreign)).turn
    await ask(session, (*foreign, reply.message(), Message("user", "and?")))
    calls = session.tree.calls()
    assert [c.prompt.parent for c in calls] == [None, 0, 1]
    assert calls[1].findings == ("1 assistant turns are context, not as sampled",)
    assert calls[2].findings == ()
    (row,) = session.tree.rows()
    assert "I am sorry." in wire.tokenizer.decode(row.tokens.ids[~row.mask])
    assert "sorry" not in wire.tokenizer.decode(row.tokens.ids[row.mask])


async def test_a_rewritten_second_turn_is_a_fork_that_keeps_the_first(wire: Wire) -> None:
    session = wire.session([call_text("ls") + END, "good" + END, "done" + END])
    messages = await converse(session, ASK, ["x"])
    other = (*messages[:-1], Message("assistant", "bad"), Message("user", "go on"))
    await ask(session, other)
    third = session.tree.call(2)
    assert third.prompt.parent == 0
    assert third.fork is not None
    assert (third.fork.at_message, third.fork.reason) == (4, "rewritten")
    template = session.policy.template
    assert session.tree.prompt(2) == template.render(other, (TOOL,)).tokens


async def test_the_closing_reply_is_ours_and_not_recorded(wire: Wire) -> None:
    closing = AssistantTurn(tool_calls=(ToolCall("call_end", "bash", '{"command": "exit"}'),))
    shelf = Shelf()
    session = wire.session(
        [call_text("ls") + END] * 2, shelf=shelf, budget=SessionBudget(calls=2), closing=closing
    )
    messages = await converse(session, ASK, ["x"])
    messages.append(Message("tool", "y", tool_call_id="call_1_0"))
    for _ in range(2):  # an agent may go on even after the closing reply
        finished = await ask(session, messages)
        assert finished == TurnFinished(closing, "tool_calls", finished.usage, None)
        assert finished.usage.output_tokens == 0
        messages += [closing.message(), Message("tool", "z", tool_call_id="call_end")]
    assert session.spent == "call_budget"
    assert session.counts.closing_replies == 2
    assert [c.index for c in shelf.calls] == [0, 1]


async def test_the_token_budget(wire: Wire) -> None:
    session = wire.session(["one two" + END] * 9, budget=SessionBudget(0, output_tokens=5))
    finished = await ask(session, ASK)
    while finished.call is not None:
        finished = await ask(session, (*ASK, Message("user", str(finished.call))))
    assert session.spent == "token_budget"
    assert session.counts.output_tokens >= 5
    assert finished.turn == CLOSING


async def test_a_full_window_is_the_policys_own_end(wire: Wire) -> None:
    used = len(HermesTemplate(wire.tokenizer).render(ASK, (TOOL,)).tokens)
    engine = wire.engine(["one two three four five" + END] * 9, context=used + 4)
    session = wire.session(engine)
    finished = await ask(session, ASK)
    (call,) = session.tree.calls()
    assert (len(call.output_ids), call.sampling.max_tokens, call.stop_reason) == (4, 4, "context")
    await ask(session, (*ASK, finished.turn.message(), Message("user", "and?")))
    assert session.spent == "context_overflow"
    assert len(session.tree) == 1


async def test_a_stream_closed_early_is_recorded_undelivered(wire: Wire) -> None:
    shelf = Shelf()
    session = wire.session(["one two three" + END, "four" + END], shelf=shelf)
    async with aclosing(session.call(ChatRequest(ASK))) as events:
        async for event in events:
            assert isinstance(event, TextDelta)
            break
    (call,) = session.tree.calls()
    assert (call.stop_reason, call.delivered) == ("cancelled", False)
    assert 0 < len(call.output_ids) < len(wire.ids("one two three" + END))
    assert shelf.lost == [0]
    assert session.tree.rows() == []
    await ask(session, ASK, ())
    assert session.tree.call(1).fork is not None
    assert session.fault is None
    assert [row.calls for row in session.tree.rows()] == [(1,)]


async def test_cancelled_before_the_first_token(wire: Wire) -> None:
    engine = wire.engine(["one" + END] * 2, seconds_per_token=60)
    shelf = Shelf()
    session = wire.session(engine, shelf=shelf)
    task = asyncio.ensure_future(ask(session, ASK))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(c.index, len(c.output_ids), c.stop_reason) for c in shelf.calls] == [
        (0, 0, "cancelled")
    ]
    assert shelf.lost == [0]
    assert session.tree.rows() == []


async def test_cancelled_while_the_journal_commits(wire: Wire) -> None:
    shelf = Shelf(gate=asyncio.Event())
    session = wire.session(["one" + END], shelf=shelf)
    task = asyncio.ensure_future(ask(session, ASK))
    await shelf.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert shelf.lost == [0]
    assert not session.tree.call(0).delivered
    assert session.tree.rows() == []


async def test_leaving_after_the_last_event_is_a_delivery(wire: Wire) -> None:
    shelf = Shelf()
    session = wire.session(["one" + END], shelf=shelf)
    async with aclosing(session.call(ChatRequest(ASK))) as events:
        async for event in events:
            if isinstance(event, TurnFinished):
                break
    assert session.tree.call(0).delivered
    assert shelf.lost == []


@pytest.mark.parametrize("after", [0, 2])
async def test_an_engine_that_fails_is_our_fault(wire: Wire, after: int) -> None:
    shelf = Shelf()
    engine = FailingEngine(lambda: wire.ids("one two" + END), after=after, error=retryable())
    session = wire.session(engine, shelf=shelf)
    with pytest.raises(EngineError, match="gone"):
        await ask(session, ASK)
    assert isinstance(session.fault, EngineError)
    assert session.fault.retryable
    (call,) = shelf.calls
    assert (call.stop_reason, len(call.output_ids)) == ("error", after)
    assert shelf.lost == [0]
    assert session.tree.rows() == []


def playing(events: list[EngineEvent]) -> ScriptedEngine:
    class Playing(ScriptedEngine):
        async def generate(
            self, prompt: TokenSequence, sampling: Sampling, *, n: int = 1, session: str = ""
        ) -> AsyncGenerator[EngineEvent]:
            for event in events:
                yield event

    return Playing(lambda *_: as_ids(()))


def span(*logprobs: float, version: int = 0, ids: tuple[int, ...] = (20, 21)) -> Span:
    return Span(0, as_ids(ids), np.array(logprobs, np.float32), version)


async def test_an_engine_that_ends_without_saying_why(wire: Wire) -> None:
    session = wire.session(playing([span(-1, -1)]))
    with pytest.raises(EngineError, match="without saying why"):
        await ask(session, ASK)
    assert isinstance(session.fault, EngineError)


@pytest.mark.parametrize("logprobs", [(-1.0,), (-1.0, 0.5), (-1.0, float("nan"))])
async def test_an_engine_with_impossible_logprobs_is_our_fault(
    wire: Wire, logprobs: tuple[float, ...]
) -> None:
    shelf = Shelf()
    session = wire.session(playing([span(*logprobs), Finish(0, "stop", Usage(1, 2))]), shelf=shelf)
    with pytest.raises(CaptureError, match="logprob"):
        await ask(session, ASK)
    assert isinstance(session.fault, CaptureError)
    assert shelf.entries == []
    hung_up = wire.session(playing([span(*logprobs)]))
    async with aclosing(hung_up.call(ChatRequest(ASK))) as events:
        await anext(events)
    assert isinstance(hung_up.fault, CaptureError)


async def test_policy_versions_are_kept_per_token(wire: Wire) -> None:
    events: list[EngineEvent] = [
        span(-1, -2, version=3), span(-3, ids=(22,), version=3), span(-4, ids=(2,), version=4),
        Finish(0, "stop", Usage(1, 4)),
    ]  # fmt: skip
    session = wire.session(playing(events))
    await ask(session, ASK)
    (call,) = session.tree.calls()
    assert call.output_ids.tolist() == [20, 21, 22, 2]
    assert call.output_logprobs.tolist() == [-1, -2, -3, -4]
    assert call.policy == (PolicySpan(0, 3, 3), PolicySpan(3, 1, 4))
    assert session.tree.rows()[0].policy_version == 3


async def test_an_unforeseen_error_is_our_fault_too(wire: Wire) -> None:
    engine = FailingEngine(lambda: wire.ids("one" + END), after=1, error=ZeroDivisionError("oh"))
    session = wire.session(engine)
    with pytest.raises(CaptureError, match="call 0 of a: ZeroDivisionError: oh"):
        await ask(session, ASK)
    assert isinstance(session.fault, CaptureError)


async def test_a_call_that_cannot_be_recorded_ends_the_session(wire: Wire) -> None:
    shelf = Shelf(full=True)
    session = wire.session(["one" + END, "two" + END], shelf=shelf)
    with pytest.raises(CaptureError, match="call 0 of a could not be recorded: the disk is full"):
        await ask(session, ASK)
    shelf.full = False
    with pytest.raises(CaptureError, match="call 0"):
        await ask(session, ASK)
    assert shelf.entries == []
    assert session.fault is not None
    assert session.tree.rows() == []


async def test_a_prompt_that_cannot_be_made_is_our_fault(wire: Wire) -> None:
    session = wire.session(["one" + END])
    with pytest.raises(CaptureError, match="takes no images"):
        await ask(session, [Message("user", (ImagePart("0" * 64),))])
    assert isinstance(session.fault, CaptureError)


async def test_nothing_is_finished_before_it_is_in_the_journal(wire: Wire) -> None:
    shelf = Shelf(gate=asyncio.Event())
    session = wire.session(["one two" + END], shelf=shelf)
    seen: list[object] = []

    async def read() -> None:
        async for event in session.call(ChatRequest(ASK)):
            seen.append(event)

    task = asyncio.ensure_future(read())
    await shelf.arrived.wait()
    await asyncio.sleep(0.01)
    assert "".join(e.text for e in seen if isinstance(e, TextDelta)) == "one two"
    assert not any(isinstance(e, TurnFinished) for e in seen)
    assert shelf.gate is not None
    shelf.gate.set()
    await task
    assert isinstance(seen[-1], TurnFinished)


async def test_a_real_journal_gives_back_the_same_rows(wire: Wire, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.journal", sync=False)
    opened = AttemptOpened("a", "train", "train", "t", "loop", "g", 0, 0, 0.0)
    await journal.append(opened)
    engine = wire.engine([call_text("ls") + END, "one two three" + END, "two" + END])
    session = Session("a", wire.policy(engine), journal, SessionBudget(0), CLOSING)
    turn = (await ask(session, ASK)).turn
    said = (*ASK, turn.message(), Message("tool", "x", tool_call_id="call_0_0"))
    async with aclosing(session.call(ChatRequest(said, (TOOL,)))) as events:
        await anext(events)
    await ask(session, said)
    journal.close()
    attempt = replay(read_journal(tmp_path / "run.journal").entries).attempts["a"]
    assert [c.delivered for c in attempt.calls] == [True, False, True]
    assert attempt.tree.shape() == session.tree.shape()
    wanted, found = session.tree.rows(), attempt.tree.rows()
    assert [r.tokens.ids.tobytes() for r in found] == [r.tokens.ids.tobytes() for r in wanted]
    assert [r.mask.tobytes() for r in found] == [r.mask.tobytes() for r in wanted]


async def test_each_call_has_its_own_seed_and_it_repeats(wire: Wire) -> None:
    async def seeds(attempt: str) -> list[int]:
        session = wire.session(["one" + END] * 3, attempt=attempt)
        await converse(session, ASK, ["x", "y"])
        return [c.sampling.seed for c in session.tree.calls()]

    first, again, other = await seeds("a"), await seeds("a"), await seeds("b")
    assert first == again
    assert len({*first, *other}) == 6
    assert first[1] == call_seed(0, "a", 1)
    assert all(0 <= seed < 1 << 63 for seed in first)


async def test_overlapping_calls_are_numbered_apart(wire: Wire) -> None:
    session = wire.session(["one" + END, "two" + END, "three" + END])
    asked = [(*ASK, Message("user", str(i))) for i in range(3)]
    finished = await asyncio.gather(*(ask(session, messages) for messages in asked))
    assert sorted(f.call for f in finished if f.call is not None) == [0, 1, 2]
    assert sorted(c.index for c in session.tree.calls()) == [0, 1, 2]


async def test_a_malformed_turn_still_carries_the_advantage(wire: Wire) -> None:
    """The agent deletes the turn and asks again: the turn stays a leaf that trains."""
    session = wire.session(["<tool_call>{</tool_call>" + END, call_text("ls") + END])
    broken = await ask(session, ASK)
    assert broken.turn.findings
    await ask(session, (*ASK, Message("user", "Use a tool call.")))
    assert [row.calls for row in session.tree.rows()] == [(0,), (1,)]
    assert session.counts.malformed == 1


async def test_closing_forgets_the_engines_state(wire: Wire) -> None:
    session = wire.session(["one" + END, "two" + END])
    await ask(session, ASK)
    await session.close()
    assert (await ask(session, ASK)).turn.content == "one"


async def test_events_are_the_turn(wire: Wire) -> None:
    session = wire.session(["Now " + call_text("ls") + END])
    *events, last = await events_of(session, ChatRequest(ASK, (TOOL,)))
    assert isinstance(last, TurnFinished)
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == last.turn.content == "Now"
    assert last.usage.output_tokens == len(session.tree.call(0).output_ids)
    assert last.usage.prompt_tokens == session.tree.call(0).prompt_length
