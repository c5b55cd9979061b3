"""`armillary rollout`: attempts with the model of a run, or with the scripted teacher."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from armillary.capture.session import Policy
from armillary.chat.messages import AssistantTurn
from armillary.chat.raw import turn_ids
from armillary.cli.load import load_run
from armillary.cli.model import ModelFiles
from armillary.cli.output import Output
from armillary.cli.pipeline import latest_weights, open_pipeline
from armillary.cli.preflight import preflight, refuse_no_run
from armillary.cli.rig import Rig, build_tasks, model_files
from armillary.cli.runfile import NAME, RunFile
from armillary.cli.settings import refuse_other_attempts
from armillary.cli.site import Site, open_site
from armillary.cli.workspace import RUN_FILE, Workspace
from armillary.engine.scripted import ScriptedEngine
from armillary.errors import ConfigError
from armillary.evaluate.attempts import AttemptResult
from armillary.evaluate.from_record import attempt_result
from armillary.record.calls import Sampling
from armillary.record.tokens import Ids, TokenSequence
from armillary.report.parquet import write_attempts
from armillary.tasks.folder import TaskSet
from armillary.tasks.protocol import DemonstrationStyle, TaskFamily
from armillary.train.checkpoints import write_atomically
from armillary.train.demonstrations import demonstrate

PERFECT = DemonstrationStyle(careless=0.0, wrong_operation=0.0)
"""A teacher that looks first and takes the right operation."""


class Teacher:
    """Plays a perfect demonstration of whatever task a session is about."""

    def __init__(self, site: Site, model: ModelFiles, family: TaskFamily, tasks: TaskSet) -> None:
        self._site = site
        self._model = model
        self._family = family
        self._tasks = tasks
        self._replies: dict[str, list[Ids]] = {}

    def __call__(self, session: str, number: int, prompt: TokenSequence) -> Ids:
        if session not in self._replies:
            self._replies[session] = self._play(session)
        replies = self._replies[session]
        return replies[min(number, len(replies) - 1)]

    def _play(self, attempt: str) -> list[Ids]:
        # An attempt's name is STAGE/HARNESS/SPLIT/TASK#REPEAT.TRY, see `rollout.plan`.
        *_, harness, split, task = attempt.rpartition("#")[0].split("/")
        at = self._tasks.names(split).index(task)
        (found,) = self._tasks.load(split, at, 1)
        messages, _ = demonstrate(found, self._family, self._site.harnesses[harness], PERFECT, 0)
        turns = (
            AssistantTurn(str(m.content), tool_calls=m.tool_calls)
            for m in messages
            if m.role == "assistant"
        )
        return [turn_ids(self._model.template, turn) for turn in turns]


@dataclass(frozen=True, slots=True)
class Measured:
    """What came out of one measurement."""

    folder: Path
    results: list[AttemptResult]
    sandbox_cpu: float
    """Processor seconds of the sandboxes, which are no children of this process."""


async def rollout(run: RunFile, output: Output, *, stage: str, count: int) -> Measured:
    """Attempts at tasks 0 .. `count` of the evaluation split, once each in every harness.

    They are recorded under `STAGE@PLAYER`, where the player is `scripted` or the checkpoint that
    the weights come from. So the same command goes on with the same attempts, and after more
    training it makes new ones.

    Raises:
        ConfigError: `stage` is no name, there is no run to measure, or the player was measured
            under this stage with other settings.
    """
    if not re.match(NAME, stage):
        raise ConfigError(f"--stage {stage!r}: a name has letters, digits and . _ - only")
    if run.engine.name != "scripted":
        refuse_no_run(run.folder)
    preflight(run)
    workspace = Workspace(run, output, measure_only=True)
    try:
        async with _opened(workspace) as (rig, player):
            name = f"{stage}@{player}"
            folder = run.folder / "rollouts" / name
            _claim(folder, run)
            finished = await rig.evaluate(name, run.eval.split, count)
    finally:
        workspace.close()
    results = [attempt_result(a.opened, a.outcome, a.facts, trained=False) for a in finished]
    _write(folder, results)
    return Measured(folder, results, workspace.sandbox_cpu)


@asynccontextmanager
async def _opened(workspace: Workspace) -> AsyncIterator[tuple[Rig, str]]:
    """A rig, and who plays on it."""
    run = workspace.run
    if run.engine.name != "scripted":
        async with open_pipeline(workspace) as pipeline:
            trained = await latest_weights(pipeline)
            latest = pipeline.checkpoints(trained).latest()
            assert latest is not None
            yield pipeline.rig, f"{trained}-{latest.step:05d}"
        return
    family, tasks = build_tasks(workspace)
    async with open_site(workspace) as site:
        model = model_files(workspace, family, tasks, site)
        # The teacher is never cut short: its limit is the window, not the policy's.
        sampling = Sampling(max_tokens=run.engine.context, seed=run.seed)
        engine = ScriptedEngine(Teacher(site, model, family, tasks))
        policy = Policy(model.template, model.parser, engine, sampling)
        yield Rig(workspace, family, tasks, site, model, policy), "scripted"


def _claim(folder: Path, run: RunFile) -> None:
    """Keep the settings that a stage is measured with, or check them against those kept."""
    file = folder / RUN_FILE
    if file.exists():
        refuse_other_attempts(load_run(file, ()), run, str(folder))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, run.to_toml().encode())


def _write(folder: Path, results: list[AttemptResult]) -> None:
    lines = b"".join(msgspec.json.encode(r) + b"\n" for r in results)
    write_atomically(folder / "attempts.jsonl", lines)
    write_attempts(folder / "attempts.parquet", results)
