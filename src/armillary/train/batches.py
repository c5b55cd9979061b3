"""Training rows as padded arrays.

Rows of like length share a batch; padding is at the right, where a causal model cannot see it.
Only positions that predict a trained token are kept, so the output head is computed for those
alone. The shift between a token and the position that predicts it is `record.rows.shift`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from armillary.engine.local.lengths import group_by_length
from armillary.errors import LearnerError
from armillary.record.rows import TrainingRow, shift

PASS_COST = 192
"""Tokens of padding that one more forward and backward pass is worth (tiny model)."""
MOST_ROWS = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one forward and backward pass."""

    inputs: npt.NDArray[np.int64]
    """`[rows, length]`, right-padded with 0."""
    places: npt.NDArray[np.int64]
    """`[tokens]`: flat indices into `inputs` of the positions that predict a trained token."""
    targets: npt.NDArray[np.int64]
    """`[tokens]`: the trained ids."""
    behaviour: npt.NDArray[np.float32]
    """`[tokens]`: their log-probabilities at sampling."""
    advantages: npt.NDArray[np.float32]
    """`[tokens]`: the advantage of their row."""


def batches_of(rows: Sequence[TrainingRow], *, most_tokens: int) -> list[Batch]:
    """Cut `rows` into batches of at most `most_tokens` padded tokens; a longer row goes alone.

    Rows without trained tokens are left out.

    Raises:
        LearnerError: a row holds images.
    """
    for row in rows:
        if row.tokens.images:
            raise LearnerError(
                f"row of {row.attempt or 'unknown attempt'} holds an image; this learner trains "
                "text only"
            )
    used = [row for row in rows if row.trained_tokens]
    groups = group_by_length(
        [len(row.tokens) - 1 for row in used],
        pass_cost=PASS_COST,
        most_tokens=most_tokens,
        most_rows=MOST_ROWS,
    )
    return [_batch([used[i] for i in group]) for group in groups]


def _batch(rows: Sequence[TrainingRow]) -> Batch:
    shifted = [shift(row) for row in rows]
    width = max(len(s.inputs) for s in shifted)
    inputs = np.zeros((len(rows), width), dtype=np.int64)
    for i, s in enumerate(shifted):
        inputs[i, : len(s.inputs)] = s.inputs
    places = [i * width + np.flatnonzero(s.weights) for i, s in enumerate(shifted)]
    counts = [len(p) for p in places]
    return Batch(
        inputs=inputs,
        places=np.concatenate(places),
        targets=np.concatenate([s.targets[s.weights] for s in shifted]).astype(np.int64),
        behaviour=np.concatenate([s.logprobs[s.weights] for s in shifted]),
        advantages=np.repeat(np.array([r.advantage for r in rows], dtype=np.float32), counts),
    )
