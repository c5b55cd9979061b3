"""An agent's environment from a hash-locked file, without any network."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from armillary.errors import HarnessError
from armillary.harness import install
from armillary.harness.install import ensure_environment, find_environment


def _wheel(folder: Path) -> Path:
    """A real wheel of one module and one console script."""
    path = folder / "armtest-1.0-py3-none-any.whl"
    files = {
        "armtest.py": "def main():\n    print('hello')\n",
        "armtest-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: armtest\nVersion: 1.0\n",
        "armtest-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        "armtest-1.0.dist-info/entry_points.txt": "[console_scripts]\narmtest = armtest:main\n",
    }
    record = ""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            record += f"{name},sha256={digest.decode().rstrip('=')},{len(text)}\n"
        archive.writestr("armtest-1.0.dist-info/RECORD", record)
    return path


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ARMILLARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    wheel = _wheel(tmp_path)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = tmp_path / "lock.txt"
    lock.write_text(f"armtest @ {wheel.as_uri()} --hash=sha256:{digest}\n")
    return lock


def test_it_is_built_once_and_found_again(lock: Path, tmp_path: Path) -> None:
    assert find_environment("a", lock) is None
    with ThreadPoolExecutor(3) as pool:
        built = set(pool.map(lambda _: ensure_environment("a", lock), range(3)))
    (venv,) = built
    assert venv.parent == tmp_path / "cache" / "envs"
    assert find_environment("a", lock) == venv
    shown = subprocess.run([venv / "bin" / "armtest"], capture_output=True, check=True)
    assert shown.stdout == b"hello\n"
    assert list(venv.glob("lib/*/site-packages/__pycache__/armtest.*.pyc")), "byte code is there"


def test_without_uv_it_is_built_with_pip(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_find_uv", lambda: None)
    venv = ensure_environment("b", lock)
    shown = subprocess.run([venv / "bin" / "armtest"], capture_output=True, check=True)
    assert shown.stdout == b"hello\n"


def test_another_lock_is_another_environment(lock: Path) -> None:
    venv = ensure_environment("a", lock)
    lock.write_text(lock.read_text() + "# changed\n")
    assert find_environment("a", lock) is None
    assert venv.exists()


def test_a_build_that_was_cut_off_is_started_again(lock: Path) -> None:
    venv = ensure_environment("a", lock)
    (venv / install.MARKER).unlink()
    (venv / "bin" / "python").unlink()
    assert find_environment("a", lock) is None
    assert ensure_environment("a", lock) == venv
    assert (venv / "bin" / "python").exists()


def test_what_is_missing_is_named_with_the_command(lock: Path) -> None:
    with pytest.raises(HarnessError) as caught:
        ensure_environment("mini-swe-agent", lock, install=False)
    command = str(caught.value).rsplit("install it with: ", 1)[1]
    assert command == f"{sys.executable} -m armillary.harness.install mini-swe-agent {lock}"


def test_a_wrong_hash_is_refused_and_leaves_nothing_usable(lock: Path) -> None:
    lock.write_text(lock.read_text().split("sha256:")[0] + "sha256:" + "0" * 64 + "\n")
    with pytest.raises(HarnessError, match="installing a failed") as caught:
        ensure_environment("a", lock)
    assert "hash" in str(caught.value).lower()
    assert find_environment("a", lock) is None


def test_a_missing_lock_or_interpreter_is_named(lock: Path, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no-lock"):
        find_environment("a", tmp_path / "no-lock")
    with pytest.raises(HarnessError, match="not a Python interpreter"):
        find_environment("a", lock, Path("/bin/false"))
