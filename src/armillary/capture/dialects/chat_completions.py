"""OpenAI chat completions.

Source of the wire format: OpenAI API reference, "Create chat completion" and "Streaming".
Sampling fields are recorded and replaced by the run's. A field that would change what the model
may say and cannot be kept is refused by name; a field that changes nothing here is a finding.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from armillary.capture.dialects.protocol import DialectError, Parsed
from armillary.capture.session import ChatRequest, TurnFinished
from armillary.chat.messages import Message, Role, Tool, ToolCall
from armillary.chat.parser import (
    ArgumentsDelta,
    CallClosed,
    CallOpened,
    ParserEvent,
    ReasoningDelta,
)
from armillary.record.calls import StopReason

_SAMPLING = frozenset(
    (
        "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens",
        "presence_penalty", "frequency_penalty", "repetition_penalty", "reasoning_effort",
    )
)  # fmt: skip
_UNDERSTOOD = frozenset(("model", "messages", "tools", "stream", "stream_options"))
_HARMLESS = frozenset(
    (
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "parallel_tool_calls", "verbosity",
    )
)  # fmt: skip
_FINISH: dict[StopReason, str] = {
    "stop": "stop", "tool_calls": "tool_calls", "length": "length", "context": "length",
    "cancelled": "stop", "error": "stop",
}  # fmt: skip
_ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant",
    "tool": "tool",
}  # fmt: skip
_MESSAGE_FIELDS = frozenset(
    ("role", "content", "tool_calls", "tool_call_id", "reasoning_content", "reasoning")
)
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "stop": ((), [], ""),
    "tool_choice": ("auto", "none"),
    "response_format": ({"type": "text"},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
}
"""Fields that cannot be kept, with the values that ask for nothing."""


class ChatCompletions:
    """The dialect."""

    name: str = "chat-completions"
    routes: tuple[str, ...] = ("/v1/chat/completions", "/chat/completions")

    def key(self, headers: Mapping[str, str]) -> str:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return key.strip() if scheme.lower() == "bearer" else ""

    def parse(self, body: bytes) -> Parsed:
        fields = _object(body)
        findings = _refuse_or_note(fields)
        raw = _read(fields.get("messages"), list[dict[str, Any]], "messages")
        if not raw:
            raise DialectError(400, "`messages` is empty", param="messages")
        tools = _read(fields.get("tools") or [], list[dict[str, Any]], "tools")
        if fields.get("tool_choice") == "none":
            tools = []
        options = _read(fields.get("stream_options") or {}, dict[str, Any], "stream_options")
        chat = ChatRequest(
            messages=tuple(_message(m, i) for i, m in enumerate(raw)),
            tools=tuple(_tool(t, i) for i, t in enumerate(tools)),
            dialect=self.name,
            asked={k: v for k, v in fields.items() if k in _SAMPLING},
            findings=(*findings, *_ignored_message_fields(raw)),
        )
        return Parsed(
            chat,
            model=str(fields.get("model") or ""),
            stream=bool(fields.get("stream")),
            include_usage=bool(options.get("include_usage")),
        )

    def whole(self, parsed: Parsed, reply_id: str, finished: TurnFinished) -> bytes:
        turn = finished.turn
        content = turn.content or (None if turn.tool_calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.tool_calls:
            message["tool_calls"] = [
                _call_object(c.id, c.name, c.arguments) for c in turn.tool_calls
            ]
        choice = {
            "index": 0, "message": message, "logprobs": None,
            "finish_reason": _FINISH[finished.stop_reason],
        }  # fmt: skip
        reply = _envelope(parsed, reply_id, "chat.completion")
        return msgspec.json.encode({**reply, "choices": [choice], "usage": _usage(finished)})

    def stream(self, parsed: Parsed, reply_id: str) -> ChatEventWriter:
        return ChatEventWriter(parsed, reply_id)

    def error(self, status: int, message: str, param: str | None = None) -> bytes:
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
        detail = {"message": message, "type": kind, "param": param, "code": None}
        return msgspec.json.encode({"error": detail})


class ChatEventWriter:
    """Server-sent events of one reply."""

    def __init__(self, parsed: Parsed, reply_id: str) -> None:
        self._parsed = parsed
        self._base = _envelope(parsed, reply_id, "chat.completion.chunk")

    def start(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def event(self, event: ParserEvent) -> bytes:
        match event:
            case ReasoningDelta():
                return self._chunk({"reasoning_content": event.text})
            case CallOpened():
                call = {"index": event.index, **_call_object(event.id, event.name, "")}
                return self._chunk({"tool_calls": [call]})
            case ArgumentsDelta():
                part = {"index": event.index, "function": {"arguments": event.text}}
                return self._chunk({"tool_calls": [part]})
            case CallClosed():
                return b""
            case _:
                return self._chunk({"content": event.text})

    def finish(self, finished: TurnFinished) -> bytes:
        end = self._chunk({}, _FINISH[finished.stop_reason])
        if self._parsed.include_usage:
            end += _sse({**self._base, "choices": [], "usage": _usage(finished)})
        return end + b"data: [DONE]\n\n"

    def fail(self, message: str) -> bytes:
        return b"data: " + ChatCompletions().error(500, message) + b"\n\n"

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _sse({**self._base, "choices": [choice]})


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


def _envelope(parsed: Parsed, reply_id: str, kind: str) -> dict[str, Any]:
    return {"id": reply_id, "object": kind, "created": int(time.time()), "model": parsed.model}


def _usage(finished: TurnFinished) -> dict[str, Any]:
    usage = finished.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _call_object(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        fields = _with_broken_pairs(body)
        if fields is None:
            raise DialectError(400, f"the body is not a JSON object: {error}") from error
        return fields
    except RecursionError as error:
        raise DialectError(400, "the body is nested too deeply") from error


def _with_broken_pairs(body: bytes) -> dict[str, Any] | None:
    """A body whose only fault is half a surrogate pair, which then reads U+FFFD.

    An agent in JavaScript sends one whenever it cuts a tool's output inside an emoji.
    """
    try:
        fields = json.loads(body)
        whole = json.dumps(fields, ensure_ascii=False).encode("utf-16", "surrogatepass")
        return msgspec.json.decode(whole.decode("utf-16", "replace"), type=dict[str, Any])
    except (ValueError, RecursionError):
        return None


def _read[T](value: object, kind: type[T], where: str) -> T:
    """`value` as a `kind`, or the DialectError that names `where`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise DialectError(400, f"`{where}`: {error}", param=where) from error


