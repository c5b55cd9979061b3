"""Everything attempts of a run need, made once: tasks, site, model files, policy.

A rig can run attempts and measure; what trains stands on it (`cli.pipeline`).
"""

from __future__ import annotations

from dataclasses import dataclass

from armillary.capture.session import Policy
from armillary.cli.model import TOKENIZER_TASKS, ModelFiles, make_tokenizer, pretrained_folder
from armillary.cli.output import Stage
from armillary.cli.runfile import TINY, RunFile
from armillary.cli.site import Site
from armillary.cli.workspace import Workspace
from armillary.record.outcomes import Graded
from armillary.rollout.attempt import FinishedAttempt
from armillary.rollout.plan import GroupPlan
from armillary.rollout.scheduler import Scheduler
from armillary.tasks.folder import TaskSet
from armillary.tasks.protocol import TaskFamily
from armillary.tasks.registry import family

DEFAULT_CONCURRENCY = 8
"""Attempts at once of a harness that `[rollout] concurrency` does not name."""


@dataclass(frozen=True, slots=True)
class Rig:
    """A run that is ready for attempts."""

    workspace: Workspace
    family: TaskFamily
    tasks: TaskSet
    site: Site
    model: ModelFiles
    policy: Policy

    @property
    def run(self) -> RunFile:
        return self.workspace.run

    def scheduler(self) -> Scheduler:
        """A scheduler over the site's harnesses that knows what the record already holds."""
        rollout = self.run.rollout
        names = self.site.harnesses
        limits = {name: rollout.concurrency.get(name, DEFAULT_CONCURRENCY) for name in names}
        return Scheduler(
            self.site.stations(self.policy, self.workspace.journal), limits,
            retries=rollout.retries, known=self.workspace.record.attempts,
        )  # fmt: skip

    def evaluation_plans(self, stage: str, split: str, count: int) -> list[GroupPlan]:
        """One attempt per task and harness."""
        tasks = self.tasks.load(split, 0, count)
        names = self.site.harnesses
        return [GroupPlan(f"eval/{stage}", task, name, 1) for name in names for task in tasks]

    async def evaluate(self, stage: str, split: str, count: int) -> list[FinishedAttempt]:
        """One attempt per task and harness; every try, as recorded."""
        plans = self.evaluation_plans(stage, split, count)
        with (
            self.workspace.stage(f"eval/{stage}"),
            self.workspace.output.stage(f"evaluation `{stage}`", len(plans)) as progress,
        ):
            groups = await self.scheduler().run_groups(plans, lambda a: _count(progress, a))
        return [attempt for group in groups for attempt in group.tries]


def build_tasks(workspace: Workspace) -> tuple[TaskFamily, TaskSet]:
    """The run's task folders, built if they are not there."""
    run = workspace.run
    chosen = family(run.tasks.family)
    with workspace.stage("tasks"):
        made = chosen.build(
            workspace.path("tasks"), train=run.tasks.train, validation=run.tasks.validation,
            test=run.tasks.test, seed=run.seed,
        )  # fmt: skip
    return chosen, made


def model_files(workspace: Workspace, chosen: TaskFamily, tasks: TaskSet, site: Site) -> ModelFiles:
    """The run's model folder; the tiny model's tokenizer is made on first use."""
    run = workspace.run
    if run.model != TINY:
        return ModelFiles.load(pretrained_folder(run.model, run.revision))
    folder = workspace.path("model")
    if not workspace.done("tokenizer"):
        with workspace.stage("tokenizer"):
            some = tasks.load("train", 0, min(TOKENIZER_TASKS, run.tasks.train))
            make_tokenizer(folder, some, chosen, list(site.harnesses.values()), run.seed)
    return ModelFiles.load(folder)


def _count(progress: Stage, attempt: FinishedAttempt) -> None:
    """Advance when a member is settled; a retry is no progress."""
    if isinstance(attempt.outcome, Graded) or not attempt.outcome.retryable:
        progress.advance()
