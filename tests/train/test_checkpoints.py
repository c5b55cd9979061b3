"""Which checkpoint counts: one rename, on disk before anything relies on it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from armillary.errors import RecordError
from armillary.train.checkpoints import LATEST, Checkpoints, Latest, write_atomically


def test_a_commit_is_found_again_and_old_folders_go(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c")
    assert checkpoints.latest() is None
    for step in (1, 2, 3):
        checkpoints.folder(step).mkdir()
        checkpoints.commit(step, (f"a{step}",), step + 10)
    assert Checkpoints(tmp_path / "c").latest() == Latest(3, "step-00003", ("a3",), 13)
    assert sorted(p.name for p in (tmp_path / "c").glob("step-*")) == ["step-00002", "step-00003"]


def test_the_rename_is_on_disk_before_an_old_folder_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.folder(1).mkdir()
    checkpoints.commit(1)
    checkpoints.folder(2).mkdir()
    synced: list[tuple[str, int | None, bool]] = []
    real = os.fsync

    def watch(fd: int) -> None:
        real(fd)
        latest = checkpoints.latest()
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        synced.append((name, latest and latest.step, checkpoints.folder(1).exists()))

    monkeypatch.setattr(os, "fsync", watch)
    checkpoints.commit(2)
    assert synced == [(f"{LATEST}.part", 1, True), (tmp_path.name, 2, True)]
    assert not checkpoints.folder(1).exists()


def test_a_refusing_disk_says_what_to_do_and_the_commit_before_counts(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.folder(step).mkdir()
    checkpoints.commit(1, ("a",), 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(RecordError, match=r"latest\.json: could not be written: .*again"):
            checkpoints.commit(2, ("b",), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert checkpoints.latest() == Latest(1, "step-00001", ("a",), 1)
    assert not list(tmp_path.glob("*.part")), "a part file still takes space"
    checkpoints.commit(2, ("b",), 2)
    assert checkpoints.latest() == Latest(2, "step-00002", ("b",), 2)


def test_a_folder_that_cannot_be_made_or_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="could not be written"):
        Checkpoints(tmp_path / "file" / "c")
    with pytest.raises(RecordError, match="could not be written"):
        write_atomically(tmp_path / "gone" / "x", b"1")


def test_a_damaged_latest_is_named(tmp_path: Path) -> None:
    (tmp_path / LATEST).write_bytes(b"\0\0\0")
    with pytest.raises(RecordError, match=r"latest\.json is damaged"):
        Checkpoints(tmp_path).latest()
