"""Pass@1, gains, savings and counts, against cases worked out by hand and by properties."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armillary.errors import RecordError
from armillary.evaluate.attempts import AttemptResult
from armillary.evaluate.bootstrap import ratio_of_sums
from armillary.evaluate.failures import MEANING, failure_class
from armillary.evaluate.statistics import (
    by_harness,
    effort,
    exposure,
    failure_counts,
    first_graded,
    gain,
    pass_at_1,
    select,
    stage_order,
    tool_call_saving,
    ungraded,
)

_numbers = itertools.count()


def graded(task: str, correct: bool, **fields: Any) -> AttemptResult:
    defaults: dict[str, Any] = {
        "attempt_id": f"g{next(_numbers)}",
        "stage": "sft",
        "split": "test",
        "harness": "loop",
        "reward": float(correct),
        "stop_reason": "submitted",
    }
    return AttemptResult(task=task, correct=correct, graded=True, **(defaults | fields))


def lost(task: str, **fields: Any) -> AttemptResult:
    defaults: dict[str, Any] = {
        "attempt_id": f"u{next(_numbers)}",
        "stage": "sft",
        "split": "test",
        "harness": "loop",
        "failure_kind": "engine",
    }
    return AttemptResult(task=task, graded=False, **(defaults | fields))


def test_pass_at_1_counts_graded_cells_and_shows_the_total():
    rate = pass_at_1([graded("a", True), graded("b", False), graded("c", True), lost("d")])
    assert rate.estimate is not None
    assert rate.estimate.point == pytest.approx(2 / 3)
    assert (rate.graded, rate.total) == (3, 4)


def test_a_retry_after_ungraded_counts_and_a_second_graded_try_does_not():
    attempts = [
        graded("a", True, try_number=2),
        graded("a", False, try_number=1),
        lost("a"),
    ]
    first = first_graded(attempts)["a", "loop"]
    assert first is attempts[1]
    rate = pass_at_1(attempts)
    assert rate.estimate is not None
    assert (rate.estimate.point, rate.graded, rate.total) == (0.0, 1, 1)


def test_the_first_graded_repeat_stands_for_the_cell():
    attempts = [graded("a", True, repeat=1), lost("a", repeat=0), graded("a", False, repeat=2)]
    assert first_graded(attempts)["a", "loop"] is attempts[0]


def test_nothing_graded_has_no_number():
    rate = pass_at_1([lost("a"), lost("a", try_number=1), lost("b")])
    assert (rate.estimate, rate.graded, rate.total) == (None, 0, 2)
    assert pass_at_1([]).total == 0
    assert effort([lost("a")]) is None


def test_mixed_stages_and_splits_are_refused():
    with pytest.raises(RecordError, match="mixed"):
        pass_at_1([graded("a", True), graded("a", True, stage="grpo")])
    with pytest.raises(RecordError, match="mixed"):
        pass_at_1([graded("a", True), graded("a", True, split="train")])


def test_gain_is_paired_on_cells_graded_in_both():
    before = [graded("a", False), graded("b", False), graded("c", True), lost("d")]
    later = {"stage": "grpo"}
    after = [
        graded("a", True, **later),
        lost("b", **later),
        graded("c", True, **later),
        graded("d", True, **later),
        graded("e", True, **later),
    ]
    found = gain(before, after)
    assert found is not None
    assert found.point == pytest.approx(0.5)
    assert found.n == 2
    assert gain([lost("a")], after) is None


def test_gain_of_a_uniform_change_has_no_width_and_its_sign_follows_the_order():
    before = [graded(str(i), False) for i in range(20)]
    after = [graded(str(i), True, stage="grpo") for i in range(20)]
    assert gain(before, after) == (1.0, 1.0, 1.0, 20)
    assert gain(after, before) == (-1.0, -1.0, -1.0, 20)


def test_pairing_is_tighter_than_two_independent_samples():
    solved = [i % 2 == 0 for i in range(100)]
    before = [graded(str(i), ok) for i, ok in enumerate(solved)]
    after = [graded(str(i), ok or i % 10 == 1, stage="grpo") for i, ok in enumerate(solved)]
    paired = gain(before, after)
    alone = pass_at_1(after).estimate
    assert paired is not None
    assert alone is not None
    assert paired.point == pytest.approx(0.1)
    assert paired.high - paired.low < alone.high - alone.low
    assert paired.low > 0


def test_saving_uses_only_cells_solved_at_both_stages():
    before = [
        graded("a", True, tool_calls=10),
        graded("b", True, tool_calls=6),
        graded("c", False, tool_calls=2),
    ]
    after = [
        graded("a", True, stage="grpo", tool_calls=5),
        graded("b", True, stage="grpo", tool_calls=7),
        graded("c", True, stage="grpo", tool_calls=40),
    ]
    saving = tool_call_saving(before, after)
    assert saving.share is not None
    assert saving.share.point == pytest.approx(1 - 12 / 16)
    assert (saving.before, saving.after, saving.cells) == (8.0, 6.0, 2)


def test_saving_without_common_solutions_or_without_calls_has_no_share():
    assert tool_call_saving([graded("a", False)], [graded("a", True, stage="grpo")]) == (
        None,
        0.0,
        0.0,
        0,
    )
    none = tool_call_saving([graded("a", True)], [graded("a", True, stage="grpo", tool_calls=3)])
    assert (none.share, none.before, none.after, none.cells) == (None, 0.0, 3.0, 1)


def test_effort_is_a_mean_over_graded_attempts_only():
    work = effort(
        [
            graded("a", True, tool_calls=2, model_calls=3, prompt_tokens=100, output_tokens=10),
            graded("a", True, repeat=1, tool_calls=4, model_calls=5, prompt_tokens=300),
            lost("b", tool_calls=90),
        ]
    )
    assert work is not None
    assert work[:5] == (2, 3.0, 4.0, 200.0, 5.0)


def test_bootstrap_agrees_with_the_normal_approximation():
    solved = np.array([1.0] * 40 + [0.0] * 60)
    found = ratio_of_sums(solved, np.ones(100), n=100)
    assert found is not None
    spread = 1.96 * (0.4 * 0.6 / 100) ** 0.5
    assert found.low == pytest.approx(0.4 - spread, abs=0.015)
    assert found.high == pytest.approx(0.4 + spread, abs=0.015)


def test_two_cells_of_one_task_are_drawn_together():
    one_each = ratio_of_sums([1.0, 0.0] * 20, [1] * 40, n=40)
    pairs = ratio_of_sums([2.0, 0.0] * 10, [2] * 20, n=40)
    assert one_each is not None
    assert pairs is not None
    assert one_each.point == pairs.point == 0.5
    assert pairs.high - pairs.low > 1.2 * (one_each.high - one_each.low)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stop_reason": "submitted"}, "wrong answer"),
        ({"stop_reason": "submitted", "malformed_calls": 5, "model_calls": 6}, "wrong answer"),
        (
            {"stop_reason": "malformed_calls", "malformed_calls": 3, "model_calls": 9},
            "malformed call",
        ),
        (
            {"stop_reason": "malformed_calls", "unknown_tool_calls": 3, "model_calls": 9},
            "unknown tool",
        ),
        ({"stop_reason": "call_budget", "unknown_tool_calls": 4, "model_calls": 7}, "unknown tool"),
        ({"stop_reason": "call_budget", "malformed_calls": 1, "model_calls": 7}, "no submission"),
        ({"stop_reason": "gave_up"}, "no submission"),
        ({"stop_reason": "context_overflow", "model_calls": 3}, "no submission"),
    ],
)
def test_failure_classes(fields: dict[str, Any], expected: str):
    assert failure_class(graded("a", False, **fields)) == expected


def test_correct_and_ungraded_attempts_have_no_failure_class():
    assert failure_class(graded("a", True, stop_reason="call_budget")) is None
    assert failure_class(lost("a")) is None


def test_failures_solved_and_lost_cells_sum_to_the_total():
    attempts = [
        graded("a", True),
        graded("b", False),
        graded("c", False, stop_reason="gave_up"),
        lost("d"),
    ]
    counts = failure_counts(attempts)
    assert list(counts) == list(MEANING)
    rate = pass_at_1(attempts)
    assert sum(counts.values()) + 1 + (rate.total - rate.graded) == rate.total


def test_ungraded_counts_every_lost_attempt_by_kind():
    found = ungraded(
        [
            graded("a", True, try_number=1),
            lost("a"),
            lost("b", failure_kind="sandbox"),
            lost("b", failure_kind="sandbox", try_number=1),
        ]
    )
    assert found.kinds == {"engine": 1, "sandbox": 2}
    assert (found.attempts, found.lost_attempts, found.lost_cells) == (4, 3, 1)


def test_exposure_counts_only_what_a_learner_was_given():
    given_rows = {"split": "train", "rows": 2, "supervised_tokens": 30, "row_tokens": 100}
    table = exposure(
        [
            graded("a", True, stage="grpo", **given_rows),
            graded("a", False, stage="grpo", repeat=1, **given_rows),
            graded("b", True, stage="grpo", split="train"),
            graded("c", True, stage="grpo", rows=5),
            graded("a", True, harness="mini-swe-agent", **given_rows),
        ]
    )
    assert table == {
        ("sft", "mini-swe-agent"): (1, 1, 2, 30, 100),
        ("grpo", "loop"): (2, 1, 4, 60, 200),
    }


def test_stages_come_in_the_order_of_training_then_by_name():
    stages = ["zeta", "grpo", "base", "alpha", "sft"]
    attempts = [graded("a", True, stage=stage) for stage in stages]
    assert stage_order(attempts) == ["base", "sft", "grpo", "alpha", "zeta"]
    assert [a.stage for a in select(attempts, "grpo", "test")] == ["grpo"]


@pytest.mark.parametrize(
    "fields",
    [
        {"graded": True, "reward": 1.0, "correct": True},
        {"graded": True, "reward": 1.0, "correct": True, "stop_reason": "submitted",
         "failure_kind": "engine"},
        {"graded": True, "reward": float("nan"), "correct": True, "stop_reason": "submitted"},
        {"graded": False},
        {"graded": False, "failure_kind": "engine", "reward": 0.0},
    ],
)  # fmt: skip
def test_a_record_that_is_neither_graded_nor_ungraded_cannot_be_made(fields: dict[str, Any]):
    with pytest.raises(RecordError, match="attempt x"):
        AttemptResult(attempt_id="x", stage="sft", split="test", task="t", harness="loop", **fields)


verdicts = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.sampled_from(["loop", "mini"]),
        st.integers(0, 2),
        st.integers(0, 1),
        st.sampled_from([True, False, None]),
    ),
    min_size=1,
    max_size=60,
    unique_by=lambda v: v[:4],
)


def _records(values: list[tuple[int, str, int, int, bool | None]], stage: str):
    for task, harness, repeat, number, ok in values:
        fields: dict[str, Any] = {
            "attempt_id": f"{stage}{task}{harness}{repeat}{number}",
            "stage": stage,
            "harness": harness,
            "repeat": repeat,
            "try_number": number,
        }
        yield lost(f"t{task}", **fields) if ok is None else graded(f"t{task}", ok, **fields)


@given(verdicts, st.randoms(use_true_random=False))
def test_the_order_of_records_never_matters(
    values: list[tuple[int, str, int, int, bool | None]], shuffle: random.Random
):
    attempts = list(_records(values, "sft"))
    mixed = shuffle.sample(attempts, len(attempts))
    assert pass_at_1(mixed) == pass_at_1(attempts)
    assert failure_counts(mixed) == failure_counts(attempts)
    assert ungraded(mixed) == ungraded(attempts)
    assert list(by_harness(mixed)) == list(by_harness(attempts))


@given(verdicts, verdicts)
def test_intervals_hold_their_point_and_stay_in_range(
    first: list[tuple[int, str, int, int, bool | None]],
    second: list[tuple[int, str, int, int, bool | None]],
):
    before, after = list(_records(first, "sft")), list(_records(second, "grpo"))
    rate = pass_at_1(before)
    assert rate.graded <= rate.total
    if rate.estimate is not None:
        assert 0 <= rate.estimate.low <= rate.estimate.point <= rate.estimate.high <= 1
    change, back = gain(before, after), gain(after, before)
    if change is None:
        assert back is None
    else:
        assert -1 <= change.low <= change.point <= change.high <= 1
        assert back is not None
        assert back.point == pytest.approx(-change.point)
        assert back.n == change.n <= min(rate.graded, pass_at_1(after).graded)
