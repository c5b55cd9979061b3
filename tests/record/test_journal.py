"""The journal: durability, torn tails, exact round trips."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from armillary.errors import RecordError
from armillary.record.calls import Fork, ModelCall, PolicySpan, PromptRef, Sampling, Times
from armillary.record.codec import (
    AttemptClosed,
    AttemptOpened,
    Delivery,
    Entry,
    UpdateApplied,
    decode,
    encode,
)
from armillary.record.journal import Journal, read_journal
from armillary.record.outcomes import Graded, Ungraded
from armillary.record.store import replay
from armillary.record.tokens import ImageSpan, TokenSequence


def call(index: int = 0, parent: int | None = None) -> ModelCall:
    delta = TokenSequence([1, 7, 7, 2], [ImageSpan(1, 2, "ab" * 32, (1, 1, 2))])
    return ModelCall(
        session="a",
        index=index,
        prompt=PromptRef(parent, delta),
        prompt_length=4 if parent is None else 10,
        output_ids=np.array([3, 4], np.int32),
        output_logprobs=np.array([-0.5, -1.25], np.float32),
        policy=(PolicySpan(0, 1, 3), PolicySpan(1, 1, 4)),
        stop_reason="tool_calls",
        dialect="chat",
        fork=Fork(2, "rewritten"),
        sampling=Sampling(temperature=0.7, seed=9),
        sampling_asked={"temperature": 0, "stop": ["x"]},
        request=b"{}",
        response=b"\xff\x00",
        times=Times(1.0, 2.0, 3.0, 4.0),
        findings=("unknown field `seed` ignored",),
    )


OPENED = AttemptOpened("a", "train", "train", "data/1", "loop", "g", 0, 0, 1.5)
ENTRIES: list[Entry] = [
    OPENED,
    call(),
    Delivery("a", 0, True),
    call(1, 0),
    AttemptClosed("a", Graded(1.0, "submitted", {"reward": 1.0}), {"seconds": 2.5}),
    AttemptClosed("b", Ungraded("sandbox", "lost"), {}),
    UpdateApplied(3, 4, ("a", "b")),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: type(e).__name__)
def test_entries_round_trip_exactly(entry: Entry) -> None:
    again = decode(encode(entry))
    assert encode(again) == encode(entry)
    if isinstance(entry, ModelCall):
        assert isinstance(again, ModelCall)
        assert again.prompt.delta == entry.prompt.delta
        assert np.array_equal(again.output_logprobs, entry.output_logprobs)
        assert again.policy == entry.policy
        assert again.fork == entry.fork
    else:
        assert again == entry


def write(path: Path, entries: list[Entry]) -> None:
    async def run() -> None:
        journal = Journal(path)
        await asyncio.gather(*(journal.append(e) for e in entries))
        journal.close()

    asyncio.run(run())


@given(cut=st.integers(min_value=0))
@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_after_a_cut_at_any_byte_every_complete_frame_comes_back(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    write(path, ENTRIES)
    whole = path.read_bytes()
    ends = frame_ends(ENTRIES)
    assert ends[-1] == len(whole)
    cut %= len(whole) + 1
    path.write_bytes(whole[:cut])
    complete = max(sum(end <= cut for end in ends) - 1, 0)
    contents = read_journal(path)
    assert [encode(e) for e in contents.entries] == [encode(e) for e in ENTRIES[:complete]]
    assert (contents.torn is None) == (cut in ends or cut == 0)

    write(path, [ENTRIES[-1]])
    again = read_journal(path)
    assert again.torn is None
    assert [encode(e) for e in again.entries] == [
        encode(e) for e in [*ENTRIES[:complete], ENTRIES[-1]]
    ]


def test_a_damaged_byte_ends_the_readable_part_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, ENTRIES)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    contents = read_journal(path)
    assert len(contents.entries) == len(ENTRIES) - 1
    assert "torn tail" in str(contents.torn)


def frame_ends(entries: list[Entry]) -> list[int]:
    ends = [8]
    for entry in entries:
        ends.append(ends[-1] + 8 + len(encode(entry)))
    return ends


@pytest.mark.parametrize("kept", range(len(ENTRIES) + 1))
@pytest.mark.parametrize("zeros", [1, 7, 8, 5000])
def test_a_tail_of_zeros_is_torn(tmp_path: Path, kept: int, zeros: int) -> None:
    path = tmp_path / "j"
    write(path, ENTRIES[:kept])
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(zeros))
    contents = read_journal(path)
    assert len(contents.entries) == kept
    assert contents.torn is not None
    assert (contents.torn.offset, contents.torn.size) == (len(whole), zeros)
    write(path, [OPENED])
    assert len(read_journal(path).entries) == kept + 1


@pytest.mark.parametrize("size", [1, 8, 4096])
def test_a_file_of_zeros_is_torn(tmp_path: Path, size: int) -> None:
    path = tmp_path / "j"
    path.write_bytes(bytes(size))
    assert read_journal(path).torn is not None
    write(path, [OPENED])
    assert [encode(e) for e in read_journal(path).entries] == [encode(OPENED)]


@given(st.data())
@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damage_before_readable_entries_is_refused_and_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    write(path, ENTRIES)
    ends = frame_ends(ENTRIES)
    begin = data.draw(st.integers(8, ends[-2] - 1))
    size = data.draw(st.integers(1, ends[-2] - begin))
    fill = data.draw(st.sampled_from([b"\0", b"\xff", b"a"]))
    whole = path.read_bytes()
    damaged = whole[:begin] + fill * size + whole[begin + size :]
    assume(damaged != whole)
    path.write_bytes(damaged)
    changed = next(i for i in range(len(whole)) if damaged[i] != whole[i])
    first = max(end for end in ends if end <= changed)
    with pytest.raises(RecordError, match=rf"is damaged at offset {first}.*truncate -s {first} "):
        read_journal(path)
    with pytest.raises(RecordError, match="is damaged"):
        Journal(path)
    assert path.read_bytes() == damaged
    assert list(path.parent.iterdir()) == [path]


def test_a_torn_tail_is_kept_beside_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, ENTRIES)
    whole, ends = path.read_bytes(), frame_ends(ENTRIES)
    kept: list[Path] = []
    for size in (3, 11):
        path.write_bytes(whole[: ends[2] + size])
        journal = Journal(path)
        assert journal.torn is not None
        assert journal.torn.kept is not None
        assert str(journal.torn.kept) in str(journal.torn)
        kept.append(journal.torn.kept)
        journal.close()
        assert path.read_bytes() == whole[: ends[2]]
    assert [p.read_bytes() for p in kept] == [
        whole[ends[2] : ends[2] + 3],
        whole[ends[2] : ends[2] + 11],
    ]


def test_other_files_and_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b"not a journal at all")
    with pytest.raises(RecordError, match="is not a journal"):
        read_journal(path)
    path.write_bytes(b"other")
    with pytest.raises(RecordError, match="is not a journal"):
        Journal(path)
    assert path.read_bytes() == b"other"
    path.write_bytes(b"ARMJ\x63\x00\x00\x00")
    with pytest.raises(RecordError, match="schema version 99"):
        read_journal(path)


async def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    with pytest.raises(RecordError, match="in use"):
        Journal(tmp_path / "j")
    journal.close()


async def test_a_full_disk_is_an_error_and_the_journal_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "j")
    await journal.append(OPENED)
    real = os.fdatasync

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(RecordError, match="No space left"):
        await journal.append(call())
    journal.append_soon(Delivery("a", 1, False))
    await asyncio.sleep(0.05)
    monkeypatch.setattr(os, "fdatasync", real)
    await journal.append(Delivery("a", 0, True))
    journal.close()
    entries = read_journal(tmp_path / "j").entries
    assert isinstance(entries[0], AttemptOpened)
    assert [e.index for e in entries if isinstance(e, Delivery)] == [1, 0]


WRITER = """
import asyncio, sys
from pathlib import Path
from armillary.record.codec import Delivery
from armillary.record.journal import Journal
async def main():
    journal = Journal(Path(sys.argv[1]))
    i = 0
    while True:
        await asyncio.gather(*(journal.append(Delivery("a", i + k, True)) for k in range(5)))
        i += 5
        print(i, flush=True)
