"""The run folder: what is in it, and which stages of a run are done.

    run.toml  stages.json  journal/run.journal  checkpoints/  metrics.jsonl  tasks/  model/
    eval/NAME/metrics.json  report.html  figures/  attempts.parquet  logs/

A run folder belongs to one effective configuration. Every stage leaves its mark after its results
are on disk; a second start skips marked stages and continues the open one.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from armillary.cli.output import Output
from armillary.cli.runfile import RunFile
from armillary.errors import ConfigError
from armillary.record.journal import Journal
from armillary.record.store import RunRecord, replay
from armillary.train.checkpoints import write_atomically

MARKS_FILE = "stages.json"


class Mark(msgspec.Struct, frozen=True):
    """A finished stage, or the time spent on one so far."""

    seconds: float
    done: bool = True


class Marks(msgspec.Struct):
    stages: dict[str, Mark] = {}
    cpu_seconds: float = 0.0
    """Processor time of all starts of this run, children included."""


class Workspace:
    """One open run folder."""

    def __init__(self, run: RunFile, output: Output, *, measure_only: bool = False) -> None:
        """Open or create the folder of `run`.

        `measure_only`: attempts are added to an existing run, which may have been trained with
        other settings than those asked for now.

        Raises:
            ConfigError: the folder holds a run with other settings.
            RecordError: another process has the run open.
        """
        self.run = run
        self.output = output
        self.folder = run.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (measure_only and (self.folder / "run.toml").exists()):
            self._claim()
        (self.folder / "logs").mkdir(exist_ok=True)
        self.journal = Journal(self.folder / "journal" / "run.journal")
        if self.journal.torn is not None:
            output.say(str(self.journal.torn))
        self.record: RunRecord = replay(self.journal.entries)
        self.journal.entries = []
        self._marks_file = self.folder / MARKS_FILE
        self.marks = read_marks(self.folder)
        self._earlier_cpu = self.marks.cpu_seconds
        self.sandbox_cpu = 0.0
        """Of sandboxes, which are no children of this process."""

    def close(self) -> None:
        self.save_marks()
        self.journal.close()

    def done(self, stage: str) -> bool:
        mark = self.marks.stages.get(stage)
        return mark is not None and mark.done

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage and mark it done at its end; an interrupted one keeps its seconds."""
        before = self.marks.stages.get(name, Mark(0.0, done=False)).seconds
        began = time.monotonic()
        done = False
        try:
            yield
            done = True
        finally:
            self.marks.stages[name] = Mark(before + time.monotonic() - began, done)
            self.save_marks()

    def save_marks(self) -> None:
        self.marks.cpu_seconds = self._earlier_cpu + self.sandbox_cpu + cpu_seconds()
        write_atomically(self._marks_file, msgspec.json.encode(self.marks))

    def _claim(self) -> None:
        file, text = self.folder / "run.toml", self.run.to_toml()
        if not file.exists():
            write_atomically(file, text.encode())
        elif file.read_text() != text:
            raise ConfigError(
                f"{self.folder} holds a run with other settings (see its run.toml); choose "
                "another --name, or delete the folder"
            )

    def path(self, name: str) -> Path:
        return self.folder / name


def read_marks(folder: Path) -> Marks:
    """The marks of the run in `folder`."""
    file = folder / MARKS_FILE
    return msgspec.json.decode(file.read_bytes(), type=Marks) if file.exists() else Marks()


def cpu_seconds() -> float:
    """Processor time of this process and its ended children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
