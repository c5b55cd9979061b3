"""How a test runs a shell command in a sandbox."""

from __future__ import annotations

from typing import Protocol

from armillary.sandbox.protocol import ExecResult, Sandbox


class Shell(Protocol):
    async def __call__(self, command: str, seconds: float = 20) -> ExecResult: ...


# A daemon has left its command's process group only once it runs: wait, or it is killed with it.
DAEMON = "setsid sh -c 'echo > /tmp/up; exec sleep 300' >/dev/null 2>&1 &"
DAEMON += " until [ -e /tmp/up ]; do sleep 0.01; done; rm /tmp/up;"


def shell_in(sandbox: Sandbox) -> Shell:
    async def run(command: str, seconds: float = 20) -> ExecResult:
        return await sandbox.exec(["sh", "-c", command], seconds, merge_output=True)

    return run
