"""The learner inside the model process: the engine's own tensors, and an optimizer on them.

What it guarantees: the distribution trained is the one sampled from (`LocalModel.distribution`
serves both); an update is one indivisible change of weights and policy version; an update whose
loss or gradient is not finite changes nothing; and a publish is proved, not assumed. Forward and
backward passes are done in pieces with decoding in between, so rollouts go on during an update.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from armillary.engine.local.server import Server, full_forward
from armillary.errors import ConfigError, LearnerError
from armillary.record.rows import TrainingRow
from armillary.record.tokens import Logprobs
from armillary.train.batches import Batch, batches_of
from armillary.train.local.checkpoint import (
    LearnerState,
    load_optimizer,
    load_state,
    load_weights,
    rng_text,
    save_checkpoint,
    set_rng,
)
from armillary.train.local.copying import FIRST_TRAINED, copy_batch
from armillary.train.local.policy import Piece, PolicyUpdate, batch_logits
from armillary.train.local.tiny import require_tiny
from armillary.train.losses import cross_entropy
from armillary.train.protocol import Optimizer, PolicyLoss, StepMetrics
from armillary.train.schedule import learning_rate

PROBE_LENGTH, PROBE_PREFILL = 16, 8
PROBE_TOLERANCE = 1e-4
"""Nats by which cached decoding and a full forward pass may differ."""
ROUNDED_TOLERANCE = 0.05
"""The same for weights of lower precision than float32."""


class _Applied(NamedTuple):
    """One update."""

    loss: float
    grad_norm: float
    lr: float
    refused: str
    """Empty = the weights changed."""


class LocalLearnerCore:
    """Trains the model that `server` decodes with."""

    def __init__(
        self, server: Server, *, folder: Path, micro_tokens: int, first_ordinary_id: int
    ) -> None:
        self._server = server
        self._model = server.model
        self._folder = folder
        self._micro_tokens = micro_tokens
        self._ordinary = _ordinary_ids(server, first_ordinary_id)
        self._one_at_a_time = asyncio.Lock()
        self._optimizer: torch.optim.AdamW | None = None
        self._phase = ""
        self._phase_updates = 0
        self._probe: Logprobs | None = None
        self._changed = False  # since the last publish

    async def warm_up(
        self, *, first: int, steps: int, optimizer: Optimizer, seed: int
    ) -> dict[str, float]:
        """See `train.protocol.Learner`."""
        require_tiny(self._folder)
        if len(self._ordinary) < 8:
            raise ConfigError(f"copy warm-up needs 8 ordinary ids, not {len(self._ordinary)}")
        async with self._one_at_a_time:
            self._begin("warmup", first, optimizer)
            return await self._chunk(
                "warmup", first, steps, optimizer, lambda k: self._copy_pieces(seed, k)
            )

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
        """See `train.protocol.Learner`."""
        usable = [row for row in rows if row.trained_tokens]
        if not usable:
            raise LearnerError("no row has a trained token")
        async with self._one_at_a_time:
            self._begin("sft", first, optimizer)

            def pieces(update: int) -> list[Piece]:
                rng = np.random.default_rng([seed, update])
                chosen = rng.choice(len(usable), min(batch, len(usable)), replace=False)
                return self._supervised_pieces([usable[i] for i in chosen])

            return await self._chunk("sft", first, steps, optimizer, pieces)

    async def step(
        self, rows: Sequence[TrainingRow], *, loss: PolicyLoss, optimizer: Optimizer
    ) -> StepMetrics:
        """See `train.protocol.Learner`."""
        started = time.perf_counter()
        batches = batches_of(rows, most_tokens=self._micro_tokens)
        if not batches:
            return StepMetrics(False, "no row has a trained token")
        self._check_targets(batches)
        async with self._one_at_a_time:
            if self._phase != "policy":
                self._begin("policy", 0, optimizer)
            update = PolicyUpdate(self._model, batches, loss)
            applied = await self._update(update.pieces(), optimizer)
        values = {
            "loss/policy": applied.loss,
            "grad/norm": applied.grad_norm,
            "optim/lr": applied.lr,
            "time/learner": time.perf_counter() - started,
            **update.metrics(),
        }
        finite = {name: value for name, value in values.items() if np.isfinite(value)}
        return StepMetrics(not applied.refused, applied.refused, finite)

    async def publish(self) -> int:
        """See `train.protocol.Learner`. The engine holds the same tensors; this proves it."""
        async with self._one_at_a_time:
            rng = np.random.default_rng(0)
            ids = rng.choice(self._ordinary, PROBE_LENGTH).astype(np.int32)
            decoder = self._server.decoder
            probe = decoder.forced(ids, prefill=PROBE_PREFILL, temperature=1.0)
            expected = full_forward(self._model, ids, 1.0)[PROBE_PREFILL - 1 :]
            gap = float(np.abs(probe - expected).max())
            limit = (
                PROBE_TOLERANCE if self._model.network.dtype == torch.float32 else ROUNDED_TOLERANCE
            )
            if not gap <= limit:
                raise LearnerError(
                    f"after the update the engine's log-probabilities are {gap:.2g} nats from "
                    f"those of the learner (limit {limit:g}): it samples from other "
                    "weights"
                )
            if self._changed and self._probe is not None and np.array_equal(probe, self._probe):
                raise LearnerError(
                    "the engine's log-probabilities did not change although an update was applied"
                )
            self._probe, self._changed = probe, False
            return self._server.scheduler.version

    async def save(self, path: Path) -> None:
        """See `train.protocol.Learner`."""
        async with self._one_at_a_time:
            state = LearnerState(
                self._server.scheduler.version, self._phase, self._phase_updates, rng_text()
            )
            save_checkpoint(
                path, self._model.network, self._optimizer, state, original=self._folder
            )

    async def load(self, path: Path) -> int:
        """See `train.protocol.Learner`."""
        async with self._one_at_a_time:
            state = load_state(path)
            load_weights(path, self._model.network)
            self._phase, self._phase_updates = state.phase, state.phase_updates
            self._optimizer = None
            stored = load_optimizer(path)
            if stored:
                self._optimizer = torch.optim.AdamW(self._parameters(), fused=True)
                self._optimizer.load_state_dict(stored)
            set_rng(state.rng)
            self._probe, self._changed = None, False
            self._server.scheduler.weights_changed(state.version)
            return state.version

    # Pieces of a loss.

    def _copy_pieces(self, seed: int, update: int) -> list[Piece]:
        ids = torch.from_numpy(copy_batch(self._ordinary, seed, update)).to(self._model.device)
        targets = ids[:, FIRST_TRAINED + 1 :].reshape(-1)

        def piece() -> torch.Tensor:
            hidden = self._model.hidden(ids[:, :-1])[:, FIRST_TRAINED:]
            logits = self._model.distribution(hidden.flatten(0, 1), 1.0)
            return cross_entropy(logits, targets) / len(targets)

        return [piece]

    def _supervised_pieces(self, rows: Sequence[TrainingRow]) -> list[Piece]:
        batches = batches_of(rows, most_tokens=self._micro_tokens)
        self._check_targets(batches)
        tokens = sum(len(b.targets) for b in batches)

        def piece(batch: Batch) -> Piece:
            return lambda: cross_entropy(*batch_logits(self._model, batch, 1.0)) / tokens

        return [piece(batch) for batch in batches]

    def _check_targets(self, batches: Sequence[Batch]) -> None:
        banned = self._model.ban.cpu().numpy() != 0
        for batch in batches:
            wrong = batch.targets[banned[batch.targets]]
            if len(wrong):
                raise LearnerError(
                    f"a row trains id {int(wrong[0])}, which the policy must never sample: mask "
                    "it or take it off the banned ids"
                )

    # Updates.

    def _begin(self, phase: str, first: int, optimizer: Optimizer) -> None:
        """Go on with the optimizer of `phase`, or start a fresh one at update 0."""
        if first == 0:
            self._phase, self._phase_updates = phase, 0
            self._optimizer = torch.optim.AdamW(
                self._parameters(), lr=optimizer.lr, betas=optimizer.betas, fused=True
            )
        elif (self._phase, self._phase_updates) != (phase, first):
            raise LearnerError(
                f"update {first} of {phase} asked for, but the learner stands at update "
                f"{self._phase_updates} of {self._phase or 'nothing'}: load the checkpoint first"
            )

    async def _chunk(
        self,
        name: str,
        first: int,
        steps: int,
        optimizer: Optimizer,
        pieces: Callable[[int], list[Piece]],
    ) -> dict[str, float]:
        """Updates `first ..`; means over them, and the last loss."""
        started = time.perf_counter()
        done: list[_Applied] = []
        for update in range(first, first + steps):
            done.append(await self._update(pieces(update), optimizer))
            if done[-1].refused:
                raise LearnerError(f"update {update} of {name} was refused: {done[-1].refused}")
        if not done:
            return {}
        return {
            f"{name}/loss": float(np.mean([a.loss for a in done])),
            f"{name}/loss_last": done[-1].loss,
            f"{name}/grad_norm": float(np.mean([a.grad_norm for a in done])),
            f"{name}/lr": done[-1].lr,
            f"{name}/seconds": time.perf_counter() - started,
        }

    async def _update(self, pieces: Sequence[Piece], optimizer: Optimizer) -> _Applied:
        """Accumulate the pieces' gradients, with decoding in between, then apply them."""
        assert self._optimizer is not None
        self._optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for piece in pieces:
            started = time.perf_counter()
            value = piece()
            value.backward()
            loss += value.item()
            await self._server.share(time.perf_counter() - started)
        return self._apply(loss, optimizer)

    def _apply(self, loss: float, optimizer: Optimizer) -> _Applied:
        """One indivisible change of weights and version, or none."""
        assert self._optimizer is not None
        lr = learning_rate(optimizer, self._phase_updates)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters(), optimizer.clip_norm).item()
        if not np.isfinite(loss) or not np.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            return _Applied(loss, norm, lr, f"loss {loss}, gradient norm {norm}: not finite")
        for group in self._optimizer.param_groups:
            group["lr"], group["betas"] = lr, optimizer.betas
            group["weight_decay"] = optimizer.weight_decay
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._phase_updates += 1
        # A zero gradient from a fresh optimizer moves nothing, so no change can be asked for.
        self._changed |= lr > 0 and norm > 0
        self._server.scheduler.weights_changed(self._server.scheduler.version + 1)
        return _Applied(loss, norm, lr, "")

    def _parameters(self) -> list[torch.nn.Parameter]:
        return list(self._model.network.parameters())


def _ordinary_ids(server: Server, first: int) -> npt.NDArray[np.int64]:
    """Ids of ordinary text: from `first` on, neither banned nor an end token."""
    model = server.model
    ids = np.flatnonzero(model.ban.cpu().numpy() == 0)
    ids = ids[(ids >= first) & ~np.isin(ids, sorted(model.end_ids))]
    if not len(ids):
        raise ConfigError(f"the model has no ordinary id from {first} on")
    return ids
