"""What a journal says, put back together: attempts with their calls and outcomes.

A finished attempt is usable exactly once; an unfinished one is never usable, its task is run again
under the next try number. Built in one pass over the entries.
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

    def finished(self) -> dict[str, AttemptRecord]:
        return {name: a for name, a in self.attempts.items() if a.closed is not None}


def replay(entries: Iterable[Entry]) -> RunRecord:
    """Rebuild attempts, trees and updates from journal entries.

    Raises:
        RecordError: an entry speaks of an attempt that was never opened.
    """
    run = RunRecord()
    for entry in entries:
        match entry:
            case AttemptOpened():
                run.attempts[entry.attempt] = AttemptRecord(entry)
            case ModelCall():
                _attempt(run, entry.session).tree.add(entry)
            case Delivery():
                tree = _attempt(run, entry.attempt).tree
                tree.replace(apply_delivery(tree.call(entry.index), entry))
            case AttemptClosed():
                _attempt(run, entry.attempt).closed = entry
            case UpdateApplied():
                run.updates.append(entry)
    return run


def _attempt(run: RunRecord, name: str) -> AttemptRecord:
    if name not in run.attempts:
        raise RecordError(f"the journal speaks of attempt {name}, which was never opened")
    return run.attempts[name]
