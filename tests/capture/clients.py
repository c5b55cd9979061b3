"""Clients of a served proxy: the official SDK, and a bare socket for what an SDK would hide."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from openai.types.chat import ChatCompletionChunk as Chunk

from armillary.capture.listener import ProxyServer
from armillary.capture.session import Session
from armillary.capture.sessions import SessionRegistry
from armillary.chat.messages import AssistantTurn, ToolCall

TOOLS: list[Any] = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "ask"},
]


@dataclass
class Proxy:
    """A served application and what it needs to be talked to."""

    sessions: SessionRegistry
    server: ProxyServer
    port: int

    def client(self, key: str) -> AsyncOpenAI:
        url = f"http://127.0.0.1:{self.port}/v1"
        return AsyncOpenAI(api_key=key, base_url=url, max_retries=0, timeout=20)

    def register(self, session: Session) -> str:
        return self.sessions.register(session)


class Raw:
    """A bare HTTP/1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def post(
        self, key: str, body: object, *, path: str = "/v1/chat/completions", cut: int = 1 << 30
    ) -> None:
        """Send a request; its bytes go out in pieces of `cut`."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        for start in range(0, len(request), cut):
            self._writer.write(request[start : start + cut])
            await self._writer.drain()
            await asyncio.sleep(0)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def reply(self) -> tuple[int, bytes]:
        """Status and body of a whole reply."""
        status, headers = await self.head()
        if "content-length" in headers:
            return status, await self.reader.readexactly(int(headers["content-length"]))
        return status, b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncGenerator[bytes]:
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()

    def hang_up(self) -> None:
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def raw(port: int) -> AsyncGenerator[Raw]:
    connection = Raw(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield connection
    finally:
        connection.close()


async def eventually(true: Callable[[], bool]) -> None:
    """Wait for what another task is about to do."""
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it did not happen")


async def create(client: AsyncOpenAI, **more: Any) -> ChatCompletion:
    return await client.chat.completions.create(
        **{"model": "m", "messages": MESSAGES, "tools": TOOLS, **more}
    )


async def stream(client: AsyncOpenAI, **more: Any) -> list[Chunk]:
    chunks = await create(client, stream=True, stream_options={"include_usage": True}, **more)
    return [chunk async for chunk in chunks]  # pyright: ignore[reportGeneralTypeIssues]


def assembled(chunks: list[Chunk]) -> AssistantTurn:
    """What a client makes of a stream."""
    content = reasoning = ""
    calls: dict[int, tuple[str, str, str]] = {}
    for delta in (choice.delta for chunk in chunks for choice in chunk.choices):
        content += delta.content or ""
        reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
        for part in delta.tool_calls or ():
            call_id, name, arguments = calls.get(part.index, ("", "", ""))
            said = part.function
            assert said is not None
            calls[part.index] = (
                part.id or call_id, said.name or name, arguments + (said.arguments or ""),
            )  # fmt: skip
    return AssistantTurn(content, reasoning, tuple(ToolCall(*calls[i]) for i in sorted(calls)))
