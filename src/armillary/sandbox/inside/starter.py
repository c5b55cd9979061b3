"""The one long-lived process of a box: forks an attempt whenever the driver asks.

It may first import an agent program, once, so that attempts start with it in memory. Attempts
then cost a fork, a few namespaces and about twenty mounts; each gets a pid namespace, so one signal
to its first process ends all of it. This process never talks to an attempt: the driver hands in
one end of a socket, and the attempt serves the driver on it directly.

Control frames: the first configures; then `new` (with a descriptor) and `kill`. Answers: `ready`
or `failed` once, then `exit` for each attempt with the CPU time of all its processes.
"""

# pathlib would slow every start, and has no descriptors.
# ruff: noqa: PTH103, PTH123, PTH208
from __future__ import annotations

import array
import gc
import importlib
import os
import platform
import resource
import select
import signal
import site
import socket
import sys
import time
import traceback
from typing import Any, NoReturn

from . import confine, kernel, programs, seccomp, server, view, wire

_OWN_NAMESPACES = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
)
_ONE_DESCRIPTOR = socket.CMSG_SPACE(array.array("i").itemsize)


class Starter:
    """Owns the control socket and the first processes of all attempts."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._decoder = wire.Decoder()
        self._channels: list[int] = []
        self._attempts: dict[int, int] = {}
        self._config: wire.Header = {}
        self._warm: programs.Warm | None = None

    def run(self) -> None:
        """Serve until the driver closes the control socket."""
        (self._config, _), *_ = self._receive()
        try:
            self._prepare()
        except BaseException:
            self._send({"failed": traceback.format_exc()[-4000:]})
            return
        own = os.open("/proc/self/ns/pid", os.O_RDONLY)
        wake, notify = os.pipe()
        for fd in (wake, notify):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
        poll = select.poll()
        for fd in (self._control.fileno(), wake):
            poll.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if wake in ready:
                os.read(wake, 4096)
            self._reap()
            if self._control.fileno() in ready:
                for frame in self._receive():
                    self._handle(frame.header, own, [own, wake, notify])

    def _receive(self) -> list[wire.Frame]:
        frames: list[wire.Frame] = []
        while not frames:
            data, extra, _, _ = self._control.recvmsg(
                1 << 18, 16 * _ONE_DESCRIPTOR, socket.MSG_CMSG_CLOEXEC
            )
            if not data:
                os._exit(0)
            for _, _, payload in extra:
                received = array.array("i")
                received.frombytes(payload[: len(payload) // received.itemsize * received.itemsize])
                self._channels.extend(received)
            frames = self._decoder.feed(data)
        return frames

    def _send(self, header: wire.Header) -> None:
        self._control.sendall(wire.encode(header))

    # -- once ----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        # Mounts made on the host later must not appear here, nor ours there.
        kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
        for name, text in self._config["etc"].items():
            with open(f"/etc/{name}", "w") as file:
                file.write(text)
        for node in self._config["devices"]:
            kernel.make_read_only(node)
        missing: list[str] = []
        if self._config["warm"]:
            missing = self._import(self._config["warm"])
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            raise RuntimeError(f"the imports started {threads - 1} threads; forking is not safe")
        gc.collect()
        gc.freeze()  # or the first collection in each attempt would copy every page
        self._send({"ready": True, "missing": missing, **self._facts()})

    def _facts(self) -> dict[str, Any]:
        filtered = platform.machine() in seccomp.MACHINES
        python = platform.python_version()
        return {"filter": filtered, "python": python, "cpu": time.process_time()}

    def _import(self, warm: dict[str, Any]) -> list[str]:
        """Import the program; names of the preload list that do not exist in this version."""
        sys.prefix = sys.exec_prefix = warm["prefix"]
        site.addsitedir(warm["packages"])
        site.setquit()
        os.environ.update(warm["env"])
        for name in warm["imports"]:
            importlib.import_module(name)
        missing = [name for name in warm["preload"] if not _preload(name)]
        importlib.import_module(warm["module"])
        keep = [fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_open(fd)]
        keep = [fd for fd in keep if fd != self._control.fileno()]
        self._warm = programs.Warm(warm["command"], warm["module"], warm["attribute"], keep)
        return missing

    # -- attempts ------------------------------------------------------------------------------

    def _handle(self, asked: wire.Header, own_namespace: int, ours: list[int]) -> None:
        if asked["op"] == "kill":
            for pid, attempt in self._attempts.items():
                if attempt == asked["attempt"]:
                    os.kill(pid, signal.SIGKILL)
            return
        channel = self._channels.pop(0)
        try:
            pid = self._fork(own_namespace)
        except OSError as error:
            os.write(channel, wire.encode({"failed": f"no new process: {error}"}))
            self._send({"exit": asked["attempt"], "cpu": 0.0, "own_cpu": time.process_time()})
        else:
            if pid == 0:
                self._become_attempt(channel, ours)
            self._attempts[pid] = asked["attempt"]
        os.close(channel)

    def _fork(self, own_namespace: int) -> int:
        """Fork a child that is the first process of a new pid namespace."""
        kernel.unshare(kernel.CLONE_NEWPID)
        pid = -1
        try:
            pid = os.fork()
        finally:
            # The kernel refuses a second unshare unless children would be born here again.
            if pid:
                kernel.setns(own_namespace, kernel.CLONE_NEWPID)
        return pid

    def _become_attempt(self, channel: int, ours: list[int]) -> NoReturn:
        socket_ = socket.socket(fileno=channel)
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (*ours, *self._channels):
                os.close(fd)
            self._control.close()
            serve_attempt(socket_, self._config, self._warm)
        except BaseException:
            socket_.sendall(wire.encode({"failed": traceback.format_exc()[-4000:]}))
        finally:
            os._exit(1)

    def _reap(self) -> None:
        while self._attempts:
            pid, _, used = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            attempt = self._attempts.pop(pid)
            cpu = used.ru_utime + used.ru_stime
            self._send({"exit": attempt, "cpu": cpu, "own_cpu": time.process_time()})


def _preload(name: str) -> bool:
    """Import `module`, or complete the pydantic model `module:Class` before the first fork."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split(".") if path else ():
            found = getattr(found, part)
        if path:
            found.model_rebuild()
    except Exception:
        return False
    return True


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def serve_attempt(
    channel: socket.socket, config: wire.Header, warm: programs.Warm | None
) -> NoReturn:
    """Isolate and confine this process, then serve the driver as process 1 of the attempt."""
    decoder = wire.Decoder()
    frames: list[wire.Frame] = []
    while not frames:
        data = channel.recv(1 << 18)
        if not data:
            os._exit(0)
        frames = decoder.feed(data)
    (setup, body), *early = frames
    user, limits = config["user"], setup["limits"]
    kernel.unshare(_OWN_NAMESPACES)
    base = view.Base(config["folders"], config["links"])
    files = wire.unpack(setup["files"], body)
    proc = view.build(base, setup["writable"], files, limits["disk_mb"], user)
    confined = confine.confine(user, proc, processes=limits["processes"], file_mb=limits["file_mb"])
    for folder in setup["folders"]:
        os.makedirs(folder, exist_ok=True)
    view.write_files(file for file in files if not view.below(file.path, view.PROGRAMS))
    serving = server.Server(
        channel,
        decoder,
        limits=server.Limits(limits),
        env=setup["env"],
        workdir=setup["workdir"],
        warm=warm,
    )
    channel.sendall(wire.encode({"ready": True, **confined._asdict()}))
    for frame in early:
        serving.handle(frame)
    serving.serve()


def main() -> None:
    """Entry of the box; the only argument is the descriptor of the control socket."""
    # Raise the soft limit once: a box holds a descriptor per open attempt for a moment.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    _close_inherited(control.fileno())
    Starter(control).run()


def _close_inherited(control: int) -> None:
    """bubblewrap leaves descriptors of its own start-up open."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != control and _is_open(fd):
            os.close(fd)
