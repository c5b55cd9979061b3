"""A scripted chat-completions server, small enough to read, for listeners passed out of sandboxes.

It speaks just enough HTTP for real clients: POST with a content-length, keep-alive, JSON answers.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Script:
    """Answers each call with the next command, and keeps what was asked."""

    commands: Sequence[str | None]
    """None is a turn of text without a call."""
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    paths: list[str] = field(default_factory=list[str])
    keys: list[str] = field(default_factory=list[str])

    def reply(self, body: bytes) -> dict[str, Any]:
        command = self.commands[len(self.requests)]
        self.requests.append(json.loads(body))
        message: dict[str, Any] = {"role": "assistant", "content": None}
        if command is None:
            message["content"] = "no call"
        else:
            function = {"name": "bash", "arguments": json.dumps({"command": command})}
            call = {"id": f"call_{len(self.requests)}", "type": "function", "function": function}
            message["tool_calls"] = [call]
        return {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 0,
            "model": "armillary",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }

    async def serve(self, listener: socket.socket) -> asyncio.Server:
        return await asyncio.start_server(self._client, sock=listener)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                request, *lines = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                self.paths.append(request.split(" ")[1])
                self.keys.append(headers.get("authorization", "").removeprefix("bearer "))
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                data = json.dumps(self.reply(body)).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                    b"content-length: %d\r\n\r\n%b" % (len(data), data)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
