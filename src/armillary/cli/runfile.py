"""The run file: one TOML file, typed, the same for every verb.

What it guarantees: an unknown key, a wrong type or an impossible combination is an error that
names the key, its line and the nearest valid name; the whole effective configuration can be
written back and read again unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

TINY = "tiny"
"""Name of the embedded model."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""What a run or an evaluation may be called: it becomes the name of a folder."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineSection(Section):
    name: Literal["local", "scripted", "vllm"] = "local"
    url: str = ""
    """Base address of an engine that is already running; not for `local`."""
    context: PositiveInt = 512
    """Most tokens of prompt and output of one call."""
    slots: PositiveInt = 256
    """Conversations whose cache the local engine holds at once."""
    threads: PositiveInt = 1


class TasksSection(Section):
    family: str = "data"
    train: PositiveInt = 3000
    validation: PositiveInt = 64
    test: PositiveInt = 128


class HarnessSection(Section):
    names: list[str] = ["loop", "mini-swe-agent"]


class SandboxSection(Section):
    name: str = "bubblewrap"
    memory_mb: PositiveInt = 2048
    disk_mb: PositiveInt = 64


class BudgetSection(Section):
    """One section for training and evaluation."""

    calls: PositiveInt = 7
    output_tokens: PositiveInt = 40
    """Of one call."""
    total_tokens: int = Field(default=0, ge=0)
    """Sampled tokens of a whole attempt; 0 = no limit."""
    seconds: PositiveFloat = 120.0
    command_seconds: PositiveFloat = 30.0


class RolloutSection(Section):
    temperature: PositiveFloat = 1.0
    group_size: PositiveInt = 8
    groups: dict[str, PositiveInt] = {"loop": 7, "mini-swe-agent": 2}
    """Groups of one rollout step, per harness."""
    concurrency: dict[str, PositiveInt] = {"loop": 48, "mini-swe-agent": 8}
    """Attempts at once, per harness."""
    retries: int = Field(default=2, ge=0)
    """More tries of an ungraded attempt."""
    our_share_limit: float = Field(default=0.5, gt=0, le=1)
    """An attempt that ran out of time is not graded if our engine took more of it than this."""


class SftSection(Section):
    warmup_steps: int = Field(default=450, ge=0)
    """Copy warm-up, only for the tiny model."""
    demonstrations: PositiveInt = 2500
    """Per harness, from as many training tasks."""
    steps: PositiveInt = 1000
    batch: PositiveInt = 8
    lr: PositiveFloat = 4e-3
    weight_decay: float = Field(default=0.01, ge=0)
    careless: float = Field(default=0.65, ge=0, le=1)
    wrong_operation: float = Field(default=0.15, ge=0, le=1)


class TrainSection(Section):
    steps: PositiveInt = 45
    lr: PositiveFloat = 4e-4
    reward: str = "correctness"
    normalisation: Literal["std", "none", "leave-one-out"] = "std"
    clip_low: PositiveFloat = 0.8
    clip_high: PositiveFloat = 1.28
    max_staleness: int = Field(default=0, ge=0)
    checkpoint_every: PositiveInt = 1


class LearnerSection(Section):
    name: Literal["local"] = "local"
    lora_rank: int = Field(default=0, ge=0)
    """0 = all weights."""


class EvalSection(Section):
    split: str = "test"
    tasks: PositiveInt = 128
    validation_tasks: int = Field(default=32, ge=0)
    validation_every: int = Field(default=15, ge=0)
    """Updates between evaluations on the validation split; 0 = never."""


class TrackSection(Section):
    names: list[Literal["jsonl"]] = ["jsonl"]


class RunFile(Section):
    name: str = Field(default="quickstart", pattern=NAME)
    seed: int = Field(default=0, ge=0)
    model: str = TINY
    """`tiny`, or the folder of a model."""
    revision: str = ""
    """Which version of it the folder holds; kept with the results."""
    engine: EngineSection = EngineSection()
    tasks: TasksSection = TasksSection()
    harness: HarnessSection = HarnessSection()
    sandbox: SandboxSection = SandboxSection()
    budget: BudgetSection = BudgetSection()
    rollout: RolloutSection = RolloutSection()
    sft: SftSection = SftSection()
    train: TrainSection = TrainSection()
    learner: LearnerSection = LearnerSection()
    eval: EvalSection = EvalSection()
    track: TrackSection = TrackSection()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.model != TINY and self.sft.warmup_steps:
            raise ValueError(
                f"sft.warmup_steps = {self.sft.warmup_steps}: copy warm-up is for the untrained "
                f"tiny model; {self.model!r} is pretrained. Set sft.warmup_steps = 0"
            )
        if self.budget.output_tokens >= self.engine.context:
            raise ValueError(
                f"budget.output_tokens = {self.budget.output_tokens} leaves no room for a prompt "
                f"in engine.context = {self.engine.context}"
            )
        if self.eval.tasks > self.tasks.test and self.eval.split == "test":
            raise ValueError(f"eval.tasks = {self.eval.tasks} but tasks.test = {self.tasks.test}")
        if self.eval.validation_tasks > self.tasks.validation:
            raise ValueError(
                f"eval.validation_tasks = {self.eval.validation_tasks} but tasks.validation = "
                f"{self.tasks.validation}"
            )
        if self.sft.demonstrations >= self.tasks.train:
            raise ValueError(
                f"sft.demonstrations = {self.sft.demonstrations} leaves none of tasks.train = "
                f"{self.tasks.train} for reinforcement learning"
            )
        return self

    @property
    def folder(self) -> Path:
        """Where everything about this run is. What a script plays has a folder of its own, so
        that no result of it is ever taken for one of the run's weights."""
        kind = "-scripted" if self.engine.name == "scripted" else ""
        return Path("runs") / f"{self.name}{kind}-{self.seed}"

    def to_toml(self) -> str:
        """The effective configuration; reading it gives an equal run file."""
        return tomli_w.dumps(self.model_dump(mode="json"))
