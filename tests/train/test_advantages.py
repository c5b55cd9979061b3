"""Advantages against hand-written groups, and their laws for any group."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armillary.errors import RecordError
from armillary.train.advantages import GroupResult, Normalisation, SkipReason, group_advantages

KINDS: tuple[Normalisation, ...] = ("std", "none", "leave-one-out")


def test_by_hand() -> None:
    rewards = [1.0, 0.0, None, 0.0, 1.0]
    half = 0.5 / math.sqrt(4 * 0.25 / 3)
    expected: dict[Normalisation, list[float | None]] = {
        "none": [0.5, -0.5, None, -0.5, 0.5],
        "std": [half, -half, None, -half, half],
        # 1 against the mean of (0, 0, 1), 0 against that of (1, 0, 1).
        "leave-one-out": [2 / 3, -2 / 3, None, -2 / 3, 2 / 3],
    }
    for kind, values in expected.items():
        result = group_advantages(rewards, kind)
        assert result.skipped is None
        assert list(result.advantages) == pytest.approx(values)


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([], "too_few_graded"),
        ([None, None], "too_few_graded"),
        ([1.0, None], "too_few_graded"),
        ([0.3, 0.3, None, 0.3], "skipped_equal"),
    ],
)
def test_groups_that_teach_nothing_are_skipped(
    rewards: list[float | None], reason: SkipReason
) -> None:
    assert group_advantages(rewards) == GroupResult((None,) * len(rewards), reason)


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(RecordError, match="nan"):
        group_advantages([0.0, math.nan])


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=12), st.sampled_from(KINDS))
def test_laws(rewards: list[float | None], kind: Normalisation) -> None:
    result = group_advantages(rewards, kind)
    graded = [r for r in rewards if r is not None]
    assert len(result.advantages) == len(rewards)
    if len(graded) < 2 or len(set(graded)) == 1:
        assert result.skipped
        assert not any(a is not None for a in result.advantages)
        return
    assert [a is None for a in result.advantages] == [r is None for r in rewards]
    pairs = [(r, a) for r, a in zip(rewards, result.advantages, strict=True) if r is not None]
    values = [a for _, a in pairs if a is not None]
    size = max(abs(v) for v in values)
    assert all(math.isfinite(v) for v in values)
    assert sum(values) == pytest.approx(
        0, abs=1e-9 * max(map(abs, graded)) * len(values) + 1e-6 * size
    )
    ordered = sorted(pairs)
    assert [a for _, a in ordered] == sorted(values)
    if kind == "std" and max(graded) - min(graded) > 1e-3:
        spread = math.sqrt(sum(v * v for v in values) / (len(values) - 1))
        assert spread == pytest.approx(1, rel=1e-6)
