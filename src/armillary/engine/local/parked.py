"""Caches of conversations between two turns.

A session may keep several rows (a main line, a side call): the next prompt takes the longest one
that it extends exactly. What is kept is a prefix of ids and the model state after it, so taking a
row can change no result, only save its prefill.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from armillary.engine.local.cache import RowState
from armillary.record.tokens import Ids


@dataclass(frozen=True, slots=True)
class Parked:
    session: str
    ids: Ids
    state: RowState


class ParkedRows:
    """Kept rows, least recently used first."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, Parked] = OrderedDict()
        self._keys: dict[str, list[int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, row: Parked) -> None:
        self._count += 1
        self._rows[self._count] = row
        self._keys.setdefault(row.session, []).append(self._count)

    def take(self, session: str, prompt: Ids) -> Parked | None:
        """Remove and return the longest row of `session` that is a proper prefix of `prompt`."""
        best: tuple[int, int] | None = None
        for key in self._keys.get(session, ()):
            ids = self._rows[key].ids
            # Proper: the model must be fed at least one token to give a distribution.
            if len(ids) < len(prompt) and np.array_equal(ids, prompt[: len(ids)]):
                best = max(best or (0, 0), (len(ids), key))
        return None if best is None else self._remove(best[1])

    def evict(self, count: int) -> None:
        """Forget the `count` rows unused for longest."""
        for key in list(self._rows)[: max(count, 0)]:
            self._remove(key)

    def end_session(self, session: str) -> None:
        for key in list(self._keys.get(session, ())):
            self._remove(key)

    def clear(self) -> None:
        self._rows.clear()
        self._keys.clear()

    def _remove(self, key: int) -> Parked:
        row = self._rows.pop(key)
        keys = self._keys[row.session]
        keys.remove(key)
        if not keys:
            del self._keys[row.session]
        return row