asyncio.run(main())
"""


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "j"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    acknowledged = 0
    for _ in range(20):
        acknowledged = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
    process.wait()
    entries = read_journal(path).entries
    assert len(entries) >= acknowledged
    assert [e.index for e in entries if isinstance(e, Delivery)] == list(range(len(entries)))


def test_replay_rebuilds_attempts_and_rows() -> None:
    run = replay([*ENTRIES[:5], ENTRIES[6]])
    assert set(run.finished()) == {"a"}
    attempt = run.attempts["a"]
    assert attempt.tree.call(0).delivered
    (row,) = attempt.tree.rows()
    assert row.tokens.ids.tolist() == [1, 7, 7, 2, 3, 4, 1, 7, 7, 2, 3, 4]
    assert len(row.tokens.images) == 2
    assert run.updates[0].attempts == ("a", "b")
    with pytest.raises(RecordError, match="never opened"):
        replay([call()])


def test_notes_about_what_is_not_recorded_are_named_and_left_out() -> None:
    closed = AttemptClosed("a", Graded(1.0, "submitted"))
    run = replay(
        [
            Delivery("gone", 0, False),
            AttemptClosed("gone", Ungraded("cancelled", "stopped")),
            OPENED,
            call(),
            Delivery("a", 7, False),
            closed,
            AttemptClosed("a", Ungraded("cancelled", "stopped")),
        ]
    )
    assert set(run.attempts) == {"a"}
    assert run.attempts["a"].tree.call(0).delivered
    assert run.attempts["a"].closed == closed
    assert run.strays == [
        "delivery of call 0 of gone, not recorded",
        "end of gone, never opened",
        "delivery of call 7 of a, not recorded",
        "another end of a, already over",
    ]


def test_an_entry_of_unknown_form_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, [OPENED])
    size = path.stat().st_size
    payload = b"\x91\xa5other"
    path.write_bytes(path.read_bytes() + struct.pack("<II", 7, zlib.crc32(payload)) + payload)
    with pytest.raises(RecordError, match=f"offset {size}: journal entry of unknown form"):
        read_journal(path)
