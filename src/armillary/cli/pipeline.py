"""The training stages of a run, each of which can be skipped, resumed and timed.

Warm-up, SFT and GRPO on top of a rig, with the model process that they share. Verbs choose which
stages they run, and in which order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from armillary.capture.session import Policy
from armillary.cli.rig import Rig, build_tasks, model_files
from armillary.cli.runfile import TINY, RunFile
from armillary.cli.site import open_site
from armillary.cli.workspace import Workspace
from armillary.engine.local.client import LocalEngine
from armillary.errors import ConfigError
from armillary.evaluate.from_record import attempt_result
from armillary.evaluate.statistics import by_harness, pass_at_1
from armillary.record.calls import Sampling
from armillary.record.codec import UpdateApplied
from armillary.record.rows import TrainingRow
from armillary.rollout.plan import GroupPlan, training_groups
from armillary.rollout.scheduler import Scheduler
from armillary.tasks.folder import Task
from armillary.tasks.protocol import DemonstrationStyle
from armillary.train.checkpoints import Checkpoints
from armillary.train.demonstrations import demonstrate, demonstration_row
from armillary.train.local.client import LocalLearner, start_learner
from armillary.train.loop import LoopSettings, TrainingLoop
from armillary.train.protocol import Optimizer, PolicyLoss
from armillary.train.tracker import JsonlTracker, Tracker

CHUNK = 50
"""Updates of warm-up and SFT between two checkpoints."""

Chunk = Callable[[int, int], Awaitable[Mapping[str, float]]]
"""(first update, count) -> metrics."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A rig with a learner."""

    rig: Rig
    learner: LocalLearner

    @property
    def run(self) -> RunFile:
        return self.rig.run

    @property
    def workspace(self) -> Workspace:
        return self.rig.workspace

    async def load(self, checkpoints: Checkpoints) -> int:
        """Load the latest checkpoint, if any; the updates it holds."""
        latest = checkpoints.latest()
        if latest is None:
            return 0
        await self.learner.load(checkpoints.root / latest.folder)
        return latest.step

    def checkpoints(self, stage: str) -> Checkpoints:
        return Checkpoints(self.workspace.path("checkpoints") / stage)

    async def warm_up(self) -> None:
        steps = self.run.sft.warmup_steps
        optimizer = Optimizer(self.run.sft.lr, 0)

        async def chunk(first: int, count: int) -> dict[str, float]:
            return await self.learner.warm_up(
                first=first, steps=count, optimizer=optimizer, seed=self.run.seed
            )

        await self._in_chunks("warmup", "copy warm-up", steps, chunk)

    async def sft(self) -> None:
        sft = self.run.sft
        if self.workspace.done("sft"):
            return
        # In a thread, so that Ctrl-C is heard while thousands are played.
        rows = await asyncio.to_thread(self.demonstrations)
        optimizer = Optimizer(sft.lr, sft.steps, weight_decay=sft.weight_decay)

        async def chunk(first: int, count: int) -> dict[str, float]:
            return await self.learner.supervised(
                rows, first=first, steps=count, batch=sft.batch, optimizer=optimizer,
                seed=self.run.seed,
            )  # fmt: skip

        await self._in_chunks("sft", "SFT on demonstrations", sft.steps, chunk)

    def demonstrations(self) -> list[TrainingRow]:
        """Scripted demonstrations of the first training tasks, in every harness."""
        sft = self.run.sft
        style = DemonstrationStyle(sft.careless, sft.wrong_operation)
        tasks = self.rig.tasks.load("train", 0, sft.demonstrations)
        rows: list[TrainingRow] = []
        with (
            self.workspace.stage("demonstrations"),
            self.workspace.output.stage("demonstrations", len(tasks)) as progress,
        ):
            for task in tasks:
                rows += [self._demonstration(task, name, style) for name in self.rig.site.harnesses]
                progress.advance()
        return rows

    async def grpo(self) -> None:
        """Reinforcement learning from the SFT weights, or from the last checkpoint."""
        run, train = self.run, self.run.train
        checkpoints = self.checkpoints("grpo")
        first = await self.load(checkpoints)
        await self._restore_update(checkpoints)
        tasks = await asyncio.to_thread(self._training_tasks)
        scheduler = self.rig.scheduler()
        tracker = JsonlTracker(self.workspace.path("metrics.jsonl"))
        settings = LoopSettings(
            train.steps,
            Optimizer(train.lr, 0, warmup_steps=0),
            PolicyLoss(train.clip_low, train.clip_high, run.rollout.temperature),
            normalisation=train.normalisation, max_staleness=train.max_staleness,
            checkpoint_every=train.checkpoint_every,
        )  # fmt: skip
        loop = TrainingLoop(
            settings, lambda step: self._plan_step(step, tasks), scheduler, self.learner,
            checkpoints, self.workspace.journal, tracker, version=await self.learner.publish(),
        )  # fmt: skip
        with (
            self.workspace.stage("grpo"),
            self.workspace.output.stage("GRPO", train.steps) as progress,
        ):
            progress.advance(first)
            await loop.run(
                first,
                on_step=lambda _, values: progress.advance(note=_step_note(values)),
                after_update=lambda step: self._validate(step, scheduler, tracker),
            )
        tracker.close()

    async def _validate(self, step: int, scheduler: Scheduler, tracker: Tracker) -> None:
        """Measure on the validation split every so many updates, but not after the last."""
        settings = self.run.eval
        every, count = settings.validation_every, settings.validation_tasks
        if not (every and count) or step % every or step >= self.run.train.steps:
            return
        plans = self.rig.evaluation_plans(f"validation/{step:04d}", "validation", count)
        groups = await scheduler.run_groups(plans)
        results = [
            attempt_result(a.opened, a.outcome, a.facts, trained=False)
            for group in groups
            for a in group.tries
        ]
        values: dict[str, float] = {}
        for name, own in by_harness(results).items():
            rate = pass_at_1(own)
            if rate.estimate is not None:
                values[f"eval/pass_at_1/{name}"] = rate.estimate.point
            values[f"eval/graded/{name}"] = rate.graded
            values[f"eval/total/{name}"] = rate.total
        tracker.log(step, values)

    def _training_tasks(self) -> list[Task]:
        """Those that no demonstration showed."""
        first = self.run.sft.demonstrations
        return self.rig.tasks.load("train", first, self.run.tasks.train - first)

    def _plan_step(self, step: int, tasks: Sequence[Task]) -> Sequence[GroupPlan]:
        rollout = self.run.rollout
        groups = {h: n for h, n in rollout.groups.items() if h in self.rig.site.harnesses}
        return training_groups(step, tasks, groups, rollout.group_size)

    async def _restore_update(self, checkpoints: Checkpoints) -> None:
        """Tell the journal of a committed update that a kill kept out of it."""
        latest = checkpoints.latest()
        known = {update.step for update in self.workspace.record.updates}
        if latest is not None and latest.step not in known:
            entry = UpdateApplied(latest.step, latest.version, latest.attempts)
            self.workspace.record.updates.append(entry)
            await self.workspace.journal.append(entry)

    async def _in_chunks(self, stage: str, title: str, steps: int, chunk: Chunk) -> None:
        """Updates in chunks, a checkpoint after each."""
        if self.workspace.done(stage) or steps == 0:
            return
        checkpoints = self.checkpoints(stage)
        done = await self.load(checkpoints)
        tracker = JsonlTracker(self.workspace.path(f"{stage}.jsonl"))
        with (
            self.workspace.stage(stage),
            self.workspace.output.stage(title, steps) as progress,
        ):
            progress.advance(done)
            while done < steps:
                count = min(CHUNK, steps - done)
                values = await chunk(done, count)
                done += count
                await self.learner.save(checkpoints.folder(done))
                await asyncio.to_thread(checkpoints.commit, done)
                tracker.log(done, values)
                progress.advance(count)
            await self.learner.publish()
        tracker.close()

    def _demonstration(self, task: Task, harness: str, style: DemonstrationStyle) -> TrainingRow:
        messages, flow = demonstrate(
            task, self.rig.family, self.rig.site.harnesses[harness], style, self.run.seed
        )
        name = f"demonstration/{harness}/{task.id}"
        return demonstration_row(
            messages, flow, self.rig.model.template, name=name, harness=harness
        )


