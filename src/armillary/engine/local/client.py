"""The asyncio side of the local engine. Imports no torch.

`LocalProcess` starts the model process and owns the connection; `LocalEngine` is the `Engine` on
it. What is guaranteed: if the process dies, every waiting call raises `EngineError(retryable=True)`
at once, with the end of its log; a generator that is closed early cancels its call in the process;
when this process dies, the model process sees the closed socket and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from armillary.engine.local import wire
from armillary.engine.local.options import LocalOptions
from armillary.engine.protocol import Capabilities, EngineEvent, Finish
from armillary.errors import ArmillaryError, EngineError
from armillary.record.calls import Sampling
from armillary.record.tokens import Logprobs, TokenSequence

ENGINE_MODULE = "armillary.engine.local.process"
"""The process that decodes only."""

KEPT_ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES",
    "HF_HOME",
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONPATH",
    "TMPDIR",
)
"""Variables that the process sees; keys and tokens are not among them."""

Body = TypeVar("Body", bound=msgspec.Struct)
_Stream = asyncio.Queue[EngineEvent | ArmillaryError]


class LocalProcess:
    """A running model process. Make it with `start`."""

    def __init__(
        self, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter, log: Path
    ) -> None:
        self.hello = wire.Hello("", 0, 0, 0)
        """What was loaded."""
        self._process = process
        self._writer = writer
        self._log = log
        self._ids = itertools.count(1)
        self._streams: dict[int, _Stream] = {}
        self._replies: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._failed: EngineError | None = None
        self._closing = False
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        model_dir: Path,
        *,
        end_ids: Iterable[int],
        log: Path,
        banned_ids: Iterable[int] = (),
        vocab_size: int = 0,
        context: int = 0,
        slots: int = 256,
        threads: int = 1,
        device: str = "cpu",
        micro_tokens: int = 2048,
        first_ordinary_id: int = 15,
        module: str = ENGINE_MODULE,
        arguments: Iterable[str] = (),
        timeout: float = 300.0,
    ) -> Self:
        """Start the process and wait until the model is loaded. Options as in `LocalOptions`.

        `log` gets everything the process prints. `module` is its entry, `arguments` that entry's
        own.

        Raises:
            EngineError: the model cannot be used, or the process did not come up in `timeout`
                seconds.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        options = LocalOptions(
            model_dir=str(model_dir),
            end_ids=tuple(end_ids),
            banned_ids=tuple(banned_ids),
            vocab_size=vocab_size,
            context=context,
            slots=slots,
            threads=threads,
            device=device,
            micro_tokens=micro_tokens,
            first_ordinary_id=first_ordinary_id,
            descriptor=theirs.fileno(),
        )
        process = await _spawn(module, options, arguments, theirs, log)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        self = cls(process, writer, log)
        ready: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._replies[0] = ready
        self._reading = asyncio.create_task(self._read(reader))
        try:
            async with asyncio.timeout(timeout):
                self.hello = msgspec.msgpack.decode(await ready, type=wire.Hello)
        except TimeoutError:
            await self.close()
            raise EngineError(
                f"the model process was not ready after {timeout:.0f} s; its log is {log}",
                retryable=True,
            ) from None
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def failure(self) -> EngineError | None:
        """Why the process is gone, or None while it is there."""
        return self._failed

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative = ended by that signal."""
        return self._process.returncode

    async def request(self, method: str, body: msgspec.Struct, reply: type[Body]) -> Body:
        """Call a method of the process and wait for its answer.

        Raises:
            ArmillaryError: what the method raised; EngineError(retryable) if the process died.
        """
        call = next(self._ids)
        future: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._replies[call] = future
        try:
            await self._send(call, method, body)
            return msgspec.msgpack.decode(await future, type=reply)
        finally:
            self._replies.pop(call, None)

    async def stream(self, body: wire.GenerateBody) -> AsyncGenerator[EngineEvent]:
        """Events of one generate call until all its branches have ended."""
        call = next(self._ids)
        events: _Stream = asyncio.Queue()
        self._streams[call] = events
        left = body.n
        try:
            await self._send(call, "generate", body)
            while left:
                event = await events.get()
                if isinstance(event, ArmillaryError):
                    left = 0
                    raise event
                left -= isinstance(event, Finish)
                yield event
        finally:
            del self._streams[call]
            if left:
                self._notify(call, "cancel", wire.Nothing())

    def end_session(self, session: str) -> None:
        self._notify(0, "end_session", session)

    async def close(self) -> None:
        """End the process. May be called twice."""
        self._closing = True
        self._writer.close()
        try:
            async with asyncio.timeout(5):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._reading:
            await self._reading

    async def _send(self, call: int, method: str, body: msgspec.Struct) -> None:
        if self._failed:
            raise self._failed
        self._writer.write(_request(call, method, body))
        # A reset here is the death that the reader reports with the log's end.
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def _notify(self, call: int, method: str, body: msgspec.Struct | str) -> None:
        """Send what needs no answer and must not wait: it also runs while a generator closes."""
        if not self._failed and not self._closing:
            self._writer.write(_request(call, method, body))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decode = msgspec.msgpack.Decoder(wire.ServerFrame).decode
        while (data := await wire.read_frame(reader)) is not None:
            frame = decode(data)
            if isinstance(frame, wire.Events):
                for event in frame.events:
                    if stream := self._streams.get(event.call):
                        stream.put_nowait(wire.event_of(event))
            elif isinstance(frame, wire.Reply):
                self._resolve(frame.id, frame.body)
            else:
                self._resolve(max(frame.id, 0), wire.error_of(frame))
        self._fail(await self._death())

    def _resolve(self, call: int, result: msgspec.Raw | ArmillaryError) -> None:
        future = self._replies.get(call)
        if isinstance(result, ArmillaryError):
            if stream := self._streams.get(call):
                stream.put_nowait(result)
            elif future and not future.done():
                future.set_exception(result)
        elif future and not future.done():
            future.set_result(result)

    def _fail(self, error: EngineError) -> None:
        self._failed = error
        for call in (*self._streams, *self._replies):
            self._resolve(call, error)

    async def _death(self) -> EngineError:
        if self._closing:
            return EngineError("the local engine was closed", retryable=False)
        how = "closed its connection"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                code = await self._process.wait()
                how = f"ended with {_exit(code)}"
        tail = _tail(self._log)
        return EngineError(
            f"the model process {how}; the end of {self._log}:\n{tail}", retryable=True
        )


class LocalEngine:
    """The `Engine` of a local process."""

    def __init__(self, process: LocalProcess) -> None:
        self._process = process

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="local", level="tokens", context=self._process.hello.context)

    @property
    def failure(self) -> EngineError | None:
        return self._process.failure

    async def generate(
        self, prompt: TokenSequence, sampling: Sampling, *, n: int = 1, session: str = ""
    ) -> AsyncGenerator[EngineEvent]:
        if prompt.images:
            raise EngineError("the local engine takes no images", retryable=False)
        body = wire.generate_body(prompt.ids, sampling, n, session)
        async with contextlib.aclosing(self._process.stream(body)) as events:
            async for event in events:
                yield event

    async def score(self, sequence: TokenSequence, *, temperature: float = 1.0) -> Logprobs:
        """Log-probability of each id but the first, `float32[n - 1]`, by a full forward pass.

        A banned id scores -inf.
        """
        return await score(self._process, sequence, temperature)

    async def status(self) -> wire.StatusReply:
        """What the engine is doing and has done since its start."""
        return await self._process.request("status", wire.Nothing(), wire.StatusReply)

    async def end_session(self, session: str) -> None:
        self._process.end_session(session)

    async def close(self) -> None:
        """End the process, and with it a learner that shares it."""
        await self._process.close()


async def score(process: LocalProcess, sequence: TokenSequence, temperature: float) -> Logprobs:
    """See `LocalEngine.score`."""
    if len(sequence) < 2 or sequence.images:
        raise EngineError("a sequence to score is text of at least two ids", retryable=False)
    body = wire.ScoreBody(sequence.ids.tobytes(), temperature)
    return wire.logprobs_of((await process.request("score", body, wire.ScoreReply)).logprobs)


async def _spawn(
    module: str,
    options: LocalOptions,
    arguments: Iterable[str],
    connection: socket.socket,
    log: Path,
) -> asyncio.subprocess.Process:
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {k: os.environ[k] for k in KEPT_ENVIRONMENT if k in os.environ}
    environment |= {
        "OMP_NUM_THREADS": str(options.threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    with connection, log.open("ab") as out:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            msgspec.json.encode(options).decode(),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            pass_fds=(connection.fileno(),),
            # Ctrl-C is for the parent, which then closes the connection.
            start_new_session=True,
        )


def _request(call: int, method: str, body: msgspec.Struct | str) -> bytes:
    return wire.frame(wire.Request(call, method, msgspec.Raw(msgspec.msgpack.encode(body))))


def _exit(code: int) -> str:
    return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _tail(log: Path, size: int = 2000) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - size))
        return file.read().decode(errors="replace").strip()
    return "(no log)"
