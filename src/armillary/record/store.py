"""What a journal says, put back together: attempts with their calls and outcomes.

A finished attempt is usable exactly once; an unfinished one is never usable, its task is run again
under the next try number. Built in one pass over the entries.

Notes about what is not recorded (a delivery, an end) change nothing and are named: a full disk may
have refused the entry they speak of, and a run must not become unreadable by that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from armillary.errors import RecordError
from armillary.record.calls import ModelCall
from armillary.record.codec import (
    AttemptClosed,
    AttemptOpened,
    Delivery,
    Entry,
    UpdateApplied,
    apply_delivery,
)
from armillary.record.tree import TokenTree


@dataclass(slots=True)
class AttemptRecord:
    """One attempt as recorded."""

    opened: AttemptOpened
    tree: TokenTree = field(default_factory=TokenTree)
    closed: AttemptClosed | None = None

    @property
    def calls(self) -> list[ModelCall]:
        return self.tree.calls()


@dataclass(slots=True)
class RunRecord:
    """Everything a journal holds."""

    attempts: dict[str, AttemptRecord] = field(default_factory=dict[str, AttemptRecord])
    updates: list[UpdateApplied] = field(default_factory=list[UpdateApplied])
    strays: list[str] = field(default_factory=list[str])
    """Entries that were left out because what they speak of is not recorded, in words."""

    def finished(self) -> dict[str, AttemptRecord]:
        return {name: a for name, a in self.attempts.items() if a.closed is not None}


def replay(entries: Iterable[Entry]) -> RunRecord:
    """Rebuild attempts, trees and updates from journal entries.

    The first end of an attempt is the one that counts.

    Raises:
        RecordError: a call is of an attempt that was never opened, or continues a call that is
            not recorded.
    """
    run = RunRecord()
    for entry in entries:
        match entry:
            case AttemptOpened():
                run.attempts[entry.attempt] = AttemptRecord(entry)
            case ModelCall():
                _attempt(run, entry.session).tree.add(entry)
            case Delivery():
                _deliver(run, entry)
            case AttemptClosed():
                _close(run, entry)
            case UpdateApplied():
                run.updates.append(entry)
    return run


def _deliver(run: RunRecord, entry: Delivery) -> None:
    attempt = run.attempts.get(entry.attempt)
    if attempt is None or entry.index not in attempt.tree:
        run.strays.append(f"delivery of call {entry.index} of {entry.attempt}, not recorded")
        return
    attempt.tree.replace(apply_delivery(attempt.tree.call(entry.index), entry))


def _close(run: RunRecord, entry: AttemptClosed) -> None:
    attempt = run.attempts.get(entry.attempt)
    if attempt is None:
        run.strays.append(f"end of {entry.attempt}, never opened")
    elif attempt.closed is not None:
        run.strays.append(f"another end of {entry.attempt}, already over")
    else:
        attempt.closed = entry


def _attempt(run: RunRecord, name: str) -> AttemptRecord:
    if name not in run.attempts:
        raise RecordError(f"the journal speaks of attempt {name}, which was never opened")
    return run.attempts[name]
