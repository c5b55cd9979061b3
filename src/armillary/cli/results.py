"""What a run folder holds, as results: flat attempts, curves, example transcripts, the report.

Everything is read back from the journal and the metrics file, so a report says what is recorded,
not what a process remembered, and can be made again at any time.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

import armillary
from armillary.chat.messages import AssistantTurn, Message, text_of
from armillary.cli.runfile import TINY, RunFile
from armillary.cli.workspace import Marks, read_marks
from armillary.errors import ConfigError
from armillary.evaluate.attempts import AttemptResult
from armillary.evaluate.from_record import attempt_result
from armillary.evaluate.statistics import by_harness, pass_at_1, select, stage_order
from armillary.evaluate.summary import Summary, summarise
from armillary.record.journal import read_journal
from armillary.record.outcomes import Graded
from armillary.record.store import AttemptRecord, RunRecord, replay
from armillary.report.build import build_report
from armillary.report.data import (
    ReportData,
    Transcript,
    Turn,
    ValidationPoint,
    training_point,
)
from armillary.train.checkpoints import write_atomically
from armillary.train.tracker import read_metrics

TINY_NOTES = (
    "The model is a toy: about half a million parameters, made from a seed on this machine, with "
    "a vocabulary of its own. It can do this one kind of task and nothing else.",
    "Copy warm-up is a pretraining stage on random ids: it teaches copying, not the task. The "
    "stage called base is the model right after it.",
    "Demonstrations are scripted and careless on purpose; a model that imitates them is right "
    "about a third of the time.",
)
TRANSCRIPT_CHARACTERS = 1500
"""Of one turn; longer ones are cut and say so."""


class RunResults:
    """A run folder, read."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            ConfigError: there is no run in `folder`.
        """
        journal = folder / "journal" / "run.journal"
        if not journal.exists():
            raise ConfigError(f"{folder} holds no run (there is no {journal})")
        self.folder = folder
        self.record: RunRecord = replay(read_journal(journal).entries)
        trained = {name for update in self.record.updates for name in update.attempts}
        self.attempts: list[AttemptResult] = [
            attempt_result(a.opened, a.closed.outcome, a.closed.facts, trained=name in trained)
            for name, a in self.record.attempts.items()
            if a.closed is not None
        ]

    @property
    def marks(self) -> Marks:
        """As they are on disk now: an open run is still counting what it costs."""
        return read_marks(self.folder)

    def summary(self, run: RunFile, stages: Collection[str] | None = None) -> Summary:
        """The run in one small object. `stages`: only those; by default all."""
        marks = self.marks
        chosen = [a for a in self.attempts if stages is None or a.stage in stages]
        return summarise(
            chosen, seed=run.seed, seconds=marks.seconds, cpu_seconds=marks.cpu_seconds,
            report=self.folder / "report.html", split=run.eval.split,
        )  # fmt: skip

    def write(self, run: RunFile) -> Path:
        """Write report, figures, Parquet and the evaluations' metrics; the page's path."""
        self._write_evaluations(run)
        return build_report(self.folder, self._report_data(run))

    def _report_data(self, run: RunFile) -> ReportData:
        points = read_metrics(self.folder / "metrics.jsonl")
        marks = self.marks
        return ReportData(
            name=self.folder.name,
            seed=run.seed,
            attempts=self.attempts,
            split=run.eval.split,
            model=self._model_facts(run),
            config=run.model_dump(mode="json"),
            versions=_versions(),
            stage_seconds={name: mark.seconds for name, mark in marks.stages.items()},
            seconds=marks.seconds,
            cpu_seconds=marks.cpu_seconds,
            curve=[training_point(int(p["step"]), p) for p in points],
            validation=self._validation(),
            notes=list(TINY_NOTES) if run.model == TINY else [],
            transcripts=list(self._transcripts()),
        )

    def _model_facts(self, run: RunFile) -> dict[str, object]:
        if run.model != TINY:
            return {"model": run.model, "revision": run.revision}
        facts: dict[str, object] = {
            "kind": "tiny (LFM2: one short convolution, one attention layer)"
        }
        weights, config = (self.folder / "model" / n for n in ("model.safetensors", "config.json"))
        # A run that was stopped early, or played by a script, has made no weights.
        if weights.exists() and config.exists():
            known = msgspec.json.decode(config.read_bytes(), type=dict[str, Any])
            facts["parameters"] = weights.stat().st_size // 4
            facts["vocabulary"] = known["real_vocab_size"]
            facts["hidden size"] = known["hidden_size"]
        return facts

    def _validation(self) -> list[ValidationPoint]:
        points: list[ValidationPoint] = []
        for stage in stage_order(self.attempts):
            kind, _, step = stage.partition("/")
            if kind != "validation":
                continue
            rates = {
                name: pass_at_1(own)
                for name, own in by_harness(select(self.attempts, stage, "validation")).items()
            }
            points.append(
                ValidationPoint(
                    step=int(step),
                    pass_at_1={h: r.estimate.point for h, r in rates.items() if r.estimate},
                    graded={h: r.graded for h, r in rates.items()},
                )
            )
        return sorted(points, key=lambda p: p.step)

    def _transcripts(self) -> Iterable[Transcript]:
        """Per harness: one failure before reinforcement learning, one success after it."""
        for harness in sorted({a.harness for a in self.attempts}):
            for stage, wanted in (("sft", False), ("grpo", True)):
                found = self._example(f"eval/{stage}", harness, wanted)
                if found is not None:
                    yield Transcript(
                        title=found.opened.task, harness=harness, stage=stage, correct=wanted,
                        turns=tuple(_turns(found)),
                    )  # fmt: skip

    def _example(self, stage: str, harness: str, correct: bool) -> AttemptRecord | None:
        for attempt in self.record.finished().values():
            opened, closed = attempt.opened, attempt.closed
            if opened.stage != stage or opened.harness != harness or closed is None:
                continue
            if isinstance(closed.outcome, Graded) and closed.outcome.correct == correct:
                return attempt
        return None

    def _write_evaluations(self, run: RunFile) -> None:
        """`eval/NAME/metrics.json` and `trajectories.jsonl` of every evaluation."""
        for stage in stage_order(self.attempts):
            own = [a for a in self.attempts if a.stage == stage and a.split != "train"]
            if not own:
                continue
            folder = self.folder / "eval" / stage
            folder.mkdir(parents=True, exist_ok=True)
            summary = summarise(
                own, seed=run.seed, seconds=0.0, cpu_seconds=0.0, report=folder,
                split=own[0].split,
            )  # fmt: skip
            write_atomically(folder / "metrics.json", msgspec.json.encode(summary.stages))
            lines = [
                msgspec.json.encode(
                    {"result": a, "turns": list(_turns(self.record.attempts[a.attempt_id]))}
                )
                for a in own
            ]
            write_atomically(folder / "trajectories.jsonl", b"\n".join(lines) + b"\n")


class _Request(msgspec.Struct):
    messages: tuple[Message, ...]


def _turns(attempt: AttemptRecord) -> Iterable[Turn]:
    """What was said, in order of the calls: new messages, then the reply."""
    for call in attempt.calls:
        for message in msgspec.json.decode(call.request, type=_Request).messages:
            yield Turn(message.role, _cut(text_of(message.content)))
        reply = msgspec.json.decode(call.response, type=AssistantTurn)
        calls = [f"{c.name} {c.arguments}" for c in reply.tool_calls]
        yield Turn("assistant", _cut("\n".join([reply.content, *calls]).strip()))


def _cut(text: str) -> str:
    if len(text) <= TRANSCRIPT_CHARACTERS:
        return text
    half = TRANSCRIPT_CHARACTERS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("torch", "transformers", "tokenizers", "numpy"):
        # Reports are also written where nothing is trained.
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return {"armillary": armillary.__version__, "python": platform.python_version(), **found}
