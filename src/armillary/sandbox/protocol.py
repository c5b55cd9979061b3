"""The sandbox seam: where an agent's commands run.

One sandbox serves one attempt. It is long-lived: commands enter it, state stays between them, and
`close` ends every process that is left. Paths are inside the sandbox and absolute.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

WORKDIR = "/workdir"
"""Where an attempt starts, in every sandbox."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources of one sandbox. What enforces each is shown by `armillary info`."""

    memory_mb: int = 2048
    disk_mb: int = 64
    processes: int = 256
    output_bytes: int = 1 << 20
    """Most bytes kept of each stream of one command; the rest is dropped and said so."""
    file_mb: int = 64


class File(NamedTuple):
    """A file put into a sandbox."""

    data: bytes
    mode: int = 0o644


class ExecResult(NamedTuple):
    """What a command did. Output is raw bytes: tools print what they like."""

    code: int
    """Exit status; 128 + N after signal N; 124 after a time-out."""
    out: bytes
    err: bytes
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Spec:
    """What a sandbox starts with."""

    files: Mapping[str, File] = field(default_factory=dict[str, File])
    """Absolute path -> file. Writable folders are /workdir, /tmp, /home and those in `folders`;
    files under /usr/local are put in place and then made read-only."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to the scrubbed base environment of every command."""
    folders: Sequence[str] = ()
    """More writable folders, such as /logs."""
    workdir: str = WORKDIR
    limits: Limits = field(default_factory=Limits)


class Sandbox(Protocol):
    """A running sandbox. Every method raises SandboxError(kind) when the sandbox is lost."""

    async def exec(
        self,
        argv: Sequence[str],
        timeout: float,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        merge_output: bool = False,
    ) -> ExecResult:
        """Run a program to its end or `timeout` seconds; its whole process group dies then.

        `merge_output` sends stderr into `out`, in order. An argv[0] that does not exist is exit
        code 127, as in a shell: the policy may ask for anything.
        """
        ...

    async def write(self, files: Mapping[str, File]) -> None: ...

    async def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """First `limit` bytes of a regular file, or None if there is none."""
        ...

    async def listen(self, port: int) -> socket.socket:
        """A listening TCP socket on 127.0.0.1:`port` *inside* the sandbox's own network."""
        ...

    async def end_processes(self) -> None:
        """Kill every process of the sandbox but its own first one (before grading)."""
        ...

    async def close(self) -> None: ...


class SandboxProvider(Protocol):
    """Makes sandboxes; owns what they share (a base view, a warm starter)."""

    @property
    def cpu_seconds(self) -> float:
        """Processor time spent in sandboxes that this process's own child times leave out."""
        ...

    async def open(self, spec: Spec) -> Sandbox: ...

    async def close(self) -> None: ...
