"""The model process: one thread that decodes, answers and, where a learner is registered, trains.

Everything runs on one asyncio loop. The engine task samples one token for every running row, then
lets the loop read requests; a learner works in pieces and calls `share` between them, so decoding
goes on during an update. Nothing else runs between two `await`s, which is what lets an optimizer
step and the new policy version be one indivisible change.

The connection is one end of a socket pair made by the parent; when it closes, the process ends.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import torch

from armillary.engine.local import wire
from armillary.engine.local.calls import Call
from armillary.engine.local.decoder import Decoder
from armillary.engine.local.model import LocalModel
from armillary.engine.local.scheduler import Scheduler
from armillary.errors import ArmillaryError, EngineError
from armillary.record.tokens import Ids, Logprobs

Handler = Callable[[Any], Awaitable[msgspec.Struct]]

FLUSH_SECONDS = 0.015
"""Tokens of running calls go out at most this late."""
READ_AHEAD = 1 << 22
"""Bytes read before the loop must take a frame: training rows come in frames of megabytes."""


class Server:
    """Owns the decoder and the connection; `register` adds methods."""

    def __init__(self, model: LocalModel, *, slots: int, decode_share: float = 1.0) -> None:
        """`decode_share`: seconds of decoding that a learner allows per second of its own work."""
        self.model = model
        self.decoder = Decoder(model, rows=min(slots, 16))
        self.scheduler = Scheduler(self.decoder, slots=slots)
        self._decode_share = decode_share
        self._handlers: dict[str, tuple[type[msgspec.Struct], Handler]] = {}
        self._work = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.register("score", wire.ScoreBody, self._score)
        self.register("status", wire.Nothing, self._status)

    def register(self, method: str, body: type[msgspec.Struct], handler: Handler) -> None:
        """Answer requests of `method` by `handler(body)`."""
        self._handlers[method] = (body, handler)

    async def share(self, spent: float) -> None:
        """Let decoding catch up after `spent` seconds of other work."""
        deadline = time.perf_counter() + spent * self._decode_share
        while True:
            await asyncio.sleep(0)
            if not self.scheduler.busy or time.perf_counter() >= deadline:
                return

    async def run(self, connection: socket.socket) -> None:
        """Serve until the parent closes the connection or a part fails."""
        reader, self._writer = await asyncio.open_unix_connection(sock=connection, limit=READ_AHEAD)
        config = self.model.config
        parameters = sum(p.numel() for p in self.model.network.parameters())
        hello = wire.Hello(config.model_type, self.model.context, self.model.vocab_size, parameters)
        self._reply(0, hello)
        tasks = {asyncio.create_task(self._decode()), asyncio.create_task(self._read(reader))}
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            # An engine that failed half way has rows in an unknown state: end, loudly.
            task.result()

    async def _decode(self) -> None:
        flushed = time.perf_counter()
        while True:
            if not self.scheduler.busy:
                await self._send_events()
                self._work.clear()
                await self._work.wait()
            ended = self.scheduler.work()
            now = time.perf_counter()
            if ended or now - flushed > FLUSH_SECONDS:
                await self._send_events()
                flushed = now
            await asyncio.sleep(0)

    async def _send_events(self) -> None:
        emissions = self.scheduler.take()
        if emissions:
            self._send(wire.events_frame(emissions))
            assert self._writer is not None
            await self._writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decode = msgspec.msgpack.Decoder(wire.Request).decode
        while (data := await wire.read_frame(reader)) is not None:
            request = decode(data)
            try:
                self._dispatch(request)
            except ArmillaryError as error:
                self._send(wire.failure_of(request.id, error))

    def _dispatch(self, request: wire.Request) -> None:
        body = bytes(request.body)
        if request.method == "generate":
            self._generate(request.id, msgspec.msgpack.decode(body, type=wire.GenerateBody))
        elif request.method == "cancel":
            self.scheduler.cancel(request.id)
        elif request.method == "end_session":
            self.scheduler.end_session(msgspec.msgpack.decode(body, type=str))
        elif request.method in self._handlers:
            kind, handler = self._handlers[request.method]
            value = msgspec.msgpack.decode(body, type=kind)
            task = asyncio.create_task(self._handle(request.id, handler, value))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            raise EngineError(
                f"this process has no method {request.method!r}; it was started without a learner",
                retryable=False,
            )

    def _generate(self, call: int, body: wire.GenerateBody) -> None:
        sampling = wire.sampling_of(body)
        self.scheduler.submit(Call(call, wire.ids_of(body.ids), sampling, body.n, body.session))
        self._work.set()

    async def _handle(self, call: int, handler: Handler, body: msgspec.Struct) -> None:
        try:
            self._reply(call, await handler(body))
        except ArmillaryError as error:
            self._send(wire.failure_of(call, error))
        except Exception as error:
            # A defect, not a refusal: its traceback goes to the log, its name to the caller.
            self._send(wire.failure_of(call, EngineError(repr(error), retryable=False)))
            raise

    async def _score(self, body: wire.ScoreBody) -> wire.ScoreReply:
        logprobs = full_forward(self.model, wire.ids_of(body.ids), body.temperature)
        return wire.ScoreReply(logprobs.tobytes())

    async def _status(self, _: wire.Nothing) -> wire.StatusReply:
        s, d = self.scheduler, self.decoder
        return wire.StatusReply(s.running, s.waiting, s.kept, d.sampled, d.forwards, s.version)

    def _reply(self, call: int, body: msgspec.Struct) -> None:
        self._send(wire.Reply(call, msgspec.Raw(msgspec.msgpack.encode(body))))

    def _send(self, value: msgspec.Struct) -> None:
        assert self._writer is not None
        self._writer.write(wire.frame(value))


@torch.no_grad()
def full_forward(model: LocalModel, ids: Ids, temperature: float) -> Logprobs:
    """Log-probability of each id but the first, `float32[n - 1]`; -inf for a banned id."""
    row = torch.from_numpy(ids.astype("int64")).to(model.device)
    logits = model.distribution(model.hidden(row[None, :-1])[0], temperature)
    chosen = torch.log_softmax(logits, -1).gather(1, row[1:, None])
    return chosen[:, 0].float().cpu().numpy()
