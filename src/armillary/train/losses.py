"""Losses, as sums over tokens of pure functions of log-probabilities.

Sums, because a batch is computed in pieces: the caller divides by the tokens of the whole update,
so that every trained token weighs the same however the rows were cut (token mean).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def token_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probability of each target, `[tokens]`, under `logits` `[tokens, vocabulary]`."""
    return torch.log_softmax(logits, dim=-1).gather(1, targets[:, None])[:, 0]


@torch.no_grad()
def entropy(logits: Tensor) -> Tensor:
    """Sum over tokens, in nats. Logits of -inf (banned ids) add nothing."""
    return torch.special.entr(torch.softmax(logits, dim=-1)).sum()


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum over tokens of -log p(target)."""
    return torch.nn.functional.cross_entropy(logits, targets, reduction="sum")


class Clipped(NamedTuple):
    loss: Tensor
    """Sum over tokens."""
    clipped: Tensor
    """Tokens whose gradient the clip removed."""


def ppo_clip(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, *, low: float, high: float
) -> Clipped:
    """Sum over tokens of -min(r A, clip(r, low, high) A) with r = exp(logprobs - behaviour).

    Source: Schulman et al. 2017 (arXiv 1707.06347), eq. 7; low = 1 - eps, high = 1 + eps there,
    two separate bounds since DAPO (arXiv 2503.14476). All tensors are `[tokens]`.
    """
    ratio = torch.exp(logprobs - behaviour)
    plain, bounded = ratio * advantages, ratio.clamp(low, high) * advantages
    return Clipped(-torch.minimum(plain, bounded).sum(), (bounded < plain).sum())


def ratio_statistics(log_ratio: npt.NDArray[np.float32]) -> dict[str, float]:
    """Quantiles of exp(`log_ratio`) over the tokens of an update.

    `ratio/max_abs_diff` is the largest |log-probability now - at sampling|: at the first update
    after a publish it is rounding noise, or sampler and trainer disagree.
    """
    p1, p50, p99 = np.exp(np.quantile(log_ratio.astype(np.float64), [0.01, 0.5, 0.99]))
    return {
        "ratio/p1": float(p1),
        "ratio/p50": float(p50),
        "ratio/p99": float(p99),
        "ratio/max_abs_diff": float(np.abs(log_ratio).max()),
    }
