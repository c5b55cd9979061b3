"""Metrics on disk: points survive whatever stopped the write before them."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from armillary.errors import RecordError
from armillary.train.tracker import JsonlTracker, read_metrics


def logged(path: Path, *points: tuple[int, dict[str, object]]) -> list[dict[str, object]]:
    tracker = JsonlTracker(path)
    for step, values in points:
        tracker.log(step, values)
    tracker.close()
    return read_metrics(path)


def test_values_of_a_step_are_put_together_and_the_last_counts(tmp_path: Path) -> None:
    found = logged(
        tmp_path / "new" / "m.jsonl",
        (2, {"loss": 1.0}), (1, {"loss": 3.0}), (2, {"eval/rate": 0.5}), (2, {"loss": 0.5}),
    )  # fmt: skip
    assert found == [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 0.5, "eval/rate": 0.5}]


def test_a_mean_over_nothing_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    assert logged(path, (1, {"a": float("nan"), "b": float("inf"), "c": 0.0, "d": 3})) == [
        {"step": 1, "c": 0.0, "d": 3}
    ]
    assert b"null" not in path.read_bytes()
    path.write_bytes(b'{"step":1,"a":null,"b":2}\n')
    assert read_metrics(path) == [{"step": 1, "b": 2}]


def test_a_file_cut_at_any_byte_takes_the_next_point(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    logged(path, (1, {"loss": 1.5}), (2, {"loss": 2.5}))
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        for tail in (b"", bytes(64)):
            path.write_bytes(whole[:cut] + tail)
            before = read_metrics(path)
            found = logged(path, (3, {"loss": 3.5}), (4, {"loss": 4.5}))
            assert found[-2:] == [{"step": 3, "loss": 3.5}, {"step": 4, "loss": 4.5}]
            # A line that lacks nothing but its end is read as well as before.
            assert found[:-2] == before


def test_a_refusing_disk_says_what_to_do_and_spoils_one_point_only(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    tracker = JsonlTracker(path)
    tracker.log(1, {"loss": 1.5})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 9, hard))
    try:
        for _ in range(2):
            with pytest.raises(RecordError, match=r"m\.jsonl: could not be written: .*again"):
                tracker.log(2, {"loss": 2.5})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    tracker.log(3, {"loss": 3.5})
    tracker.close()
    assert read_metrics(path) == [{"step": 1, "loss": 1.5}, {"step": 3, "loss": 3.5}]


def test_a_full_device_is_told_as_such() -> None:
    tracker = JsonlTracker(Path("/dev/full"))
    with pytest.raises(RecordError, match="No space left on device; free disk space"):
        tracker.log(1, {"loss": 1.0})
    tracker.close()


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="could not be written"):
        JsonlTracker(tmp_path / "file" / "m.jsonl")


def test_lines_that_are_no_points_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    assert read_metrics(path) == []
    path.write_bytes(b'[1]\n{"loss":1}\n{"step":"x"}\n\xff\n{"step":1,"loss":2}\n')
    assert read_metrics(path) == [{"step": 1, "loss": 2}]
