"""The data family: read a file, run commands, write the answer to `/workdir/answer.txt`.

Builds Harbor task folders in three splits. The splits are disjoint by question (and so by
instruction) and by table: a question's own hash decides its split, and every table has its own
seed. So a task of the test split can have no twin in training.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from importlib.resources import files
from itertools import count
from pathlib import Path

import tomli_w

from armillary.errors import TaskError
from armillary.tasks.data import demonstrations
from armillary.tasks.data.labbook import Labbook, draw
from armillary.tasks.folder import Task, TaskSet
from armillary.tasks.protocol import Demonstration, DemonstrationStyle, RunCommand

HOW_TO_ANSWER = (
    "The table is a CSV file in /workdir. The command `agg FILE OP COLUMN CATEGORY VALUE` prints "
    "the mean, max, min, sum or count of COLUMN over the rows where CATEGORY is VALUE. "
    "Write only the value, as agg prints it, to /workdir/answer.txt ."
)
"""The part of the instruction that all tasks share."""

COMPLETE, BUILDING = "complete.txt", "building.txt"
"""Files that mark a finished task set and one being built."""
_BUILDING_TEXT = "An unfinished task set: build it again or delete this folder.\n"
_STAMP = re.compile(r"data \d+ seed ")
"""How the text of `COMPLETE` begins, in every version; the rest says which task set it is."""
_PREFIX = "labbook-"
"""How the names of task folders begin."""

_SHARES = {"test": 3, "validation": 1}
"""Of 20 questions, how many belong to a split; the rest is training."""


class DataFamily:
    """Labbook tables."""

    name: str = "data"

    def build(self, root: Path, *, train: int, validation: int, test: int, seed: int) -> TaskSet:
        wanted = {"train": train, "validation": validation, "test": test}
        done = root / COMPLETE
        stamp = f"data 1 seed {seed} {wanted}\n"
        if done.exists() and done.read_text() == stamp:
            return TaskSet(root)
        _clear(root)
        counts = dict.fromkeys(wanted, 0)
        for number in count(seed * 1_000_003):
            if counts == wanted:
                break
            book = draw(number)
            split = split_of(book.question)
            if counts[split] < wanted[split]:
                write_task(root / split / f"{_PREFIX}{counts[split]:05d}", book)
                counts[split] += 1
        done.write_text(stamp)
        (root / BUILDING).unlink()
        return TaskSet(root)

    def demonstrate(self, task: Task, style: DemonstrationStyle, seed: int) -> Demonstration:
        return demonstrations.demonstrate(_book(task), style, seed)

    def phrases(self) -> tuple[str, ...]:
        return ("What is the ", f"\n{HOW_TO_ANSWER}", *demonstrations.PHRASES)

    def emulate(self, task: Task) -> RunCommand:
        return demonstrations.EmulatedShell(_book(task)).run


def split_of(question: str) -> str:
    """The split a question belongs to, for ever."""
    ticket = hashlib.blake2b(question.encode(), digest_size=4).digest()[0] % 20
    for split, share in _SHARES.items():
        if ticket < share:
            return split
        ticket -= share
    return "train"


def _clear(root: Path) -> None:
    """An empty `root`, marked as ours; what an interrupted or other build left is removed.

    Raises:
        TaskError: there is something in it that no build of this family wrote.
    """
    root.mkdir(parents=True, exist_ok=True)
    found = sorted(root.iterdir())
    foreign = [str(inner.relative_to(root)) for path in found for inner in _foreign(path)]
    marked = not found or any(path.name in (COMPLETE, BUILDING) for path in found)
    if foreign or not marked:
        what = f"it holds {foreign[0]}" if foreign else "it has no mark of a build"
        raise TaskError(
            f"{root} is not empty and is no task set of this family ({what}); "
            "name a folder that does not exist yet"
        )
    # The mark comes first and stays to the end, so a build cut short at any point can be redone.
    (root / BUILDING).write_text(_BUILDING_TEXT)
    for path in found:
        if path.name != BUILDING:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _foreign(path: Path) -> list[Path]:
    """What no build wrote, of an entry of a task set's folder."""
    if path.name in ("train", *_SHARES) and path.is_dir() and not path.is_symlink():
        return sorted(inner for inner in path.iterdir() if not inner.name.startswith(_PREFIX))
    if path.name not in (COMPLETE, BUILDING) or path.is_symlink() or not path.is_file():
        return [path]
    text = path.read_bytes()[:200].decode(errors="replace")
    # Writing the mark may itself have been cut short.
    ours = _BUILDING_TEXT.startswith(text) if path.name == BUILDING else _STAMP.match(text)
    return [] if ours else [path]


def write_task(folder: Path, book: Labbook) -> None:
    """Write one Harbor task folder."""
    shared = files("armillary.tasks.data") / "files"
    contents = {
        "task.toml": tomli_w.dumps(_config(folder.name, book)),
        "instruction.md": f"{book.question}\n{HOW_TO_ANSWER}\n",
        f"environment/input/{book.file}": book.csv,
        "solution/solve.sh": (
            f"#!/bin/sh\ncd /workdir && agg {book.file} {book.operation} {book.column} "
            f"{book.category} {book.value} > answer.txt\n"
        ),
        "environment/Dockerfile": (shared / "Dockerfile").read_text(),
        "environment/agg": (shared / "agg").read_text(),
        "tests/test.sh": (shared / "test.sh").read_text(),
        "tests/grader.awk": (shared / "grader.awk").read_text(),
    }
    for sub in ("environment/input", "tests", "solution"):
        (folder / sub).mkdir(parents=True)
    for name, text in contents.items():
        (folder / name).write_text(text)


def _config(name: str, book: Labbook) -> dict[str, object]:
    return {
        "schema_version": "1.4",
        "task": {"name": f"armillary/{name}", "description": "One aggregate of a small table."},
        "metadata": {
            "family": "data", "difficulty": "easy", "source": "labbook", "seed": book.seed,
        },
        "agent": {"timeout_sec": 300.0},
        "verifier": {"timeout_sec": 60.0, "env": {"EXPECTED_ANSWER": book.answer}},
        "environment": {
            "network_mode": "no-network", "workdir": "/workdir", "cpus": 1, "memory_mb": 1024,
            "storage_mb": 64,
        },
    }  # fmt: skip


def _book(task: Task) -> Labbook:
    return draw(int(task.metadata["seed"]))
