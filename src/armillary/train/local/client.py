"""The asyncio side of the local learner. Imports no torch.

`start_learner` starts the model process with both engine and learner; `LocalEngine` and
`LocalLearner` are two views of the one process, which share the same weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from armillary.engine.local import wire as engine_wire
from armillary.engine.local.client import LocalProcess, score
from armillary.errors import EngineError, LearnerError
from armillary.record.rows import TrainingRow
from armillary.record.tokens import Logprobs, TokenSequence
from armillary.train.local import wire
from armillary.train.protocol import Optimizer, PolicyLoss, StepMetrics

LEARNER_MODULE = "armillary.train.local.process"


async def start_learner(
    model_dir: Path, *, tiny_seed: int | None = None, **options: Any
) -> LocalProcess:
    """`LocalProcess.start` with a learner in the process.

    `tiny_seed`: if `model_dir` holds no model yet, make the tiny one there first, for
    `vocab_size` ids.

    Raises:
        EngineError: as `LocalProcess.start`.
    """
    arguments = () if tiny_seed is None else ("--tiny-seed", str(tiny_seed))
    return await LocalProcess.start(
        model_dir, module=LEARNER_MODULE, arguments=arguments, **options
    )


class LocalLearner:
    """The `Learner` of a local process.

    Every method raises LearnerError when the process ended.
    """

    def __init__(self, process: LocalProcess) -> None:
        self._process = process

    async def warm_up(
        self, *, first: int, steps: int, optimizer: Optimizer, seed: int
    ) -> dict[str, float]:
        body = wire.WarmUpBody(first, steps, optimizer, seed)
        return (await self._ask("warm_up", body, wire.ValuesReply)).values

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
        packed = wire.pack_rows(rows)
        body = wire.SupervisedBody(packed, first, steps, batch, optimizer, seed)
        return (await self._ask("supervised", body, wire.ValuesReply)).values

    async def step(
        self, rows: Sequence[TrainingRow], *, loss: PolicyLoss, optimizer: Optimizer
    ) -> StepMetrics:
        body = wire.StepBody(wire.pack_rows(rows), loss, optimizer)
        reply = await self._ask("step", body, wire.StepReply)
        return StepMetrics(reply.applied, reply.refused, reply.values)

    async def publish(self) -> int:
        return (await self._ask("publish", engine_wire.Nothing(), wire.VersionReply)).version

    async def score(self, sequence: TokenSequence, *, temperature: float = 1.0) -> Logprobs:
        """A banned id scores -inf."""
        return await score(self._process, sequence, temperature)

    async def save(self, path: Path) -> None:
        # The process has its own working folder.
        where = str(await asyncio.to_thread(path.absolute))
        await self._ask("save", wire.PathBody(where), engine_wire.Nothing)

    async def load(self, path: Path) -> int:
        where = str(await asyncio.to_thread(path.absolute))
        return (await self._ask("load", wire.PathBody(where), wire.VersionReply)).version

    async def close(self) -> None:
        """Nothing to do: the process is closed by whoever started it, or by the engine."""

    async def _ask(self, method: str, body: Any, reply: type[Any]) -> Any:
        try:
            return await self._process.request(method, body, reply)
        except EngineError as error:
            raise LearnerError(str(error)) from error
