"""Which record a request continues, and the name of every fork."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armillary.chat.continuation import Conversation, Match, digest
from armillary.chat.messages import (
    AssistantTurn,
    Message,
    TextPart,
    Tool,
    ToolCall,
)
from armillary.record.calls import Fork

SYSTEM, ASK, MORE = Message("system", "S"), Message("user", "ask"), Message("user", "more")
TOOLS = (Tool("bash", '{"type": "function", "function": {"name": "bash"}}'),)
ARGUMENTS = '{"command": "ls", "n": 1.0, "deep": [{"b": 1e3, "a": null}]}'


def called(call_id: str, *, reasoning: str = "", content: str = "") -> AssistantTurn:
    return AssistantTurn(content, reasoning, (ToolCall(call_id, "bash", ARGUMENTS),))


def answer(call_id: str, text: str = "out") -> Message:
    return Message("tool", text, tool_call_id=call_id)


class Talk:
    """A conversation that records what it is asked, as a session does."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.calls = 0

    def ask(
        self, messages: Sequence[Message], reply: AssistantTurn, tools: Sequence[Tool] = TOOLS
    ) -> Match:
        match = self.conversation.match(messages, tools)
        parent = match.parent.call if match.parent else None
        self.conversation.record(self.calls, parent, messages, tools, reply)
        self.calls += 1
        return match


def parent(match: Match) -> int | None:
    return match.parent.call if match.parent else None


A, B = called("call_0_0"), called("call_1_0")
SPOKEN = AssistantTurn("done")
ONE = (SYSTEM, ASK)
TWO = (*ONE, A.message(), answer("call_0_0"))
THREE = (*TWO, B.message(), answer("call_1_0"))


def three_calls() -> Talk:
    talk = Talk()
    assert talk.ask(ONE, A).fork == Fork(0, "first")
    assert talk.ask(TWO, B).fork is None
    match = talk.ask(THREE, SPOKEN)
    assert (parent(match), match.new_from, match.fork) == (1, 5, None)
    return talk


@pytest.mark.parametrize(
    "echo",
    [
        ARGUMENTS,
        '{"command":"ls","n":1,"deep":[{"b":1000,"a":null}]}',
        '{"deep":[{"a":null,"b":1000.0}],"n":1.0,"command":"\\u006cs"}',
        '{ "n" : 10e-1, "command" : "ls", "deep" : [ { "b" : 1E3 , "a" : null } ] }',
    ],
)
def test_reserialised_arguments_continue(echo: str) -> None:
    talk = Talk()
    talk.ask(ONE, A)
    said = Message("assistant", "", tool_calls=(ToolCall("call_0_0", "bash", echo),))
    match = talk.ask((*ONE, said, answer("call_0_0")), SPOKEN)
    assert (parent(match), match.new_from, match.fork) == (0, 3, None)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
@settings(max_examples=200, deadline=None)
def test_a_digest_does_not_depend_on_how_arguments_are_written(value: object) -> None:
    import json

    def of(text: str) -> bytes:
        return digest(Message("assistant", tool_calls=(ToolCall("x", "f", text),)))

    spaced = json.dumps(value, indent=2, ensure_ascii=False)
    assert of(spaced) == of(json.dumps(value, separators=(",", ":"), sort_keys=True))
    assert of(spaced) != of(json.dumps({"no": value}))


def test_one_text_part_is_a_string_and_nothing_is_empty() -> None:
    assert digest(Message("user", (TextPart("a"),))) == digest(Message("user", "a"))
    assert digest(Message("assistant", ())) == digest(Message("assistant"))
    assert digest(Message("user", "a")) != digest(Message("system", "a"))
    assert digest(answer("x")) != digest(answer("y"))


@pytest.mark.parametrize("arguments", ["", "{", "[" * 100_000, '{"a": Infinity}', "\x00"])
def test_broken_arguments_are_compared_as_text(arguments: str) -> None:
    talk = Talk()
    broken = AssistantTurn(tool_calls=(ToolCall("call_0_0", "bash", arguments),))
    talk.ask(ONE, broken)
    match = talk.ask((*ONE, broken.message(), answer("call_0_0")), SPOKEN)
    assert (parent(match), match.fork) == (0, None)


LEFT = [
    # what is asked after three calls, parent, first message not recorded, fork
    ("retry", THREE, 1, Fork(6, "retry")),
    ("first again", ONE, None, Fork(2, "retry")),
    ("last turn deleted", (*THREE, MORE), 1, Fork(6, "turn deleted")),
    ("last turn rewritten", (*THREE, Message("assistant", "don"), MORE), 1, Fork(6, "rewritten")),
    ("result rewritten", (*TWO[:3], answer("call_0_0", "no"), *THREE[4:]), 0, Fork(3, "rewritten")),
    ("question rewritten", (SYSTEM, MORE, *THREE[2:]), None, Fork(1, "rewritten")),
    ("compacted", (SYSTEM, Message("user", "Summary: ..."), MORE), None, Fork(1, "compacted")),
    ("truncated", THREE[:5], 1, Fork(5, "truncated")),
    ("cut in a turn", THREE[:3], 0, Fork(3, "truncated")),
    ("system changed", (Message("system", "T"), *THREE[1:]), None, Fork(0, "system changed")),
    ("new conversation", (Message("user", "title?"),), None, Fork(0, "new conversation")),
    ("other system", (Message("system", "T"), MORE), None, Fork(0, "new conversation")),
]


