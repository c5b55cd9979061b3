"""What this machine lacks, each with the one command that brings it.

The single answer to "why can I not run this?": `armillary info` prints it and the test suite skips
with it, so the two never disagree. It imports neither torch nor an agent program, and it starts
nothing but one empty sandbox.
"""

from __future__ import annotations

import importlib.util
import subprocess
from typing import Literal

from armillary.errors import HarnessError, SandboxError
from armillary.harness.install import find_environment
from armillary.harness.locks import lock_file
from armillary.sandbox.bwrap import bwrap_path

Need = Literal["bwrap", "learn", "mini", "harbor"]
"""`bwrap`: sandboxes start; `learn`: torch; `mini`, `harbor`: environments of agent programs."""

PROGRAMS: tuple[tuple[Need, str, str], ...] = (
    ("mini", "mini-swe-agent", "make setup"),
    ("harbor", "harbor", "make setup-test"),
)
"""Need, program with an environment of its own, command that installs it."""


def missing_needs() -> dict[Need, str]:
    """Need -> what is missing and the command that helps; empty where nothing is missing."""
    reasons: dict[Need, str | None] = {"bwrap": missing_bubblewrap(), "learn": missing_torch()}
    for need, program, command in PROGRAMS:
        reasons[need] = _environment(program, command)
    return {need: reason for need, reason in reasons.items() if reason is not None}


def missing_bubblewrap() -> str | None:
    """Why no sandbox can be started, or None."""
    # Asked of bubblewrap alone, not of our sandbox: a fault of ours must fail tests, not skip them.
    try:
        program = bwrap_path()
    except SandboxError as error:
        return str(error)
    trial = [program, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    done = subprocess.run(
        trial, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    return (
        f"bubblewrap cannot start a sandbox ({done.stderr.strip() or done.returncode}); user "
        "namespaces may be off, see docs/installation.md"
    )


def missing_torch() -> str | None:
    """Why no model can be run or trained, or None."""
    if importlib.util.find_spec("torch"):
        return None
    return "PyTorch is not installed; run: pip install 'armillary[learn]'"


def _environment(name: str, command: str) -> str | None:
    try:
        found = find_environment(name, lock_file(name))
    except HarnessError as error:
        return str(error)
    return None if found else f"the environment of {name} is not installed; run: {command}"
