"""The labbook table and question: the easiest member of the data family.

A CSV file with a name nobody can guess holds three number columns and one category column; the
question asks for one aggregate over the rows of one category value. To answer, an agent must look
for the file and read its header. Every part is drawn from one seed.

Thirteen words stand for five operations, so choosing the operation is something to learn.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

NUMBERS = (
    "flux", "temp", "weight", "speed", "depth", "width", "height", "power", "noise", "phase",
    "delay", "mass", "charge", "rate", "load", "gain", "drift", "torque", "volt", "amp", "energy",
    "range", "angle", "level",
)  # fmt: skip
CATEGORIES = ("site", "batch", "group", "color", "type", "lane", "crew", "shift")
VALUES = (
    "red", "blue", "green", "north", "south", "east", "west", "alpha", "beta", "gamma", "delta",
    "amber", "ruby", "onyx",
)  # fmt: skip
STEMS = ("runs", "lab", "scan", "survey", "trial", "probe")
OPERATIONS: dict[str, tuple[str, ...]] = {
    "mean": ("average", "mean", "typical"),
    "max": ("highest", "maximum", "peak"),
    "min": ("lowest", "minimum", "smallest"),
    "sum": ("total", "summed", "overall"),
    "count": ("number of",),
}
ROWS = 8


@dataclass(frozen=True, slots=True)
class Labbook:
    """One table with its question."""

    seed: int
    file: str
    columns: tuple[str, ...]
    """The number columns."""
    category: str
    rows: tuple[tuple[int | str, ...], ...]
    """Numbers, then the category value."""
    operation: str
    word: str
    """The operation as the question calls it."""
    column: str
    value: str

    @property
    def header(self) -> str:
        return ",".join((*self.columns, self.category))

    @property
    def csv(self) -> str:
        lines = (",".join(map(str, row)) for row in self.rows)
        return self.header + "\n" + "".join(line + "\n" for line in lines)

    @property
    def question(self) -> str:
        return f"What is the {self.word} {self.column} for {self.category} {self.value} ?"

    @property
    def answer(self) -> str:
        return aggregate(self, self.operation, self.column, self.category, self.value)[0].strip()


def draw(seed: int) -> Labbook:
    """The labbook of `seed`."""
    rng = random.Random(seed)
    columns = tuple(rng.sample(NUMBERS, 3))
    values = rng.sample(VALUES, 3)
    # The first three rows show each value once, so every question has rows to answer it.
    rows = tuple(
        (*(rng.randint(1, 99) for _ in columns), values[i] if i < 3 else rng.choice(values))
        for i in range(ROWS)
    )
    operation = rng.choice(list(OPERATIONS))
    return Labbook(
        seed=seed,
        file=f"{rng.choice(STEMS)}{rng.randint(10, 99)}.csv",
        columns=columns,
        category=rng.choice(CATEGORIES),
        rows=rows,
        operation=operation,
        word=rng.choice(OPERATIONS[operation]),
        column=rng.choice(columns),
        value=rng.choice(values),
    )


def aggregate(
    book: Labbook, operation: str, column: str, category: str, value: str
) -> tuple[str, int]:
    """What the `agg` tool prints for these arguments, and its exit status."""
    names = book.header.split(",")
    if operation not in OPERATIONS:
        return f"agg: unknown op {operation}\n", 1
    for name in (column, category):
        if name not in names:
            return f"agg: no column {name}\n", 1
    of, where = names.index(column), names.index(category)
    picked = [row[of] for row in book.rows if str(row[where]) == value]
    if not picked:
        return "agg: no rows\n", 1
    if column == book.category:
        picked = [0] * len(picked)  # awk takes a word for the number 0
    return _number(_apply(operation, [float(x) for x in picked])) + "\n", 0


def _apply(operation: str, values: list[float]) -> float:
    match operation:
        case "mean":
            return sum(values) / len(values)
        case "max":
            return max(values)
        case "min":
            return min(values)
        case "sum":
            return sum(values)
        case _:
            return float(len(values))


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.1f}"