@pytest.mark.parametrize(("what", "messages", "continues", "fork"), LEFT, ids=[c[0] for c in LEFT])
def test_forks_are_named(
    what: str, messages: tuple[Message, ...], continues: int | None, fork: Fork
) -> None:
    match = three_calls().conversation.match(messages, TOOLS)
    assert (parent(match), match.fork) == (continues, fork)


def test_other_tools_are_another_root() -> None:
    other = (*TOOLS, Tool("submit", "{}"))
    match = three_calls().conversation.match((*THREE, SPOKEN.message(), MORE), other)
    assert (match.parent, match.fork) == (None, Fork(0, "tools changed"))


def test_a_side_call_is_a_new_conversation_not_a_change_of_tools() -> None:
    match = three_calls().conversation.match((Message("user", "a title for this?"),), ())
    assert match.fork == Fork(0, "new conversation")


def test_dropped_reasoning_is_named_wherever_it_is() -> None:
    talk = Talk()
    first = called("call_0_0", reasoning="why")
    second = AssistantTurn("done", "because")
    asked = (*ONE, first.message(), answer("call_0_0"))
    talk.ask(ONE, first)
    bare = Message("assistant", tool_calls=first.tool_calls)
    match = talk.conversation.match((*ONE, bare, answer("call_0_0")), TOOLS)
    assert (match.parent, match.fork) == (None, Fork(2, "reasoning dropped"))
    talk.ask(asked, second)
    kept_first = (*asked, Message("assistant", "done"), MORE)
    match = talk.conversation.match(kept_first, TOOLS)
    assert (parent(match), match.fork) == (0, Fork(4, "reasoning dropped"))
    # At a new question, agents drop the reasoning of all earlier turns.
    match = talk.ask((*ONE, bare, answer("call_0_0"), Message("assistant", "done"), MORE), SPOKEN)
    assert (match.parent, match.fork) == (None, Fork(2, "reasoning dropped"))
    # From there on it is a conversation like any other.
    again = (*ONE, bare, answer("call_0_0"), Message("assistant", "done"), MORE)
    match = talk.conversation.match((*again, SPOKEN.message(), MORE), TOOLS)
    assert (parent(match), match.fork) == (2, None)


def test_interleaved_conversations_do_not_disturb_each_other() -> None:
    talk = Talk()
    sub = (Message("system", "helper"), Message("user", "part"))
    talk.ask(ONE, A)
    assert talk.ask(sub, B).fork == Fork(0, "new conversation")
    a = talk.ask((*ONE, A.message(), answer("call_0_0")), SPOKEN)
    b = talk.ask((*sub, B.message(), answer("call_1_0")), SPOKEN)
    assert (parent(a), a.fork) == (0, None)
    assert (parent(b), b.fork) == (1, None)
    # A fork is compared with the conversation it left, not with the latest call.
    match = talk.conversation.match((*ONE, Message("assistant", "!"), MORE), TOOLS)
    assert match.fork == Fork(2, "rewritten")


def test_of_equal_replies_the_one_whose_id_came_back_is_continued() -> None:
    talk = Talk()
    talk.ask(ONE, called("call_0_0"))
    assert talk.ask(ONE, called("call_1_0")).fork == Fork(2, "retry")
    echo = (*ONE, called("call_0_0").message(), answer("call_0_0"))
    assert parent(talk.conversation.match(echo, TOOLS)) == 0
    echo = (*ONE, called("call_1_0").message(), answer("call_1_0"))
    assert parent(talk.conversation.match(echo, TOOLS)) == 1


def test_after_a_deleted_turn_the_conversation_goes_on() -> None:
    talk = Talk()
    talk.ask(ONE, AssistantTurn("<tool_call>", findings=("malformed tool call",)))
    deleted = (*ONE, Message("user", "Use a tool call."))
    assert talk.ask(deleted, called("call_1_0")).fork == Fork(2, "turn deleted")
    match = talk.ask((*deleted, called("call_1_0").message(), answer("call_1_0")), SPOKEN)
    assert (parent(match), match.fork) == (1, None)


def test_an_assistant_turn_nobody_sampled_is_new_text() -> None:
    talk = Talk()
    talk.ask(ONE, A)
    foreign = (*ONE, A.message(), answer("call_0_0"), Message("assistant", "Sorry."), MORE)
    match = talk.conversation.match(foreign, TOOLS)
    assert (parent(match), match.new_from, match.fork) == (0, 3, None)
