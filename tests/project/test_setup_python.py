"""Which Python set-up chooses."""

from __future__ import annotations

import pytest
from setup_machine import UV, Machine


@pytest.fixture(autouse=True)
def uv(machine: Machine) -> None:
    machine.answers("uv", UV)


def test_3_12_is_preferred_to_newer_ones(machine: Machine) -> None:
    folder = machine.folder / "bin"
    machine.python(folder / "python3.13", 13)
    wanted = machine.python(folder / "python3.12", 12)
    assert machine.setup("python").stdout.strip() == str(wanted)


def test_a_newer_one_serves_where_3_12_is_missing(machine: Machine) -> None:
    machine.python(machine.folder / "bin" / "python3", 14)
    assert machine.setup("python").stdout.strip() == str(machine.folder / "bin" / "python3")


@pytest.mark.parametrize("root", ["home/.pyenv", "elsewhere/pyenv"])
def test_pyenv_is_searched_behind_its_broken_shims(machine: Machine, root: str) -> None:
    for shim in ("python3", "python3.12"):
        machine.answers(shim, "echo 'pyenv: command not found' >&2; exit 127")
    wanted = machine.python(
        machine.folder / root / "versions" / "3.12.1" / "bin" / "python3.12", 12
    )
    env = {} if root.startswith("home") else {"PYENV_ROOT": str(machine.folder / root)}
    assert machine.setup("python", **env).stdout.strip() == str(wanted)


def test_uv_knows_one_that_is_on_no_path(machine: Machine) -> None:
    (machine.folder / "uv-python").write_text("/opt/python3.13\n")
    assert machine.setup("python").stdout.strip() == "/opt/python3.13"
    assert not any("install" in call for call in machine.calls)


def test_uv_gets_one_as_the_last_way(machine: Machine) -> None:
    machine.python(machine.folder / "bin" / "python3", 9)
    machine.has("downloads")
    done = machine.setup("python")
    assert done.stdout.strip() == "/downloaded/python3.12"
    assert "getting one with uv" in done.stderr


def test_where_uv_cannot_one_line_says_so(machine: Machine) -> None:
    machine.python(machine.folder / "bin" / "python3", 9)
    done = machine.setup("python")
    assert done.returncode == 1
    assert "no Python 3.12 or newer" in done.stderr.splitlines()[-1]
    assert "uv python install 3.12" in done.stderr.splitlines()[-1]
