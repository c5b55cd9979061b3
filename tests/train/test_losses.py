"""Losses, schedule and batches against cases worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from armillary.engine.local.lengths import group_by_length  # noqa: E402
from armillary.errors import LearnerError  # noqa: E402
from armillary.record.rows import TrainingRow  # noqa: E402
from armillary.record.tokens import ImageSpan, TokenSequence  # noqa: E402
from armillary.train.batches import batches_of  # noqa: E402
from armillary.train.losses import (  # noqa: E402
    cross_entropy,
    entropy,
    ppo_clip,
    ratio_statistics,
    token_logprobs,
)
from armillary.train.protocol import Optimizer  # noqa: E402
from armillary.train.schedule import learning_rate  # noqa: E402

pytestmark = pytest.mark.needs_learn


def row(ids: list[int], trained: set[int], advantage: float = 0.0) -> TrainingRow:
    mask = np.array([i in trained for i in range(len(ids))])
    logprobs = np.where(mask, -np.arange(len(ids), dtype=np.float32), 0).astype(np.float32)
    return TrainingRow(TokenSequence(ids), mask, logprobs, advantage)


def test_ppo_clip_by_hand() -> None:
    """Ratios 2, 2, 0.5, 0.5, 1.1 with bounds 0.8 and 1.28."""
    ratios = torch.tensor([2.0, 2.0, 0.5, 0.5, 1.1])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 3.0])
    logprobs = ratios.log().requires_grad_()
    loss, clipped = ppo_clip(logprobs, torch.zeros(5), advantages, low=0.8, high=1.28)
    #      clipped: 1.28, free: 2,  free: .5, clipped: .8, free
    expected = -(1.28 - 2.0 + 0.5 - 0.8 + 3.3)
    assert loss.item() == pytest.approx(expected)
    assert int(clipped) == 2
    loss.backward()
    assert logprobs.grad is not None
    # d(-r A)/d logp = -r A where the clip is off, 0 where it is on.
    assert logprobs.grad.tolist() == pytest.approx([0, 2.0, -0.5, 0, -3.3])


def test_scores_of_a_banned_id() -> None:
    logits = torch.tensor([[0.0, math.log(3.0), -math.inf]], requires_grad=True)
    target = torch.tensor([1])
    logprob = token_logprobs(logits, target)
    assert logprob.item() == pytest.approx(math.log(0.75))
    assert cross_entropy(logits, target).item() == pytest.approx(-math.log(0.75))
    assert entropy(logits).item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    logprob.sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist()[0] == pytest.approx([-0.25, 0.25, 0.0])


def test_ratio_statistics_by_hand() -> None:
    values = ratio_statistics(np.log(np.array([0.5, 1.0, 4.0], dtype=np.float32)))
    assert values["ratio/p50"] == pytest.approx(1.0)
    assert values["ratio/max_abs_diff"] == pytest.approx(math.log(4.0))
    assert 0.5 < values["ratio/p1"] < 0.52
    assert 3.8 < values["ratio/p99"] < 4.0


def test_learning_rate_by_hand() -> None:
    plan = Optimizer(lr=1.0, total_steps=100, warmup_steps=10, final_lr_fraction=0.1)
    assert learning_rate(plan, 0) == pytest.approx(0.1)
    assert learning_rate(plan, 50) == pytest.approx(0.55)
    assert learning_rate(plan, 100) == learning_rate(plan, 500) == pytest.approx(0.1)
    constant = Optimizer(lr=2.0, total_steps=0, warmup_steps=0)
    assert learning_rate(constant, 0) == learning_rate(constant, 9999) == 2.0


def test_batches_hold_each_trained_token_once() -> None:
    rows = [row([1, 2, 3, 4], {2, 3}, 0.5), row([5, 6], {1}, -1.0), row([7, 8, 9], set(), 9.0)]
    (batch,) = batches_of(rows, most_tokens=1000)
    assert batch.inputs.tolist() == [[5, 0, 0], [1, 2, 3]]
    assert batch.places.tolist() == [0, 4, 5]
    assert batch.targets.tolist() == [6, 3, 4]
    assert batch.behaviour.tolist() == [-1.0, -2.0, -3.0]
    assert batch.advantages.tolist() == [-1.0, 0.5, 0.5]


def test_rows_with_images_are_refused() -> None:
    span = ImageSpan(0, 2, "0" * 64, (1, 1, 2))
    mask = np.array([False, False, True])
    picture = TrainingRow(TokenSequence([1, 1, 2], [span]), mask, np.zeros(3, np.float32))
    with pytest.raises(LearnerError, match="image"):
        batches_of([picture], most_tokens=100)


@given(st.lists(st.integers(1, 300), max_size=40), st.integers(0, 200), st.integers(100, 2000))
def test_groups_hold_every_sequence_once_and_keep_their_limits(
    lengths: list[int], cost: int, most: int
) -> None:
    groups = group_by_length(lengths, pass_cost=cost, most_tokens=most)
    assert sorted(i for g in groups for i in g) == list(range(len(lengths)))
    for group in groups:
        width = max(lengths[i] for i in group)
        assert len(group) == 1 or width * len(group) <= most
        assert sum(width - lengths[i] for i in group) <= cost
