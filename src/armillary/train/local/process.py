"""Entry of the model process with a learner: the engine's server plus the learner's methods.

`python -m armillary.train.local.process OPTIONS [--tiny-seed SEED]`; with a seed, a model folder
that has no model yet gets the tiny one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from transformers.utils import logging

from armillary.engine.local import wire as engine_wire
from armillary.engine.local.options import LocalOptions
from armillary.engine.local.process import run
from armillary.engine.local.server import Server
from armillary.train.local import wire
from armillary.train.local.learner import LocalLearnerCore
from armillary.train.local.tiny import make_tiny_model


def register_learner(server: Server, options: LocalOptions) -> None:
    """Give `server` the methods of a learner on its model."""
    core = LocalLearnerCore(
        server,
        folder=Path(options.model_dir),
        micro_tokens=options.micro_tokens,
        first_ordinary_id=options.first_ordinary_id,
    )

    async def warm_up(body: wire.WarmUpBody) -> wire.ValuesReply:
        return wire.ValuesReply(
            await core.warm_up(
                first=body.first, steps=body.steps, optimizer=body.optimizer, seed=body.seed
            )
        )

    async def supervised(body: wire.SupervisedBody) -> wire.ValuesReply:
        values = await core.supervised(
            wire.unpack_rows(body.rows),
            first=body.first,
            steps=body.steps,
            batch=body.batch,
            optimizer=body.optimizer,
            seed=body.seed,
        )
        return wire.ValuesReply(values)

    async def step(body: wire.StepBody) -> wire.StepReply:
        rows = wire.unpack_rows(body.rows)
        metrics = await core.step(rows, loss=body.loss, optimizer=body.optimizer)
        return wire.StepReply(metrics.applied, metrics.refused, metrics.values)

    async def publish(_: engine_wire.Nothing) -> wire.VersionReply:
        return wire.VersionReply(await core.publish())

    async def save(body: wire.PathBody) -> engine_wire.Nothing:
        await core.save(Path(body.path))
        return engine_wire.Nothing()

    async def load(body: wire.PathBody) -> wire.VersionReply:
        return wire.VersionReply(await core.load(Path(body.path)))

    server.register("warm_up", wire.WarmUpBody, warm_up)
    server.register("supervised", wire.SupervisedBody, supervised)
    server.register("step", wire.StepBody, step)
    server.register("publish", engine_wire.Nothing, publish)
    server.register("save", wire.PathBody, save)
    server.register("load", wire.PathBody, load)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("options", help="LocalOptions as JSON")
    parser.add_argument("--tiny-seed", type=int)
    arguments = parser.parse_args()
    options = msgspec.json.decode(arguments.options, type=LocalOptions)
    folder = Path(options.model_dir)
    logging.disable_progress_bar()
    if arguments.tiny_seed is not None and not (folder / "config.json").is_file():
        make_tiny_model(folder, vocab_size=options.vocab_size, seed=arguments.tiny_seed)
    sys.exit(run(options, register_learner))


if __name__ == "__main__":
    main()
