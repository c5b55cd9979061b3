"""Learning rate over the updates of a phase."""

from __future__ import annotations

from armillary.train.protocol import Optimizer


def learning_rate(optimizer: Optimizer, update: int) -> float:
    """Rate of update number `update`, from 0: linear warm-up times linear decay.

    Update 0 already has a rate above 0; from `total_steps` on it stays at its last value.
    """
    warm = min(1.0, (update + 1) / max(optimizer.warmup_steps, 1))
    if not optimizer.total_steps:
        return optimizer.lr * warm
    done = min(update / optimizer.total_steps, 1.0)
    return optimizer.lr * warm * (1.0 - (1.0 - optimizer.final_lr_fraction) * done)
