"""Plain processes in a temporary folder: no isolation at all, for systems without bubblewrap.

Used only when asked for by name. Commands run as the user who runs us, with that user's files and
network. What it keeps of the seam: a folder per attempt, a scrubbed environment, time-outs with
the whole process group, bounded output.

What it cannot keep: a sandbox path is `ROOT/path` on the host for `write` and `read`, and commands
start in `ROOT/workdir`, so relative paths work and a literal `/workdir/...` in a command does not
(`$WORKDIR` does). Memory, disk and process limits are not enforced. A process that leaves its
group outlives `end_processes`. `listen` takes another port when the one asked for is in use; ask
the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from armillary.errors import SandboxError
from armillary.sandbox.protocol import ExecResult, File, Sandbox, Spec

_log = logging.getLogger(__name__)

_LINGER = 1.0
"""Seconds to wait for output that a process outside the group still holds open."""


class ProcessProvider:
    """Makes folders; warns once that nothing is isolated."""

    def __init__(self) -> None:
        self._warned = False
        self._open: list[ProcessSandbox] = []

    @property
    def cpu_seconds(self) -> float:
        """None: commands are children of this process."""
        return 0.0

    async def open(self, spec: Spec) -> Sandbox:
        if not self._warned:
            self._warned = True
            _log.warning(
                "the sandbox `process` isolates nothing: commands run as you, on your files"
            )
        root = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="armillary-"))
        sandbox = ProcessSandbox(root, spec)
        self._open.append(sandbox)
        await asyncio.to_thread(_fill, root, spec)
        return sandbox

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()


class ProcessSandbox:
    """One folder. See `protocol.Sandbox` and the limits above."""

    def __init__(self, root: Path, spec: Spec) -> None:
        self._root = root
        self._spec = spec
        self._closed = False
        self._leaders: set[int] = set()

    async def exec(
        self,
        argv: Sequence[str],
        timeout: float,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        merge_output: bool = False,
    ) -> ExecResult:
        self._check_open()
        folder = _host(self._root, cwd or self._spec.workdir)
        environment = self._environment(env)
        command = list(argv)
        found = command[0] if "/" in command[0] else _which(command[0], environment)
        if found is None:
            return _refused(127, f"{command[0]}: command not found", merge_output)
        out, out_end = os.pipe()
        err, err_end = (out, out_end) if merge_output else os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                found, *command[1:], cwd=folder, env=environment, start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL, stdout=out_end, stderr=err_end,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            for fd in {out, err}:
                os.close(fd)
            code = 127 if isinstance(error, FileNotFoundError) else 126
            return _refused(code, f"{command[0]}: {error}", merge_output)
        finally:
            for fd in {out_end, err_end}:
                os.close(fd)
        streams = [out] if merge_output else [out, err]
        return await self._finish(process, streams, timeout)

    async def write(self, files: Mapping[str, File]) -> None:
        self._check_open()
        await asyncio.to_thread(_write, self._root, files)

    async def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        self._check_open()
        return await asyncio.to_thread(_read, _host(self._root, path), limit)

    async def listen(self, port: int) -> socket.socket:
        self._check_open()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                listener.close()
                raise SandboxError(f"listening on port {port}: {error}", kind="io") from error
            listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        listener.setblocking(False)
        return listener

    async def end_processes(self) -> None:
        self._check_open()
        for leader in self._leaders:
            _kill_group(leader)

    async def close(self) -> None:
        if not self._closed:
            await self.end_processes()
            self._closed = True
            await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox was closed", kind="died")

    def _environment(self, extra: Mapping[str, str] | None) -> dict[str, str]:
        base = {
            "PATH": f"{_host(self._root, '/usr/local/bin')}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(_host(self._root, "/home")),
            "TMPDIR": str(_host(self._root, "/tmp")),
            "WORKDIR": str(_host(self._root, self._spec.workdir)),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        return base | dict(self._spec.env) | dict(extra or {})

    async def _finish(
        self, process: asyncio.subprocess.Process, streams: list[int], seconds: float
    ) -> ExecResult:
        limit = self._spec.limits.output_bytes
        readers = [asyncio.create_task(_collect(fd, limit)) for fd in streams]
        self._leaders.add(process.pid)
        timed_out = False
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            timed_out = True
        finally:
            _kill_group(process.pid)
            self._leaders.discard(process.pid)
        code = await process.wait()
        await asyncio.wait(readers, timeout=_LINGER)
        for reader in readers:
            reader.cancel()
        out, err = [*[bytes(await reader) for reader in readers], b""][:2]
        return ExecResult(
            124 if timed_out else code if code >= 0 else 128 - code, out, err, timed_out
        )


async def _collect(fd: int, limit: int) -> bytearray:
    """What arrives on a pipe until it is closed or this task is cancelled."""
    kept, dropped = bytearray(), 0
    reader = asyncio.StreamReader()
    with open(fd, "rb", buffering=0) as pipe:  # noqa: ASYNC230 - a pipe that is already open
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        with contextlib.suppress(asyncio.CancelledError):
            while data := await reader.read(1 << 16):
                taken = data[: limit - len(kept)]
                kept += taken
                dropped += len(data) - len(taken)
        transport.close()
    if dropped:
        kept += f"\n[output cut: {dropped} more bytes were dropped]\n".encode()
    return kept


def _refused(code: int, text: str, merged: bool) -> ExecResult:
    data = f"{text}\n".encode(errors="backslashreplace")
    return ExecResult(code, data, b"") if merged else ExecResult(code, b"", data)


def _which(name: str, env: Mapping[str, str]) -> str | None:
    return shutil.which(name, path=env["PATH"])


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _host(root: Path, path: str) -> Path:
    inside = PurePosixPath(path)
    if not inside.is_absolute() or ".." in inside.parts:
        raise SandboxError(f"{path!r} is not an absolute path inside a sandbox", kind="io")
    return root / inside.relative_to("/")


def _fill(root: Path, spec: Spec) -> None:
    for folder in ("/workdir", "/tmp", "/home", *spec.folders, spec.workdir):
        _host(root, folder).mkdir(parents=True, exist_ok=True)
    _write(root, spec.files)


def _write(root: Path, files: Mapping[str, File]) -> None:
    for path, file in files.items():
        target = _host(root, path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.write_bytes(file.data)
            target.chmod(file.mode)
        except OSError as error:
            raise SandboxError(f"write: {error}", kind="io") from error


def _read(path: Path, limit: int) -> bytes | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(limit)
