"""The proxy over real sockets, with the official SDK as its client.

Where an SDK would hide what is tested (the last byte, a hang-up, one connection for two requests),
the client is a bare socket.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from clients import MESSAGES, Proxy, assembled, create, eventually, raw, stream
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion
from wire import END, FailingEngine, Shelf, Wire, call_text, retryable

from armillary.capture import app as app_module
from armillary.capture.app import CaptureApp
from armillary.capture.listener import ProxyServer
from armillary.capture.session import Session, SessionBudget
from armillary.capture.sessions import SessionRegistry
from armillary.chat.messages import AssistantTurn, ToolCall
from armillary.errors import EngineError

GOLDEN = Path(__file__).with_name("golden")
REPLY = f"I look.\n{call_text('ls naïve 😀')}" + END


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    sessions = SessionRegistry()
    server = ProxyServer(CaptureApp(sessions))
    listener, port = await server.listen_local()
    yield Proxy(sessions, server, port)
    await listener.close()


async def test_whole_and_streamed_replies_say_the_same(wire: Wire, proxy: Proxy) -> None:
    shelf = Shelf()
    client = proxy.client(proxy.register(wire.session([REPLY] * 2, shelf=shelf)))
    whole = await create(client)
    chunks = await stream(client)
    message = whole.choices[0].message
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert (message.content, call.function.name) == ("I look.", "bash")
    assert call.function.arguments == '{"command": "ls naïve 😀"}'
    streamed = assembled(chunks)
    assert streamed.content == message.content
    assert [(c.name, c.arguments) for c in streamed.tool_calls] == [
        (call.function.name, call.function.arguments)
    ]
    assert [c.finish_reason for chunk in chunks for c in chunk.choices][-1] == "tool_calls"
    for recorded, usage in zip(shelf.calls, (whole.usage, chunks[-1].usage), strict=True):
        assert usage is not None
        assert usage.prompt_tokens == recorded.prompt_length
        assert usage.completion_tokens == len(recorded.output_ids)
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert len(chunks) > 5, "tokens are streamed as they are sampled"


async def test_an_agents_echo_continues_the_recorded_ids(wire: Wire, proxy: Proxy) -> None:
    shelf = Shelf()
    session = wire.session([REPLY, REPLY, "42" + END], shelf=shelf)
    client = proxy.client(proxy.register(session))
    messages: list[Any] = [*MESSAGES]
    for _ in range(2):
        message = (await create(client, messages=messages)).choices[0].message
        assert message.tool_calls is not None
        echo = message.model_dump(exclude_none=True)
        # As JavaScript agents send it back: compact, and null beside a call.
        function = echo["tool_calls"][0]["function"]
        function["arguments"] = json.dumps(
            json.loads(function["arguments"]), separators=(",", ":"), ensure_ascii=False
        )
        messages += [
            {**echo, "content": [{"type": "text", "text": echo["content"]}]},
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "out"},
        ]
    await create(client, messages=messages)
    assert [c.prompt.parent for c in shelf.calls] == [None, 0, 1]
    assert [c.fork.reason if c.fork else None for c in shelf.calls] == ["first", None, None]
    assert len(session.tree.rows()) == 1


async def test_what_was_asked_is_recorded_and_the_runs_sampling_used(
    wire: Wire, proxy: Proxy
) -> None:
    shelf = Shelf()
    client = proxy.client(proxy.register(wire.session(["a" + END], shelf=shelf)))
    await create(client, temperature=0.1, max_tokens=3, seed=5, user="me")
    (call,) = shelf.calls
    assert call.sampling_asked == {"temperature": 0.1, "max_tokens": 3, "seed": 5}
    assert (call.sampling.temperature, call.sampling.max_tokens) == (1.0, 1000)
    assert call.findings == ("`user` has no effect",)
    assert call.dialect == "chat-completions"


async def test_unknown_keys(wire: Wire, proxy: Proxy) -> None:
    shelf = Shelf()
    session = wire.session([REPLY] * 2, shelf=shelf)
    key = proxy.register(session)
    for wrong in ("sk-unknown", key[:-1], key + "0", "none"):
        with pytest.raises(openai.AuthenticationError):
            await create(proxy.client(wrong))
    async with raw(proxy.port) as connection:
        await connection.post("", {"messages": MESSAGES})
        assert (await connection.reply())[0] == 401
    await create(proxy.client(key))
    proxy.sessions.remove(key)
    with pytest.raises(openai.AuthenticationError):
        await create(proxy.client(key))
    assert len(shelf.calls) == 1


async def test_a_socket_that_names_its_session_takes_no_other_key(wire: Wire, proxy: Proxy) -> None:
    own, other = (proxy.register(wire.session([REPLY] * 2, attempt=name)) for name in "ab")
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    listener = await proxy.server.listen(sock, session_key=own)
    try:
        bound = Proxy(proxy.sessions, proxy.server, port)
        with pytest.raises(openai.AuthenticationError):
            await create(bound.client(other))
        await create(bound.client(own))
        await create(proxy.client(other))
    finally:
        await listener.close()
    with pytest.raises(openai.APIConnectionError):
        await create(bound.client(own))


async def test_unknown_routes_are_no_model_calls(wire: Wire, proxy: Proxy) -> None:
    shelf = Shelf()
    key = proxy.register(wire.session([REPLY], shelf=shelf))
    client = proxy.client(key)
    for call in (
        client.embeddings.create(model="m", input="x"),
        client.completions.create(model="m", prompt="x"),
        client.responses.create(model="m", input="x"),
        client.models.list(),
    ):
        with pytest.raises(openai.NotFoundError, match="this proxy serves POST"):
            await call
    async with raw(proxy.port) as connection:
        for path in ("/", "/v1", "/v1/chat", "/v1/chat/completions/x", "//v1/chat/completions"):
            await connection.post(key, {"messages": MESSAGES}, path=path)
            assert (await connection.reply())[0] == 404
        connection._writer.write(b"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await connection.reply())[0] == 404
        assert shelf.calls == []
        await connection.post(key, {"messages": MESSAGES}, path="/chat/completions/?beta=1")
        assert (await connection.reply())[0] == 200


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"), ({"stop": ["x"]}, "stop"), ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:,"}}]}]}, "messages[0]"),
    ],
)  # fmt: skip
async def test_refusals_name_the_field(
    wire: Wire, proxy: Proxy, more: dict[str, object], param: str
) -> None:
    shelf = Shelf()
    session = wire.session([REPLY], shelf=shelf)
    with pytest.raises(openai.BadRequestError) as caught:
        await create(proxy.client(proxy.register(session)), **more)
    assert caught.value.param == param
    assert shelf.entries == []
    assert session.fault is None, "the request earned it"


async def test_bad_bodies(wire: Wire, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    key = proxy.register(wire.session([REPLY]))
    async with raw(proxy.port) as connection:
        await connection.post(key, b'{"messages": ')
        status, body = await connection.reply()
        assert status == 400
        assert b"not a JSON object" in body
        monkeypatch.setattr(app_module, "MAX_BODY", 100_000)
        await connection.post(key, b"x" * 100_001)
        assert (await connection.reply())[0] == 413
        await connection.post(key, {"messages": MESSAGES})
        assert (await connection.reply())[0] == 200


async def test_one_connection_serves_many_calls_however_the_body_is_cut(
    wire: Wire, proxy: Proxy
) -> None:
    shelf = Shelf()
    key = proxy.register(wire.session([REPLY] * 4, shelf=shelf))
    body = json.dumps({"messages": [{"role": "user", "content": "naïve 😀"}]}, ensure_ascii=False)
    async with raw(proxy.port) as connection:
        for cut in (1, 7, 64, 1 << 20):
            await connection.post(key, body.encode(), cut=cut)
            status, reply = await connection.reply()
            assert status == 200
            assert json.loads(reply)["choices"][0]["message"]["content"] == "I look."
    assert len({c.system_digest for c in shelf.calls}) == 1
    assert len(shelf.calls) == 4
    assert b"na\xc3\xafve \xf0\x9f\x98\x80" in shelf.calls[0].request


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_last_byte_waits_for_the_journal(
    wire: Wire, proxy: Proxy, streaming: bool
) -> None:
    shelf = Shelf(gate=asyncio.Event())
    key = proxy.register(wire.session(["one two" + END], shelf=shelf))
    async with raw(proxy.port) as connection:
        await connection.post(key, {"messages": MESSAGES, "stream": streaming})
        await shelf.arrived.wait()
        got = b""
        with suppress(TimeoutError):
            while True:
                got += await asyncio.wait_for(connection.reader.read(1 << 16), 0.1)
        said = b"".join(re.findall(rb'"content":"([^"]*)"', got))
        assert said == (b"one two" if streaming else b"")
        assert b'finish_reason":"stop' not in got
        assert b"[DONE]" not in got
        assert shelf.gate is not None
        shelf.gate.set()
        got += await connection.reader.readuntil(b"[DONE]" if streaming else b"}}")
        assert b'finish_reason":"stop' in got


async def test_a_hang_up_in_the_middle_is_undelivered(wire: Wire, proxy: Proxy) -> None:
    shelf = Shelf()
    engine = wire.engine(["one two three four" + END, "five" + END], seconds_per_token=0.02)
    session = wire.session(engine, shelf=shelf)
    key = proxy.register(session)
    async with raw(proxy.port) as connection:
        await connection.post(key, {"messages": MESSAGES, "stream": True})
        await connection.head()
        await anext(connection.chunks())
        connection.hang_up()
    await eventually(lambda: bool(shelf.lost))
    (call,) = shelf.calls
    assert shelf.lost == [0]
    assert call.stop_reason == "cancelled"
    assert 0 < len(call.output_ids) < len(wire.ids("one two three four" + END))
    assert session.tree.rows() == []
    assert session.fault is None
    reply = await create(proxy.client(key))
    assert reply.choices[0].message.content == "five"
    assert [row.calls for row in session.tree.rows()] == [(1,)]


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_hang_up_while_the_journal_commits_is_undelivered(
    wire: Wire, proxy: Proxy, streaming: bool
) -> None:
    shelf = Shelf(gate=asyncio.Event())
    session = wire.session(["one" + END], shelf=shelf)
    async with raw(proxy.port) as connection:
        key = proxy.register(session)
        await connection.post(key, {"messages": MESSAGES, "stream": streaming})
        await shelf.arrived.wait()
        connection.hang_up()
    await eventually(lambda: bool(shelf.lost))
    assert not session.tree.call(0).delivered
    assert session.tree.rows() == []


async def test_reading_to_the_end_and_closing_is_a_delivery(wire: Wire, proxy: Proxy) -> None:
    shelf = Shelf()
    for streaming in (True, False):
        session = wire.session(["one" + END], shelf=shelf)
        async with raw(proxy.port) as connection:
            key = proxy.register(session)
            await connection.post(key, {"messages": MESSAGES, "stream": streaming})
            await connection.reply()
            connection.hang_up()
        await asyncio.sleep(0.02)
        assert session.tree.call(0).delivered
    assert shelf.lost == []


async def test_an_engine_that_fails_before_the_first_token(wire: Wire, proxy: Proxy) -> None:
    for streaming in (True, False):
        engine = FailingEngine(lambda: wire.ids("one"), after=0, error=retryable())
        session = wire.session(engine)
        with pytest.raises(openai.InternalServerError, match="the engine is gone"):
            await create(proxy.client(proxy.register(session)), stream=streaming)
        assert isinstance(session.fault, EngineError)


async def test_an_engine_that_fails_in_mid_stream(wire: Wire, proxy: Proxy) -> None:
    engine = FailingEngine(lambda: wire.ids("one two" + END), after=2, error=retryable())
    session = wire.session(engine)
    with pytest.raises(openai.APIError, match="the engine is gone"):
        await stream(proxy.client(proxy.register(session)))
    assert isinstance(session.fault, EngineError)
    assert not session.tree.call(0).delivered


async def test_an_unforeseen_error_is_a_reply_too(wire: Wire, proxy: Proxy) -> None:
    engine = FailingEngine(lambda: wire.ids("one"), after=1, error=ZeroDivisionError("oh"))
    session = wire.session(engine)
    with pytest.raises(openai.InternalServerError, match="ZeroDivisionError"):
        await create(proxy.client(proxy.register(session)))
    assert session.fault is not None


async def test_a_spent_budget_ends_the_loop_in_the_agents_own_form(
    wire: Wire, proxy: Proxy
) -> None:
    shelf = Shelf()
    closing = AssistantTurn("Stop.", tool_calls=(ToolCall("call_end", "bash", '{"command": ""}'),))
    session = wire.session([REPLY], shelf=shelf, budget=SessionBudget(1), closing=closing)
    client = proxy.client(proxy.register(session))
    await create(client)
    streamed = assembled(await stream(client))
    assert streamed == closing
    whole = (await create(client)).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content == "Stop."
    assert len(shelf.calls) == 1
    assert session.counts.closing_replies == 2


async def test_fifty_sessions_on_two_listeners(wire: Wire, proxy: Proxy) -> None:
    listener, port = await proxy.server.listen_local()
    second = Proxy(proxy.sessions, proxy.server, port)
    shelf = Shelf()

    async def attempt(number: int) -> Session:
        session = wire.session(
            [f"{number} first" + END, f"{number} second" + END], shelf=shelf, attempt=str(number)
        )
        client = (proxy, second)[number % 2].client(proxy.register(session))
        first = (await create(client)).choices[0].message
        more: list[Any] = [*MESSAGES, first.model_dump(), {"role": "user", "content": "and?"}]
        assert first.content == f"{number} first"
        assert assembled(await stream(client, messages=more)).content == f"{number} second"
        await client.close()
        return session

    sessions = await asyncio.gather(*map(attempt, range(50)))
    await listener.close()
    assert len(shelf.calls) == 100
    for session in sessions:
        (row,) = session.tree.rows()
        assert row.calls == (0, 1)
    assert len({c.sampling.seed for c in shelf.calls}) == 100


@pytest.mark.parametrize("size", [1, 3, 50, 1 << 20])
async def test_the_sdk_reads_the_golden_files(size: int) -> None:
    """Byte by byte too: characters and events are then cut anywhere."""
    body = (GOLDEN / "chat_completions.sse").read_bytes()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Connection: close\r\n\r\n")
        for start in range(0, len(body), size):
            writer.write(body[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    client = AsyncOpenAI(api_key="k", base_url=url, max_retries=0)
    chunks = await stream(client)
    server.close()
    whole = ChatCompletion.model_validate_json((GOLDEN / "chat_completions.json").read_bytes())
    message = whole.choices[0].message
    turn = assembled(chunks)
    assert turn.content == message.content == "I look, naïve 😀."
    assert turn.reasoning == (message.model_extra or {})["reasoning_content"] == "Hm."
    said = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()
            if c.type == "function"]  # fmt: skip
    assert [(c.id, c.name, c.arguments) for c in turn.tool_calls] == said
    assert len(said) == 2
    assert chunks[-1].usage == whole.usage


async def test_closing_a_listener_drops_what_is_open(wire: Wire) -> None:
    sessions = SessionRegistry()
    listener, port = await ProxyServer(CaptureApp(sessions)).listen_local()
    shelf = Shelf()
    session = wire.session(wire.engine(["one two" + END], seconds_per_token=60), shelf=shelf)
    async with raw(port) as connection:
        await connection.post(sessions.register(session), {"messages": MESSAGES})
        await eventually(lambda: session._next == 1)
        await listener.close()
        assert await connection.reader.read() == b""
    assert shelf.lost == [0]
