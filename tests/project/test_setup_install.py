"""The packages, bubblewrap, and what a second run costs."""

from __future__ import annotations

import subprocess

import pytest
from setup_machine import REPOSITORY, UV, Machine


@pytest.fixture
def ready(machine: Machine) -> Machine:
    """A machine with uv and Python 3.12."""
    machine.answers("uv", UV)
    machine.python(machine.folder / "bin" / "python3.12", 12)
    return machine


def test_packages_come_by_hash_from_the_lock_and_only_once(ready: Machine) -> None:
    first = ready.setup("venv")
    assert first.returncode == 0, first.stderr
    calls = ready.calls
    sync = next(call for call in calls if call.startswith("uv pip sync"))
    assert "--require-hashes" in sync
    assert "--compile-bytecode" in sync
    assert sync.endswith("locks/dev.txt")
    own = next(call for call in calls if call.startswith("uv pip install"))
    assert {"--no-deps", "--no-build-isolation", "--editable"} <= set(own.split())

    second = ready.setup("venv")
    assert (second.returncode, second.stderr) == (0, "")
    assert ready.calls == calls


@pytest.mark.parametrize("changed", ["locks/dev.txt", "pyproject.toml"])
def test_a_changed_lock_is_installed_into_the_same_environment(
    ready: Machine, changed: str
) -> None:
    ready.setup("venv")
    before = len(ready.calls)
    with (ready.clone / changed).open("a") as file:
        file.write("\n# changed\n")
    assert ready.setup("venv").returncode == 0
    later = ready.calls[before:]
    assert any(call.startswith("uv pip sync") for call in later)
    assert not any(call.startswith("uv venv --clear") for call in later)


def test_a_broken_environment_is_made_again(ready: Machine) -> None:
    ready.setup("venv")
    (ready.clone / ".venv" / "bin" / "python").unlink()
    before = len(ready.calls)
    assert ready.setup("venv").returncode == 0
    assert any(call.startswith("uv venv --clear") for call in ready.calls[before:])


def test_a_lost_connection_is_tried_again_and_then_told(ready: Machine) -> None:
    ready.has("offline")
    done = ready.setup("venv")
    assert done.returncode == 1
    assert sum(call.startswith("uv pip sync") for call in ready.calls) == 3
    assert done.stderr.splitlines()[-1].startswith("setup: failed: the packages of locks/dev.txt")
    (ready.folder / "offline").unlink()
    assert ready.setup("venv").returncode == 0


def test_bubblewrap_is_installed_where_that_takes_no_password(machine: Machine) -> None:
    machine.answers("id", "echo 0")
    bwrap = machine.folder / "bin" / "bwrap"
    machine.answers("apt-get", f'[ "$1" = update ] || cp "$0" {bwrap}')
    assert machine.setup("bubblewrap").returncode == 0
    assert "apt-get update" in machine.calls
    assert "apt-get install -y --no-install-recommends bubblewrap" in machine.calls
    assert machine.setup("sandbox").returncode == 0


def test_without_rights_setup_goes_on_and_the_quickstart_stops(machine: Machine) -> None:
    machine.answers("apt-get", "exit 1")
    command = "sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends bubblewrap'"
    told = machine.setup("bubblewrap")
    assert told.returncode == 0
    assert told.stderr.splitlines()[-1].endswith(command)
    stopped = machine.setup("sandbox")
    assert stopped.returncode == 1
    assert stopped.stderr.strip().endswith(command)
    assert len(stopped.stderr.splitlines()) == 1


def test_an_unknown_step_is_refused(machine: Machine) -> None:
    done = machine.setup("everything")
    assert done.returncode == 1
    assert "unknown step everything" in done.stderr


def test_the_real_setup_changes_nothing_the_second_time() -> None:
    stamp = REPOSITORY / ".venv" / ".setup-stamp"
    if not stamp.exists():
        pytest.skip("this environment was not made by `make setup`")
    before = stamp.stat().st_mtime_ns
    done = subprocess.run(
        ["sh", "scripts/setup.sh", "venv"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert stamp.stat().st_mtime_ns == before
