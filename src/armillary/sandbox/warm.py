"""A Python agent program that a box keeps in memory, so that starting it costs a fork."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WarmProgram:
    """A console script of a virtual environment.

    `Sandbox.exec([command, ...])` runs it like any other program; everything else about the call
    (arguments, environment, output, time-out) is the same.
    """

    command: str
    """The argv[0] that means this program."""
    venv: Path
    """Its environment, shown read-only at /opt/venv."""
    module: str
    attribute: str
    """`module:attribute` is called without arguments, as its console script does."""
    imports: tuple[str, ...] = ()
    """Modules imported first, in this order."""
    preload: tuple[str, ...] = ()
    """`module` or `module:Model` that an attempt would else load late; a `Model` is a pydantic
    model whose validators are then built. Names that do not exist are skipped and reported."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment while importing; a call's own environment is separate."""
