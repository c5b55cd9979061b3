"""Rules of the source tree that no linter checks."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from setup_machine import REPOSITORY

SOURCE = REPOSITORY / "src" / "armillary"
MODULES = sorted(SOURCE.rglob("*.py"))
ROOMS = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))
MOST_LINES = 500

# In pieces, so that this file does not hold what it looks for.
FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.$}])/(?:" + "root|work|Users" + r")/\w",
    "the host of a package index": "|".join(
        (r"pypi\." + "org", "python" + "hosted", r"registry\.npm" + "js", r"deb\." + "debian")
    ),
}


@cache
def tracked() -> list[Path]:
    """Every file that is in version control, or would be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (path := REPOSITORY / name).is_file()]


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_says_what_it_is_and_stays_short(module: Path) -> None:
    text = module.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert ast.get_docstring(ast.parse(text)), "no module docstring"


def test_every_folder_of_modules_is_a_package() -> None:
    bare = {m.parent for m in MODULES if not (m.parent / "__init__.py").exists()}
    assert not bare


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_what_a_room_tells_to_read_first_exists(room: Path) -> None:
    doc = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    advice = doc.partition("Read first:")[2]
    for name in re.findall(r"`([a-z_]+)`(?! from)", advice):
        known = [room / f"{name}.py", room / name / "__init__.py"]
        assert any(path.exists() for path in known), f"{room.name} has no module {name}"


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found: list[str] = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if hit := pattern.search(line):
                found.append(f"{name_of(path)}:{number}: {hit[0]}")
    assert not found, "\n".join(found)


def test_every_test_module_has_a_name_of_its_own() -> None:
    """Test folders are no packages, so two modules of one name cannot be collected together."""
    modules = [p.name for p in tracked() if re.match(r"tests/.*\.py$", name_of(p))]
    twice = {name for name in modules if modules.count(name) > 1 and name != "conftest.py"}
    assert not twice
