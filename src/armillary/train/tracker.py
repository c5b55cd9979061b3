"""The tracker seam, and the one that is always there: JSON lines in the run folder.

A line is on disk before `log` returns, and whatever stopped an earlier write (a kill, a full disk)
spoils that one line only, never the next.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from armillary.record.disk import write_all, write_refused


class Tracker(Protocol):
    """Takes metrics: `area/name` -> value, at a step."""

    def log(self, step: int, values: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonlTracker:
    """Appends one JSON object per call to a file. A value logged again for the same step replaces
    the former one for every reader (`read_metrics`), so a resumed run leaves no double points."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            RecordError: the file cannot be opened for writing.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise write_refused(path, error) from error
        self._whole = _ends_whole(path)
        """The file ends with a whole line."""

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one point. Values that are no finite number (a mean over nothing) are left out.

        Raises:
            RecordError: the disk refused. A later point can still be logged.
        """
        kept = {name: value for name, value in values.items() if _sayable(value)}
        line = msgspec.json.encode({"step": step, **kept}) + b"\n"
        data = line if self._whole else b"\n" + line
        self._whole = False
        try:
            write_all(self._file.fileno(), data)
            os.fdatasync(self._file.fileno())
        except OSError as error:
            raise write_refused(self._path, error) from error
        self._whole = True

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Logged points in order of step, one per step.

    All that was logged for a step is put together; of a value that was logged more than once, the
    last counts. A torn line is left out, and so is a value of null.
    """
    points: dict[int, dict[str, Any]] = {}
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            point = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:
            continue
        said = {name: value for name, value in point.items() if value is not None}
        if isinstance(step := said.get("step"), int):
            points.setdefault(step, {}).update(said)
    return [points[step] for step in sorted(points)]


def _sayable(value: Any) -> bool:
    """JSON has no way to write NaN or infinity."""
    return not isinstance(value, float) or math.isfinite(value)


def _ends_whole(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return True
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"
