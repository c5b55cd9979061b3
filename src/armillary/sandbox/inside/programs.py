"""Starting programs in an attempt, and what they print.

An ordinary program is spawned without copying this process's memory. The box's warm program is
forked from it instead: its modules are already imported, which saves seconds of every start; it
gets the same arguments, environment, descriptors and working folder a new process would get.
"""

# pathlib would slow every start, and has no descriptors.
# ruff: noqa: PTH208
from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import io
import os
import shutil
import signal
import sys
import threading
import traceback
from typing import Any, NamedTuple

from . import kernel

NOT_FOUND, CANNOT_RUN, TIMED_OUT, SIGNALLED = 127, 126, 124, 128

_IGNORED_BY_PYTHON = [signal.SIGPIPE, signal.SIGXFSZ]
_CHUNK, _MOST_CHUNKS = 1 << 16, 32


class CannotStartError(Exception):
    """The program asked for cannot run; the text and code are what a shell would give."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Invocation(NamedTuple):
    """A program to start. `out` and `err` are descriptors it writes to."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    out: int
    err: int


class Warm(NamedTuple):
    """A program held ready in memory."""

    command: str
    module: str
    attribute: str
    keep: list[int]
    """Descriptors that its imports opened; all others are closed in it."""


class Capture:
    """Reads one output pipe and keeps at most `limit` bytes."""

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self._limit = limit
        self._kept = bytearray()
        self._dropped = 0
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Take what is there now; False when the last writer has closed it."""
        for _ in range(_MOST_CHUNKS):
            try:
                data = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            taken = data[: self._limit - len(self._kept)]
            self._kept += taken
            self._dropped += len(data) - len(taken)
        return True

    def close(self) -> bytes:
        """Everything kept, with a note if something was dropped."""
        os.close(self.fd)
        if self._dropped:
            self._kept += f"\n[output cut: {self._dropped} more bytes were dropped]\n".encode()
        return bytes(self._kept)


def spawn(call: Invocation) -> int:
    """Start an ordinary program in a session of its own; its process id.

    Raises:
        CannotStartError
    """
    try:
        os.chdir(call.cwd)
        path = _find(call.argv[0], call.env.get("PATH", ""))
        try:
            return _spawn(path, call.argv, call)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            return _spawn("/bin/sh", ["sh", path, *call.argv[1:]], call)
    except (OSError, ValueError) as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
        raise CannotStartError(code, f"{call.argv[0]}: {error}") from error
    finally:
        os.chdir("/")


def _find(name: str, search: str) -> str:
    if "/" in name:
        return name
    found = shutil.which(name, path=search)
    if found is None:
        raise CannotStartError(NOT_FOUND, f"{name}: command not found")
    return found


def _spawn(path: str, argv: list[str], call: Invocation) -> int:
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, call.out, 1),
        (os.POSIX_SPAWN_DUP2, call.err, 2),
    ]
    return os.posix_spawn(
        path, argv, call.env,
        file_actions=streams, setsid=True, setsigmask=[], setsigdef=_IGNORED_BY_PYTHON,
    )  # fmt: skip


def fork_warm(warm: Warm, call: Invocation) -> int:
    """Start the warm program in a forked copy of this process; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _enter(warm, call)
        code = _call(warm)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code & 0xFF)


def _enter(warm: Warm, call: Invocation) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kernel.set_dumpable(True)
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (call.out, 1), (call.err, 2)):
        os.dup2(source, target)
    _close_all_but({0, 1, 2, *warm.keep})
    sys.stdin, sys.stdout, sys.stderr = _text(0, "r"), _text(1, "w"), _text(2, "w")
    os.environ.clear()
    os.environ.update(call.env)
    sys.argv = list(call.argv)
    os.chdir(call.cwd)


def _close_all_but(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))


def _text(fd: int, mode: str) -> io.TextIOWrapper:
    errors = "backslashreplace" if fd == 2 else "strict"
    raw = open(fd, mode + "b", closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=fd == 2)


def _call(warm: Warm) -> int:
    """Call the program as a console script does; its exit code, by the rules of `sys.exit`."""
    try:
        target: Any = importlib.import_module(warm.module)
        for part in warm.attribute.split("."):
            target = getattr(target, part)
        result = target()
    except SystemExit as ending:
        result = ending.code
    except BaseException:
        traceback.print_exc()
        result = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return _exit_code(result)


def _exit_code(result: object | None) -> int:
    if result is None:
        return 0
    if isinstance(result, int):
        return result
    sys.stderr.write(f"{result}\n")
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def status_code(status: int) -> int:
    """A wait status as a shell shows it: the exit code, or 128 + the signal."""
    if os.WIFSIGNALED(status):
        return SIGNALLED + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)
