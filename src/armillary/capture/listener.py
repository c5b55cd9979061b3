"""Listening sockets for the proxy, handed in as descriptors.

A sandbox makes its listening socket inside its own network namespace and passes the descriptor
out; the proxy serves it from here. The socket then names the attempt, and the API key must agree.
uvicorn's own server takes sockets only at its start, so its HTTP protocol class is used directly
with the event loop's `create_server`.
"""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from armillary.capture.app import CaptureApp

_KEEP_ALIVE = 24 * 3600
"""Seconds. Agents think for minutes between calls; a short limit would reset them."""


_PATIENCE = 5
"""Seconds that calls in flight have to record that nobody listens any more."""


class Listener:
    """One served socket."""

    def __init__(self, server: asyncio.Server, state: ServerState) -> None:
        self._server = server
        self._state = state

    async def close(self) -> None:
        """Stop listening and drop every connection; calls in flight end as hang-ups."""
        self._server.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        tasks = set(self._state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_PATIENCE)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class ProxyServer:
    """Serves one application on any number of sockets."""

    def __init__(self, app: CaptureApp) -> None:
        self._config = uvicorn.Config(
            app, http="httptools", ws="none", lifespan="off", interface="asgi3",
            timeout_keep_alive=_KEEP_ALIVE, access_log=False, log_config=None,
            server_header=False, date_header=False,
            proxy_headers=False,
        )  # fmt: skip
        self._config.load()

    async def listen(self, sock: socket.socket, *, session_key: str | None = None) -> Listener:
        """Serve `sock`, which is already bound and listening; only `session_key` if given."""
        loop = asyncio.get_running_loop()
        state = ServerState()
        app_state = {} if session_key is None else {"session_key": session_key}
        sock.setblocking(False)
        server = await loop.create_server(
            lambda: HttpToolsProtocol(self._config, state, app_state, loop), sock=sock
        )
        return Listener(server, state)

    async def listen_local(self, *, port: int = 0) -> tuple[Listener, int]:
        """Serve a loopback port of this machine; the listener and its port."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(128)
        return await self.listen(sock), sock.getsockname()[1]
