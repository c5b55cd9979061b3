"""Every number a result page states, as a function of attempt records.

What it guarantees: the order of the records never matters; an ungraded attempt is never counted as
wrong, and never left out of a total. The unit is the *cell*, a (task, harness) pair: its value is
the first attempt that got graded, in order of repeat and try. Comparisons of two stages use only
cells that both have graded, and are paired.

Functions of one stage take the records of that stage and one split; a mixture is refused, because
it would quietly take one stage's attempt for another's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from armillary.errors import RecordError
from armillary.evaluate.attempts import TRAIN_SPLIT, AttemptResult
from armillary.evaluate.bootstrap import Estimate, ratio_of_sums
from armillary.evaluate.failures import MEANING, FailureClass, failure_class
from armillary.record.outcomes import FailureKind

Cell = tuple[str, str]
"""(task, harness)."""

TRAINING_ORDER = ("base", "sft", "grpo")


class PassRate(NamedTuple):
    """Pass@1 of one stage."""

    estimate: Estimate | None
    """Share in [0, 1] of graded cells that are solved; None where no cell was graded."""
    graded: int
    """Cells with at least one graded attempt."""
    total: int
    """Cells that were tried."""


class Effort(NamedTuple):
    """Means per graded attempt."""

    attempts: int
    tool_calls: float
    model_calls: float
    prompt_tokens: float
    output_tokens: float
    seconds: float


class Saving(NamedTuple):
    """Tool calls of two stages on the cells that both solved."""

    share: Estimate | None
    """1 - after / before, of the summed calls; negative = more calls. None where `before` is 0."""
    before: float
    """Mean tool calls per commonly solved cell."""
    after: float
    cells: int


class Exposure(NamedTuple):
    """What a learner was given of one harness."""

    attempts: int
    tasks: int
    rows: int
    supervised_tokens: int
    total_tokens: int
    """Tokens of the rows, context included."""


class Ungraded(NamedTuple):
    """Attempts of one stage and harness that nobody could grade."""

    attempts: int
    """Attempts made, graded or not."""
    kinds: dict[FailureKind, int]
    """Only kinds that occurred."""
    lost_cells: int
    """Cells that no retry saved."""

    @property
    def lost_attempts(self) -> int:
        return sum(self.kinds.values())


def select(attempts: Iterable[AttemptResult], stage: str, split: str) -> list[AttemptResult]:
    return [a for a in attempts if a.stage == stage and a.split == split]


def by_harness(attempts: Iterable[AttemptResult]) -> dict[str, list[AttemptResult]]:
    """Records by harness, harnesses in alphabetical order."""
    groups: defaultdict[str, list[AttemptResult]] = defaultdict(list)
    for attempt in attempts:
        groups[attempt.harness].append(attempt)
    return dict(sorted(groups.items()))


def stage_order(attempts: Iterable[AttemptResult]) -> list[str]:
    """Stages that occur: those of training in its order, then the others by name."""
    names = {a.stage for a in attempts}
    known = [name for name in TRAINING_ORDER if name in names]
    return known + sorted(names.difference(TRAINING_ORDER))


def first_graded(attempts: Iterable[AttemptResult]) -> dict[Cell, AttemptResult | None]:
    """Each cell's first graded attempt, or None where it has none; cells sorted.

    Raises:
        RecordError: the records are of more than one stage or split.
    """
    records = list(attempts)
    sources = sorted({(a.stage, a.split) for a in records})
    if len(sources) > 1:
        raise RecordError(
            f"records of {sources} are mixed: choose one stage and split with `select` first"
        )
    cells: dict[Cell, AttemptResult | None] = {}
    for attempt in sorted(records, key=_order):
        cell = (attempt.task, attempt.harness)
        if cells.get(cell) is None:
            cells[cell] = attempt if attempt.graded else None
    return cells


def _order(attempt: AttemptResult) -> tuple[str, str, int, int, str]:
    a = attempt
    return (a.task, a.harness, a.repeat, a.try_number, a.attempt_id)


def pass_at_1(attempts: Iterable[AttemptResult]) -> PassRate:
    """Share of graded cells whose first graded attempt is correct, interval over tasks."""
    cells = first_graded(attempts)
    values = {cell: float(bool(a.correct)) for cell, a in cells.items() if a is not None}
    return PassRate(_mean_over_cells(values), len(values), len(cells))


def gain(before: Iterable[AttemptResult], after: Iterable[AttemptResult]) -> Estimate | None:
    """Pass@1 of `after` minus `before`, in [-1, 1], on cells that both graded; None if none."""
    pairs = _common(before, after)
    return _mean_over_cells(
        {cell: float(bool(b.correct)) - float(bool(a.correct)) for cell, (a, b) in pairs.items()}
    )


def tool_call_saving(before: Iterable[AttemptResult], after: Iterable[AttemptResult]) -> Saving:
    """How many tool calls fewer, only where both solved: harder tasks solved later do not count."""
    pairs = {c: ab for c, ab in _common(before, after).items() if ab[0].correct and ab[1].correct}
    if not pairs:
        return Saving(None, 0.0, 0.0, 0)
    earlier = _per_task({cell: float(a.tool_calls) for cell, (a, _) in pairs.items()})
    later = _per_task({cell: float(b.tool_calls) for cell, (_, b) in pairs.items()})
    fewer = [earlier[task][0] - later[task][0] for task in earlier]
    calls = [total for total, _ in earlier.values()]
    n = len(pairs)
    return Saving(
        ratio_of_sums(fewer, calls, n=n),
        sum(calls) / n,
        sum(total for total, _ in later.values()) / n,
        n,
    )


def effort(attempts: Iterable[AttemptResult]) -> Effort | None:
    """Means over the graded attempts, all repeats; None where nothing was graded."""
    graded = [a for a in attempts if a.graded]
    if not graded:
        return None
    n = len(graded)
    return Effort(
        n,
        sum(a.tool_calls for a in graded) / n,
        sum(a.model_calls for a in graded) / n,
        sum(a.prompt_tokens for a in graded) / n,
        sum(a.output_tokens for a in graded) / n,
        sum(a.seconds for a in graded) / n,
    )


def failure_counts(attempts: Iterable[AttemptResult]) -> dict[FailureClass, int]:
    """Cells by failure class, zeros included. With solved and lost cells they sum to the total."""
    classes = Counter(failure_class(a) for a in first_graded(attempts).values() if a is not None)
    return {name: classes[name] for name in MEANING}


def ungraded(attempts: Sequence[AttemptResult]) -> Ungraded:
    """Ungraded attempts by kind, retried ones included."""
    counts: Counter[FailureKind] = Counter()
    counts.update(a.failure_kind for a in attempts if a.failure_kind is not None)
    lost_cells = sum(a is None for a in first_graded(attempts).values())
    return Ungraded(len(attempts), dict(sorted(counts.items())), lost_cells)


def exposure(attempts: Iterable[AttemptResult]) -> dict[tuple[str, str], Exposure]:
    """By (stage, harness), what training was given: attempts of the training split with rows."""
    used = [a for a in attempts if a.split == TRAIN_SPLIT and a.rows > 0]
    table: dict[tuple[str, str], Exposure] = {}
    for stage in stage_order(used):
        for harness, members in by_harness(a for a in used if a.stage == stage).items():
            table[stage, harness] = Exposure(
                len(members),
                len({a.task for a in members}),
                sum(a.rows for a in members),
                sum(a.supervised_tokens for a in members),
                sum(a.row_tokens for a in members),
            )
    return table


def _common(
    before: Iterable[AttemptResult], after: Iterable[AttemptResult]
) -> dict[Cell, tuple[AttemptResult, AttemptResult]]:
    later = first_graded(after)
    pairs: dict[Cell, tuple[AttemptResult, AttemptResult]] = {}
    for cell, a in first_graded(before).items():
        b = later.get(cell)
        if a is not None and b is not None:
            pairs[cell] = (a, b)
    return pairs


def _per_task(values: Mapping[Cell, float]) -> dict[str, tuple[float, int]]:
    """Task -> (sum, cells), in the order of the cells."""
    sums: dict[str, tuple[float, int]] = {}
    for (task, _), value in values.items():
        total, n = sums.get(task, (0.0, 0))
        sums[task] = (total + value, n + 1)
    return sums


def _mean_over_cells(values: Mapping[Cell, float]) -> Estimate | None:
    tasks = _per_task(values).values()
    return ratio_of_sums([total for total, _ in tasks], [n for _, n in tasks], n=len(values))
