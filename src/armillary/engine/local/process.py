"""Entry of the model process. `python -m armillary.engine.local.process` decodes only; the learner
has its own entry, which adds its methods to the same server.

The one argument is `LocalOptions` as JSON; the connection is the inherited descriptor it names.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from transformers.utils import logging

from armillary.engine.local import wire
from armillary.engine.local.model import LocalModel, load_model
from armillary.engine.local.options import LocalOptions
from armillary.engine.local.server import Server
from armillary.errors import ArmillaryError

Extend = Callable[[Server, LocalOptions], None]


def run(options: LocalOptions, extend: Extend | None = None) -> int:
    """Load the model and serve until the parent closes the connection; the exit status."""
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    connection = socket.socket(fileno=options.descriptor)
    try:
        model = load_model(
            Path(options.model_dir),
            device=options.device,
            end_ids=options.end_ids,
            banned_ids=options.banned_ids,
            vocab_size=options.vocab_size,
            context=options.context,
        )
    except ArmillaryError as error:
        connection.sendall(wire.frame(wire.failure_of(-1, error)))
        return 1
    asyncio.run(_serve(model, options, connection, extend))
    return 0


async def _serve(
    model: LocalModel, options: LocalOptions, connection: socket.socket, extend: Extend | None
) -> None:
    server = Server(model, slots=options.slots, decode_share=options.decode_share)
    if extend:
        extend(server, options)
    await server.run(connection)


def main(extend: Extend | None = None) -> None:
    sys.exit(run(msgspec.json.decode(sys.argv[1], type=LocalOptions), extend))


if __name__ == "__main__":
    main()
