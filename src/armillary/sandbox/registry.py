"""Sandboxes by name. Adding one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable

from armillary.errors import ConfigError
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.process import ProcessProvider
from armillary.sandbox.protocol import SandboxProvider

SANDBOXES: dict[str, Callable[[], SandboxProvider]] = {
    "bubblewrap": BubblewrapProvider,
    "process": ProcessProvider,
}


def sandbox_provider(name: str) -> SandboxProvider:
    """A new provider; the caller closes it.

    Raises:
        ConfigError: there is no sandbox of that name.
    """
    if name not in SANDBOXES:
        raise ConfigError(f"unknown sandbox {name!r}; known are {', '.join(sorted(SANDBOXES))}")
    return SANDBOXES[name]()
