"""The journal: an append-only file of checksummed frames, the one truth about a run.

What it guarantees: when `append` returns, the entry is on disk (written and fdatasync'ed); after a
kill at any moment, reading gives back every complete frame byte for byte and names the torn tail,
which is then cut off before anything new is written.

Why one writer thread: the event loop never waits for a disk, and all entries that arrive while one
fdatasync runs share the next one (group commit), so durability costs one sync per batch.

Format: header `ARMJ`, u16 schema version, u16 zero; then frames `u32 length, u32 crc32, payload`,
little endian. A payload is one entry of `record.codec`.
"""

from __future__ import annotations

import asyncio
import os
import queue
import struct
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path

from armillary.errors import RecordError
from armillary.record.codec import SCHEMA_VERSION, Entry, decode, encode

_HEADER = struct.Struct("<4sHH")
_FRAME = struct.Struct("<II")
_MAGIC = b"ARMJ"


@dataclass(frozen=True, slots=True)
class TornTail:
    """Bytes at the end of a journal that are no complete frame."""

    path: Path
    offset: int
    """Where the last complete frame ends."""
    size: int
    """Bytes after it."""

    def __str__(self) -> str:
        return f"{self.path}: dropped a torn tail of {self.size} bytes at offset {self.offset}"


@dataclass(frozen=True, slots=True)
class JournalContents:
    entries: list[Entry]
    torn: TornTail | None


def read_journal(path: Path) -> JournalContents:
    """Every complete frame of the journal at `path`.

    Raises:
        RecordError: the file is no journal, or of another schema version, or a frame before the
            tail is damaged (which a crash cannot cause).
    """
    data = path.read_bytes()
    if len(data) < _HEADER.size:
        return JournalContents([], TornTail(path, 0, len(data)) if data else None)
    magic, version, _ = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise RecordError(f"{path} is not a journal (it does not start with {_MAGIC.decode()})")
    if version != SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema version {version}; this program reads version {SCHEMA_VERSION}"
        )
    entries: list[Entry] = []
    at = _HEADER.size
    while at < len(data):
        payload = _payload(data, at)
        if payload is None:
            return JournalContents(entries, TornTail(path, at, len(data) - at))
        entries.append(decode(payload))
        at += _FRAME.size + len(payload)
    return JournalContents(entries, None)


def _payload(data: bytes, at: int) -> bytes | None:
    """The payload of the frame at `at`, or None if the frame is not complete."""
    if at + _FRAME.size > len(data):
        return None
    length, checksum = _FRAME.unpack_from(data, at)
    start = at + _FRAME.size
    payload = data[start : start + length]
    if len(payload) < length or zlib.crc32(payload) != checksum:
        return None
    return payload


@dataclass(slots=True)
class _Pending:
    frame: bytes
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None] | None


class Journal:
    """Appends entries to one file; one writer at a time holds it (an advisory lock)."""

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        """Open or create the journal at `path`, cutting a torn tail.

        Raises:
            RecordError: another process has it open, or the file is not a journal.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._sync = sync
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(self._fd, path)
            contents = read_journal(path)
            self.entries: list[Entry] = contents.entries
            """What was in the file when it was opened; the caller may clear it."""
            self.torn = contents.torn
            self._start(contents)
        except BaseException:
            os.close(self._fd)
            raise
        self._carried: list[bytes] = []
        self._queue: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_loop, name="journal", daemon=True)
        self._thread.start()

    async def append(self, entry: Entry) -> None:
        """Write `entry`; returns when it is on disk.

        Raises:
            RecordError: the disk refused (full, read-only). The file is cut back to its last
                complete frame, so a later append may succeed.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._put(entry, loop, done)
        await done

    def append_soon(self, entry: Entry) -> None:
        """Write `entry` with the next commit that succeeds, without waiting for it."""
        self._put(entry, asyncio.get_running_loop(), None)

    def close(self) -> None:
        """Write what is queued and release the file."""
        self._queue.put(None)
        self._thread.join()
        os.close(self._fd)

    def _put(
        self, entry: Entry, loop: asyncio.AbstractEventLoop, done: asyncio.Future[None] | None
    ) -> None:
        payload = encode(entry)
        frame = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        self._queue.put(_Pending(frame, loop, done))

    def _start(self, contents: JournalContents) -> None:
        if contents.torn is not None:
            os.ftruncate(self._fd, contents.torn.offset)
        if os.lseek(self._fd, 0, os.SEEK_END) == 0:
            _write_all(self._fd, _HEADER.pack(_MAGIC, SCHEMA_VERSION, 0))
            os.fsync(self._fd)

    def _write_loop(self) -> None:
        while True:
            batch = self._next_batch()
            last = batch[-1] is None
            pending = [p for p in batch if p is not None]
            if pending:
                self._commit(pending)
            if last:
                return

    def _next_batch(self) -> list[_Pending | None]:
        batch = [self._queue.get()]
        while batch[-1] is not None and not self._queue.empty():
            batch.append(self._queue.get())
        return batch

    def _commit(self, pending: list[_Pending]) -> None:
        good = os.lseek(self._fd, 0, os.SEEK_CUR)
        error: OSError | None = None
        try:
            _write_all(self._fd, b"".join((*self._carried, *(p.frame for p in pending))))
            if self._sync:
                os.fdatasync(self._fd)
            self._carried = []
        except OSError as failure:
            error = failure
            # Nobody waits for these, so nobody would write them again.
            self._carried += [p.frame for p in pending if p.done is None]
            os.ftruncate(self._fd, good)
            os.lseek(self._fd, good, os.SEEK_SET)
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for p in pending:
            if p.done is not None:
                by_loop.setdefault(p.loop, []).append(p.done)
        for loop, futures in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, futures, self.path, error)


class NullRecorder:
    """Keeps nothing: for probes whose calls are read from their session."""

    async def append(self, entry: Entry) -> None:
        """Drop `entry`."""

    def append_soon(self, entry: Entry) -> None:
        """Drop `entry`."""


def _resolve(futures: list[asyncio.Future[None]], path: Path, error: OSError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(RecordError(f"{path}: could not be written: {error}"))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _lock(fd: int, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise RecordError(
            f"{path} is in use by another process; wait for it to end or stop it"
        ) from error
