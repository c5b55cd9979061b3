"""Percentile bootstrap over tasks.

What it guarantees: the same values under the same seed give the same interval. Why over tasks:
the question is how the model does on tasks like these, so tasks are what is drawn again; two cells
of one task (two harnesses) stay together, since they are not independent. Why plain percentiles:
the method fits in one sentence under a figure, and the paired difference uses the same one.

Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 13.3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
SEED = 0
"""Of the resampling only. It is not the run's seed: a stored table gives the same interval."""
LEVEL = 95.0
"""Percent of the resampled statistics that lie inside an interval."""


class Estimate(NamedTuple):
    """A statistic with its 95% interval. `low` = `high` = `point` where all tasks agree."""

    point: float
    low: float
    high: float
    n: int
    """Cells that it is computed from."""

    def scaled(self, by: float) -> Estimate:
        """In another unit; `by` is positive."""
        return Estimate(self.point * by, self.low * by, self.high * by, self.n)


def ratio_of_sums(
    above: npt.ArrayLike,
    below: npt.ArrayLike,
    *,
    n: int,
    seed: int = SEED,
    resamples: int = RESAMPLES,
) -> Estimate | None:
    """sum(above) / sum(below) with an interval; one entry per task, float64[tasks] each.

    With `below` = cells per task this is a mean over cells. None where sum(below) is 0. A resample
    whose `below` sums to 0 has no ratio and is left out.
    """
    tops, bottoms = np.asarray(above, np.float64), np.asarray(below, np.float64)
    total = float(bottoms.sum())
    if total == 0.0:
        return None
    tasks = len(tops)
    draws = np.random.default_rng(seed).multinomial(
        tasks, np.full(tasks, 1.0 / tasks), size=resamples
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: Floats = (draws @ tops) / (draws @ bottoms)
    tail = (100.0 - LEVEL) / 2.0
    low, high = np.percentile(ratios[np.isfinite(ratios)], [tail, 100.0 - tail])
    return Estimate(float(tops.sum()) / total, float(low), float(high), n)
