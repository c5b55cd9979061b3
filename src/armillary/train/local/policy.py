"""One policy-gradient update as pieces of loss, and what it tells about itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from armillary.engine.local.model import LocalModel
from armillary.train.batches import Batch
from armillary.train.losses import entropy, ppo_clip, ratio_statistics, token_logprobs
from armillary.train.protocol import PolicyLoss

Piece = Callable[[], Tensor]
"""Computes one piece of an update's loss, already divided by the tokens of the whole."""


def batch_logits(model: LocalModel, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Logits `[tokens, vocabulary]` of the distribution sampled from, and the targets."""
    device = model.device
    hidden = model.hidden(torch.from_numpy(batch.inputs).to(device))
    chosen = hidden.flatten(0, 1)[torch.from_numpy(batch.places).to(device)]
    targets = torch.from_numpy(batch.targets).to(device)
    return model.distribution(chosen, temperature), targets


class PolicyUpdate:
    """The PPO-clip loss of all batches; token mean over the whole update."""

    def __init__(self, model: LocalModel, batches: Sequence[Batch], loss: PolicyLoss) -> None:
        self._model = model
        self._batches = batches
        self._loss = loss
        self._tokens = sum(len(b.targets) for b in batches)
        self._log_ratios: list[np.ndarray] = []
        self._clipped = 0
        self._entropy = 0.0

    def pieces(self) -> list[Piece]:
        return [lambda batch=batch: self._piece(batch) for batch in self._batches]

    def metrics(self) -> dict[str, float]:
        """After all pieces were computed: means over the trained tokens."""
        return {
            **ratio_statistics(np.concatenate(self._log_ratios)),
            "clip/fraction": self._clipped / self._tokens,
            "policy/entropy": self._entropy / self._tokens,
            "tokens/trained": float(self._tokens),
        }

    def _piece(self, batch: Batch) -> Tensor:
        logits, targets = batch_logits(self._model, batch, self._loss.temperature)
        logprobs = token_logprobs(logits, targets)
        behaviour = torch.from_numpy(batch.behaviour).to(logits.device)
        advantages = torch.from_numpy(batch.advantages).to(logits.device)
        result = ppo_clip(
            logprobs, behaviour, advantages, low=self._loss.clip_low, high=self._loss.clip_high
        )
        self._log_ratios.append((logprobs.detach() - behaviour).cpu().numpy())
        self._clipped += int(result.clipped)
        self._entropy += float(entropy(logits))
        return result.loss / self._tokens
