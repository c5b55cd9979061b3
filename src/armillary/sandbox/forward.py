"""Passes connections from a port inside a sandbox to one address outside, and to no other."""

from __future__ import annotations

import asyncio
import contextlib
import re

from armillary.errors import SandboxError
from armillary.sandbox.protocol import Sandbox

_RULE = re.compile(r"(\d+)=([^=:]+):(\d+)")


class Forwarder:
    """Runs until it is closed. Made by `start`."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._server: asyncio.Server
        self._connections: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, sandbox: Sandbox, rule: str) -> Forwarder:
        """Forward by `rule`, such as `8000=127.0.0.1:41234`.

        Raises:
            SandboxError: the rule has another form, or the sandbox is lost.
        """
        parts = _RULE.fullmatch(rule)
        if parts is None:
            raise SandboxError(
                f"{rule!r} is not a forwarding rule; write PORT=HOST:PORT", kind="start"
            )
        inside, host, outside = parts.groups()
        forwarder = cls(host, int(outside))
        listener = await sandbox.listen(int(inside))
        forwarder._server = await asyncio.start_server(forwarder._accepted, sock=listener)
        return forwarder

    async def close(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await self._server.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError):
                await self._relay(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, far_writer))
                group.create_task(_copy(far_reader, writer))
        except* OSError:
            pass  # one side went away; the other is closed below
        finally:
            far_writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()
    target.write_eof()
