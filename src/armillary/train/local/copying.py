"""Copy warm-up: sequences of random ids that repeat a segment.

A pretraining stage for an untrained model. Each sequence is a random segment of 12 to 40 ids from
an alphabet of 8 to 200, up to 6 stray ids, then the segment over and over; the loss is on what a
model can know only by looking back. It teaches to look back, which demonstrations alone taught
only some seeds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SEQUENCES = 16
LENGTH = 80
SHORTEST, LONGEST = 12, 40
MOST_STRAY = 6
ALPHABETS = (8, 12, 20, 40, 200)
FIRST_TRAINED = LONGEST + MOST_STRAY
"""Inputs from here on predict repeats, whatever lengths were drawn."""


def copy_batch(ordinary: npt.NDArray[np.int64], seed: int, update: int) -> npt.NDArray[np.int64]:
    """Ids `[SEQUENCES, LENGTH]` of update number `update`, drawn from the ids `ordinary`."""
    rng = np.random.default_rng([seed, update])
    batch = np.empty((SEQUENCES, LENGTH), dtype=np.int64)
    for row in batch:
        size = min(int(rng.choice(ALPHABETS)), len(ordinary))
        alphabet = rng.choice(ordinary, size, replace=False)
        segment = alphabet[rng.integers(0, size, int(rng.integers(SHORTEST, LONGEST + 1)))]
        stray = rng.choice(ordinary, int(rng.integers(0, MOST_STRAY + 1)))
        start = len(segment) + len(stray)
        row[:start] = np.concatenate([segment, stray])
        row[start:] = np.resize(segment, LENGTH - start)
    return batch
