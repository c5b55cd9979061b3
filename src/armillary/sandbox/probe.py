"""What this machine offers for sandboxes, in words for `armillary info` and for errors."""

from __future__ import annotations

import asyncio
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from armillary.errors import SandboxError
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.inside import seccomp
from armillary.sandbox.protocol import Spec

_USER_NAMESPACES = "/proc/sys/user/max_user_namespaces"
_SWITCHES = (
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
)


@dataclass(frozen=True, slots=True)
class SandboxFacts:
    """What enforces what on this machine."""

    bubblewrap: str
    """Version, empty if it is not installed."""
    works: bool
    """A sandbox was really opened and ran a command."""
    problem: str
    """Why it does not work, with what to do."""
    user_namespaces: str
    memory: str
    disk: str
    processes: str
    system_calls: str


async def sandbox_facts() -> SandboxFacts:
    """Look, and open one sandbox to be sure. Takes a fraction of a second."""
    version, problem = await asyncio.to_thread(_version), ""
    enforced: dict[str, object] = {}
    try:
        enforced = await _try()
    except SandboxError as error:
        problem = str(error)
    own_limit = bool(enforced.get("own_user"))
    return SandboxFacts(
        bubblewrap=version,
        works=not problem,
        problem=problem,
        user_namespaces=_user_namespaces(),
        memory="watched every 0.1 s, summed over the sandbox's processes",
        disk="tmpfs of fixed size",
        processes="kernel limit per sandbox" if own_limit else "watched every 0.1 s",
        system_calls=_system_calls(),
    )


async def _try() -> dict[str, object]:
    provider = BubblewrapProvider()
    try:
        sandbox = await provider.open(Spec())
        done = await sandbox.exec(["true"], 10)
        if done.code:
            raise SandboxError(f"`true` failed in a sandbox: {done.err!r}", kind="start")
        return provider.facts
    finally:
        await provider.close()


def _version() -> str:
    path = shutil.which("bwrap")
    if path is None:
        return ""
    shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return shown.stdout.strip().removeprefix("bubblewrap ")


def _user_namespaces() -> str:
    most = Path(_USER_NAMESPACES)
    if not most.exists():
        return "not in this kernel"
    found = [f"at most {most.read_text().strip()}"]
    found += [f"{p.name} = {p.read_text().strip()}" for p in map(Path, _SWITCHES) if p.exists()]
    return ", ".join(found)


def _system_calls() -> str:
    machine = platform.machine()
    refused = seccomp.MACHINES.get(machine)
    if refused is None:
        return f"not filtered: no call table for {machine}"
    return f"{len(refused.refused)} calls, new namespaces and unusual sockets refused"
