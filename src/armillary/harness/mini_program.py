"""How the real mini-SWE-agent runs as a warm program: what to import, arguments, environment, end.

The package is the unmodified mini-swe-agent 2.4.6 in an environment of its own. A new process of
it spends five CPU seconds on imports; kept in memory and forked, an attempt of five model calls
costs about 0.15. `data/mini_preload.txt` lists what the first attempt would else load late;
`scripts/mini_preload.py` writes it again for another version.
"""

from __future__ import annotations

import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

from armillary.errors import SandboxError
from armillary.sandbox.protocol import Sandbox
from armillary.sandbox.warm import WarmProgram

VERSION = "2.4.6"
COMMAND = "mini"
TRAJECTORY = "/tmp/trajectory.json"
"""Where the agent writes its messages and how it ended."""
MODEL = "armillary"
"""Model name in its requests."""

_MOST_TRAJECTORY = 64 << 20
_ENTRY = "minisweagent.run.mini"
_IMPORTS = (
    _ENTRY,
    "minisweagent.models.litellm_model",
    "minisweagent.agents.interactive",
    "minisweagent.environments.local",
)
# Read while importing; an attempt gets them too.
_IMPORT_ENV = {
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_GLOBAL_CONFIG_DIR": "/tmp/.mini",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or the import asks a server for prices
}
# The prompt shows the kernel's names. The agent looks its template variables up in the environment
# last, so these replace the machine's own and every machine has the same prompt.
_SYSTEM_NAMES = {"system": "Linux", "release": "6", "version": "1", "machine": "x86_64"}


def mini_warm_program(venv: Path) -> WarmProgram:
    """The program for a box, from the environment `venv` (see `harness.install`)."""
    listed = resources.files("armillary.harness").joinpath("data", "mini_preload.txt")
    preload = tuple(listed.read_text().split())
    return WarmProgram(
        command=COMMAND,
        venv=venv,
        module=_ENTRY,
        attribute="app",
        imports=_IMPORTS,
        preload=preload,
        env=_IMPORT_ENV,
    )


def mini_argv(instruction: str, step_limit: int, command_seconds: float = 30.0) -> list[str]:
    """The command line: no questions asked, at most `step_limit` model calls.

    `command_seconds` bounds one command; the program takes whole seconds, so it is rounded up.
    """
    # Naming any -c drops the default file, so it is named first.
    config = ["-c", "mini.yaml", "-c", f"agent.step_limit={step_limit}"]
    config += ["-c", f"environment.timeout={math.ceil(command_seconds)}"]
    options = ["-m", f"openai/{MODEL}", "-y", "--exit-immediately", "-o", TRAJECTORY]
    return [COMMAND, "-t", instruction, *options, *config]


def mini_env(port: int, key: str) -> dict[str, str]:
    """Environment of an attempt whose model answers on `port` of its own loopback.

    `key` reaches the proxy unchanged and names the session.
    """
    return {
        **_IMPORT_ENV,
        **_SYSTEM_NAMES,
        "OPENAI_API_BASE": f"http://127.0.0.1:{port}/v1",
        "OPENAI_API_KEY": key,
        # Its own retries pause for 4 to 60 s; the client below it already tries three times.
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    }


async def mini_status(sandbox: Sandbox) -> str | None:
    """How the agent says it ended (`Submitted`, `LimitsExceeded`, ...), None if it does not say.

    The policy may have put anything in the place of the file.

    Raises:
        SandboxError: the sandbox is lost.
    """
    try:
        data = await sandbox.read(TRAJECTORY, _MOST_TRAJECTORY)
        trajectory: Any = json.loads(data or b"")
        status = trajectory["info"]["exit_status"]
    except SandboxError as fault:
        if fault.kind != "io":
            raise
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return status if isinstance(status, str) and status else None
