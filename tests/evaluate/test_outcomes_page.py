"""docs/outcomes.md and the types it describes say the same."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from armillary.evaluate.failures import MEANING
from armillary.record.outcomes import EndReason, FailureKind

PAGE = Path(__file__).parents[2] / "docs" / "outcomes.md"


def _rows() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]


def test_every_ending_has_exactly_one_row():
    names = [row[0].strip("`") for row in _rows() if row[0].startswith("`")]
    assert names == [*get_args(EndReason), *get_args(FailureKind)]


def test_what_the_policy_caused_is_graded_and_trains_and_what_we_caused_is_not():
    for name, _, is_graded, retry, trains in (r for r in _rows() if r[0].startswith("`")):
        policy = name.strip("`") in get_args(EndReason)
        assert (is_graded, trains) == (("yes", "yes") if policy else ("no", "no")), name
        assert not (policy and retry == "yes"), name


def test_every_failure_class_has_its_rule():
    classes = [row[0] for row in _rows() if len(row) == 2 and row[0] in MEANING]
    assert sorted(classes) == sorted(MEANING)
