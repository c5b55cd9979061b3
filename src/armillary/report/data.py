"""What a report is made from.

What it guarantees: the page is a function of this value alone. Nothing is looked up, no clock is
read, so the same data gives the same page, and a stored run can be reported again later.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from armillary.evaluate.attempts import AttemptResult

SKIP_PREFIX = "groups/skipped_"
FEW_GRADED = "groups/too_few_graded"


class TrainingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer step of reinforcement learning. Dictionaries are by harness."""

    step: int
    reward: dict[str, float] = {}
    """Mean over graded attempts."""
    correct: dict[str, float] = {}
    """Share of graded attempts that are correct, [0, 1]."""
    tool_calls: dict[str, float] = {}
    """Mean per graded attempt."""
    loss: float | None = None
    grad_norm: float | None = None
    ratio_p1: float | None = None
    """Quantiles over trained tokens of new probability / behaviour probability."""
    ratio_p50: float | None = None
    ratio_p99: float | None = None
    groups_used: int = 0
    groups_skipped: dict[str, int] = {}
    """Reason (`equal`, `too few graded`) -> groups."""
    trained_tokens: int = 0
    seconds: float = 0.0


class ValidationPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Pass@1 on the validation split after `step` updates."""

    step: int
    pass_at_1: dict[str, float]
    """By harness, [0, 1]."""
    graded: dict[str, int]
    """Cells behind each value."""


class Turn(msgspec.Struct, frozen=True):
    role: str
    text: str


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """An example attempt. Its text is the model's and the tools', and is shown as text only."""

    title: str
    harness: str
    stage: str
    correct: bool | None
    """None = ungraded."""
    turns: tuple[Turn, ...]


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the page."""

    name: str
    seed: int
    attempts: list[AttemptResult]
    split: str = "test"
    """The split that results are read on; other evaluation splits are exported, not shown."""
    before: str = "sft"
    after: str = "grpo"
    """The stages that the headline compares."""
    model: dict[str, object] = {}
    """Facts in the order of display, such as kind, parameters, tokenizer."""
    config: dict[str, object] = {}
    """The effective configuration."""
    versions: dict[str, str] = {}
    stage_seconds: dict[str, float] = {}
    """Wall clock by part of the run, in order."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    curve: list[TrainingPoint] = []
    validation: list[ValidationPoint] = []
    notes: list[str] = []
    """Plain statements a reader needs first, such as what a tiny model is."""
    limits: list[str] = []
    """What these results do not show, beyond what the page says of every run."""
    transcripts: list[Transcript] = []

    @property
    def harnesses(self) -> list[str]:
        """Every harness that occurs, sorted; the index is its colour."""
        names = {a.harness for a in self.attempts}
        for point in self.curve:
            names.update(point.reward, point.correct, point.tool_calls)
        return sorted(names)


def training_point(step: int, metrics: Mapping[str, float]) -> TrainingPoint:
    """A point from one step's metrics, by the names of docs/metrics.md. Missing ones stay empty.

    A name followed by `/HARNESS` is that metric for one harness.
    """
    return TrainingPoint(
        step=step,
        reward=_per_harness(metrics, "reward/mean/"),
        correct=_per_harness(metrics, "reward/correct/"),
        tool_calls=_per_harness(metrics, "rollout/tool_calls/"),
        loss=metrics.get("loss/policy"),
        grad_norm=metrics.get("grad/norm"),
        ratio_p1=metrics.get("ratio/p1"),
        ratio_p50=metrics.get("ratio/p50"),
        ratio_p99=metrics.get("ratio/p99"),
        groups_used=int(metrics.get("groups/used", 0)),
        groups_skipped=_skipped(metrics),
        trained_tokens=int(metrics.get("tokens/trained", 0)),
        seconds=metrics.get("time/step", 0.0),
    )


def _per_harness(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    found = {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}
    return dict(sorted(found.items()))


def _skipped(metrics: Mapping[str, float]) -> dict[str, int]:
    reasons = {
        name.removeprefix(SKIP_PREFIX).replace("_", " "): int(value)
        for name, value in metrics.items()
        if name.startswith(SKIP_PREFIX)
    }
    if FEW_GRADED in metrics:
        reasons["too few graded"] = int(metrics[FEW_GRADED])
    return reasons
