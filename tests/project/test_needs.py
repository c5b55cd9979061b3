"""What is missing is told with its remedy, and tests that need it are skipped with that text."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from setup_machine import REPOSITORY

from armillary.cli.needs import missing_needs


def test_each_missing_thing_names_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ARMILLARY_CACHE", str(tmp_path))
    missing = missing_needs()
    assert "install" in missing["bwrap"]
    assert "bubblewrap" in missing["bwrap"]
    assert missing["mini"].endswith("make setup")
    assert missing["harbor"].endswith("make setup-test")


def test_a_sandbox_that_cannot_start_is_missing_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Permission denied" in missing_needs()["bwrap"]


def test_asking_does_not_import_torch() -> None:
    code = "import sys; from armillary.cli.needs import missing_needs; missing_needs(); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_test_is_skipped_with_the_same_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(REPOSITORY / "tests" / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "test_one.py").write_text(
        "import pytest\n\n@pytest.mark.needs_mini\ndef test_one(): assert False\n"
        "\n@pytest.mark.needs_learn\ndef test_two(): pass\n"
    )
    monkeypatch.setenv("ARMILLARY_CACHE", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-c", REPOSITORY / "pyproject.toml", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "make setup" in done.stdout
    assert "1 passed, 1 skipped" in done.stdout
