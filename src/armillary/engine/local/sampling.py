"""Drawing tokens: temperature, top-k, top-p, and one random number per token.

What it guarantees: a call's random numbers depend on its seed, branch and token index alone, so
its samples repeat whatever else is in the batch (up to rounding of the logits). Each token is the
inverse CDF of one uniform number from a counter-based generator (Philox; Salmon et al. 2011,
"Parallel random numbers: as easy as 1, 2, 3"). An id of probability zero can never be drawn: the
drawn index is the first whose cumulative mass exceeds `u * total`, and `u < 1` in float32.

Logprobs are those of the distribution drawn from, after every step above.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from armillary.engine.local.rows import Columns
from armillary.record.calls import Sampling

_WORD = (1 << 64) - 1


class Drawn(NamedTuple):
    tokens: Tensor
    """int64 `[rows]`"""
    logprobs: Tensor
    """float32 `[rows]`"""


def uniforms(seed: int, branch: int, count: int) -> npt.NDArray[np.float32]:
    """The first `count` random numbers of a call's branch, in [0, 1)."""
    bits = np.random.Philox(key=np.array([seed & _WORD, branch], dtype=np.uint64))
    return np.random.Generator(bits).random(count, dtype=np.float32)


class SamplerRows(Columns):
    """Sampling parameters of the running rows; temperature 0 means the most likely token."""

    def __init__(self, rows: int) -> None:
        self.temperature = np.ones((rows, 1), dtype=np.float32)
        self.top_p = np.full((rows, 1), np.inf, dtype=np.float32)
        self.top_k = np.full((rows, 1), np.iinfo(np.int64).max, dtype=np.int64)
        self.truncates = np.zeros(rows, dtype=np.bool_)

    def put(self, row: int, sampling: Sampling) -> None:
        greedy = sampling.temperature <= 0
        self.temperature[row] = 1.0 if greedy else sampling.temperature
        # Exactly 1.0 must not cut the tail by rounding.
        self.top_p[row] = sampling.top_p if sampling.top_p < 1 else np.inf
        top_k = 1 if greedy else sampling.top_k
        self.top_k[row] = top_k or np.iinfo(np.int64).max
        self.truncates[row] = top_k > 0 or sampling.top_p < 1

    def draw(self, logits: Tensor, start: int, numbers: npt.NDArray[np.float32]) -> Drawn:
        """Sample rows `start ..` from `logits` `[rows, vocabulary]`, already divided and banned.

        `numbers` is float32 `[rows, 1]`.
        """
        stop = start + len(logits)
        chances = torch.softmax(logits, dim=-1)
        if self.truncates[start:stop].any():
            top_p = torch.from_numpy(self.top_p[start:stop]).to(logits.device)
            top_k = torch.from_numpy(self.top_k[start:stop]).to(logits.device)
            chances = truncate(chances, top_p, top_k)
        mass = chances.cumsum(dim=-1)
        wanted = torch.from_numpy(numbers).to(logits.device) * mass[:, -1:]
        tokens = torch.searchsorted(mass, wanted, right=True)
        return Drawn(tokens[:, 0], chances.gather(1, tokens)[:, 0].log())


def truncate(chances: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Keep the `top_k` likeliest ids, then the fewest of them that hold `top_p` of their mass.

    `chances` is `[rows, vocabulary]`; `top_p`, `top_k` are `[rows, 1]`; the result sums to 1.
    Source of top-p: Holtzman et al. 2020 (arXiv 1904.09751).
    """
    ranked, order = chances.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ranked.shape[1], device=ranked.device)
    ranked = torch.where(rank < top_k, ranked, 0.0)
    ranked = ranked / ranked.sum(dim=-1, keepdim=True)
    before = ranked.cumsum(dim=-1) - ranked
    # The likeliest id always stays, however small top_p is.
    ranked = torch.where((before < top_p) | (rank == 0), ranked, 0.0)
    ranked = ranked / ranked.sum(dim=-1, keepdim=True)
    return torch.zeros_like(chances).scatter_(1, order, ranked.clamp(max=1.0))
