"""Length-prefixed frames between the driver and the processes inside a box.

A frame is a JSON object and raw bytes: two big-endian uint32 lengths, then both. Guarantees: a
frame comes out whole or not at all, whatever pieces the socket delivers, and a length beyond the
limits is refused before memory is taken. Files and output travel as raw bytes, not inside JSON.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

_PREFIX = struct.Struct("!II")
MAX_HEADER = 1 << 24
MAX_BODY = 1 << 30

Header = Any
"""A JSON object. `Any`, since each side reads only fields that the other side wrote."""


class Frame(NamedTuple):
    header: Header
    body: bytes


def encode(header: Header, body: bytes = b"") -> bytes:
    head = json.dumps(header, separators=(",", ":")).encode()
    return _PREFIX.pack(len(head), len(body)) + head + body


class Decoder:
    """Collects received bytes and gives back complete frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Frames completed by `data`.

        Raises:
            ValueError: a length beyond the limits, or a header that is not JSON.
        """
        self._pending += data
        frames: list[Frame] = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        if len(self._pending) < _PREFIX.size:
            return None
        head, body = _PREFIX.unpack_from(self._pending)
        if head > MAX_HEADER or body > MAX_BODY:
            raise ValueError(f"a frame of {head} + {body} bytes is over the limit")
        end = _PREFIX.size + head + body
        if len(self._pending) < end:
            return None
        header = json.loads(self._pending[_PREFIX.size : _PREFIX.size + head])
        frame = Frame(header, bytes(self._pending[_PREFIX.size + head : end]))
        del self._pending[:end]
        return frame


class PackedFile(NamedTuple):
    """One file as it travels: where it goes, its permission bits, its bytes."""

    path: str
    mode: int
    data: bytes


def pack(files: Iterable[PackedFile]) -> tuple[list[list[Any]], bytes]:
    """An index `[[path, mode, length], ...]` for a header, and the body it describes."""
    index: list[list[Any]] = []
    parts: list[bytes] = []
    for file in files:
        index.append([file.path, file.mode, len(file.data)])
        parts.append(file.data)
    return index, b"".join(parts)


def unpack(index: list[list[Any]], body: bytes) -> list[PackedFile]:
    files: list[PackedFile] = []
    start = 0
    for path, mode, length in index:
        files.append(PackedFile(path, mode, body[start : start + length]))
        start += length
    return files
