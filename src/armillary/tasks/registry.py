"""The task families that ship. A new one is one more line."""

from __future__ import annotations

from armillary.errors import ConfigError
from armillary.tasks.data.family import DataFamily
from armillary.tasks.protocol import TaskFamily

FAMILIES: dict[str, TaskFamily] = {"data": DataFamily()}


def family(name: str) -> TaskFamily:
    """
    Raises:
        ConfigError: there is no such family.
    """
    if name not in FAMILIES:
        raise ConfigError(f"no task family {name!r}; there are: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[name]
