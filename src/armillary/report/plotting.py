"""What all figures share: size, type, axes, and the smoothing of curves.

What it guarantees: own `Figure` objects and explicit properties, so nothing depends on matplotlib's
global state or changes it. Names from outside are drawn as plain text, never as mathematics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from armillary.report.palette import INK, MUTED, PAPER, RULE

WIDE, NARROW = 7.6, 3.7
"""Figure widths in inches: the column of a large screen or sheet, and a telephone."""
SMALL, TEXT = 8.0, 9.0
"""Type sizes in points."""
LARGEST_WINDOW = 9


def new_figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained", facecolor=PAPER.light)


def style(axes: Axes, *, x: str = "", y: str = "") -> None:
    """Quiet axes: horizontal rules behind the data, no box."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED.light)
    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=RULE.light, linewidth=0.7)
    axes.tick_params(length=0, labelsize=SMALL, colors=MUTED.light, pad=4)
    axes.set_xlabel(x, fontsize=SMALL, color=MUTED.light)
    axes.set_title(y, loc="left", fontsize=SMALL, color=MUTED.light, pad=8)


def percent_axis(axes: Axes) -> None:
    """The whole range, 0 to 100%, with room for a marker at either end."""
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def step_axis(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))


def label(axes: Axes, x: float, y: float, text: str, colour: str, *, left: bool = False) -> None:
    """A word beside a point, in text colour unless `colour` names another."""
    axes.annotate(
        text,
        (x, y),
        xytext=(-7 if left else 7, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        fontsize=SMALL,
        color=colour,
        parse_math=False,
        annotation_clip=False,
    )


def legend(figure: Figure, axes: Axes, *, columns: int) -> None:
    """The labelled marks of `axes`, above them and flush with the left edge of the figure."""
    handles, names = axes.get_legend_handles_labels()
    found = figure.legend(
        handles,
        names,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=SMALL,
        labelcolor=INK.light,
        borderpad=0,
        borderaxespad=0.2,
        handlelength=2.2,
        columnspacing=1.4,
    )
    for text in found.get_texts():
        text.set_parse_math(False)


def window_of(points: int) -> int:
    """How many points a smoothed curve averages: a fifth of them, 1 to 9."""
    return max(1, min(LARGEST_WINDOW, math.ceil(points / 5)))


def trailing_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value and up to `window - 1` before it: a curve never shows its future."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return list((sums[ends] - sums[starts]) / (ends - starts))
