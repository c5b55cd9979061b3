"""The numbers of a report, table by table, from its data.

What it guarantees: every number on the page is a function of `evaluate.statistics` on the page's
own attempts; figures and tables read the same rows, so they cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from armillary.evaluate.attempts import TRAIN_SPLIT, AttemptResult
from armillary.evaluate.bootstrap import Estimate
from armillary.evaluate.failures import FailureClass
from armillary.evaluate.statistics import (
    Effort,
    Exposure,
    PassRate,
    Saving,
    Ungraded,
    by_harness,
    effort,
    exposure,
    failure_counts,
    gain,
    pass_at_1,
    select,
    stage_order,
    tool_call_saving,
    ungraded,
)
from armillary.report.data import ReportData


class StageRow(NamedTuple):
    stage: str
    harness: str
    rate: PassRate
    work: Effort | None


class GainRow(NamedTuple):
    harness: str
    gain: Estimate
    """In [-1, 1]; `n` = cells graded in both stages."""
    before: Estimate
    after: Estimate
    saving: Saving


class Cellwise(NamedTuple):
    """Cells of one stage and harness: solved + failures + lost = total."""

    stage: str
    harness: str
    total: int
    solved: int
    failures: dict[FailureClass, int]
    lost: int


class UngradedRow(NamedTuple):
    where: str
    """Stage, and whether it is training or an evaluation split."""
    stage: str
    harness: str
    found: Ungraded


class ExposureRow(NamedTuple):
    stage: str
    harness: str
    given: Exposure
    share: float
    """Of the stage's supervised tokens, [0, 1]."""


class GroupRow(NamedTuple):
    label: str
    groups: int
    share: float


def stage_rows(data: ReportData) -> list[StageRow]:
    """Results on the report's split: stages in order of training, harnesses by name."""
    return [
        StageRow(stage, harness, pass_at_1(members), effort(members))
        for stage, harness, members in _evaluated(data)
    ]


def gain_rows(data: ReportData) -> list[GainRow]:
    """Paired comparison of `data.before` and `data.after`, one row per harness in both."""
    later = by_harness(select(data.attempts, data.after, data.split))
    rows: list[GainRow] = []
    for harness, before in by_harness(select(data.attempts, data.before, data.split)).items():
        after = later.get(harness, [])
        found = gain(before, after)
        start, end = pass_at_1(before).estimate, pass_at_1(after).estimate
        if found is not None and start is not None and end is not None:
            rows.append(GainRow(harness, found, start, end, tool_call_saving(before, after)))
    return rows


def failure_rows(data: ReportData) -> list[Cellwise]:
    rows: list[Cellwise] = []
    for stage, harness, members in _evaluated(data):
        rate, failures = pass_at_1(members), failure_counts(members)
        solved = rate.graded - sum(failures.values())
        rows.append(
            Cellwise(stage, harness, rate.total, solved, failures, rate.total - rate.graded)
        )
    return rows


def ungraded_rows(data: ReportData) -> list[UngradedRow]:
    """Every stage, split and harness, those without a loss too."""
    rows: list[UngradedRow] = []
    for stage in stage_order(data.attempts):
        for split in sorted({a.split for a in data.attempts if a.stage == stage}):
            where = "training" if split == TRAIN_SPLIT else f"{split} split"
            for harness, members in by_harness(select(data.attempts, stage, split)).items():
                rows.append(UngradedRow(where, stage, harness, ungraded(members)))
    return rows


def exposure_rows(data: ReportData) -> list[ExposureRow]:
    table = exposure(data.attempts)
    totals: Counter[str] = Counter()
    for (stage, _), given in table.items():
        totals[stage] += given.supervised_tokens
    return [
        ExposureRow(stage, harness, given, given.supervised_tokens / max(1, totals[stage]))
        for (stage, harness), given in table.items()
    ]


def group_rows(data: ReportData) -> list[GroupRow]:
    """Groups of the whole training; empty where there was none."""
    used = sum(point.groups_used for point in data.curve)
    skipped: Counter[str] = Counter()
    for point in data.curve:
        skipped.update(point.groups_skipped)
    total = used + skipped.total()
    if total == 0:
        return []
    counts = [("used for an update", used)]
    counts += [(f"skipped: {_REASONS.get(reason, reason)}", n) for reason, n in skipped.items()]
    return [GroupRow(name, count, count / total) for name, count in counts]


_REASONS = {
    "equal": "all rewards exactly equal, nothing to compare",
    "too few graded": "fewer than two members graded",
}


def _evaluated(data: ReportData) -> list[tuple[str, str, list[AttemptResult]]]:
    measured = [a for a in data.attempts if a.split == data.split]
    return [
        (stage, harness, members)
        for stage in stage_order(measured)
        for harness, members in by_harness(select(measured, stage, data.split)).items()
    ]
