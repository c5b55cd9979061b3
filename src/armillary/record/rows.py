"""Training rows: what a learner takes.

A row is one root-to-leaf path of the token tree. Its mask covers only tokens that the model
sampled and that no other row trains. The right shift between a token and the position that
predicts it happens in `shift` and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from armillary.errors import RecordError
from armillary.record.tokens import Ids, Logprobs, TokenSequence

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One path. `mask` and `logprobs` have one entry per token of `tokens`."""

    tokens: TokenSequence
    mask: Mask
    """True exactly where the token was sampled and is trained by this row."""
    logprobs: Logprobs
    """Behaviour log-probabilities; 0 where the mask is False."""
    advantage: float = 0.0
    attempt: str = ""
    harness: str = ""
    calls: tuple[int, ...] = ()
    """The session's calls along the path, root first."""
    policy_version: int = -1
    """Oldest version among the trained tokens."""

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if len(self.mask) != n or len(self.logprobs) != n:
            raise RecordError(
                f"row of {self.attempt or 'unknown attempt'}: {n} ids, {len(self.mask)} mask "
                f"entries, {len(self.logprobs)} logprobs must be equally many"
            )
        if n and bool(self.mask[0]):
            raise RecordError("the first token of a row has no context and cannot be trained")

    @property
    def trained_tokens(self) -> int:
        return int(self.mask.sum())

    def with_advantage(self, advantage: float) -> TrainingRow:
        return replace(self, advantage=advantage)


class Shifted(NamedTuple):
    """Next-token form of a row; all four have length n - 1."""

    inputs: Ids
    targets: Ids
    weights: Mask
    """Whether the *target* is trained."""
    logprobs: Logprobs
    """Behaviour logprob of the target."""


def shift(row: TrainingRow) -> Shifted:
    """Position i reads `inputs[i]` and predicts `targets[i]`. The only right shift there is."""
    ids = row.tokens.ids
    return Shifted(ids[:-1], ids[1:], row.mask[1:], row.logprobs[1:])
