"""What a person sees: progress on stderr, results on stdout, one JSON object last if asked."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

QUIET_SECONDS = 5.0
"""Where no terminal is watching, a line at most so often."""
AT_ONCE_SECONDS = 1.0
"""Units that are there so soon were done by an earlier start; they say nothing of the pace."""


class Output:
    """Progress and results of one verb."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._console = Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        """A line for the person."""
        self._console.print(text, markup=False)

    def result(self, value: Any, text: str) -> None:
        """The verb's result: `text` for a person, `value` as the last line under `--json`."""
        if text:
            print(text)  # noqa: T201
        if self._json:
            print(msgspec.json.encode(value).decode(), flush=True)  # noqa: T201

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Stage]:
        """Progress of `total` units of work."""
        with Stage(self._console, name, total) as stage:
            yield stage


class Stage:
    """A bar with the time left; without a terminal, a line now and then."""

    def __init__(self, console: Console, name: str, total: int) -> None:
        self._console = console
        self._name = name
        self._total = total
        self._done = self._at_once = 0
        self._note = ""
        self._began = self._said = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description:<28}"), BarColumn(bar_width=28), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[note]}"), console=console,
        )  # fmt: skip
        self._task = self._bar.add_task(name, total=total, left="", note="")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()
        elif error is None:
            self._line("done")

    def advance(self, units: int = 1, note: str = "") -> None:
        self._done += units
        self._note = note or self._note
        spent = time.monotonic() - self._began
        if spent < AT_ONCE_SECONDS:
            self._at_once = self._done
        left = time_left(spent, self._done - self._at_once, self._total - self._done)
        shown = "" if left is None else f"{left:.0f} s left"
        self._bar.update(self._task, advance=units, left=shown, note=self._note)
        if not self._console.is_terminal and time.monotonic() - self._said > QUIET_SECONDS:
            self._line(shown or "time left unknown")

    def _line(self, end: str) -> None:
        self._said = time.monotonic()
        spent = self._said - self._began
        text = f"{self._name}: {self._done}/{self._total}, {spent:.0f} s, {end}"
        self._console.print(f"{text}  {self._note}".rstrip(), markup=False)


def time_left(spent: float, done: int, left: int) -> float | None:
    """Seconds for `left` units at the pace of `done` in `spent` seconds; None without a pace."""
    return spent * left / done if done > 0 else None


def fail(error: BaseException) -> None:
    """One error for a person."""
    print(f"armillary: {error}", file=sys.stderr)  # noqa: T201
