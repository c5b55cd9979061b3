"""Process 1 of an attempt: runs commands for the driver, over a channel of their own.

Guarantees: a command ends at its time-out with its whole process group, whatever it left running;
output beyond the limit is dropped, never buffered; orphans are reaped; when the driver lets go of
the channel, this process exits and the kernel ends everything in its pid namespace. One thread and
one poll loop: nothing here waits for a command.

Requests: exec, cancel, write, read, listen, end. Every one but cancel is answered once, by its id.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import NoReturn

from . import programs, view, watch, wire
from .programs import Capture, Invocation, Warm
from .reserve import Reserve

_WATCH_EVERY = 0.1  # seconds
_BACKLOG = 128


class Limits:
    """Bounds that this process keeps itself; the kernel keeps the others."""

    def __init__(self, header: wire.Header) -> None:
        self.memory: int = header["memory_mb"] << 20
        self.processes: int = header["processes"]
        self.output: int = header["output_bytes"]


class Running:
    """A command that has not ended."""

    def __init__(self, request: int, out: Capture, err: Capture | None, deadline: float) -> None:
        self.request = request
        self.out = out
        self.err = err
        self.deadline = deadline
        self.timed_out = False

    @property
    def captures(self) -> list[Capture]:
        return [self.out] if self.err is None else [self.out, self.err]


class Server:
    """Serves one attempt until the driver goes away."""

    def __init__(
        self,
        channel: socket.socket,
        decoder: wire.Decoder,
        *,
        limits: Limits,
        env: dict[str, str],
        workdir: str,
        warm: Warm | None,
    ) -> None:
        self._channel = channel
        self._decoder = decoder
        self._limits = limits
        self._reserve = Reserve("/tmp")
        self._env = env
        self._workdir = workdir
        self._warm = warm
        self._running: dict[int, Running] = {}
        self._captures: dict[int, Capture] = {}
        self._has_children = False
        self._next_watch = 0.0
        self._poll = select.poll()
        self._wake = self._notice_children()
        self._operations: dict[str, Callable[[wire.Frame], None]] = {
            "exec": self._exec,
            "cancel": self._cancel,
            "write": self._write,
            "read": self._read,
            "listen": self._listen,
            "end": self._end,
        }

    def _notice_children(self) -> int:
        """A descriptor that becomes readable when a child ends."""
        wake, notify = os.pipe()
        for fd in (wake, notify):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
        for fd in (self._channel.fileno(), wake):
            self._poll.register(fd, select.POLLIN)
        return wake

    def serve(self) -> NoReturn:
        while True:
            for fd, _ in self._poll.poll(self._patience()):
                self._readable(fd)
            self._reap()
            self._enforce_deadlines()
            self._enforce_limits()

    def _patience(self) -> float:
        """Milliseconds until something is due, or forever."""
        due = min((r.deadline for r in self._running.values()), default=math.inf)
        if self._has_children:
            due = min(due, self._next_watch)
        # poll takes a negative number as forever; round up, or it spins just before the deadline.
        return -1 if due == math.inf else max(0, math.ceil((due - time.monotonic()) * 1000))

    def _readable(self, fd: int) -> None:
        if fd == self._channel.fileno():
            self._receive()
        elif fd == self._wake:
            os.read(fd, 4096)
        elif (capture := self._captures.get(fd)) and not capture.read():
            self._forget(capture)

    def _receive(self) -> None:
        try:
            data = self._channel.recv(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            os._exit(0)
        for frame in self._decoder.feed(data):
            self.handle(frame)

    def handle(self, frame: wire.Frame) -> None:
        try:
            self._operations[frame.header["op"]](frame)
        except OSError as error:
            self._send({"id": frame.header["id"], "error": str(error), "errno": error.errno})

    def _send(self, header: wire.Header, body: bytes = b"", descriptor: int = -1) -> None:
        data = memoryview(wire.encode(header, body))
        try:
            if descriptor >= 0:
                data = data[socket.send_fds(self._channel, [data], [descriptor]) :]
            self._channel.sendall(data)
        except OSError:
            os._exit(0)

    # -- requests ------------------------------------------------------------------------------

    def _exec(self, frame: wire.Frame) -> None:
        asked = frame.header
        out, out_end = os.pipe()
        err, err_end = (-1, out_end) if asked["merge"] else os.pipe()
        env = {**self._env, **asked["env"]}
        call = Invocation(asked["argv"], env, asked["cwd"] or self._workdir, out_end, err_end)
        captures = [Capture(fd, self._limits.output) for fd in (out, err) if fd >= 0]
        try:
            pid = self._start(call)
        except programs.CannotStartError as problem:
            os.write(err_end, f"{problem}\n".encode(errors="backslashreplace")[:4096])
            self._answer(asked["id"], problem.code, captures, timed_out=False)
        else:
            deadline = time.monotonic() + asked["timeout"]
            running = Running(asked["id"], captures[0], [*captures, None][1], deadline)
            self._running[pid] = running
            self._remember(running)
        finally:
            for fd in {out_end, err_end}:
                os.close(fd)

    def _start(self, call: Invocation) -> int:
        if self._warm and call.argv[0] == self._warm.command:
            try:
                return programs.fork_warm(self._warm, call)
            except OSError as error:
                raise programs.CannotStartError(
                    programs.CANNOT_RUN, f"{call.argv[0]}: {error}"
                ) from error
        return programs.spawn(call)

    def _remember(self, running: Running) -> None:
        for capture in running.captures:
            self._captures[capture.fd] = capture
            self._poll.register(capture.fd, select.POLLIN)
        if not self._has_children:
            self._has_children = True
            self._next_watch = time.monotonic() + _WATCH_EVERY

    def _forget(self, capture: Capture) -> None:
        if self._captures.pop(capture.fd, None):
            self._poll.unregister(capture.fd)

    def _cancel(self, frame: wire.Frame) -> None:
        for pid, running in self._running.items():
            if running.request == frame.header["id"]:
                _kill_group(pid)

    def _write(self, frame: wire.Frame) -> None:
        view.write_files(wire.unpack(frame.header["files"], frame.body))
        self._send({"id": frame.header["id"]})

    def _read(self, frame: wire.Frame) -> None:
        data = view.read_file(frame.header["path"], frame.header["limit"])
        self._send({"id": frame.header["id"], "found": data is not None}, data or b"")

    def _listen(self, frame: wire.Frame) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", frame.header["port"]))
            listener.listen(_BACKLOG)
            self._send({"id": frame.header["id"]}, descriptor=listener.fileno())

    def _end(self, frame: wire.Frame) -> None:
        while True:
            try:
                os.kill(-1, signal.SIGKILL)
                pid, status, _ = os.wait4(-1, 0)
            except (ProcessLookupError, ChildProcessError):
                break
            self._ended(pid, status)
        self._reserve.release()
        self._send({"id": frame.header["id"]})

    # -- endings -------------------------------------------------------------------------------

    def _reap(self) -> None:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, options)
            except ChildProcessError:
                self._has_children = False
                return
            if ended is None:
                return
            if ended.si_pid in self._running:
                _kill_group(ended.si_pid)  # before its id can be used again
            _, status, _ = os.wait4(ended.si_pid, 0)
            self._ended(ended.si_pid, status)

    def _ended(self, pid: int, status: int) -> None:
        running = self._running.pop(pid, None)
        if running is None:
            return
        code = programs.TIMED_OUT if running.timed_out else programs.status_code(status)
        for capture in running.captures:
            self._forget(capture)
        self._answer(running.request, code, running.captures, timed_out=running.timed_out)

    def _answer(self, request: int, code: int, captures: list[Capture], *, timed_out: bool) -> None:
        for capture in captures:
            capture.read()
        out, err = [*(capture.close() for capture in captures), b""][:2]
        header = {"id": request, "code": code, "out": len(out), "timed_out": timed_out}
        self._send(header, out + err)

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        for pid, running in self._running.items():
            if now >= running.deadline:
                running.timed_out = True
                running.deadline = math.inf
                _kill_group(pid)

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        if not self._has_children or now < self._next_watch:
            return
        self._next_watch = now + _WATCH_EVERY
        used = watch.usage(self._limits.memory)
        if used.memory > self._limits.memory:
            self._give_up("memory", used.memory >> 20, self._limits.memory >> 20, "MiB")
        if used.processes > self._limits.processes:
            self._give_up("processes", used.processes, self._limits.processes, "processes")

    def _give_up(self, what: str, used: int, limit: int, unit: str) -> NoReturn:
        self._send({"limit": what, "used": used, "allowed": limit, "unit": unit})
        os._exit(1)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
