"""An agent program's own locked environment, installed once per user and shared by all runs.

Guarantees: the environment holds exactly what a hash-locked requirements file names; one that is
half built is never used; two processes that ask at once build it once. Why apart from the
project's own environment: agent programs pin hundreds of packages, some of which clash with ours
or with each other.

The folder is `NAME-KEY` under the user's cache, where KEY hashes the lock file and the Python
version, so a changed lock is a new environment and an old run still finds its own. It is built
under its final name, since scripts inside hold absolute paths, and counts only once its marker
file is written.

`python -m armillary.harness.install NAME LOCK [PYTHON]` does the same from a shell.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from armillary.errors import HarnessError

_log = logging.getLogger(__name__)

MARKER = "armillary.json"
"""Written last; a folder without it is a build that was cut off."""

# These would change what is installed, or leave the byte code uncompiled (a start of LiteLLM
# takes twice as long without it).
_NOT_INHERITED = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")


def environments_folder() -> Path:
    """Where environments live: `$ARMILLARY_CACHE/envs`, else below the XDG cache folder."""
    if own := os.environ.get("ARMILLARY_CACHE"):
        return Path(own).expanduser() / "envs"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "armillary" / "envs"


def find_environment(name: str, lock: Path, python: Path | None = None) -> Path | None:
    """The installed environment of `name` for this lock file and Python, or None.

    Raises:
        HarnessError: the lock file or `python` cannot be used.
    """
    venv = _folder(name, lock, python)
    return venv if (venv / MARKER).is_file() else None


def ensure_environment(
    name: str, lock: Path, python: Path | None = None, *, install: bool = True
) -> Path:
    """The environment of `name`, built now if it is missing. Blocks, for minutes if it builds.

    `python` is the interpreter it is made with, by default the running one.

    Raises:
        HarnessError: it is missing and `install` is False (the text holds the command that
            installs it), or the installation failed.
    """
    if found := find_environment(name, lock, python):
        return found
    venv = _folder(name, lock, python)
    if not install:
        raise HarnessError(
            f"the environment of {name} is not installed (looked for {venv}); install it with: "
            f"{_own_command(name, lock, python)}"
        )
    venv.parent.mkdir(parents=True, exist_ok=True)
    with _locked(venv.with_name(venv.name + ".lock")):
        if not (venv / MARKER).is_file():
            _build(name, venv, lock, python or Path(sys.executable))
    return venv


def _own_command(name: str, lock: Path, python: Path | None) -> str:
    tail = f" {python}" if python else ""
    return f"{sys.executable} -m armillary.harness.install {name} {lock}{tail}"


def _folder(name: str, lock: Path, python: Path | None) -> Path:
    try:
        digest = hashlib.sha256(lock.read_bytes())
    except OSError as error:
        raise HarnessError(f"the lock file of {name} cannot be read: {error}") from error
    digest.update(_python_version(python).encode())
    return environments_folder() / f"{name}-{digest.hexdigest()[:16]}"


def _python_version(python: Path | None) -> str:
    if python is None:
        return sys.version
    shown = subprocess.run(
        [python, "-I", "-c", "import sys; print(sys.version)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode:
        raise HarnessError(f"{python} is not a Python interpreter: {shown.stderr.strip()[-300:]}")
    return shown.stdout.strip()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; a builder that dies lets go of it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(name: str, venv: Path, lock: Path, python: Path) -> None:
    if venv.exists():
        shutil.rmtree(venv)
    started = time.monotonic()
    _log.info("installing the environment of %s into %s", name, venv)
    for command in _commands(venv, lock, python):
        _run(name, command)
    marker = {"name": name, "lock": str(lock.resolve()), "python": str(python)}
    (venv / MARKER).write_text(json.dumps(marker) + "\n")
    _log.info("installed %s in %.0f s", name, time.monotonic() - started)


def _commands(venv: Path, lock: Path, python: Path) -> list[list[str]]:
    inner = str(venv / "bin" / "python")
    if uv := _find_uv():
        sync = [uv, "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode"]
        return [
            [uv, "venv", "--quiet", "--python", str(python), str(venv)],
            [*sync, "--python", inner, str(lock)],
        ]
    install = [inner, "-m", "pip", "install", "--quiet"]
    return [
        [str(python), "-m", "venv", str(venv)],
        [*install, "--require-hashes", "--no-deps", "-r", str(lock)],
    ]


def _find_uv() -> str | None:
    beside = Path(sys.executable).parent / "uv"
    return shutil.which("uv") or (str(beside) if os.access(beside, os.X_OK) else None)


def _run(name: str, command: list[str]) -> None:
    env = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    # A sandbox reads these files under another user id, so a strict umask would lock it out.
    done = subprocess.run(
        command, env=env, umask=0o022, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise HarnessError(
            f"installing {name} failed: `{' '.join(command)}` exited with {done.returncode}:\n"
            f"{(done.stderr or done.stdout).strip()[-2000:]}"
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Install one environment and print its folder."""
    parser = argparse.ArgumentParser(prog="python -m armillary.harness.install")
    parser.add_argument("name")
    parser.add_argument("lock", type=Path)
    parser.add_argument("python", type=Path, nargs="?")
    asked = parser.parse_args(argv)
    try:
        print(ensure_environment(asked.name, asked.lock, asked.python))  # noqa: T201
    except HarnessError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
