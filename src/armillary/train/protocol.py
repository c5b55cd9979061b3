"""The learner seam: training rows in, a new policy version out.

`step` takes rows whose advantages are already set; how they were computed is `train.advantages`.
Local, remote and distributed learners fit under the same few calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from armillary.record.rows import TrainingRow
from armillary.record.tokens import Logprobs, TokenSequence


@dataclass(frozen=True, slots=True)
class Optimizer:
    """AdamW with gradient clipping and a schedule over `total_steps`."""

    lr: float
    total_steps: int
    """0 = constant after the warm-up."""
    warmup_steps: int = 20
    final_lr_fraction: float = 0.1
    """Linear decay ends at this share of `lr`."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    clip_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """PPO clip: mean over tokens of -min(r A, clip(r, low, high) A), r = exp(logp - behaviour).

    Source: Schulman et al. 2017 (arXiv 1707.06347), eq. 7; the raised upper bound is DAPO's
    clip-higher (arXiv 2503.14476).
    """

    clip_low: float = 0.8
    clip_high: float = 1.28
    temperature: float = 1.0
    """The sampling temperature: the trained distribution is the one sampled from."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One optimizer update, or a refusal."""

    applied: bool
    """False: nothing was updated (`refused` says why)."""
    refused: str = ""
    values: dict[str, float] = field(default_factory=dict[str, float])
    """`area/name` -> value: loss, grad norm, ratio quantiles, clip fraction, tokens."""


class Learner(Protocol):
    """Owns trainable weights and their optimizer."""

    async def warm_up(
        self, *, first: int, steps: int, optimizer: Optimizer, seed: int
    ) -> dict[str, float]:
        """Updates `first` .. `first + steps` of copy warm-up on random ids (docs/tiny-model.md).

        Raises:
            ConfigError: the model is pretrained.
        """
        ...

    async def supervised(
        self,
        rows: Sequence[TrainingRow],
        *,
        first: int,
        steps: int,
        batch: int,
        optimizer: Optimizer,
        seed: int,
    ) -> dict[str, float]:
        """Updates `first` .. `first + steps`: token-mean cross-entropy on masked tokens of `rows`.

        The batch of update k is drawn by a generator seeded with `(seed, k)`, so a run that is cut
        into chunks sees the same batches. Update 0 starts a fresh optimizer.
        """
        ...

    async def step(
        self, rows: Sequence[TrainingRow], *, loss: PolicyLoss, optimizer: Optimizer
    ) -> StepMetrics:
        """One policy-gradient update over all `rows`; token mean."""
        ...

    async def publish(self) -> int:
        """Make the engine sample from the current weights; the new policy version.

        Raises:
            LearnerError: the probe shows that the engine does not have them.
        """
        ...

    async def score(self, sequence: TokenSequence, *, temperature: float = 1.0) -> Logprobs:
        """Log-probability of each id but the first, `float32[n - 1]`, by a full forward pass."""
        ...

    async def save(self, path: Path) -> None:
        """Write weights, optimizer, RNG and policy version into folder `path`, all or nothing."""
        ...

    async def load(self, path: Path) -> int:
        """Restore what `save` wrote; the policy version."""
        ...

    async def close(self) -> None: ...
