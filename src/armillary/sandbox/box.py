"""A running box: bubblewrap with the starter inside, and the control socket to it.

Guarantees: the box ends with the program that made it, however that ends; no call waits on the
event loop. When root makes a box, commands in it run as the host's `nobody`, so that files and
kernel settings that belong to root do not belong to an agent; any other user's box runs its
commands as that user.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from armillary.errors import SandboxError
from armillary.sandbox.base_view import AGENT_USER, base_view
from armillary.sandbox.bwrap import bwrap_path
from armillary.sandbox.channel import Channel
from armillary.sandbox.inside import wire
from armillary.sandbox.warm import WarmProgram

_NOBODY = 65534
_NAMESPACES = ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
_BLOCKED = (
    "this system does not let programs make user namespaces; allow it (on Ubuntu: "
    "sysctl kernel.apparmor_restrict_unprivileged_userns=0), or use another sandbox"
)


class Box:
    """One starter process. Made by `start`; never restarted."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        """What the starter says of itself, see `inside.starter`."""
        self.cpu_seconds = 0.0
        """Used by ended attempts and by the starter."""
        self.alive = True
        self._own_cpu = 0.0
        self._attempts = 0
        self._exits: dict[int, asyncio.Future[None]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel: Channel
        self._process: asyncio.subprocess.Process
        self._log = os.memfd_create("box-log", os.MFD_CLOEXEC)

    @classmethod
    async def start(
        cls,
        warm: WarmProgram | None,
        python: Path | None,
        mounts: Mapping[str, Path],
        seconds: float,
    ) -> Box:
        """Start a box and wait until it serves.

        Raises:
            SandboxError: bubblewrap is missing, or the box did not come up.
        """
        box = cls()
        try:
            async with asyncio.timeout(seconds):
                await box._launch(warm, python, mounts)
                await box._ready
        except TimeoutError as error:
            await box.close()
            raise box._failure(f"it was not ready after {seconds:g} s") from error
        except BaseException:
            await box.close()
            raise
        return box

    def new_attempt(self, channel: int) -> int:
        """Fork an attempt that serves on descriptor `channel`, which is taken over; its number."""
        self._attempts += 1
        self._exits[self._attempts] = asyncio.get_running_loop().create_future()
        self._channel.send({"op": "new", "attempt": self._attempts}, descriptor=channel)
        return self._attempts

    async def end_attempt(self, attempt: int) -> None:
        """Kill an attempt and wait until its last process is gone."""
        if (ended := self._exits.get(attempt)) is not None:
            self._channel.send({"op": "kill", "attempt": attempt})
            await ended
            self._exits.pop(attempt, None)

    async def close(self) -> None:
        """End the box and everything in it."""
        # Killed before it can reap the starter, or the kernel would count the box's CPU time among
        # our own children's a second time.
        launched = hasattr(self, "_process")
        if launched and self._process.returncode is None:
            self._process.kill()
        if hasattr(self, "_channel"):
            self._channel.close()
        self._lost()
        if launched:
            await self._process.wait()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    async def _launch(
        self, warm: WarmProgram | None, python: Path | None, mounts: Mapping[str, Path]
    ) -> None:
        bwrap = bwrap_path()
        ours, theirs = socket.socketpair()
        with theirs:
            self._channel = Channel(ours, self._received, self._lost)
            view = base_view(warm, python, mounts, theirs.fileno())
            self._channel.send(view.config)
            command = [bwrap, *_NAMESPACES, "--die-with-parent", "--cap-add", "ALL"]
            if _may_map_nobody():
                await self._run_as_root(command, view.arguments, theirs.fileno())
            else:
                user = ["--uid", str(AGENT_USER), "--gid", str(AGENT_USER)]
                await self._run([*command, *user, *view.arguments], (theirs.fileno(),))

    async def _run(self, command: list[str], descriptors: tuple[int, ...]) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *command,
            pass_fds=descriptors,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for us, not for the box
            env={},
        )

    async def _run_as_root(self, command: list[str], view: list[str], control: int) -> None:
        """Run bubblewrap and map two users into it: root for set-up, nobody for commands."""
        info, info_end = os.pipe()
        gate, gate_end = os.pipe()
        try:
            command += ["--info-fd", str(info_end), "--userns-block-fd", str(gate)]
            await self._run([*command, *view], (control, info_end, gate))
            os.close(info_end)
            info_end = -1
            told = await asyncio.to_thread(_read_all, info)
            if not told:
                return  # it has failed; the closed control socket says so
            child = json.loads(told)["child-pid"]
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{child}/{name}").write_text(f"0 0 1\n{AGENT_USER} {_NOBODY} 1\n")
            os.write(gate_end, b"x")
        except OSError as error:
            raise self._failure(f"its users could not be mapped: {error}") from error
        finally:
            for fd in (info, info_end, gate, gate_end):
                if fd >= 0:
                    os.close(fd)

    def _received(self, frame: wire.Frame) -> None:
        header = frame.header
        if "exit" in header:
            self._account(header["cpu"], header["own_cpu"])
            exited = self._exits.get(header["exit"])
            if exited and not exited.done():
                exited.set_result(None)
        elif self._ready.done():
            return  # `start` has given up already
        elif "ready" in header:
            self.facts = header
            self._account(0.0, header["cpu"])
            self._ready.set_result(None)
        else:
            self._ready.set_exception(self._failure(header["failed"].strip()))

    def _account(self, attempt: float, own: float) -> None:
        self.cpu_seconds += attempt + own - self._own_cpu
        self._own_cpu = own

    def _lost(self) -> None:
        self.alive = False
        for exited in self._exits.values():
            if not exited.done():
                exited.set_result(None)
        if not self._ready.done():
            self._ready.set_exception(self._failure("it ended while starting"))
            self._ready.exception()  # seen: `start` may have given up already

    def _failure(self, what: str) -> SandboxError:
        log = b"" if self._log < 0 else os.pread(self._log, 1 << 16, 0)
        text = log[-2000:].decode(errors="replace").strip()
        advice = f"\n{_BLOCKED}" if "amespace" in text or "uid map" in text else ""
        return SandboxError(
            f"the bubblewrap sandbox did not start: {what}\n{text}{advice}".rstrip(), kind="start"
        )


def _read_all(fd: int) -> bytes:
    data = b""
    while chunk := os.read(fd, 4096):
        data += chunk
    return data


def _may_map_nobody() -> bool:
    return os.geteuid() == 0 and all(
        _covers(Path(f"/proc/self/{name}").read_text(), _NOBODY) for name in ("uid_map", "gid_map")
    )


def _covers(user_map: str, user: int) -> bool:
    for line in user_map.splitlines():
        first, _, count = (int(field) for field in line.split())
        if first <= user < first + count:
            return True
    return False
