"""The local sandbox: one bubblewrap per provider, one isolated fork in it per attempt.

Guarantees: an attempt sees its own files, processes and loopback interface only, writes to bounded
memory only, holds no privilege and no descriptor of ours; `close` ends all of it. Works as root
and as an ordinary user, without a daemon and without images. Why one shared bubblewrap: starting it
and importing an agent program happen once, so a sandbox costs about ten milliseconds.

A box that dies takes its open attempts with it, each ending with SandboxError(kind="died"); the
next `open` starts a new one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from armillary.errors import SandboxError
from armillary.sandbox.box import Box
from armillary.sandbox.channel import Channel
from armillary.sandbox.environment import BASE_ENV
from armillary.sandbox.inside import wire
from armillary.sandbox.protocol import ExecResult, File, Sandbox, Spec
from armillary.sandbox.warm import WarmProgram

WRITABLE = ("/workdir", "/tmp", "/home")
PROGRAMS = "/usr/local"
_GRACE = 30.0
"""Seconds the sandbox may be late, on a loaded machine, before it counts as lost."""
_PAUSES = (0.02, 0.2)
"""Seconds before an attempt that died while starting is started again."""


class BubblewrapProvider:
    """Makes sandboxes in one box, which starts at the first `open`."""

    def __init__(
        self,
        warm: WarmProgram | None = None,
        *,
        max_open: int = 64,
        python: Path | None = None,
        mounts: Mapping[str, Path] | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        """
        Args:
            warm: an agent program to keep in memory.
            max_open: more sandboxes than this wait for one to close.
            python: interpreter of the box's own code, by default the running one.
            mounts: path inside -> host folder, shown read-only to every attempt.
            start_timeout: seconds for the box to come up, the warm program's imports included.
        """
        self._warm = warm
        self._python = python
        self._mounts = dict(mounts or {})
        self._start_timeout = start_timeout
        self._slots = asyncio.Semaphore(max_open)
        self._starting = asyncio.Lock()
        self._box: Box | None = None
        self._earlier_cpu = 0.0
        self.facts: dict[str, Any] = {}
        """What the box and the latest attempt say of their confinement, for `armillary info`."""

    @property
    def cpu_seconds(self) -> float:
        """CPU used by ended attempts, by the boxes themselves and by their imports."""
        return self._earlier_cpu + (self._box.cpu_seconds if self._box else 0.0)

    async def open(self, spec: Spec) -> Sandbox:
        """Start a sandbox.

        Raises:
            SandboxError: bubblewrap is missing (`missing`), or the box or this attempt could not
                be set up (`start`).
        """
        setup, body = _setup(spec)
        for pause in _PAUSES:
            try:
                return await self._open(setup, body)
            except SandboxError as fault:
                if fault.kind != "died":
                    raise
            await asyncio.sleep(pause)  # the box is being lost, and that takes a moment to be seen
        return await self._open(setup, body)

    async def _open(self, setup: wire.Header, body: bytes) -> Sandbox:
        await self._slots.acquire()
        try:
            sandbox = BubblewrapSandbox(await self._running_box(), self._slots)
        except BaseException:
            self._slots.release()
            raise
        try:
            self.facts |= await sandbox.start(setup, body)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def close(self) -> None:
        """End the box with everything in it."""
        async with self._starting:
            await self._discard_box()

    async def _running_box(self) -> Box:
        async with self._starting:
            if self._box is not None and not self._box.alive:
                await self._discard_box()
            if self._box is None:
                self._box = await Box.start(
                    self._warm, self._python, self._mounts, self._start_timeout
                )
                self.facts |= self._box.facts
            return self._box

    async def _discard_box(self) -> None:
        if self._box is not None:
            box, self._box = self._box, None
            await box.close()
            self._earlier_cpu += box.cpu_seconds


class BubblewrapSandbox:
    """One attempt. See `protocol.Sandbox`."""

    def __init__(self, box: Box, slots: asyncio.Semaphore) -> None:
        self._box = box
        self._slots: asyncio.Semaphore | None = slots
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, self._received, self._lost)
        self._attempt = box.new_attempt(theirs.detach())
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting: dict[int, asyncio.Future[wire.Frame]] = {}
        self._requests = 0
        self._fault: SandboxError | None = None

    async def start(self, setup: wire.Header, body: bytes) -> dict[str, Any]:
        """Send what the sandbox starts with; what it says of its confinement."""
        self._channel.send(setup, body)
        try:
            async with asyncio.timeout(_GRACE):
                return await self._ready
        except TimeoutError as error:
            raise SandboxError(
                f"a sandbox was not ready after {_GRACE:g} s", kind="start"
            ) from error

    async def exec(
        self,
        argv: Sequence[str],
        timeout: float,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        merge_output: bool = False,
    ) -> ExecResult:
        header = {
            "op": "exec",
            "argv": list(argv),
            "env": dict(env or {}),
            "cwd": cwd,
            "timeout": timeout,
            "merge": merge_output,
        }
        reply, data = await self._ask(header, seconds=timeout)
        out = reply["out"]
        return ExecResult(reply["code"], data[:out], data[out:], reply["timed_out"])

    async def write(self, files: Mapping[str, File]) -> None:
        index, body = wire.pack(_packed(files))
        await self._ask({"op": "write", "files": index}, body)

    async def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        reply, data = await self._ask({"op": "read", "path": path, "limit": limit})
        return data if reply["found"] else None

    async def listen(self, port: int) -> socket.socket:
        await self._ask({"op": "listen", "port": port})
        listener = socket.socket(fileno=self._channel.take_descriptor())
        listener.setblocking(False)
        return listener

    async def end_processes(self) -> None:
        await self._ask({"op": "end"})

    async def close(self) -> None:
        self._fail(SandboxError("the sandbox was closed", kind="died"))
        self._channel.close()
        try:
            await self._box.end_attempt(self._attempt)
        finally:
            if self._slots:
                self._slots.release()
                self._slots = None

    async def _ask(
        self, header: wire.Header, body: bytes = b"", *, seconds: float = 0.0
    ) -> wire.Frame:
        """Send a request and wait for its answer, `seconds` and some grace at most."""
        if self._fault:
            raise self._fault
        self._requests += 1
        request = self._requests
        answer: asyncio.Future[wire.Frame] = asyncio.get_running_loop().create_future()
        self._waiting[request] = answer
        self._channel.send({**header, "id": request}, body)
        try:
            async with asyncio.timeout(seconds + _GRACE):
                frame = await answer
        except TimeoutError as error:
            raise self._fail(
                SandboxError(f"the sandbox did not answer `{header['op']}` in time", kind="died")
            ) from error
        except asyncio.CancelledError:
            self._channel.send({"op": "cancel", "id": request})
            raise
        finally:
            self._waiting.pop(request, None)
        if "error" in frame.header:
            raise SandboxError(f"{header['op']}: {frame.header['error']}", kind="io")
        return frame

    def _received(self, frame: wire.Frame) -> None:
        header = frame.header
        if "id" in header:
            waiting = self._waiting.get(header["id"])
            if waiting and not waiting.done():
                waiting.set_result(frame)
        elif "limit" in header:
            used = f"{header['used']} {header['unit']}, {header['allowed']} allowed"
            self._fail(
                SandboxError(f"the sandbox used too much {header['limit']}: {used}", kind="limit")
            )
        elif not self._ready.done():
            if "ready" in header:
                self._ready.set_result(header)
            else:
                self._fail(SandboxError(header["failed"].strip(), kind="start"))

    def _lost(self) -> None:
        self._fail(SandboxError("the sandbox was killed or crashed", kind="died"))

    def _fail(self, fault: SandboxError) -> SandboxError:
        """End every waiting request with the first fault there was; that fault."""
        self._fault = self._fault or fault
        for waiting in (self._ready, *self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(self._fault)
                waiting.exception()  # seen: a cancelled request has nobody left to see it
        return self._fault


def _setup(spec: Spec) -> tuple[wire.Header, bytes]:
    """The first frame of an attempt.

    Raises:
        SandboxError: a path is not absolute, or a file is outside the writable folders.
    """
    writable = _outermost([*WRITABLE, *spec.folders, spec.workdir])
    for path in spec.files:
        if not any(_inside(path, folder) for folder in (*writable, PROGRAMS)):
            raise SandboxError(
                f"{path} cannot be put into a sandbox: it is not below {', '.join(writable)} or "
                f"{PROGRAMS}; name its folder in `folders`",
                kind="start",
            )
    index, body = wire.pack(_packed(spec.files))
    limits = spec.limits
    setup = {
        "files": index,
        "writable": writable,
        "folders": sorted({_normal(folder) for folder in (*spec.folders, spec.workdir)}),
        "env": BASE_ENV | dict(spec.env),
        "workdir": spec.workdir,
        "limits": {
            "memory_mb": limits.memory_mb,
            "disk_mb": limits.disk_mb,
            "processes": limits.processes,
            "output_bytes": limits.output_bytes,
            "file_mb": limits.file_mb,
        },
    }
    return setup, body


def _outermost(folders: Sequence[str]) -> list[str]:
    """Absolute, normal folders, without those inside another."""
    kept: list[str] = []
    for folder in sorted({_normal(folder) for folder in folders}):
        if not any(_inside(folder, outer) for outer in kept):
            kept.append(folder)
    return kept


def _normal(path: str) -> str:
    normal = PurePosixPath(path)
    if not normal.is_absolute() or ".." in normal.parts or normal == PurePosixPath("/"):
        raise SandboxError(f"{path!r} is not an absolute path inside a sandbox", kind="start")
    return str(normal)


def _inside(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _packed(files: Mapping[str, File]) -> list[wire.PackedFile]:
    return [wire.PackedFile(_normal(path), file.mode, file.data) for path, file in files.items()]
