"""Frames over a Unix socket on the event loop, with descriptors passed along.

Guarantees: `send` never waits and frames never interleave, so a cancelled caller cannot leave half
a frame behind; descriptors arrive in the order in which they were sent.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from armillary.sandbox.inside import wire

_RECEIVE = 1 << 18
_ANCILLARY = socket.CMSG_SPACE(16 * array.array("i").itemsize)


class _Outgoing(NamedTuple):
    data: memoryview
    descriptor: int | None


class Channel:
    """One end of a stream socket. `on_closed` is called once, when the other end is gone."""

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[wire.Frame], None],
        on_closed: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._decoder = wire.Decoder()
        self._outgoing: deque[_Outgoing] = deque()
        self._descriptors: deque[int] = deque()
        self._open = True
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, header: wire.Header, body: bytes = b"", descriptor: int | None = None) -> None:
        """Queue a frame. `descriptor` is taken over and closed once it is on its way."""
        if not self._open:
            if descriptor is not None:
                os.close(descriptor)
            return
        self._outgoing.append(_Outgoing(memoryview(wire.encode(header, body)), descriptor))
        if len(self._outgoing) == 1:
            self._flush()

    def take_descriptor(self) -> int:
        """The oldest received descriptor that nobody has taken; the caller owns it."""
        return self._descriptors.popleft()

    def close(self) -> None:
        """Stop, without calling `on_closed`."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        unsent = [item.descriptor for item in self._outgoing if item.descriptor is not None]
        for descriptor in (*unsent, *self._descriptors):
            os.close(descriptor)
        self._outgoing.clear()
        self._descriptors.clear()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                self._send_first()
        except BlockingIOError:
            self._loop.add_writer(self._sock.fileno(), self._flush)
        except OSError:
            self._lost()
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _send_first(self) -> None:
        data, descriptor = self._outgoing[0]
        if descriptor is None:
            sent = self._sock.send(data)
        else:
            sent = socket.send_fds(self._sock, [data], [descriptor])
            os.close(descriptor)
        if sent == len(data):
            self._outgoing.popleft()
        else:
            self._outgoing[0] = _Outgoing(data[sent:], None)

    def _readable(self) -> None:
        try:
            data, extra, _, _ = self._sock.recvmsg(_RECEIVE, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, extra = b"", []
        for _, _, payload in extra:
            received = array.array("i")
            received.frombytes(payload[: len(payload) // received.itemsize * received.itemsize])
            self._descriptors.extend(received)
        if not data:
            self._lost()
            return
        with contextlib.suppress(ValueError):
            for frame in self._decoder.feed(data):
                self._on_frame(frame)
            return
        self._lost()

    def _lost(self) -> None:
        if self._open:
            self.close()
            self._on_closed()
