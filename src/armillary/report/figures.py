"""The five figures of a report, each with a caption that says what n is and what a mark means.

What it guarantees: a figure exists only where there is data for it, and every share is drawn on the
whole range 0 to 100%. Each is drawn by one function at a given width, so that a telephone gets its
own layout, not a small copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from armillary.evaluate.failures import MEANING
from armillary.report.data import ReportData, TrainingPoint
from armillary.report.palette import (
    DASHES,
    FAILURES,
    HARNESSES,
    INK,
    MARKERS,
    MUTED,
    PAPER,
    RULE,
    slot,
)
from armillary.report.plotting import (
    NARROW,
    SMALL,
    label,
    legend,
    new_figure,
    percent_axis,
    step_axis,
    style,
    trailing_mean,
    window_of,
)
from armillary.report.tables import Cellwise, StageRow, failure_rows, stage_rows
from armillary.report.wording import interval_span, percent, stage_title


class Plot(NamedTuple):
    """A figure that has data."""

    name: str
    """File name without its ending."""
    title: str
    caption: str
    draw: Callable[[float], Figure]
    """Width in inches -> a new figure."""


Series = dict[str, tuple[list[int], list[float]]]
"""Harness -> (steps, values)."""


def plots(data: ReportData) -> list[Plot]:
    """The figures of `data`, in the order of the page."""
    found = [_start_and_end(data), _correct(data), _tool_calls(data), _failures(data), _ratio(data)]
    return [plot for plot in found if plot is not None]


def _start_and_end(data: ReportData) -> Plot | None:
    rows = [row for row in stage_rows(data) if row.rate.estimate is not None]
    if not rows:
        return None
    counts = sorted({row.rate.graded for row in rows})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return Plot(
        "pass_at_1",
        "Where each stage started and ended",
        f"Pass@1 on the {data.split} split, one mark per stage and harness, n = {n} graded tasks "
        "each. A bar is a 95% percentile-bootstrap interval over tasks: it says how much the "
        "number could move with other tasks of this kind, not with another training seed. The "
        "axis is the whole range.",
        lambda width: _draw_start_and_end(rows, data.harnesses, width),
    )


def _draw_start_and_end(rows: Sequence[StageRow], harnesses: Sequence[str], width: float) -> Figure:
    figure = new_figure(width, 3.3)
    axes = figure.subplots()
    stages = list(dict.fromkeys(row.stage for row in rows))
    shown = [h for h in harnesses if any(row.harness == h for row in rows)]
    gap = min(0.26, 0.7 / len(shown))
    for k, harness in enumerate(shown):
        c = slot(harnesses.index(harness))
        own = [row for row in rows if row.harness == harness]
        xs = [stages.index(row.stage) + (k - (len(shown) - 1) / 2) * gap for row in own]
        estimates = [row.rate.estimate for row in own if row.rate.estimate is not None]
        ys = [e.point for e in estimates]
        spans = [[e.point - e.low for e in estimates], [e.high - e.point for e in estimates]]
        axes.plot(xs, ys, color=HARNESSES[c].light, linewidth=0.9, alpha=0.45)
        axes.errorbar(
            xs,
            ys,
            yerr=spans,
            fmt=MARKERS[c],
            color=HARNESSES[c].light,
            markersize=6,
            elinewidth=1.6,
            label=harness,
        )
        for x, y in zip(xs, ys, strict=True):
            first = k == 0 and len(shown) > 1
            label(axes, x, y, percent(y, 0), INK.light, left=first)
    style(axes, y="Pass@1")
    percent_axis(axes)
    axes.set_xlim(-0.6, len(stages) - 0.4)
    axes.set_xticks(range(len(stages)), [stage_title(s) for s in stages], parse_math=False)
    axes.tick_params(axis="x", colors=INK.light)
    legend(figure, axes, columns=_columns(width))
    return figure


def _correct(data: ReportData) -> Plot | None:
    series = _series(data.curve, lambda point: point.correct)
    if not series:
        return None
    validation = (
        f" Open marks are pass@1 on the validation split, {_graded_range(data)} tasks each."
        if data.validation
        else ""
    )
    return Plot(
        "training_correct",
        "Correct attempts through training",
        "Share of graded training attempts that were correct. Faint marks are single steps; "
        f"{_smoothing(series)} Training attempts are of training tasks and "
        f"come from a policy that is still changing: this is not held-out accuracy.{validation}",
        lambda width: _draw_correct(data, series, width),
    )


def _draw_correct(data: ReportData, series: Series, width: float) -> Figure:
    figure = new_figure(width, 3.1)
    axes = figure.subplots()
    _curves(axes, series, data.harnesses)
    for harness in data.harnesses:
        points = [(p.step, p.pass_at_1[harness]) for p in data.validation if harness in p.pass_at_1]
        if points:
            c = slot(data.harnesses.index(harness))
            axes.plot(
                *zip(*points, strict=True),
                linestyle="none",
                marker=MARKERS[c],
                markersize=6.5,
                markerfacecolor=PAPER.light,
                markeredgecolor=HARNESSES[c].light,
                markeredgewidth=1.4,
            )
    style(axes, x="optimizer step", y="Correct attempts")
    percent_axis(axes)
    step_axis(axes)
    legend(figure, axes, columns=_columns(width))
    return figure


def _tool_calls(data: ReportData) -> Plot | None:
    series = _series(data.curve, lambda point: point.tool_calls)
    if not series:
        return None
    return Plot(
        "training_tool_calls",
        "Tool calls per attempt through training",
        f"Mean tool calls per graded training attempt. Faint marks are single steps; "
        f"{_smoothing(series)} Fewer is not better by itself: an attempt that skips a look at "
        "its data is short and wrong. Read it beside the curve above.",
        lambda width: _draw_tool_calls(data, series, width),
    )


def _draw_tool_calls(data: ReportData, series: Series, width: float) -> Figure:
    figure = new_figure(width, 2.7)
    axes = figure.subplots()
    _curves(axes, series, data.harnesses)
    style(axes, x="optimizer step", y="Tool calls per attempt")
    axes.set_ylim(0, 1.12 * max(max(ys) for _, ys in series.values()) or 1.0)
    step_axis(axes)
    legend(figure, axes, columns=_columns(width))
    return figure


def _failures(data: ReportData) -> Plot | None:
    rows = failure_rows(data)
    if not rows:
        return None
    return Plot(
        "failures",
        "How attempts failed",
        "Share of all cells (a task in a harness, its first graded attempt) that were not solved, "
        "by kind. The full width is 100%, so what is empty was solved. Outlined = never graded. "
        "The numbers are in the table below.",
        lambda width: _draw_failures(rows, width),
    )


def _draw_failures(rows: Sequence[Cellwise], width: float) -> Figure:
    figure = new_figure(width, 1.25 + 0.3 * len(rows))
    axes = figure.subplots()
    places = range(len(rows))
    left = [0.0] * len(rows)
    for tone, kind in zip(FAILURES, MEANING, strict=True):
        shares = [row.failures[kind] / row.total for row in rows]
        axes.barh(
            places,
            shares,
            left=left,
            height=0.62,
            color=tone.light,
            edgecolor=PAPER.light,
            linewidth=0.8,
            label=kind,
        )
        left = [a + b for a, b in zip(left, shares, strict=True)]
    for y, failed in enumerate(left):
        axes.plot([failed, 1.0], [y, y], color=RULE.light, linewidth=0.7, zorder=0)
    _draw_lost(axes, rows, left)
    style(axes)
    axes.grid(visible=False)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.invert_yaxis()
    names = [f"{stage_title(row.stage)} · {row.harness}" for row in rows]
    axes.set_yticks(places, names, parse_math=False)
    axes.tick_params(axis="y", colors=INK.light, labelsize=SMALL if width > NARROW else 7)
    legend(figure, axes, columns=3 if width <= NARROW else 5)
    return figure


def _draw_lost(axes: Axes, rows: Sequence[Cellwise], left: Sequence[float]) -> None:
    places = [y for y, row in enumerate(rows) if row.lost]
    if places:
        axes.barh(
            places,
            [rows[y].lost / rows[y].total for y in places],
            left=[left[y] for y in places],
            height=0.56,
            color=PAPER.light,
            edgecolor=MUTED.light,
            linewidth=1.0,
            label="ungraded",
        )


def _ratio(data: ReportData) -> Plot | None:
    points = [p for p in data.curve if p.ratio_p50 is not None or p.loss is not None]
    if not points:
        return None
    return Plot(
        "ratio_and_loss",
        "Did the trainer train what was sampled?",
        f"Per update, over its trained tokens ({len(points)} updates): new probability over the "
        "probability at sampling time, median and 1st to 99th percentile; and the policy loss. "
        "The ratio should stay near 1. A loss near 0 is normal here: advantages of a group sum "
        "to zero, so its height says little and its jumps say more.",
        lambda width: _draw_ratio(points, width),
    )


def _draw_ratio(points: Sequence[TrainingPoint], width: float) -> Figure:
    narrow = width <= NARROW
    figure = new_figure(width, 4.2 if narrow else 2.5)
    top, bottom = figure.subplots(2, 1) if narrow else figure.subplots(1, 2)
    known = [
        (p.step, p.ratio_p1, p.ratio_p50, p.ratio_p99)
        for p in points
        if p.ratio_p1 is not None and p.ratio_p50 is not None and p.ratio_p99 is not None
    ]
    if known:
        steps, low, middle, high = zip(*known, strict=True)
        top.fill_between(steps, low, high, color=MUTED.light, alpha=0.22, linewidth=0)
        top.plot(steps, middle, color=INK.light, linewidth=1.4)
    style(top, x="optimizer step", y="Probability ratio: median, 1st to 99th percentile")
    step_axis(top)
    losses = [(p.step, p.loss) for p in points if p.loss is not None]
    if losses:
        bottom.plot(*zip(*losses, strict=True), color=INK.light, linewidth=1.1)
    style(bottom, x="optimizer step", y="Policy loss")
    step_axis(bottom)
    return figure


def _columns(width: float) -> int:
    """Legend entries beside each other, of harness names."""
    return 2 if width <= NARROW else 4


def _curves(axes: Axes, series: Series, harnesses: Sequence[str]) -> None:
    for harness, (steps, values) in series.items():
        c = slot(harnesses.index(harness))
        colour = HARNESSES[c].light
        axes.plot(
            steps,
            values,
            linestyle="none",
            marker=MARKERS[c],
            markersize=3.2,
            markeredgewidth=0,
            color=colour,
            alpha=0.35,
        )
        smooth = trailing_mean(values, window_of(len(values)))
        axes.plot(steps, smooth, color=colour, linewidth=1.9, linestyle=DASHES[c], label=harness)


def _series(
    curve: Sequence[TrainingPoint], pick: Callable[[TrainingPoint], Mapping[str, float]]
) -> Series:
    series: Series = {}
    for point in curve:
        for harness, value in pick(point).items():
            steps, values = series.setdefault(harness, ([], []))
            steps.append(point.step)
            values.append(value)
    return dict(sorted(series.items()))


def _smoothing(series: Series) -> str:
    windows = {window_of(len(values)) for _, values in series.values()}
    if windows == {1}:
        return "lines join them, unsmoothed."
    return f"lines are the mean of the last {interval_span(windows)} of them."


def _graded_range(data: ReportData) -> str:
    return interval_span({n for point in data.validation for n in point.graded.values()})
