"""The commands that documents promise, and the script of continuous integration."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from setup_machine import REPOSITORY

PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "docs/installation.md")]


def targets() -> set[str]:
    text = (REPOSITORY / "Makefile").read_text()
    return set(re.findall(r"^([a-z][a-z-]*):", text, flags=re.M))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_command_in_a_page_exists(page: Path) -> None:
    named = set(re.findall(r"(?:`|^|\$ )make ([a-z-]+)", page.read_text(), flags=re.M))
    assert named
    assert named <= targets()


def test_the_readme_starts_with_two_commands() -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert "make quickstart" in text
    assert "make test" in text


def test_help_lists_every_target() -> None:
    shown = subprocess.run(
        ["make", "-C", str(REPOSITORY), "--no-print-directory"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert set(re.findall(r"make ([a-z-]+)", shown)) == targets()


def test_arguments_reach_the_quickstart() -> None:
    plan = subprocess.run(
        ["make", "-C", str(REPOSITORY), "-n", "quickstart", "ARGS=--seed 7"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert ".venv/bin/armillary quickstart --seed 7" in plan


@pytest.mark.parametrize(
    ("output", "status", "last"),
    [
        ("321 passed, 4 skipped in 61.20s (0:01:01)", 0, "321 passed, 4 skipped in 61.20s"),
        ("1 failed, 320 passed in 60.00s", 2, "1 failed, 320 passed in 60.00s"),
        ("=== 3 passed in 1.00s ===", 0, "=== 3 passed in 1.00s ==="),
        ("pyright: 1 error", 2, "no test ran"),
    ],
)
def test_ci_ends_with_the_summary_and_the_status(
    tmp_path: Path, output: str, status: int, last: str
) -> None:
    clone = tmp_path / "clone"
    (clone / ".ci").mkdir(parents=True)
    shutil.copy(REPOSITORY / ".ci" / "run", clone / ".ci" / "run")
    make = tmp_path / "make"
    make.write_text(f"#!/bin/sh\npwd\necho '{output}'\necho 'something after'\nexit {status}\n")
    make.chmod(0o755)
    done = subprocess.run(
        ["bash", str(clone / ".ci" / "run")],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "CI": "true"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert done.stdout.splitlines()[0] == str(clone)
    assert done.stdout.splitlines()[-1].startswith(last)


def test_the_architecture_page_names_real_files() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", text))
    named -= {"src/armillary/", "figures/", "eval/", "logs/", "model/"}
    assert len(named) > 15
    source = REPOSITORY / "src" / "armillary"
    assert not [name for name in sorted(named) if not (source / name).exists()]