def _refuse_or_note(fields: dict[str, Any]) -> list[str]:
    """Findings for fields without effect; DialectError for those that cannot be kept."""
    findings: list[str] = []
    for name, value in fields.items():
        if name in _NEUTRAL:
            if value is not None and value not in _NEUTRAL[name]:
                raise DialectError(400, f"`{name}` = {value!r} cannot be honoured", param=name)
        elif name in _HARMLESS:
            findings.append(f"`{name}` has no effect")
        elif name not in _UNDERSTOOD and name not in _SAMPLING:
            findings.append(f"unknown field `{name}` ignored")
    return findings


def _ignored_message_fields(raw: Sequence[dict[str, Any]]) -> list[str]:
    names = {name for m in raw for name, value in m.items() if value not in (None, [], {})}
    return [f"message field `{name}` ignored" for name in sorted(names - _MESSAGE_FIELDS)]


def _message(fields: dict[str, Any], at: int) -> Message:
    where = f"messages[{at}]"
    role = _ROLES.get(str(fields.get("role")))
    if role is None:
        raise DialectError(400, f"`{where}.role` must be one of {sorted(_ROLES)}", param=where)
    for name in ("audio", "function_call"):
        if fields.get(name):
            raise DialectError(400, f"`{where}.{name}` cannot be kept", param=where)
    content = _content(fields.get("content"), where)
    if role == "tool":
        return Message(role, content, tool_call_id=str(fields.get("tool_call_id") or ""))
    if role != "assistant":
        return Message(role, content)
    calls = _read(fields.get("tool_calls") or [], list[_Call], f"{where}.tool_calls")
    reasoning = fields.get("reasoning_content") or fields.get("reasoning") or ""
    return Message(
        role,
        content,
        tool_calls=tuple(ToolCall(c.id, c.function.name, c.function.arguments) for c in calls),
        reasoning=_read(reasoning, str, f"{where}.reasoning"),
    )


def _content(raw: Any, where: str) -> str:
    """A string, null, or a list of text parts: all mean text."""
    if raw is None:
        return ""
    if isinstance(raw, str):
        return raw
    try:
        parts = msgspec.convert(raw, list[_TextPart])
    except msgspec.ValidationError as error:
        raise DialectError(
            400, f"`{where}.content`: only text parts can be kept", param=where
        ) from error
    return "".join(part.text for part in parts)


class _TextPart(msgspec.Struct, tag="text", tag_field="type"):
    text: str


class _CallFunction(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _CallFunction


def _tool(raw: Any, at: int) -> Tool:
    where = f"tools[{at}]"
    try:
        name = msgspec.convert(raw, _FunctionTool).function.name
    except msgspec.ValidationError as error:
        raise DialectError(
            400, f"`{where}`: only function tools with a name can be kept ({error})", param=where
        ) from error
    return Tool(name, tool_schema(raw))


class _Function(msgspec.Struct):
    name: str


class _FunctionTool(msgspec.Struct, tag="function", tag_field="type"):
    function: _Function


def tool_schema(tool: dict[str, Any]) -> str:
    """A tool as the text templates show: Python's default JSON spacing, keys in given order.

    Source: `tojson` in the chat templates of the Qwen family.
    """
    return json.dumps(tool, ensure_ascii=False)
