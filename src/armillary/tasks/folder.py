"""Harbor task folders: what is in one, read and checked.

    NAME/task.toml  instruction.md  environment/Dockerfile  tests/test.sh  [solution/solve.sh]

Format: Harbor 0.26, schema 1.4. The expected answer is in `[verifier.env]`, so no file that an
agent can see holds it. A split is a folder of task folders; a task set is a folder of splits.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from armillary.errors import TaskError

REQUIRED = ("task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh")


@dataclass(frozen=True, slots=True)
class Task:
    """One task, read once."""

    id: str
    """`split/name`, unique in its task set."""
    folder: Path
    instruction: str
    verifier_env: Mapping[str, str]
    """Environment of the verifier only; holds the expected answer."""
    verifier_seconds: float
    metadata: Mapping[str, Any]

    @property
    def split(self) -> str:
        return self.id.partition("/")[0]

    @property
    def environment(self) -> Path:
        """The folder an image would be built from."""
        return self.folder / "environment"

    def tests(self) -> dict[str, bytes]:
        """The verifier's files: name below `tests/` -> bytes."""
        root = self.folder / "tests"
        files = sorted(p for p in root.rglob("*") if p.is_file())
        return {str(p.relative_to(root)): p.read_bytes() for p in files}


def load_task(folder: Path, *, split: str = "") -> Task:
    """Read and check one task folder.

    Raises:
        TaskError: a file is missing or `task.toml` is malformed; names file and folder.
    """
    missing = [name for name in REQUIRED if not (folder / name).is_file()]
    if missing:
        raise TaskError(f"task folder {folder} lacks {', '.join(missing)}")
    try:
        config = tomllib.loads((folder / "task.toml").read_text())
        instruction = (folder / "instruction.md").read_text().strip()
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{folder / 'task.toml'}: {error}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{folder}: task.toml and instruction.md must be UTF-8: {error}") from error
    verifier = _table(config, "verifier", folder)
    env = _table(verifier, "env", folder)
    return Task(
        id=f"{split or folder.parent.name}/{folder.name}",
        folder=folder,
        instruction=instruction,
        verifier_env={k: str(v) for k, v in env.items()},
        verifier_seconds=_seconds(verifier, folder),
        metadata=_table(config, "metadata", folder),
    )


def _seconds(verifier: Mapping[str, Any], folder: Path) -> float:
    value = verifier.get("timeout_sec", 600)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise TaskError(
            f"{folder / 'task.toml'}: `verifier.timeout_sec` must be a number of seconds above 0, "
            f"not {value!r}"
        )
    return float(value)


def _table(parent: Mapping[str, Any], name: str, folder: Path) -> dict[str, Any]:
    value = parent.get(name, {})
    if not isinstance(value, dict):
        raise TaskError(f"{folder / 'task.toml'}: `{name}` must be a table")
    return value


class TaskSet:
    """The splits under one folder; tasks are read when asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def splits(self) -> list[str]:
        """Names of the splits, sorted.

        Raises:
            TaskError: there is no such folder.
        """
        if not self.root.is_dir():
            raise TaskError(f"there is no task set at {self.root}")
        return sorted(p.name for p in self.root.iterdir() if p.is_dir())

    def names(self, split: str) -> list[str]:
        """Task names of a split, sorted.

        Raises:
            TaskError: there is no such split.
        """
        folder = self.root / split
        if not folder.is_dir():
            known = ", ".join(self.splits()) if self.root.is_dir() else "none"
            raise TaskError(f"{self.root} has no split {split!r} (it has: {known})")
        return sorted(p.name for p in folder.iterdir() if p.is_dir())

    def load(self, split: str, first: int = 0, count: int | None = None) -> list[Task]:
        """Tasks `first` .. `first + count` of a split.

        Raises:
            TaskError: the split has fewer, or one of them is broken.
        """
        names = self.names(split)
        stop = len(names) if count is None else first + count
        if stop > len(names):
            raise TaskError(
                f"split {split!r} of {self.root} has {len(names)} tasks, {stop} are needed"
            )
        return [load_task(self.root / split / n, split=split) for n in names[first:stop]]
