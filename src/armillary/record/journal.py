"""The journal: an append-only file of checksummed frames, what really happened in a run.

What it guarantees: when `append` returns, the entry is on disk (written and fdatasync'ed); after a
kill at any moment, reading gives back every complete frame byte for byte and names the torn tail,
which is kept in a file beside it and cut off before anything new is written. Damage with readable
frames behind it is no torn tail: it is refused, and nothing is cut. An entry that the disk refused
is dropped only if its writer is told so; any other is written with the next commit, in its order.

Why one writer thread: the event loop never waits for a disk, and all entries that arrive while one
fdatasync runs share the next one (group commit), so durability costs one sync per batch.

Format: header `ARMJ`, u16 schema version, u16 zero; then frames `u32 length, u32 crc32, payload`,
little endian. A payload is one entry of `record.codec` and never empty: a stretch of zeros, which
a power cut can leave, is no frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import shlex
import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from armillary.errors import RecordError
from armillary.record.codec import ENTRY_TAG, SCHEMA_VERSION, Entry, decode, encode
from armillary.record.disk import sync_folder, write_all, write_refused

_HEADER = struct.Struct("<4sHH")
_FRAME = struct.Struct("<II")
_MAGIC = b"ARMJ"
_BEGINNING = _HEADER.pack(_MAGIC, SCHEMA_VERSION, 0)


@dataclass(frozen=True, slots=True)
class TornTail:
    """Bytes at the end of a journal that are no complete frame."""

    path: Path
    offset: int
    """Where the last complete frame ends."""
    size: int
    """Bytes after it."""
    kept: Path | None = None
    """Where they were copied before they were cut off; None = they are still in the journal."""

    def __str__(self) -> str:
        what = f"{self.path}: a torn tail of {self.size} bytes at offset {self.offset}"
        return f"{what} was cut off and kept in {self.kept}" if self.kept else what


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
    whole = len(data) >= _HEADER.size and data.startswith(_BEGINNING)
    if not whole and _BEGINNING.startswith(data.rstrip(b"\0")):
        return JournalContents([], TornTail(path, 0, len(data)) if data else None)
    if not data.startswith(_MAGIC):
        raise RecordError(f"{path} is not a journal (it does not start with {_MAGIC.decode()})")
    if not whole:
        _, version, _ = _HEADER.unpack_from(data.ljust(_HEADER.size, b"\0"))
        raise RecordError(
            f"{path} has schema version {version}; this program reads version {SCHEMA_VERSION}"
        )
    entries: list[Entry] = []
    at = _HEADER.size
    while at < len(data):
        payload = _payload(data, at)
        if payload is None:
            _refuse_damage(path, data, at)
            return JournalContents(entries, TornTail(path, at, len(data) - at))
        try:
            entries.append(decode(payload))
        except RecordError as error:
            raise RecordError(f"{path}, offset {at}: {error}") from error
        at += _FRAME.size + len(payload)
    return JournalContents(entries, None)


def _payload(data: bytes, at: int) -> bytes | None:
    """The payload of the frame at `at`, or None if there is no complete frame."""
    if at + _FRAME.size > len(data):
        return None
    length, checksum = _FRAME.unpack_from(data, at)
    start = at + _FRAME.size
    if length == 0 or start + length > len(data):
        return None
    payload = data[start : start + length]
    return payload if zlib.crc32(payload) == checksum else None


def _refuse_damage(path: Path, data: bytes, at: int) -> None:
    """Raise if the unreadable bytes at `at` are not the last thing in the journal."""
    following = _next_frame(data, at)
    if following is None:
        return
    cut = f"truncate -s {at} {shlex.quote(str(path))}"
    raise RecordError(
        f"{path} is damaged at offset {at}, and readable entries follow at offset {following}. A "
        "kill does not do this; a failing disk or another program may. Nothing was changed. Put "
        f"back a copy, use another --name, or give up everything behind the damage: `{cut}`"
    )


def _next_frame(data: bytes, at: int) -> int | None:
    """Where the first complete frame behind `at` begins, if there is one."""
    for tag in ENTRY_TAG.finditer(data, at):
        # The tag is the first field of a msgpack array, whose own head is 1 or 3 bytes.
        for head in (1, 3):
            begin = tag.start() - head - _FRAME.size
            if begin > at and _payload(data, begin) is not None:
                return begin
    return None


@dataclass(slots=True, eq=False)
class _Pending:
    frame: bytes
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None] | None
    """None: nobody waits for it."""
    refused: bool = False
    """The disk refused it while somebody waited, who is to be told."""


class Journal:
    """Appends entries to one file; one writer at a time holds it (an advisory lock)."""

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        """Open or create the journal at `path`, cutting a torn tail.

        Raises:
            RecordError: another process has it open, the file is not a journal or is damaged, or
                the disk refuses to be written.
        """
        self.path = path
        self._sync = sync
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise write_refused(path, error) from error
        try:
            _lock(self._fd, path)
            contents = read_journal(path)
            self.entries: list[Entry] = contents.entries
            """What was in the file when it was opened; the caller may clear it."""
            self.torn = contents.torn and self._cut_tail(contents.torn)
            self._good = self._begin()
        except BaseException as error:
            os.close(self._fd)
            if isinstance(error, OSError):
                raise write_refused(path, error) from error
            raise
        self._dirty = False
        self._closed = False
        self._carried: list[bytes] = []
        self._failure: RecordError | None = None
        self._fate = threading.Lock()
        """Held to decide who learns of a refusal, never while writing."""
        self._queue: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_loop, name="journal", daemon=True)
        self._thread.start()

    async def append(self, entry: Entry) -> None:
        """Write `entry`; returns when it is on disk.

        A caller that is cancelled meanwhile does not withdraw it: it is written, now or with the
        next commit that succeeds, before whatever the caller appends afterwards.

        Raises:
            RecordError: the disk refused (full, read-only), or the journal is closed. The file is
                cut back to its last complete frame, so a later append may succeed.
        """
        if self._closed:
            raise RecordError(f"{self.path} is closed; nothing can be added")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        pending = self._put(entry, loop, done)
        try:
            await done
        except asyncio.CancelledError:
            self._abandon(pending)
            raise

    def append_soon(self, entry: Entry) -> None:
        """Write `entry` with the next commit that succeeds, without waiting for it.

        After `close` it is dropped: nothing that can still be used comes so late.
        """
        self._put(entry, asyncio.get_running_loop(), None)

    def close(self) -> None:
        """Write what is queued and release the file.

        Raises:
            RecordError: entries that nobody waits for could still not be written.
        """
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        os.close(self._fd)
        if self._carried and self._failure is not None:
            raise RecordError(
                f"the last {len(self._carried)} entries are lost. {self._failure}"
            ) from self._failure

    def _put(
        self, entry: Entry, loop: asyncio.AbstractEventLoop, done: asyncio.Future[None] | None
    ) -> _Pending:
        payload = encode(entry)
        frame = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        pending = _Pending(frame, loop, done)
        self._queue.put(pending)
        return pending

    def _abandon(self, pending: _Pending) -> None:
        """Nobody waits for `pending` any more. If it was refused, nobody heard: write it again."""
        with self._fate:
            pending.done = None
            again, pending.refused = pending.refused, False
        if again:
            self._queue.put(pending)

    def _cut_tail(self, torn: TornTail) -> TornTail:
        kept = _keep_tail(torn)
        os.ftruncate(self._fd, torn.offset)
        os.fsync(self._fd)
        return replace(torn, kept=kept)

    def _begin(self) -> int:
        """Make sure of the header; the length of the file."""
        size = os.lseek(self._fd, 0, os.SEEK_END)
        if size:
            return size
        write_all(self._fd, _BEGINNING)
        os.fsync(self._fd)
        sync_folder(self.path.parent)
        return len(_BEGINNING)

    def _write_loop(self) -> None:
        last = False
        while not last:
            batch = self._next_batch()
            last = batch[-1] is None
            pending = [p for p in batch if p is not None]
            if pending or (last and self._carried):
                self._commit(pending)

    def _next_batch(self) -> list[_Pending | None]:
        batch = [self._queue.get()]
        while batch[-1] is not None and not self._queue.empty():
            batch.append(self._queue.get())
        return batch

    def _commit(self, pending: Sequence[_Pending]) -> None:
        error: Exception | None = None
        try:
            self._write(b"".join((*self._carried, *(p.frame for p in pending))))
            self._carried = []
        except Exception as failure:
            # Whatever it is, this thread must live: without it every append would wait for ever.
            error = failure
            self._failure = write_refused(self.path, failure)
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        with self._fate:
            for p in pending:
                if p.done is not None:
                    p.refused = error is not None
                    by_loop.setdefault(p.loop, []).append(p.done)
                elif error is not None:
                    # Nobody will hear of it, so nobody would write it again.
                    self._carried.append(p.frame)
        for loop, futures in by_loop.items():
            with contextlib.suppress(RuntimeError):  # The loop has been closed meanwhile.
                loop.call_soon_threadsafe(_resolve, futures, self.path, error)

    def _write(self, data: bytes) -> None:
        """Put `data` behind the last complete frame; if that fails, cut back to there."""
        if self._dirty:
            # What a failed write left could not be cut then; nothing may follow it.
            self._cut_back()
        self._dirty = True
        try:
            write_all(self._fd, data)
            if self._sync:
                os.fdatasync(self._fd)
        except BaseException:
            with contextlib.suppress(OSError):
                self._cut_back()
            raise
        self._good += len(data)
        self._dirty = False

    def _cut_back(self) -> None:
        os.ftruncate(self._fd, self._good)
        os.lseek(self._fd, self._good, os.SEEK_SET)
        self._dirty = False


class NullRecorder:
    """Keeps nothing: for probes whose calls are read from their session."""

    async def append(self, entry: Entry) -> None:
        """Drop `entry`."""

    def append_soon(self, entry: Entry) -> None:
        """Drop `entry`."""


def _resolve(futures: list[asyncio.Future[None]], path: Path, error: Exception | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(write_refused(path, error))


def _keep_tail(torn: TornTail) -> Path:
    """Copy a torn tail to a file of its own beside the journal; its path once it is on disk."""
    with torn.path.open("rb") as journal:
        journal.seek(torn.offset)
        tail = journal.read()
    for number in itertools.count(1):
        kept = torn.path.with_name(f"{torn.path.name}.torn-{torn.offset}-{number}")
        with contextlib.suppress(FileExistsError), kept.open("xb") as file:
            try:
                file.write(tail)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                kept.unlink()
                raise
            sync_folder(kept.parent)
            return kept
    raise AssertionError("numbers do not end")


def _lock(fd: int, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise RecordError(
            f"{path} is in use by another process; wait for it to end or stop it"
        ) from error
