"""Finding the bubblewrap program, or the command that installs it."""

from __future__ import annotations

import platform
import shutil

from armillary.errors import SandboxError

_INSTALLERS = {
    "apt-get": "sudo apt-get install -y bubblewrap",
    "dnf": "sudo dnf install -y bubblewrap",
    "pacman": "sudo pacman -S --noconfirm bubblewrap",
    "zypper": "sudo zypper install -y bubblewrap",
    "apk": "sudo apk add bubblewrap",
}


def install_command() -> str:
    """The one command that installs bubblewrap here."""
    for program, command in _INSTALLERS.items():
        if shutil.which(program):
            return command
    return "install the package `bubblewrap` with your system's package manager"


def bwrap_path() -> str:
    """The bubblewrap program.

    Raises:
        SandboxError: it is not installed; the text holds the command that installs it.
    """
    if path := shutil.which("bwrap"):
        return path
    if platform.system() != "Linux":
        raise SandboxError(
            f"bubblewrap sandboxes need Linux, this is {platform.system()}; ask for the sandbox "
            "`process` by name (no isolation), or use a container backend",
            kind="missing",
        )
    raise SandboxError(
        f"bubblewrap is not installed (no `bwrap` on PATH); install it with: {install_command()}",
        kind="missing",
    )
