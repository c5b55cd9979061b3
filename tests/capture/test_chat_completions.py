"""The chat-completions dialect alone: what is refused, noted, kept, and the bytes it writes.

The files in `golden/` are whole replies, stream and JSON, with the time of creation set to 0. They
were read against the API reference; a test in `test_proxy.py` has the official SDK read them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armillary.capture.dialects.chat_completions import ChatCompletions
from armillary.capture.dialects.protocol import DialectError, Parsed
from armillary.capture.session import TurnFinished
from armillary.chat.messages import AssistantTurn, Message, Tool, ToolCall
from armillary.chat.parser import (
    ArgumentsDelta,
    CallClosed,
    CallOpened,
    ParserEvent,
    ReasoningDelta,
    TextDelta,
)
from armillary.engine.protocol import Usage
from armillary.record.calls import StopReason

GOLDEN = Path(__file__).with_name("golden")
DIALECT = ChatCompletions()
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
TURN = AssistantTurn(
    "I look, naïve 😀.",
    "Hm.",
    (
        ToolCall("call_0_0", "bash", '{"command":  "ls <a>\\n"}'),
        ToolCall("call_0_1", "submit", "{}"),
    ),
)
FINISHED = TurnFinished(TURN, "tool_calls", Usage(83, 20, cached_tokens=7), call=0)
EVENTS: tuple[ParserEvent, ...] = (
    ReasoningDelta("Hm."), TextDelta("I look, "), TextDelta("naïve 😀."),
    CallOpened(0, "call_0_0", "bash"), ArgumentsDelta(0, '{"comm'),
    ArgumentsDelta(0, 'and":  "ls <a>\\'), ArgumentsDelta(0, 'n"}'), CallClosed(0),
    CallOpened(1, "call_0_1", "submit"), ArgumentsDelta(1, "{}"), CallClosed(1),
)  # fmt: skip


def parse(**fields: object) -> Parsed:
    return DIALECT.parse(json.dumps({"messages": [USER], **fields}).encode())


def timeless(data: bytes) -> bytes:
    return re.sub(rb'"created":\d+', b'"created":0', data)


def streamed(parsed: Parsed) -> bytes:
    writer = DIALECT.stream(parsed, "reply-0")
    events = b"".join(writer.event(event) for event in EVENTS)
    return timeless(writer.start() + events + writer.finish(FINISHED))


def test_golden_replies() -> None:
    parsed = parse(model="m", tools=[TOOL], stream_options={"include_usage": True})
    whole = timeless(DIALECT.whole(parsed, "reply-0", FINISHED))
    assert whole == (GOLDEN / "chat_completions.json").read_bytes().strip()
    assert streamed(parsed) == (GOLDEN / "chat_completions.sse").read_bytes()


def test_usage_comes_only_if_asked_for() -> None:
    assert b'"usage"' in streamed(parse(stream_options={"include_usage": True}))
    without = streamed(parse())
    assert b'"usage"' not in without
    assert without.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("stop", "stop"), ("length", "length"), ("context", "length"), ("tool_calls", "tool_calls")],
)
def test_finish_reasons(reason: StopReason, shown: str) -> None:
    finished = TurnFinished(AssistantTurn("a"), reason, Usage(1, 1), call=0)
    whole = json.loads(DIALECT.whole(parse(), "reply-0", finished))
    assert whole["choices"][0]["finish_reason"] == shown
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2), ("n", 0), ("stop", "\n"), ("stop", ["a"]), ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "bash"}}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("logprobs", True), ("top_logprobs", 5), ("logit_bias", {"5": 1}),
        ("functions", [{"name": "f"}]), ("function_call", {"name": "f"}),
        ("modalities", ["text", "audio"]), ("tools", [{"type": "custom", "custom": {}}]),
        ("tools", 5), ("tools", ["bash"]), ("tools", [{"type": "function", "function": {}}]),
        ("stream_options", "yes"), ("messages", []), ("messages", "hi"), ("messages", None),
        ("messages", ["hi"]),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(DialectError) as caught:
        parse(**{field: value})
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith(field)
    assert field in str(caught.value)
    shown = json.loads(DIALECT.error(400, str(caught.value), caught.value.param))
    assert shown["error"]["type"] == "invalid_request_error"


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "function", "content": "x"}, {"role": ["user"]}, {"content": "x"},
        {"role": "user", "content": [IMAGE]}, {"role": "user", "content": 5},
        {"role": "tool", "content": [{"type": "text", "text": "x"}, IMAGE]},
        {"role": "assistant", "tool_calls": 5}, {"role": "assistant", "tool_calls": [{}]},
        {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f"}}]},
        {"role": "assistant",
         "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": {}}}]},
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "assistant", "audio": {"id": "a"}},
        {"role": "assistant", "reasoning_content": [1]},
    ],
)  # fmt: skip
def test_a_message_that_cannot_be_kept_is_refused_by_its_place(
    message: Mapping[str, object],
) -> None:
    with pytest.raises(DialectError, match=r"messages\[1\]"):
        parse(messages=[USER, message])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"a":' * 100_000, b"null"])
def test_a_body_that_is_no_object(body: bytes) -> None:
    with pytest.raises(DialectError) as caught:
        DIALECT.parse(body)
    assert caught.value.status == 400


@given(
    st.dictionaries(
        st.sampled_from(
            ["messages", "tools", "stream", "stream_options", "n", "stop", "tool_choice", "model"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from(
                        ["role", "content", "tool_calls", "type", "function", "name", "id"]
                    ),
                    inner | st.sampled_from(["user", "assistant", "function", "text"]),
                    max_size=3,
                )
            ),
            max_leaves=8,
        ),
    )
)
@settings(max_examples=300, deadline=None)
def test_a_strange_request_is_parsed_or_refused_never_a_crash(fields: dict[str, object]) -> None:
    with contextlib.suppress(DialectError):
        assert DIALECT.parse(json.dumps(fields).encode()).chat.messages


def test_sampling_is_kept_as_asked_and_fields_without_effect_are_findings() -> None:
    parsed = parse(
        temperature=0.2, top_p=0.9, max_completion_tokens=99, seed=5, user="me", store=False,
        parallel_tool_calls=True, new_thing=1, n=1, stop=None, tool_choice="auto", logprobs=False,
        response_format={"type": "text"}, messages=[{**USER, "name": "bob", "refusal": None}],
    )  # fmt: skip
    assert parsed.chat.asked == {
        "temperature": 0.2, "top_p": 0.9, "max_completion_tokens": 99, "seed": 5,
    }  # fmt: skip
    assert parsed.chat.findings == (
        "`user` has no effect", "`store` has no effect", "`parallel_tool_calls` has no effect",
        "unknown field `new_thing` ignored", "message field `name` ignored",
    )  # fmt: skip


def test_messages_in_internal_form() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{ }"}}
    parsed = parse(
        messages=[
            {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text",
                "text": "b", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "out", },
            {"role": "assistant", "content": "x", "reasoning_content": "why"},
        ],
        tools=[TOOL],
    )  # fmt: skip
    assert parsed.chat.messages == (
        Message("system", "d"),
        Message("user", "ab"),
        Message("assistant", "", tool_calls=(ToolCall("c", "f", "{ }"),)),
        Message("tool", "out", tool_call_id="c"),
        Message("assistant", "x", reasoning="why"),
    )
    assert parsed.chat.tools == (Tool("bash", json.dumps(TOOL)),)


def test_a_reply_that_says_nothing_is_an_empty_text() -> None:
    finished = TurnFinished(AssistantTurn(), "stop", Usage(1, 1), call=0)
    whole = json.loads(DIALECT.whole(parse(), "reply-0", finished))
    assert whole["choices"][0]["message"]["content"] == ""


def test_no_tools_may_be_called() -> None:
    assert parse(tools=[TOOL], tool_choice="none").chat.tools == ()


def test_half_a_surrogate_pair_is_read() -> None:
    """As an agent in JavaScript sends it after cutting a text inside an emoji."""
    body = b'{"messages": [{"role": "user", "content": "a\\ud83d \\ud83d\\ude00 na\xc3\xafve"}]}'
    assert DIALECT.parse(body).chat.messages[0].content == "a\ufffd 😀 naïve"


def test_the_key_is_the_bearer_token() -> None:
    assert DIALECT.key({"authorization": "Bearer  k"}) == "k"
    assert DIALECT.key({"authorization": "bearer k"}) == "k"
    assert DIALECT.key({"authorization": "Basic k"}) == DIALECT.key({}) == ""