async def latest_weights(pipeline: Pipeline) -> str:
    """Load the most trained weights the run has; the stage they come from.

    Raises:
        ConfigError: the run has trained nothing yet.
    """
    for stage in ("grpo", "sft", "warmup"):
        if await pipeline.load(pipeline.checkpoints(stage)):
            return stage
    raise ConfigError(
        f"{pipeline.workspace.folder} has no trained weights yet; run `armillary sft` first"
    )


@asynccontextmanager
async def open_pipeline(workspace: Workspace) -> AsyncIterator[Pipeline]:
    """Bring up everything a run needs.

    Raises:
        ArmillaryError: something is missing or cannot be used; the message says what to do.
    """
    run = workspace.run
    _refuse_unknown(run)
    family, tasks = build_tasks(workspace)
    async with AsyncExitStack() as stack:
        with workspace.stage("start"):
            site = await stack.enter_async_context(open_site(workspace))
            model = model_files(workspace, family, tasks, site)
            process = await start_learner(
                model.folder, tiny_seed=run.seed if run.model == TINY else None,
                end_ids=model.template.end_ids, banned_ids=model.template.banned_ids,
                vocab_size=model.tokenizer.size, context=run.engine.context,
                slots=run.engine.slots, threads=run.engine.threads,
                log=workspace.path("logs") / "model.log",
            )  # fmt: skip
            engine = LocalEngine(process)
            stack.push_async_callback(engine.close)
        sampling = Sampling(
            run.rollout.temperature, max_tokens=run.budget.output_tokens, seed=run.seed
        )
        policy = Policy(model.template, model.parser, engine, sampling)
        rig = Rig(workspace, family, tasks, site, model, policy)
        yield Pipeline(rig, LocalLearner(process))


def _refuse_unknown(run: RunFile) -> None:
    if run.engine.name != "local":
        raise ConfigError(
            f"engine.name = {run.engine.name!r} cannot train; this version trains with `local`"
        )
    if run.learner.lora_rank:
        raise ConfigError("learner.lora_rank: this version trains all weights; set it to 0")


def _step_note(values: Mapping[str, Any]) -> str:
    correct = values.get("reward/correct")
    return "nothing graded" if correct is None else f"correct {correct:.0%}"
