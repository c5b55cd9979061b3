"""What every attempt of a box sees of the host, as bubblewrap arguments and starter configuration.

Guarantees: the system's programs and libraries, read-only; an /etc written by us, with a user
`agent` and no secrets; six device nodes; no home folder, no environment variable and no host path
beyond these. An agent's environment and its Python appear under /opt, whatever their host paths.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from armillary.errors import SandboxError
from armillary.sandbox.warm import WarmProgram

AGENT_USER = 1000
"""User and group id of commands, as seen inside."""

_INSIDE = Path(__file__).parent / "inside"
_CODE = "/run/armillary"
_PYTHON = "/opt/python"
_VENV = "/opt/venv"
_RUN = (
    f"import sys; sys.path.insert(0, {_CODE!r}); "
    "from armillary_inside import starter; sys.path.pop(0); starter.main()"
)
_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
_DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/ptmx": "pts/ptmx",
}
# Debian links awk, editors and more through /etc/alternatives.
_ETC_FROM_HOST = ("/etc/ld.so.cache", "/etc/alternatives")
_ETC = {
    "passwd": (
        "root:x:0:0:root:/root:/bin/sh\n"
        f"agent:x:{AGENT_USER}:{AGENT_USER}:agent:/home:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
    ),
    "group": f"root:x:0:\nagent:x:{AGENT_USER}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
}


@dataclass(frozen=True, slots=True)
class BaseView:
    """How to start a box."""

    arguments: list[str]
    """For bwrap, without those about users; the command is last."""
    config: dict[str, Any]
    """The starter's first frame."""


@dataclass(frozen=True, slots=True)
class _Interpreter:
    prefix: Path
    executable: Path

    @property
    def inside(self) -> Path:
        """Where its prefix appears."""
        return self.prefix if self.prefix == Path("/usr") else Path(_PYTHON)


def base_view(
    warm: WarmProgram | None, python: Path | None, mounts: Mapping[str, Path], control: int
) -> BaseView:
    """The view for a box.

    `python` is the interpreter that runs the box's own code where there is no warm program;
    `mounts` maps a path inside to a host folder; `control` is the starter's descriptor.

    Raises:
        SandboxError: the warm program's environment or a mount does not exist.
    """
    interpreter = _interpreter(warm, python)
    arguments = ["--clearenv", "--setenv", "LANG", "C.UTF-8", "--setenv", "PYTHONHASHSEED", "0"]
    arguments += ["--setenv", "HOME", "/home", "--setenv", "PATH", "/usr/bin:/bin"]
    folders, links = _system(arguments)
    _devices(arguments)
    arguments += ["--proc", "/proc", "--dir", "/etc", "--ro-bind", str(_INSIDE)]
    arguments += [f"{_CODE}/armillary_inside", "--dir", "/tmp", "--dir", "/home", "--dir", "/box"]
    for path in _ETC_FROM_HOST:
        arguments += ["--ro-bind-try", path, path]
    shown = {path: _folder(host) for path, host in mounts.items()}
    if warm:
        shown[_VENV] = _folder(warm.venv)
    private: dict[str, Path] = {}
    if interpreter.inside != interpreter.prefix:
        (shown if warm else private)[_PYTHON] = interpreter.prefix
        arguments += ["--setenv", "LD_LIBRARY_PATH", f"{_PYTHON}/lib"]
    for path, host in (shown | private).items():
        arguments += ["--ro-bind", str(host), path]
    command = str(interpreter.inside / interpreter.executable.relative_to(interpreter.prefix))
    arguments += ["--", command, "-I", "-S", "-B", "-c", _RUN, str(control)]
    config = {
        "user": AGENT_USER,
        "folders": [*folders, "/etc", "/dev", *shown],
        "links": links,
        "devices": [path for path in _DEVICES if Path(path).exists()],
        "etc": _ETC,
        "warm": _warm_config(warm) if warm else None,
    }
    return BaseView(arguments, config)


def _system(arguments: list[str]) -> tuple[list[str], list[list[str]]]:
    """Bind /usr and what stands beside it; the folders and links among them."""
    folders, links = ["/usr"], []
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        host = Path("/") / name
        if host.is_symlink():
            target = str(host.readlink()).lstrip("/")
            links.append([str(host), target])
            arguments += ["--symlink", target, str(host)]
        elif host.is_dir():
            folders.append(str(host))
    for folder in folders:
        arguments += ["--ro-bind", folder, folder]
    return folders, links


def _devices(arguments: list[str]) -> None:
    # Not --dev: bubblewrap then adds a second user namespace, from which attempts cannot return.
    arguments += ["--tmpfs", "/dev"]
    for path in _DEVICES:
        arguments += ["--dev-bind-try", path, path]
    for path, target in _DEVICE_LINKS.items():
        arguments += ["--symlink", target, path]
    arguments += ["--dir", "/dev/shm", "--dir", "/dev/pts", "--remount-ro", "/dev"]


def _interpreter(warm: WarmProgram | None, python: Path | None) -> _Interpreter:
    if warm:
        executable = Path(os.path.realpath(warm.venv / "bin" / "python"))
        if not executable.exists():
            raise SandboxError(
                f"{warm.venv} is not a virtual environment with a working bin/python; install "
                f"the environment of {warm.command} again",
                kind="missing",
            )
    else:
        executable = Path(os.path.realpath(python or sys.executable))
    return _Interpreter(executable.parent.parent, executable)


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise SandboxError(f"{path} is to be shown in the sandbox but is no folder", kind="missing")
    return path.resolve()


def _warm_config(warm: WarmProgram) -> dict[str, Any]:
    packages = next(iter(sorted(warm.venv.glob("lib/python3*/site-packages"))), None)
    if packages is None:
        raise SandboxError(f"{warm.venv} has no site-packages folder", kind="missing")
    return {
        "prefix": _VENV,
        "packages": f"{_VENV}/{packages.relative_to(warm.venv)}",
        "command": warm.command,
        "module": warm.module,
        "attribute": warm.attribute,
        "imports": list(warm.imports),
        "preload": list(warm.preload),
        "env": dict(warm.env),
    }
