"""What documents point at is there: links, files of the map, commands of the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from setup_machine import REPOSITORY

from armillary.cli.verbs import app, tasks_app

PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
SOURCE = REPOSITORY / "src" / "armillary"
README = (REPOSITORY / "README.md").read_text()


def anchors(page: Path) -> set[str]:
    """The names that a page's headings can be linked by."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    missing: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert not missing


def test_the_map_names_files_that_exist() -> None:
    rows = re.findall(r"^\| `([a-z]+/)` \|[^|]*\|([^|]*)\|$", README, re.M)
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert {room.rstrip("/") for room, _ in rows} == rooms
    for room, files in rows:
        for name in re.findall(r"`([^`]+)`", files):
            assert (SOURCE / room / name).exists(), f"{room}{name}"


def test_the_map_has_every_folder_of_the_repository() -> None:
    table = README.partition("| folder |")[2].partition("\n\n")[0]
    columns = [line.split("|")[1] for line in table.splitlines()[1:]]
    named = {name for first in columns for name in re.findall(r"`([.a-z]+)/", first)} | {"src"}
    shown = {path.name for path in REPOSITORY.iterdir() if path.is_dir()}
    # What version control and tools keep for themselves.
    kept = {name for name in shown if not name.startswith(".") or name == ".ci"}
    assert kept - {"runs", "dist", "tasks", "models", "shared"} == named


def test_every_verb_of_the_readme_exists() -> None:
    verbs = set(re.findall(r"`armillary ([a-z]+)", README))
    assert {"quickstart", "rollout", "train", "eval"} <= verbs
    for verb in verbs:
        assert verb in app
    for verb in re.findall(r"`([a-z]+)`", README.partition("`armillary tasks build`")[2][:40]):
        assert verb in tasks_app


def test_registries_that_documents_name_exist() -> None:
    for page in ("CONTRIBUTING.md", "docs/architecture.md"):
        text = (REPOSITORY / page).read_text()
        for name in re.findall(r"`([a-z_/]+/registry\.py)`", text):
            assert (SOURCE / name).exists(), name
    known = {path.parent.name for path in SOURCE.rglob("registry.py")}
    for module in SOURCE.rglob("*.py"):
        named = set(re.findall(r"`([a-z]+)\.registry`", module.read_text()))
        assert named <= known, f"{module} names a registry that does not exist"
