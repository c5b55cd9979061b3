"""The harnesses that can be run. A new one is one more line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from armillary.errors import ConfigError
from armillary.harness.locks import installed_environment
from armillary.harness.loop import LoopHarness
from armillary.harness.mini_swe_agent import MiniSweAgent, Wires
from armillary.harness.protocol import Harness


@dataclass(frozen=True, slots=True)
class Site:
    """Where harnesses are run."""

    wires: Wires
    sandbox: str
    """Name of the sandbox that the run asks for."""


def _mini(site: Site) -> Harness:
    if site.sandbox != "bubblewrap":
        raise ConfigError(
            f'mini-swe-agent needs bubblewrap, and sandbox.name is "{site.sandbox}": its program '
            'is kept warm in such a sandbox. Set sandbox.name = "bubblewrap", or leave '
            "mini-swe-agent out of harness.names"
        )
    return MiniSweAgent(site.wires, installed_environment("mini-swe-agent"))


HARNESSES: dict[str, Callable[[Site], Harness]] = {
    "loop": lambda site: LoopHarness(site.sandbox),
    "mini-swe-agent": _mini,
}


def make_harness(name: str, site: Site) -> Harness:
    """
    Raises:
        ConfigError: there is no such harness, or it cannot run in the site's sandbox.
        HarnessError: its program is not installed; the message has the command.
    """
    if name not in HARNESSES:
        raise ConfigError(f"no harness {name!r}; there are: {', '.join(sorted(HARNESSES))}")
    return HARNESSES[name](site)
