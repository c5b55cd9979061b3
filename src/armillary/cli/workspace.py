"""The run folder: what is in it, and which stages of a run are done.

    run.toml  stages.json  journal/run.journal  checkpoints/  metrics.jsonl  tasks/  model/
    eval/NAME/metrics.json  rollouts/NAME/  report.html  figures/  attempts.parquet  logs/

A run folder belongs to one configuration (`cli.settings` says what may still change). Every stage
leaves its mark after its results are on disk; a second start skips marked stages and continues the
open one. What a run costs is written every few seconds, so a kill loses no more than that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from armillary.cli.load import load_run
from armillary.cli.meter import Meter
from armillary.cli.output import Output
from armillary.cli.runfile import RunFile
from armillary.cli.settings import Difference, bound, differences, refuse_other_weights
from armillary.errors import ConfigError, RecordError
from armillary.record.journal import Journal
from armillary.record.store import RunRecord, replay
from armillary.train.checkpoints import write_atomically

MARKS_FILE, RUN_FILE = "stages.json", "run.toml"
BEAT_SECONDS = 2.0
"""Between two writings of what the run has cost so far."""
LAST_STAGE = "report"
"""Once it is done the run is over: later starts cost it nothing."""


class Mark(msgspec.Struct, frozen=True):
    """A finished stage, or the time spent on one so far."""

    seconds: float
    """Wall clock, that of stages within it left out."""
    done: bool = True


class Marks(msgspec.Struct):
    stages: dict[str, Mark] = {}
    seconds: float = 0.0
    """Wall clock of all starts of this run, from process start to process end."""
    cpu_seconds: float = 0.0
    """Processor time of the same, children included."""

    def done(self, stage: str) -> bool:
        mark = self.stages.get(stage)
        return mark is not None and mark.done

    def begun(self, stage: str) -> bool:
        return stage in self.stages


@dataclass(slots=True)
class _Open:
    """A stage that is going on."""

    name: str
    earlier: float
    """Seconds of former starts."""
    began: float
    within: float = 0.0
    """Seconds of stages inside it."""

    def mark(self, *, done: bool) -> Mark:
        return Mark(self.earlier + time.monotonic() - self.began - self.within, done)


class Workspace:
    """One open run folder."""

    def __init__(
        self,
        run: RunFile,
        output: Output,
        *,
        measure_only: bool = False,
        meter: Meter | None = None,
    ) -> None:
        """Open or create the folder of `run`.

        `measure_only`: attempts are added to an existing run, whose settings and costs stay as they
        are. `meter`: what this start has cost so far; by default it starts now.

        Raises:
            ConfigError: the folder holds a run with other settings, or other weights.
            RecordError: another process has the run open.
        """
        self.run = run
        self.output = output
        self.folder = run.folder
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        self.journal = Journal(self.folder / "journal" / "run.journal")
        try:
            self.marks = read_marks(self.folder)
            self._claim(measure_only=measure_only)
            if self.journal.torn is not None:
                output.say(str(self.journal.torn))
            self.record: RunRecord = replay(self.journal.entries)
        except BaseException:
            self.journal.close()
            raise
        self.journal.entries = []
        self.sandbox_cpu = 0.0
        """Of sandboxes, which are no children of this process."""
        self._meter = meter or Meter.from_now()
        self._earlier = (self.marks.seconds, self.marks.cpu_seconds)
        self._counts = not (measure_only or self.done(LAST_STAGE))
        self._open: list[_Open] = []
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="run costs", daemon=True)
        self._beats.start()

    def close(self) -> None:
        self._closed.set()
        self._beats.join()
        try:
            self.save_marks()
        finally:
            self.journal.close()

    def done(self, stage: str) -> bool:
        return self.marks.done(stage)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage and mark it done at its end; an interrupted one keeps its seconds.

        Raises:
            RecordError: the mark cannot be written.
        """
        if not self._counts and self.done(name):
            yield
            return
        with self._lock:
            earlier = self.marks.stages.get(name, Mark(0.0)).seconds
            own = _Open(name, earlier, time.monotonic())
            self._open.append(own)
        self.save_marks()
        try:
            yield
        except BaseException:
            self._end(own, done=False)
            # The fault that ends the stage is the one to tell of.
            with suppress(RecordError):
                self.save_marks()
            raise
        self._end(own, done=True)
        self.save_marks()

    def save_marks(self) -> None:
        """
        Raises:
            RecordError: the disk does not take them.
        """
        with self._lock:
            if self._counts:
                seconds, cpu = self._earlier
                self.marks.seconds = seconds + self._meter.seconds
                self.marks.cpu_seconds = cpu + self._meter.cpu_seconds + self.sandbox_cpu
            for own in self._open:
                self.marks.stages[own.name] = own.mark(done=False)
            write_atomically(self.folder / MARKS_FILE, msgspec.json.encode(self.marks))

    def path(self, name: str) -> Path:
        return self.folder / name

    def _end(self, own: _Open, *, done: bool) -> None:
        with self._lock:
            self._open.remove(own)
            self.marks.stages[own.name] = own.mark(done=done)
            if self._open:
                self._open[-1].within += time.monotonic() - own.began

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            # A mark that matters is written by the stage itself, which tells of a full disk.
            with suppress(RecordError):
                self.save_marks()

    def _claim(self, *, measure_only: bool) -> None:
        file = self.folder / RUN_FILE
        if file.exists():
            kept = load_run(file, ())
            if measure_only:
                refuse_other_weights(kept, self.run, str(self.folder))
                return
            changed = differences(kept, self.run)
            self._refuse(bound(changed, self.marks.begun))
            if not changed:
                return
        write_atomically(file, self.run.to_toml().encode())

    def _refuse(self, found: Sequence[Difference]) -> None:
        if found:
            raise ConfigError(
                f"{self.folder} holds a run with other settings:\n"
                + "".join(f"  {difference}\n" for difference in found)
                + "ask for the same ones, choose another --name, or delete the folder"
            )


def read_marks(folder: Path) -> Marks:
    """The marks of the run in `folder`; none where there is no run."""
    file = folder / MARKS_FILE
    return msgspec.json.decode(file.read_bytes(), type=Marks) if file.exists() else Marks()
