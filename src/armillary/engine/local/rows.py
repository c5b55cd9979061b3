"""Per-row bookkeeping of the decoder: arrays that move and grow together.

One entry per row of the batch, so that a decoding step updates all rows in a few numpy calls.
"""

from __future__ import annotations

import numpy as np


class Columns:
    """Every attribute is an array with one entry per row."""

    def move(self, source: int, target: int) -> None:
        """Overwrite row `target` by row `source`."""
        for array in vars(self).values():
            array[target] = array[source]

    def grow(self, rows: int) -> None:
        """Make room for `rows` rows; new entries are 0."""
        for name, array in list(vars(self).items()):
            larger = np.zeros((rows, *array.shape[1:]), dtype=array.dtype)
            larger[: len(array)] = array
            setattr(self, name, larger)


class Progress(Columns):
    """How far each running row is."""

    def __init__(self, rows: int, width: int) -> None:
        self.length = np.zeros(rows, dtype=np.int64)
        """Tokens in the cache."""
        self.next = np.zeros(rows, dtype=np.int64)
        """The last sampled token, which the cache does not hold yet."""
        self.produced = np.zeros(rows, dtype=np.int64)
        self.taken = np.zeros(rows, dtype=np.int64)
        """Sampled tokens that were handed out."""
        self.most = np.zeros(rows, dtype=np.int64)
        self.done = np.zeros(rows, dtype=np.bool_)
        self.numbers = np.zeros((rows, width), dtype=np.float32)
        """Random number of each token to sample."""
        self.ids = np.zeros((rows, width), dtype=np.int32)
        self.logprobs = np.zeros((rows, width), dtype=np.float32)

    def widen(self, width: int) -> None:
        """Make room for `width` sampled tokens per row."""
        for name in ("numbers", "ids", "logprobs"):
            array = getattr(self, name)
            if array.shape[1] < width:
                setattr(self, name, np.pad(array, ((0, 0), (0, width - array.shape[1]))))
