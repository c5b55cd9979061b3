"""The parser: any cut gives the same events, the model's bytes stay, nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from conversations import arguments, turns
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import texts

from armillary.chat.messages import AssistantTurn, ToolCall
from armillary.chat.parser import (
    BROKEN_ARGUMENTS,
    MALFORMED,
    UNCLOSED,
    ArgumentsDelta,
    CallClosed,
    CallOpened,
    HermesParser,
    ParserEvent,
    ReasoningDelta,
    TextDelta,
    turn_events,
)
from armillary.chat.raw import raw_ids, turn_ids
from armillary.chat.template import CALL, CALL_END, IM_END, THINK, THINK_END, HermesTemplate
from armillary.chat.tokenizer import Tokenizer


def parse(
    tokenizer: Tokenizer, chunks: Iterable[Iterable[int]]
) -> tuple[list[ParserEvent], AssistantTurn]:
    parser = HermesParser(tokenizer, lambda k: f"call_{k}")
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    last, turn = parser.finish()
    return events + last, turn


def parsed_text(tokenizer: Tokenizer, text: str) -> AssistantTurn:
    return parse(tokenizer, [raw_ids(tokenizer, text).tolist()])[1]


def assembled(events: list[ParserEvent]) -> AssistantTurn:
    """What a client makes of the events; fails where their order has no meaning."""
    content = reasoning = ""
    calls: list[tuple[str, str, str]] = []
    is_open = False
    for event in events:
        match event:
            case TextDelta():
                content += event.text
            case ReasoningDelta():
                reasoning += event.text
            case CallOpened():
                assert not is_open
                assert event.index == len(calls)
                is_open = True
                calls.append((event.id, event.name, ""))
            case ArgumentsDelta():
                assert is_open
                assert event.index == len(calls) - 1
                call_id, name, so_far = calls[-1]
                calls[-1] = (call_id, name, so_far + event.text)
            case CallClosed():
                assert is_open
                assert event.index == len(calls) - 1
                is_open = False
    assert not is_open
    return AssistantTurn(content, reasoning, tuple(ToolCall(*call) for call in calls))


fragments = st.lists(
    st.one_of(
        st.sampled_from(
            [
                CALL, CALL_END, THINK, THINK_END, "<|im_start|>", '{"name": "', '"name"', ": ",
                '", "arguments": {', '"arguments"', '{"a": "', '"}', "}", "{", "[", "]", ",", '"',
                "\\", "\n", " ", "null", "1.5", "ls", CALL + '\n{"name": "f", "arguments": {}}',
                CALL + '\n{"arguments": [1], "name": "f"', CALL + '{"name": "f", "arguments": ',
            ]
        ),
        texts,
    ),
    max_size=12,
).map("".join)  # fmt: skip
"""Replies that are mostly broken."""

cuts = st.lists(st.integers(0, 60), max_size=6).map(sorted)


def chunked(ids: list[int], at: list[int]) -> list[list[int]]:
    bounds = [0, *[min(i, len(ids)) for i in at], len(ids)]
    return [ids[a:b] for a, b in pairwise(bounds)]


@given(reply=fragments, at=cuts)
@settings(max_examples=200, deadline=None)
def test_any_cut_of_any_reply_gives_the_same_events(
    tokenizer: Tokenizer, reply: str, at: list[int]
) -> None:
    ids = raw_ids(tokenizer, reply + IM_END).tolist()
    events, turn = parse(tokenizer, [ids])
    assert parse(tokenizer, chunked(ids, at)) == (events, turn)
    assert parse(tokenizer, ([i] for i in ids)) == (events, turn)
    said = assembled(events)
    assert said == AssistantTurn(turn.content, turn.reasoning, turn.tool_calls)


@given(reply=fragments)
@settings(max_examples=200, deadline=None)
def test_a_reply_without_a_readable_call_is_all_text(tokenizer: Tokenizer, reply: str) -> None:
    reply = reply.replace(IM_END, "").replace(THINK, "")
    turn = parsed_text(tokenizer, reply)
    if not turn.tool_calls:
        assert turn.content == reply.strip()
        assert bool(turn.findings) == (CALL in reply)


@given(turn=turns())
@settings(max_examples=100, deadline=None)
def test_a_turn_comes_back_byte_for_byte(tokenizer: Tokenizer, turn: AssistantTurn) -> None:
    ids = turn_ids(HermesTemplate(tokenizer), turn).tolist()
    assert parse(tokenizer, [ids])[1] == turn
    assert assembled(turn_events(turn)) == turn


@given(turn=turns(reasoning=True))
@settings(max_examples=100, deadline=None)
def test_a_turn_with_reasoning_comes_back(thinking: Tokenizer, turn: AssistantTurn) -> None:
    ids = turn_ids(HermesTemplate(thinking), turn).tolist()
    assert parse(thinking, [ids])[1] == turn


@given(said=arguments)
@settings(max_examples=100, deadline=None)
def test_arguments_before_the_name_and_control_ids_in_strings(
    thinking: Tokenizer, said: str
) -> None:
    """Control texts become control ids here, as when a model samples them inside a string."""
    said = said.replace(CALL_END, THINK_END).replace(IM_END, "")
    turn = parsed_text(thinking, f'{CALL}{{"arguments": {said}, "name" :"f"}}{CALL_END}')
    assert turn == AssistantTurn(tool_calls=(ToolCall("call_0", "f", said),))


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ('{"name": "f", "arguments": {"a": 1}}', "f"),
        ('\n\n{"id": [{"}": "]"}], "name": "f", "arguments": {"a": 1}, "x": null}\n', "f"),
        ('{"name": "\\u0066\\"", "arguments": {"a": 1}}', 'f"'),
        ('{ "arguments"\t:\r\n{"a": 1} , "name":"f" }', "f"),
        ('{"b": true, "c": -1.5e3, "name": "", "arguments": {"a": 1}}', ""),
    ],
)
def test_good_calls(tokenizer: Tokenizer, said: str, name: str) -> None:
    turn = parsed_text(tokenizer, f"Now.\n{CALL}{said}{CALL_END}\n")
    assert turn == AssistantTurn("Now.", tool_calls=(ToolCall("call_0", name, '{"a": 1}'),))


@pytest.mark.parametrize(
    "said",
    [
        "", "{", "{}", "[]", "ls -la", '{"name": "f"}', '{"arguments": {}}', '{"name": 5}',
        '{"name": "f", "arguments"}', '{"name": "f", "arguments": }', '{"name": "f" "arguments"',
        '{name: "f", "arguments": {}}', "{'name': 'f', 'arguments': {}}",
        '{"name": "a", "name": "b", "arguments": {}}', '{"name": "\\x", "arguments": {}}',
        '{"name": "\\ud800", "arguments": {}}', '{"name": "f", "arguments": ]',
    ],
)  # fmt: skip
def test_an_unreadable_call_is_text_with_a_finding(tokenizer: Tokenizer, said: str) -> None:
    turn = parsed_text(tokenizer, f"Now. {CALL}{said}{CALL_END}")
    assert turn == AssistantTurn(f"Now. {CALL}{said}{CALL_END}", findings=(MALFORMED,))


@pytest.mark.parametrize(
    ("said", "arguments", "rest"),
    [
        ('{"name": "f", "arguments": {}} and more', "{}", "and more"),
        ('{"name": "f", "arguments": {}}}', "{}", "}"),
        ('{"name": "f", "arguments": {}, "arguments": {"a": 1}}', "{}", '": {"a": 1}}'),
        ('{"name": "f", "arguments": {}, "name": "g"}', "{}", '": "g"}'),
        ('{"name": "f", "arguments": {},}', "{}", "}"),
        ('{"name": "f", "arguments": {}', "{}", ""),
    ],
)
def test_a_call_that_breaks_after_it_was_announced_keeps_what_follows(
    tokenizer: Tokenizer, said: str, arguments: str, rest: str
) -> None:
    turn = parsed_text(tokenizer, f"{CALL}{said}{CALL_END}")
    call = ToolCall("call_0", "f", arguments)
    assert turn.tool_calls == (call,)
    assert turn.findings == (MALFORMED,)
    assert turn.content == rest.removeprefix('"') or turn.content == rest


@pytest.mark.parametrize(
    "said",
    ["null", "5", '"{}"', "[1]", '{"a": 01}', '{"a": 1,}', "{]", '{"a": "\n"}', "[" * 20000],
)
def test_arguments_that_are_no_object_are_kept_with_a_finding(
    tokenizer: Tokenizer, said: str
) -> None:
    turn = parsed_text(tokenizer, f'{CALL}{{"name": "f", "arguments": {said}}}{CALL_END}')
    assert BROKEN_ARGUMENTS in turn.findings
    assert turn.tool_calls[0].arguments.startswith(said)


def test_an_unclosed_call_is_kept_as_far_as_it_goes(tokenizer: Tokenizer) -> None:
    turn = parsed_text(tokenizer, f'{CALL}{{"name": "f", "arguments": {{"a": "b')
    assert turn.tool_calls == (ToolCall("call_0", "f", '{"a": "b'),)
    assert turn.findings == (UNCLOSED, MALFORMED, BROKEN_ARGUMENTS)
    turn = parsed_text(tokenizer, f'So. {CALL}{{"name": "f"')
    assert turn == AssistantTurn(f'So. {CALL}{{"name": "f"', findings=(UNCLOSED, MALFORMED))


def test_a_call_inside_reasoning_is_not_made(thinking: Tokenizer) -> None:
    call = f'{CALL}{{"name": "f", "arguments": {{}}}}{CALL_END}'
    turn = parsed_text(thinking, f"{THINK}\nI could {call} now\n{THINK_END}\n\n{call}")
    assert turn.reasoning == f"I could {call} now"
    assert turn.content == ""
    assert [c.name for c in turn.tool_calls] == ["f"]


def test_reasoning_marks_out_of_place_are_text(thinking: Tokenizer) -> None:
    assert parsed_text(thinking, f"a{THINK_END}b").content == f"a{THINK_END}b"
    turn = parsed_text(thinking, f"{THINK}a{THINK}b")
    assert turn == AssistantTurn(reasoning=f"a{THINK}b")


def test_characters_split_across_ids(tokenizer: Tokenizer) -> None:
    by_byte = {tokenizer.bytes_of(i): i for i in range(tokenizer.size)}

    def spell(text: str) -> list[int]:
        return [by_byte[bytes([b])] for b in text.encode()]

    control = tokenizer.control
    said = '{"name": "f", "arguments": {"a": "北京 😀"}}'
    ids = [*spell("café 😀"), control[CALL], *spell(said), control[CALL_END], control[IM_END]]
    events, turn = parse(tokenizer, ([i] for i in ids))
    assert turn.content == "café 😀"
    assert turn.tool_calls[0].arguments == '{"a": "北京 😀"}'
    assert assembled(events) == turn


def test_half_a_character_is_shown_not_lost(tokenizer: Tokenizer) -> None:
    by_byte = {tokenizer.bytes_of(i): i for i in range(tokenizer.size)}
    half = [by_byte[bytes([b])] for b in "😀".encode()[:2]]
    call = raw_ids(tokenizer, f'{CALL}{{"name": "f", "arguments": {{}}}}{CALL_END}').tolist()
    assert parse(tokenizer, [[*half, *call]])[1].content == "\ufffd"
    assert parse(tokenizer, [half])[1].content == "\ufffd"


def test_white_space_is_held_until_something_follows(tokenizer: Tokenizer) -> None:
    parser = HermesParser(tokenizer, lambda k: f"call_{k}")
    given_out = [parser.feed(raw_ids(tokenizer, t).tolist()) for t in (" \n", "a", "\n\n", " b")]
    texts = ["".join(e.text for e in out if isinstance(e, TextDelta)) for out in given_out]
    assert texts == ["", "a", "", "\n\n b"]
    assert parser.finish()[1].content == "a\n\n b"


def test_a_long_argument_is_read_once(tokenizer: Tokenizer) -> None:
    """Each character enters the scanner once and leaves in one event: no growing prefix is
    looked at again, so the cost is linear."""
    said = '{"command": "' + "ls \\n" * 5000 + '"}'
    ids = raw_ids(tokenizer, f'{CALL}{{"name": "f", "arguments": {said}}}{CALL_END}').tolist()
    events, turn = parse(tokenizer, ([i] for i in ids))
    deltas = [e.text for e in events if isinstance(e, ArgumentsDelta)]
    assert turn.tool_calls[0].arguments == said
    assert sum(map(len, deltas)) == len(said)
    assert max(map(len, deltas)) < 100
