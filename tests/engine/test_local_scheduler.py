"""Who runs, who waits, what is kept, and which policy version tokens carry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from local_models import collect, model, random_ids, run, sampling

from armillary.engine.local.calls import Call
from armillary.engine.local.decoder import Decoder
from armillary.engine.local.scheduler import Scheduler
from armillary.errors import EngineError
from armillary.record.calls import Sampling

pytestmark = pytest.mark.needs_learn


def small(slots: int) -> Scheduler:
    return Scheduler(Decoder(model("lfm2"), rows=2, length=64), slots=slots)


def test_calls_start_in_order_of_arrival_also_a_wide_one() -> None:
    scheduler = small(4)
    lengths = [2, 6, 3]
    for i, tokens in enumerate(lengths):
        scheduler.submit(Call(i, random_ids(5, i), sampling(max_tokens=tokens)))
    scheduler.submit(Call(3, random_ids(5, 3), sampling(max_tokens=2), n=3))
    scheduler.submit(Call(4, random_ids(5, 4), sampling(max_tokens=2)))
    order: list[int] = []
    while scheduler.busy:
        scheduler.work()
        order += [call for call, event in scheduler.take() if not hasattr(event, "ids")]
        # Call 4 would fit while call 3 waits for three rows, but must not overtake it.
        assert not (4 in order and 3 not in order)
    assert sorted(order) == [0, 1, 2, 3, 3, 3, 4]


def test_a_rewritten_history_is_prefilled_again() -> None:
    scheduler = small(8)
    prompt = random_ids(10, 1)
    first = run(scheduler, Call(0, prompt, sampling(), session="s"))[0, 0]
    changed = np.concatenate([prompt, first.ids, random_ids(3, 2)])
    changed[4] += 1
    again = run(scheduler, Call(1, changed, sampling(), session="s"))[1, 0]
    assert again.finish is not None
    assert again.finish.usage.cached_tokens == 0
    # The first conversation is still kept and can go on.
    longer = np.concatenate([prompt, first.ids, random_ids(3, 3)])
    back = run(scheduler, Call(2, longer, sampling(), session="s"))[2, 0]
    assert back.finish is not None
    assert back.finish.usage.cached_tokens == len(prompt) + len(first.ids) - 1


def test_the_row_unused_for_longest_makes_room() -> None:
    scheduler = small(2)
    held: dict[str, np.ndarray] = {}
    for i, session in enumerate("abc"):
        prompt = random_ids(6, i)
        result = run(scheduler, Call(i, prompt, sampling(), session=session))[i, 0]
        held[session] = np.concatenate([prompt, result.ids])
    assert scheduler.kept == 2
    for session, cached in (("c", 17), ("a", 0)):
        prompt = np.concatenate([held[session], random_ids(2, 9)])
        result = run(scheduler, Call(9, prompt, sampling(), session=session))[9, 0]
        assert result.finish is not None
        assert result.finish.usage.cached_tokens == cached
    scheduler.end_session("a")
    scheduler.end_session("c")
    assert scheduler.kept == 0


def test_cancel_frees_rows_and_silences_the_call() -> None:
    scheduler = small(4)
    scheduler.submit(Call(0, random_ids(5, 0), sampling(max_tokens=50), n=3))
    scheduler.submit(Call(1, random_ids(5, 1), sampling(max_tokens=8)))
    scheduler.submit(Call(2, random_ids(5, 2), sampling(max_tokens=8)))
    scheduler.work()
    scheduler.cancel(0)
    scheduler.cancel(2)
    results = run(scheduler)
    assert set(results) == {(1, 0)}
    assert len(results[1, 0].ids) == 8
    assert not scheduler.busy


def test_new_weights_start_a_new_span_and_drop_kept_caches() -> None:
    scheduler = small(8)
    prompt = random_ids(6, 1)
    done = run(scheduler, Call(0, prompt, sampling(), session="a"))[0, 0]
    scheduler.submit(Call(1, random_ids(6, 2), sampling(max_tokens=9), session="b"))
    results: dict = {}
    for _ in range(3):
        scheduler.work()
    local = scheduler._decoder.model
    with torch.no_grad():
        for p in local.network.parameters():
            p.mul_(1.01)
    scheduler.weights_changed(7)
    while scheduler.busy:
        scheduler.work()
    collect(scheduler, results)
    spans = results[1, 0].spans
    assert [(len(s.ids), s.policy_version) for s in spans] == [(4, 0), (5, 7)]
    # Neither the waiting row nor the one that ran on old keys is kept.
    assert scheduler.kept == 0
    longer = np.concatenate([prompt, done.ids, random_ids(2, 3)])
    again = run(scheduler, Call(2, longer, sampling(), session="a"))[2, 0]
    assert again.finish is not None
    assert again.finish.usage.cached_tokens == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call(0, random_ids(0, 0), Sampling()), "empty"),
        (Call(0, random_ids(3, 0), Sampling(), n=9), "9 branches"),
        (Call(0, random_ids(3, 0), Sampling(max_tokens=0)), "max_tokens"),
        (Call(0, np.array([1, 400], dtype=np.int32), Sampling()), "outside"),
    ],
)
def test_impossible_calls_are_refused(call: Call, text: str) -> None:
    with pytest.raises(EngineError, match=text) as caught:
        small(8).submit(call)
    assert not caught.value.retryable
