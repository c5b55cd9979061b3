"""The token tree: order independence, one training per token, images, roles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armillary.errors import RecordError
from armillary.record.calls import ModelCall, PolicySpan, PromptRef
from armillary.record.rows import TrainingRow, shift
from armillary.record.tokens import ImageSpan, TokenSequence, common_prefix
from armillary.record.tree import TokenTree


def make_call(
    index: int, prompt: TokenSequence, output: list[int], *, parent: int | None = None, **facts
) -> ModelCall:
    """A call whose logprobs name it: -(index + 1) - position / 100."""
    whole = facts.pop("prompt_length", len(prompt))
    logprobs = np.array([-(index + 1) - i / 100 for i in range(len(output))], np.float32)
    return ModelCall(
        session="s",
        index=index,
        prompt=PromptRef(parent, prompt),
        prompt_length=whole,
        output_ids=np.array(output, np.int32),
        output_logprobs=logprobs,
        policy=(PolicySpan(0, len(output), 0),) if output else (),
        stop_reason="stop",
        **facts,
    )


def ids(*values: int) -> TokenSequence:
    return TokenSequence(values)


@st.composite
def conversations(draw: st.DrawFn) -> list[ModelCall]:
    """Calls whose prompts are fresh, or extend, cut or repeat earlier sequences."""
    calls: list[ModelCall] = []
    known: list[list[int]] = [[]]
    token = st.integers(0, 2)
    for index in range(draw(st.integers(1, 8))):
        base = draw(st.sampled_from(known))
        cut = draw(st.integers(0, len(base)))
        prompt = base[:cut] + draw(st.lists(token, max_size=4))
        output = draw(st.lists(token, max_size=4))
        calls.append(make_call(index, TokenSequence([9, *prompt]), output))
        known.append(prompt + output)
    return calls


def grow(calls: list[ModelCall]) -> TokenTree:
    tree = TokenTree()
    for call in calls:
        tree.add(call)
    return tree


@given(conversations(), st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_any_order_of_arrival_gives_the_same_tree(calls: list[ModelCall], random) -> None:
    shuffled = list(calls)
    random.shuffle(shuffled)
    one, other = grow(calls), grow(shuffled)
    assert one.shape() == other.shape()
    assert [one.parent(c.index) for c in calls] == [other.parent(c.index) for c in calls]
    for a, b in zip(one.rows(), other.rows(), strict=True):
        assert a.tokens == b.tokens
        assert np.array_equal(a.mask, b.mask)
        assert np.array_equal(a.logprobs, b.logprobs)


@given(conversations())
@settings(max_examples=200)
def test_every_sampled_token_is_trained_at_most_once_with_its_own_logprob(
    calls: list[ModelCall],
) -> None:
    tree = grow(calls)
    trained: list[float] = []
    for row in tree.rows():
        assert len(row.tokens) == len(row.mask) == len(row.logprobs)
        assert not row.logprobs[~row.mask].any()
        for call in (tree.call(i) for i in row.calls):
            full = tree.sequence(call.index)
            assert row.tokens.starts_with(full)
        trained += row.logprobs[row.mask].tolist()
    assert len(trained) == len(set(trained))
    sampled = {float(lp) for c in calls for lp in c.output_logprobs}
    assert set(trained) <= sampled


@given(conversations())
def test_prompts_and_sequences_come_back_exactly(calls: list[ModelCall]) -> None:
    tree = grow(calls)
    for call in calls:
        assert tree.prompt(call.index) == call.prompt.delta
        assert tree.sequence(call.index).ids.tolist() == [*call.prompt.delta.ids, *call.output_ids]


def test_a_conversation_is_one_row_with_ids_stored_once() -> None:
    tree = TokenTree()
    tree.add(make_call(0, ids(1, 2, 3), [4, 5]))
    tree.add(make_call(1, ids(6), [7], parent=0, prompt_length=6))
    tree.add(make_call(2, ids(8, 9), [10], parent=1, prompt_length=9))
    (row,) = tree.rows(attempt="a", harness="h")
    assert row.tokens.ids.tolist() == list(range(1, 11))
    assert np.flatnonzero(row.mask).tolist() == [3, 4, 6, 9]
    assert row.calls == (0, 1, 2)
    assert tree.size() == 10


def test_a_deleted_malformed_turn_is_a_leaf_that_trains() -> None:
    tree = TokenTree()
    tree.add(make_call(0, ids(1, 2), [3]))
    tree.add(make_call(1, ids(4), [5, 6], parent=0, prompt_length=4, faults=("malformed",)))
    tree.add(make_call(2, ids(7), [8], parent=0, prompt_length=4))
    rows = tree.rows()
    assert [r.calls for r in rows] == [(0, 1), (0, 2)]
    assert [r.trained_tokens for r in rows] == [3, 1]


def test_roles_side_retry_undelivered_subagent() -> None:
    tree = TokenTree()
    tree.add(make_call(0, ids(1), [2], n_tools=1, system_digest="main", delivered=False))
    tree.add(make_call(1, ids(1), [3], n_tools=1, system_digest="main"))
    tree.add(make_call(2, ids(1), [4], n_tools=1, system_digest="main"))
    tree.add(make_call(3, ids(5), [6], n_tools=1, system_digest="main", parent=2, prompt_length=3))
    tree.add(make_call(4, ids(30), [31], n_tools=0, system_digest="title"))
    tree.add(make_call(5, ids(40), [41], n_tools=1, system_digest="helper"))
    assert tree.roles() == {
        0: "undelivered", 1: "retry", 2: "main", 3: "main", 4: "side", 5: "subagent",
    }  # fmt: skip
    assert [r.calls for r in tree.rows()] == [(2, 3), (5,)]


def test_one_untrainable_call_masks_that_call_only() -> None:
    tree = TokenTree()
    tree.add(make_call(0, ids(1), [2], trainable=False, untrainable_reason="no logprobs"))
    tree.add(make_call(1, ids(3), [4], parent=0, prompt_length=3))
    (row,) = tree.rows()
    assert row.mask.tolist() == [False, False, False, True]


def test_images_are_part_of_prefix_identity() -> None:
    def picture(digest: str) -> TokenSequence:
        return TokenSequence([1, 7, 7, 7, 2], [ImageSpan(1, 3, digest * 64, (1, 1, 3))])

    assert common_prefix(picture("a"), picture("b")) == 1
    assert common_prefix(picture("a"), picture("a")) == 5
    assert picture("a") != picture("b")
    tree = TokenTree()
    tree.add(make_call(0, picture("a"), [3]))
    tree.add(make_call(1, picture("b"), [3]))
    assert len(tree.rows()) == 2
    assert tree.prompt(1).images[0].sha256 == "b" * 64
    with pytest.raises(RecordError, match="cuts the image"):
        picture("a").slice(0, 2)


def test_bad_calls_are_refused_with_their_reason() -> None:
    tree = TokenTree()
    tree.add(make_call(0, ids(1), [2]))
    with pytest.raises(RecordError, match="already has a call 0"):
        tree.add(make_call(0, ids(1), [2]))
    with pytest.raises(RecordError, match="not recorded"):
        tree.add(make_call(1, ids(1), [2], parent=5))
    with pytest.raises(RecordError, match="3 tokens, 7 were recorded"):
        tree.add(make_call(1, ids(9), [2], parent=0, prompt_length=7))
    with pytest.raises(RecordError, match="policy spans"):
        replace(make_call(3, ids(1), [2]), policy=())
    with pytest.raises(RecordError, match="not finite"):
        replace(make_call(3, ids(1), [2]), output_logprobs=np.array([0.5], np.float32))


def test_shift_pairs_each_trained_token_with_the_position_that_predicts_it() -> None:
    row = TrainingRow(
        ids(10, 11, 12, 13),
        np.array([False, False, True, True]),
        np.array([0, 0, -1, -2], np.float32),
    )
    shifted = shift(row)
    assert shifted.inputs.tolist() == [10, 11, 12]
    assert shifted.targets[shifted.weights].tolist() == [12, 13]
    assert shifted.logprobs[shifted.weights].tolist() == [-1, -2]
    with pytest.raises(RecordError, match="no context"):
        TrainingRow(ids(1), np.array([True]), np.zeros(1, np.float32))


def test_adding_to_a_long_conversation_touches_only_new_tokens() -> None:
    """Node count per added call is bounded, so nothing walks the old tokens again."""
    tree = TokenTree()
    tree.add(make_call(0, TokenSequence(range(5000)), [1]))
    length = 5001
    for index in range(1, 60):
        tree.add(make_call(index, ids(2, 3), [4], parent=index - 1, prompt_length=length + 2))
        length += 3
    assert tree.size() == length
    (row,) = tree.rows()
    assert row.trained_tokens == 60
