"""A finished run in one small JSON object, and several seeds of it in another.

What it guarantees: the object of `summarise` has the keys that `armillary quickstart --json`
promises, and each number is one of `evaluate.statistics`. Seeds are shown as mean, lowest, highest
and every value: with three runs an interval over seeds would be a guess, so none is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from armillary.errors import RecordError
from armillary.evaluate.attempts import AttemptResult
from armillary.evaluate.bootstrap import Estimate
from armillary.evaluate.statistics import (
    by_harness,
    effort,
    gain,
    pass_at_1,
    select,
    stage_order,
)

BEFORE, AFTER = "sft", "grpo"
"""The stages that `gains` compares."""

Interval = tuple[float, float]


class HarnessSummary(msgspec.Struct, frozen=True):
    pass_at_1: float | None
    """In [0, 1]; None where nothing was graded."""
    ci95: Interval | None
    graded: int
    total: int
    tool_calls: float | None
    """Mean per graded attempt."""


class StageSummary(msgspec.Struct, frozen=True):
    name: str
    harnesses: dict[str, HarnessSummary]


class GainSummary(msgspec.Struct, frozen=True):
    points: float
    """Percentage points, paired on cells that both stages graded."""
    ci95: Interval


class Summary(msgspec.Struct, frozen=True):
    """One run. `msgspec.json.encode` gives the promised JSON."""

    seed: int
    seconds: float
    cpu_seconds: float
    stages: list[StageSummary]
    gains: dict[str, GainSummary]
    report: str


class Spread(msgspec.Struct, frozen=True):
    """One number over the seeds."""

    mean: float
    low: float
    high: float
    values: list[float]
    """In the order of the seeds."""


class HarnessSpread(msgspec.Struct, frozen=True):
    pass_at_1: Spread | None
    """None where a seed has no value."""
    graded: int
    """Summed over the seeds."""
    total: int
    tool_calls: Spread | None


class StageSpread(msgspec.Struct, frozen=True):
    name: str
    harnesses: dict[str, HarnessSpread]


class GainSpread(msgspec.Struct, frozen=True):
    points: Spread
    above_zero: int
    """Seeds whose own interval lies above zero."""


class SeedsSummary(msgspec.Struct, frozen=True):
    seeds: list[int]
    seconds: float
    cpu_seconds: float
    stages: list[StageSpread]
    gains: dict[str, GainSpread]
    reports: list[str]


def summarise(
    attempts: Iterable[AttemptResult],
    *,
    seed: int,
    seconds: float,
    cpu_seconds: float,
    report: Path,
    split: str = "test",
) -> Summary:
    """The run's result on `split`. `seconds` is wall clock of the whole command.

    Stages come in the order of training. `gains` is empty unless both `sft` and `grpo` were
    evaluated, and has a harness only where at least one cell is graded in both.
    """
    measured = [a for a in attempts if a.split == split]
    return Summary(
        seed,
        round(seconds, 2),
        round(cpu_seconds, 2),
        [_stage(name, select(measured, name, split)) for name in stage_order(measured)],
        _gains(select(measured, BEFORE, split), select(measured, AFTER, split)),
        str(report),
    )


def aggregate_seeds(runs: Sequence[Summary]) -> SeedsSummary:
    """Several runs of the same configuration.

    Raises:
        RecordError: there are none, a seed occurs twice, or their stages or harnesses differ.
    """
    seeds = [run.seed for run in runs]
    shapes = {tuple((s.name, tuple(s.harnesses)) for s in run.stages) for run in runs}
    if not runs or len(shapes) > 1 or len(set(seeds)) < len(seeds):
        raise RecordError(
            f"cannot aggregate seeds {seeds}: give at least one run, each seed once, all with the "
            f"same stages and harnesses (found {len(shapes)} different sets)"
        )
    return SeedsSummary(
        seeds,
        round(sum(run.seconds for run in runs), 2),
        round(sum(run.cpu_seconds for run in runs), 2),
        [_stage_spread(members) for members in zip(*(run.stages for run in runs), strict=True)],
        _gain_spreads(runs),
        [run.report for run in runs],
    )


def _stage(name: str, attempts: Sequence[AttemptResult]) -> StageSummary:
    return StageSummary(name, {h: _harness(members) for h, members in by_harness(attempts).items()})


def _harness(attempts: Sequence[AttemptResult]) -> HarnessSummary:
    rate, work = pass_at_1(attempts), effort(attempts)
    return HarnessSummary(
        None if rate.estimate is None else round(rate.estimate.point, 4),
        None if rate.estimate is None else _interval(rate.estimate, 4),
        rate.graded,
        rate.total,
        None if work is None else round(work.tool_calls, 3),
    )


def _gains(
    before: Sequence[AttemptResult], after: Sequence[AttemptResult]
) -> dict[str, GainSummary]:
    later = by_harness(after)
    gains: dict[str, GainSummary] = {}
    for harness, members in by_harness(before).items():
        found = gain(members, later.get(harness, []))
        if found is not None:
            points = found.scaled(100.0)
            gains[harness] = GainSummary(round(points.point, 2), _interval(points, 2))
    return gains


def _interval(estimate: Estimate, digits: int) -> Interval:
    return (round(estimate.low, digits), round(estimate.high, digits))


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return Spread(round(fmean(known), 4), min(known), max(known), known)


def _stage_spread(stages: Sequence[StageSummary]) -> StageSpread:
    spreads: dict[str, HarnessSpread] = {}
    for harness in stages[0].harnesses:
        members = [stage.harnesses[harness] for stage in stages]
        spreads[harness] = HarnessSpread(
            _spread([m.pass_at_1 for m in members]),
            sum(m.graded for m in members),
            sum(m.total for m in members),
            _spread([m.tool_calls for m in members]),
        )
    return StageSpread(stages[0].name, spreads)


def _gain_spreads(runs: Sequence[Summary]) -> dict[str, GainSpread]:
    shared = [h for h in runs[0].gains if all(h in run.gains for run in runs)]
    spreads: dict[str, GainSpread] = {}
    for harness in shared:
        gains = [run.gains[harness] for run in runs]
        points = _spread([g.points for g in gains])
        if points is not None:
            spreads[harness] = GainSpread(points, sum(g.ci95[0] > 0 for g in gains))
    return spreads
