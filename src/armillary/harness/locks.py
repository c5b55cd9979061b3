"""Where the lock files of agent programs are: beside the package, or in the source checkout."""

from __future__ import annotations

from pathlib import Path

from armillary.errors import HarnessError
from armillary.harness.install import ensure_environment

_PACKAGED = Path(__file__).parent / "locks"
_CHECKOUT = Path(__file__).parents[3] / "locks"


def lock_file(name: str) -> Path:
    """The hash-locked requirements of program `name`.

    Raises:
        HarnessError: there is none.
    """
    for folder in (_PACKAGED, _CHECKOUT):
        path = folder / f"{name}.txt"
        if path.is_file():
            return path
    raise HarnessError(f"there is no lock file {name}.txt in {_CHECKOUT}; is the name right?")


def installed_environment(name: str) -> Path:
    """The environment of program `name`.

    Raises:
        HarnessError: it is not installed; the text holds the command that installs it.
    """
    return ensure_environment(name, lock_file(name), install=False)
