"""The lock files: complete, hashed, and silent about where packages come from."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setup_machine import REPOSITORY

NAMES = ("dev", "mini-swe-agent", "harbor")


def locked(name: str) -> dict[str, list[str]]:
    """Package -> its versions (platforms may differ), from `locks/NAME.txt`."""
    versions: dict[str, list[str]] = {}
    for line in (REPOSITORY / "locks" / f"{name}.txt").read_text().splitlines():
        if found := re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?==([^\s;]+)", line):
            versions.setdefault(canonicalize_name(found[1]), []).append(found[2])
    return versions


def asked(name: str) -> list[Requirement]:
    if name != "dev":
        lines = (REPOSITORY / "locks" / f"{name}.in").read_text().split()
    else:
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
        lines = [
            *project["project"]["dependencies"],
            *project["project"]["optional-dependencies"]["learn"],
            *project["dependency-groups"]["dev"],
            *project["build-system"]["requires"],
        ]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize("name", NAMES)
def test_every_requirement_is_locked_at_a_version_that_fits(name: str) -> None:
    versions = locked(name)
    for requirement in asked(name):
        found = versions.get(canonicalize_name(requirement.name))
        assert found, f"{requirement} is not in locks/{name}.txt; run: make lock"
        assert all(requirement.specifier.contains(v) for v in found), (
            f"{requirement} against {found} in locks/{name}.txt; run: make lock"
        )


@pytest.mark.parametrize("name", NAMES)
def test_every_locked_package_has_hashes(name: str) -> None:
    text = (REPOSITORY / "locks" / f"{name}.txt").read_text()
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.M)[1:]
    assert len(entries) > 20
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[0]


@pytest.mark.parametrize("name", NAMES)
def test_locks_hold_no_address_and_no_path(name: str) -> None:
    for line in (REPOSITORY / "locks" / f"{name}.txt").read_text().splitlines():
        assert "://" not in line
        assert " @ " not in line
        assert "--index-url" not in line
        assert "--find-links" not in line
        assert not re.search(r"\s/\w", line), line


def test_the_other_kind_of_lock_stays_out() -> None:
    assert "uv.lock" in (REPOSITORY / ".gitignore").read_text().split()
