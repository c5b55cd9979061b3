"""The proxy as a bare ASGI application: routes, keys, hang-ups.

What it guarantees: an unknown route is 404 and never a model call; an unknown key, or a key that
does not belong to the listening socket, is 401; a reply's last byte leaves after the call is in
the journal; a call whose agent hung up is recorded as undelivered. Bare ASGI because a framework
costs more per call than the work itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, MutableMapping
from contextlib import aclosing
from typing import Any

import msgspec

from armillary.capture.dialects.protocol import Dialect, DialectError, EventWriter, Parsed
from armillary.capture.dialects.registry import DIALECTS
from armillary.capture.session import Session, SessionEvent, TurnFinished
from armillary.capture.sessions import SessionRegistry
from armillary.errors import ArmillaryError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY = 64 << 20
"""Bytes. A larger request is refused with 413."""


class CaptureApp:
    """ASGI application over the registered sessions."""

    def __init__(self, sessions: SessionRegistry) -> None:
        self._sessions = sessions
        self._routes: dict[str, Dialect] = {r: d for d in DIALECTS for r in d.routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/")
        dialect = self._routes.get(path)
        if dialect is None or scope["method"] != "POST":
            await self._no_route(scope, path, send)
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        key = dialect.key(headers)
        session = self._sessions.get(key)
        bound = scope.get("state", {}).get("session_key")
        if session is None or (bound is not None and bound != key):
            message = "unknown session: the API key must be that of a registered session"
            await _send(send, 401, dialect.error(401, message))
            return
        body = await _read(receive)
        if body is None:
            await _send(send, 413, dialect.error(413, f"the body is larger than {MAX_BODY} bytes"))
            return
        try:
            parsed = dialect.parse(body)
        except DialectError as error:
            await _send(send, error.status, dialect.error(error.status, str(error), error.param))
            return
        await _Exchange(dialect, parsed, session, send).run(receive)

    async def _no_route(self, scope: Scope, path: str, send: Send) -> None:
        known = ", ".join(sorted(self._routes))
        message = f"no route {scope['method']} {path or '/'}; this proxy serves POST {known}"
        await _send(send, 404, msgspec.json.encode({"error": {"message": message}}))


class _Exchange:
    """One request and its reply."""

    def __init__(self, dialect: Dialect, parsed: Parsed, session: Session, send: Send) -> None:
        self._dialect = dialect
        self._parsed = parsed
        self._session = session
        self._send = send
        self._call: int | None = None

    async def run(self, receive: Receive) -> None:
        """Answer; a hang-up cancels the call and leaves it undelivered."""
        answer = self._stream() if self._parsed.stream else self._whole()
        gone = await _until_gone(answer, receive)
        if gone and self._call is not None:
            self._session.mark_undelivered(self._call)

    async def _whole(self) -> None:
        try:
            finished = await self._finished()
        except ArmillaryError as error:
            await _send(self._send, 500, self._dialect.error(500, str(error)))
            return
        await _send(self._send, 200, self._dialect.whole(self._parsed, self._reply_id(), finished))

    async def _finished(self) -> TurnFinished:
        finished: TurnFinished | None = None
        async with aclosing(self._events()) as events:
            async for event in events:
                if isinstance(event, TurnFinished):
                    finished = event
        assert finished is not None
        return finished

    async def _stream(self) -> None:
        writer: EventWriter = self._dialect.stream(self._parsed, self._reply_id())
        began = False
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    if not began:
                        began = True
                        await _start(self._send, 200, b"text/event-stream")
                        await _body(self._send, writer.start())
                    if isinstance(event, TurnFinished):
                        await _body(self._send, writer.finish(event), more=False)
                    elif data := writer.event(event):
                        await _body(self._send, data)
        except ArmillaryError as error:
            if not began:
                await _send(self._send, 500, self._dialect.error(500, str(error)))
            else:
                await _body(self._send, writer.fail(str(error)), more=False)

    async def _events(self) -> AsyncGenerator[SessionEvent]:
        async with aclosing(self._session.call(self._parsed.chat)) as events:
            async for event in events:
                if isinstance(event, TurnFinished):
                    self._call = event.call
                yield event

    def _reply_id(self) -> str:
        return f"reply-{self._session.counts.calls}"


async def _until_gone(answer: Coroutine[Any, Any, None], receive: Receive) -> bool:
    """Run `answer`; whether the client hung up before it was done."""
    work = asyncio.ensure_future(answer)
    watch = asyncio.ensure_future(_hang_up(receive))
    gone = True
    try:
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        gone = not work.done()
    finally:
        # Also when this task is cancelled: a call must not outlive its request.
        for task in (work, watch):
            task.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)
    if not work.cancelled() and (error := work.exception()) is not None:
        raise error
    return gone


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(receive: Receive) -> bytes | None:
    """The whole body, or None if it is too large."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


async def _send(send: Send, status: int, body: bytes) -> None:
    await _start(send, status, b"application/json", len(body))
    await _body(send, body, more=False)


async def _start(send: Send, status: int, kind: bytes, length: int | None = None) -> None:
    headers = [(b"content-type", kind)]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _body(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
