"""The tracker seam, and the one that is always there: JSON lines in the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec


class Tracker(Protocol):
    """Takes metrics: `area/name` -> value, at a step."""

    def log(self, step: int, values: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonlTracker:
    """Appends one JSON object per call to a file. A step logged again replaces the former one
    for every reader (`read_metrics`), so a resumed run leaves no double points."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self._file.write(msgspec.json.encode({"step": step, **values}) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Logged points in order of step; the last one of each step counts. A torn line is left out."""
    points: dict[int, dict[str, Any]] = {}
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            point = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:
            continue
        points.setdefault(int(point["step"]), {}).update(point)
    return [points[step] for step in sorted(points)]
