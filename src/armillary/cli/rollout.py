"""`armillary rollout`: attempts with the model of a run, or with the scripted teacher."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from armillary.capture.session import Policy
from armillary.chat.messages import AssistantTurn
from armillary.chat.raw import turn_ids
from armillary.cli.model import ModelFiles
from armillary.cli.output import Output
from armillary.cli.pipeline import latest_weights, open_pipeline
from armillary.cli.rig import Rig, build_tasks, model_files
from armillary.cli.runfile import RunFile
from armillary.cli.site import Site, open_site
from armillary.cli.workspace import Workspace
from armillary.engine.scripted import ScriptedEngine
from armillary.evaluate.attempts import AttemptResult
from armillary.evaluate.from_record import attempt_result
from armillary.record.calls import Sampling
from armillary.record.tokens import Ids, TokenSequence
from armillary.report.parquet import write_attempts
from armillary.tasks.folder import TaskSet
from armillary.tasks.protocol import DemonstrationStyle, TaskFamily
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


async def rollout(run: RunFile, output: Output, *, stage: str, count: int) -> list[AttemptResult]:
    """Attempts at tasks 0 .. `count` of the evaluation split, once each in every harness."""
    workspace = Workspace(run, output, measure_only=True)
    try:
        async with _opened(workspace) as rig:
            finished = await rig.evaluate(stage, run.eval.split, count)
    finally:
        workspace.close()
    results = [attempt_result(a.opened, a.outcome, a.facts, trained=False) for a in finished]
    _write(run.folder / "rollouts" / stage, results)
    return results


@asynccontextmanager
async def _opened(workspace: Workspace) -> AsyncIterator[Rig]:
    run = workspace.run
    if run.engine.name != "scripted":
        async with open_pipeline(workspace) as pipeline:
            await latest_weights(pipeline)
            yield pipeline.rig
        return
    family, tasks = build_tasks(workspace)
    async with open_site(workspace) as site:
        model = model_files(workspace, family, tasks, site)
        # The teacher is never cut short: its limit is the window, not the policy's.
        sampling = Sampling(max_tokens=run.engine.context, seed=run.seed)
        engine = ScriptedEngine(Teacher(site, model, family, tasks))
        policy = Policy(model.template, model.parser, engine, sampling)
        yield Rig(workspace, family, tasks, site, model, policy)


def _write(folder: Path, results: list[AttemptResult]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = b"".join(msgspec.json.encode(r) + b"\n" for r in results)
    (folder / "attempts.jsonl").write_bytes(lines)
    write_attempts(folder / "attempts.parquet", results)
