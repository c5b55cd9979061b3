"""Started by root: becomes `nobody`, then uses the sandbox and prints what it saw as JSON.

The interpreter's files may be out of that user's reach, so all imports come first and the box runs
under the system's Python.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.protocol import Limits, Spec

_COMMANDS = {
    "user": "whoami; stat -c %u /workdir",
    "capabilities": "grep CapBnd /proc/self/status | cut -f2",
    "interfaces": "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '",
    "processes": "set -- /proc/[0-9]*; echo $#",
    "refused": "touch /usr/x || touch /x || chmod 600 /dev/null || unshare -U true || echo all",
    "storm": "for i in $(seq 60); do sleep 1 & done 2>&1 | grep -c -i fork",
    "after": "echo fine",
}


async def _look() -> dict[str, str]:
    provider = BubblewrapProvider(python=Path("/usr/bin/python3"))
    sandbox = await provider.open(Spec(limits=Limits(processes=30)))
    seen: dict[str, str] = {"uid": str(os.getuid())}
    for name, command in _COMMANDS.items():
        done = await sandbox.exec(["sh", "-c", command], 20, merge_output=True)
        seen[name] = done.out.decode().splitlines()[-1] if done.out else f"code {done.code}"
        await sandbox.end_processes()
    listener = await sandbox.listen(8000)
    seen["port"] = str(listener.getsockname()[1])
    listener.close()
    await sandbox.close()
    await provider.close()
    return seen


def main() -> None:
    asyncio.run(asyncio.sleep(0))  # loads what a loop needs
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    os.chdir("/")
    sys.stdout.write(json.dumps(asyncio.run(_look())))


if __name__ == "__main__":
    main()
