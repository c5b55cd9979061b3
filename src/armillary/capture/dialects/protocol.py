"""The dialect seam: one provider API on top of a session.

A dialect is pure: bytes in, bytes out. It parses a request into internal form, writes a whole
reply, writes a stream of events, and shapes errors. It never talks to an engine or a socket, so
golden files can test it alone. Adding one is one new file and one line in `dialects.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from armillary.capture.session import ChatRequest, TurnFinished
from armillary.chat.parser import ParserEvent
from armillary.errors import CaptureError


class DialectError(CaptureError):
    """A request this dialect refuses; `status` is 4xx and the fault is the agent's."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class Parsed(NamedTuple):
    """A request, and what its reply needs to know."""

    chat: ChatRequest
    model: str
    """Echoed in the reply."""
    stream: bool
    include_usage: bool
    """The stream ends with an event that carries the usage."""


class EventWriter(Protocol):
    """Writes one streamed reply."""

    def start(self) -> bytes: ...

    def event(self, event: ParserEvent) -> bytes:
        """Bytes for one event; may be empty."""
        ...

    def finish(self, finished: TurnFinished) -> bytes:
        """The end of the stream. Nothing may follow."""
        ...

    def fail(self, message: str) -> bytes:
        """An error after the stream began, in the dialect's own form."""
        ...


class Dialect(Protocol):
    name: str
    routes: tuple[str, ...]
    """POST paths, without a trailing slash."""

    def key(self, headers: Mapping[str, str]) -> str:
        """The session key in lower-case `headers`, or an empty string."""
        ...

    def parse(self, body: bytes) -> Parsed:
        """
        Raises:
            DialectError: the request asks for something that cannot be kept.
        """
        ...

    def whole(self, parsed: Parsed, reply_id: str, finished: TurnFinished) -> bytes: ...

    def stream(self, parsed: Parsed, reply_id: str) -> EventWriter: ...

    def error(self, status: int, message: str, param: str | None = None) -> bytes: ...
