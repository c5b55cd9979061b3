"""The journal on a disk that refuses: nothing that matters is dropped, nothing hangs."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_journal import OPENED, call

from armillary.errors import RecordError
from armillary.record.codec import AttemptClosed, Delivery, Entry
from armillary.record.journal import Journal, read_journal
from armillary.record.outcomes import Graded, Ungraded
from armillary.record.store import replay

CANCELLED = AttemptClosed("a", Ungraded("cancelled", "stopped"))


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """The system writes files up to `size` bytes, then refuses, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(entries: list[Entry]) -> list[str]:
    return [type(entry).__name__ for entry in entries]


async def cancelled(journal: Journal, entry: Entry) -> None:
    """Append `entry`, and be cancelled while waiting for the disk."""
    task = asyncio.create_task(journal.append(entry))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def refused(journal: Journal) -> None:
    """Wait until the disk has refused everything that was queued."""
    with pytest.raises(RecordError):
        await journal.append(OPENED)


async def test_a_refusal_says_what_to_do_and_half_a_frame_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    await journal.append(OPENED)
    size = path.stat().st_size
    with files_up_to(size + 20):
        with pytest.raises(RecordError, match=r"File too large; raise the file size limit .*again"):
            await journal.append(call())
        assert path.stat().st_size == size
    await journal.append(call())
    journal.close()
    contents = read_journal(path)
    assert names(contents.entries) == ["AttemptOpened", "ModelCall"]
    assert contents.torn is None


async def test_a_cancelled_call_is_written_before_its_delivery(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    await journal.append(OPENED)
    with files_up_to(path.stat().st_size + 20):
        await cancelled(journal, call())
        journal.append_soon(Delivery("a", 0, False))
        await refused(journal)
    await journal.append(CANCELLED)
    journal.close()
    entries = read_journal(path).entries
    assert names(entries) == ["AttemptOpened", "ModelCall", "Delivery", "AttemptClosed"]
    run = replay(entries)
    assert not run.attempts["a"].tree.call(0).delivered
    assert run.strays == []


async def test_a_cancel_between_the_refusal_and_its_news_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    await journal.append(OPENED)
    loop = asyncio.get_running_loop()
    decided = threading.Event()

    def tell(*news: Any) -> None:
        call_soon(*news)
        decided.set()

    call_soon = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", tell)
    with files_up_to(path.stat().st_size + 20):
        task = asyncio.create_task(journal.append(call()))
        await asyncio.sleep(0)
        # The loop stands still meanwhile: the writer has decided, and the task does not know.
        assert decided.wait(30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        journal.append_soon(Delivery("a", 0, False))
        await refused(journal)
    await journal.append(CANCELLED)
    journal.close()
    assert names(read_journal(path).entries) == [
        "AttemptOpened",
        "ModelCall",
        "Delivery",
        "AttemptClosed",
    ]


async def test_who_was_told_of_a_refusal_finds_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    await journal.append(OPENED)
    with files_up_to(path.stat().st_size + 5), pytest.raises(RecordError):
        await journal.append(AttemptClosed("a", Graded(1.0, "submitted")))
    journal.close()
    assert names(read_journal(path).entries) == ["AttemptOpened"]


async def test_closing_writes_what_nobody_waits_for(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    await journal.append(OPENED)
    with files_up_to(path.stat().st_size + 5):
        journal.append_soon(CANCELLED)
        await refused(journal)
    journal.close()
    assert names(read_journal(path).entries) == ["AttemptOpened", "AttemptClosed"]


async def test_closing_on_a_full_disk_says_what_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    await journal.append(OPENED)
    with files_up_to(path.stat().st_size + 5):
        journal.append_soon(call())
        journal.append_soon(CANCELLED)
        with pytest.raises(RecordError, match=r"the last 2 entries are lost.*File too large"):
            journal.close()
    with pytest.raises(RecordError, match="closed"):
        await asyncio.wait_for(journal.append(OPENED), 5)
    Journal(path).close()
    assert names(read_journal(path).entries) == ["AttemptOpened"]


async def test_a_cut_that_fails_is_made_before_anything_else_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    await journal.append(OPENED)
    size = path.stat().st_size
    real = os.ftruncate

    def broken(fd: int, length: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "ftruncate", broken)
    with files_up_to(size + 20), pytest.raises(RecordError, match="File too large"):
        await asyncio.wait_for(journal.append(call()), 5)
    assert path.stat().st_size == size + 20
    with pytest.raises(RecordError, match="Input/output error; check the disk"):
        await asyncio.wait_for(journal.append(call()), 5)
    monkeypatch.setattr(os, "ftruncate", real)
    await asyncio.wait_for(journal.append(call()), 5)
    journal.close()
    contents = read_journal(path)
    assert names(contents.entries) == ["AttemptOpened", "ModelCall"]
    assert contents.torn is None


async def test_the_writer_outlives_every_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "j")
    real = os.fdatasync

    def strange(fd: int) -> None:
        raise MemoryError

    monkeypatch.setattr(os, "fdatasync", strange)
    with pytest.raises(RecordError, match="MemoryError"):
        await asyncio.wait_for(journal.append(OPENED), 5)
    monkeypatch.setattr(os, "fdatasync", real)
    await asyncio.wait_for(journal.append(OPENED), 5)
    journal.close()
    assert names(read_journal(tmp_path / "j").entries) == ["AttemptOpened"]


async def test_a_journal_that_cannot_be_begun_is_refused_in_words(tmp_path: Path) -> None:
    with files_up_to(3), pytest.raises(RecordError, match="File too large"):
        Journal(tmp_path / "j")
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="could not be written"):
        Journal(tmp_path / "file" / "j")
    journal = Journal(tmp_path / "j")
    await journal.append(OPENED)
    journal.close()
    assert names(read_journal(tmp_path / "j").entries) == ["AttemptOpened"]
