"""How set-up gets uv on machines that have less and less."""

from __future__ import annotations

import pytest
from setup_machine import Machine


def uv_of(machine: Machine) -> str:
    return str(machine.clone / ".cache" / "tools" / "bin" / "uv")


def old_python(machine: Machine) -> None:
    machine.python(machine.folder / "bin" / "python3", 9)


def test_uv_on_path_is_used_and_nothing_is_fetched(machine: Machine) -> None:
    uv = machine.answers("uv", 'echo "--clear"')
    assert machine.setup("uv").stdout.strip() == str(uv)
    assert machine.calls == ["uv venv --help"]


def test_a_shim_with_nothing_behind_it_is_passed_over(machine: Machine) -> None:
    machine.answers("uv", "exit 127")
    real = machine.program(machine.folder / "home" / ".local" / "bin" / "uv", 'echo "--clear"')
    assert machine.setup("uv").stdout.strip() == str(real)


def test_pip_installs_uv_into_a_private_folder_by_hash(machine: Machine) -> None:
    old_python(machine)
    machine.has("pip")
    done = machine.setup("uv")
    assert (done.returncode, done.stdout.strip()) == (0, uv_of(machine))
    call = next(call for call in machine.calls if "-m pip install" in call)
    assert "--require-hashes" in call
    assert f"--target {machine.clone}/.cache/tools" in call
    wanted = (machine.clone / ".cache" / "tools" / "uv.txt").read_text()
    assert wanted.startswith("uv==")
    assert "uvloop" not in wanted
    assert "--hash=sha256:" in wanted


@pytest.mark.parametrize("way", ["wheel", "venv"])
def test_without_pip_python_brings_its_own(machine: Machine, way: str) -> None:
    old_python(machine)
    if way == "wheel":
        (machine.folder / "wheel").write_text("/wheels/pip-1.whl/pip\n")
    else:
        machine.has("venv")
    done = machine.setup("uv")
    assert (done.returncode, done.stdout.strip()) == (0, uv_of(machine)), done.stderr


@pytest.mark.parametrize(("program", "option"), [("curl", "-o"), ("wget", "-O")])
def test_without_any_pip_the_installer_is_downloaded(
    machine: Machine, program: str, option: str
) -> None:
    old_python(machine)
    installer = 'mkdir -p "$UV_UNMANAGED_INSTALL" && cp "$MACHINE/uv" "$UV_UNMANAGED_INSTALL/uv"'
    (machine.folder / "installer").write_text(installer)
    machine.answers(
        program, f'while [ "$1" != {option} ]; do shift; done; cp "$MACHINE/installer" "$2"'
    )
    done = machine.setup("uv")
    assert (done.returncode, done.stdout.strip()) == (0, uv_of(machine)), done.stderr
    assert any(call.startswith(program) for call in machine.calls)


@pytest.mark.parametrize("who", ["root", "sudo"])
def test_the_last_way_is_the_system_package(machine: Machine, who: str) -> None:
    old_python(machine)
    machine.answers("apt-get", '[ "$1" = update ] || touch "$MACHINE/pip"')
    if who == "root":
        machine.answers("id", "echo 0")
    else:
        machine.answers("sudo", 'shift; exec "$@"')
        machine.answers("true", "exit 0")
    done = machine.setup("uv")
    assert (done.returncode, done.stdout.strip()) == (0, uv_of(machine)), done.stderr
    assert "apt-get install -y --no-install-recommends python3-pip" in machine.calls


def test_when_nothing_works_one_line_names_the_command(machine: Machine) -> None:
    old_python(machine)
    machine.answers("apt-get", "exit 1")
    done = machine.setup("uv")
    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("setup: failed: uv could not be installed")
    assert "sudo sh -c 'apt-get update && apt-get install" in last
    assert "Traceback" not in done.stderr
