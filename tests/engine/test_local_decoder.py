"""The decoder against a full forward pass, and the rules of sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from local_models import FAMILIES, VOCABULARY, Result, collect, model, network, random_ids, run
from local_models import sampling as sampled

from armillary.engine.local.calls import Call
from armillary.engine.local.decoder import Decoder
from armillary.engine.local.model import LocalModel, wrap_model
from armillary.engine.local.sampling import SamplerRows, truncate, uniforms
from armillary.engine.local.scheduler import Scheduler
from armillary.engine.local.server import full_forward
from armillary.errors import EngineError
from armillary.record.calls import Sampling
from armillary.record.tokens import Ids

pytestmark = pytest.mark.needs_learn
EXACT = 1e-4


def scheduler_of(local: LocalModel, slots: int = 32, rows: int = 2, length: int = 64) -> Scheduler:
    """Small buffers, so that every test also grows them."""
    return Scheduler(Decoder(local, rows=rows, length=length), slots=slots)


def gap(local: LocalModel, prompt: Ids, result: Result, temperature: float = 1.0) -> float:
    """Largest difference between sampled logprobs and a full forward pass."""
    full = full_forward(local, np.concatenate([prompt, result.ids]), temperature)
    return float(np.abs(full[len(prompt) - 1 :] - result.logprobs).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_turns_equal_a_full_forward(family: str) -> None:
    local = model(family, banned_ids=(3, 4))
    scheduler = scheduler_of(local)
    prompts = [random_ids(n, n) for n in (5, 30, 2, 41, 1)]
    seen = [0] * len(prompts)
    for turn in range(3):
        calls = [
            Call(i, p, sampled(temperature=0.8, seed=turn, max_tokens=10 + i), session=f"s{i}")
            for i, p in enumerate(prompts)
        ]
        results = run(scheduler, *calls)
        for i, prompt in enumerate(prompts):
            result = results[i, 0]
            assert gap(local, prompt, result, 0.8) < EXACT
            assert result.finish is not None
            assert result.finish.usage.output_tokens == 10 + i == len(result.ids)
            # Later turns compute only what is new: all but the last sampled token is kept.
            assert result.finish.usage.cached_tokens == seen[i]
            seen[i] = len(prompt) + len(result.ids) - 1
            prompts[i] = np.concatenate([prompt, result.ids, random_ids(3 + 7 * i, 50 + i)])


@pytest.mark.parametrize("family", FAMILIES)
def test_branches_share_a_prefill_and_stay_exact(family: str) -> None:
    local = model(family)
    scheduler = scheduler_of(local)
    prompt = random_ids(20, 1)
    first = run(scheduler, Call(0, prompt, sampled(), n=1, session="s"))[0, 0]
    longer = np.concatenate([prompt, first.ids, random_ids(4, 2)])
    results = run(scheduler, Call(1, longer, sampled(seed=5), n=5, session="s"))
    assert {tuple(results[1, b].ids.tolist()) for b in range(5)} != {tuple(results[1, 0].ids)}
    for branch in range(5):
        assert gap(local, longer, results[1, branch]) < EXACT


def test_equal_prompts_are_prefilled_once() -> None:
    scheduler = scheduler_of(model("lfm2"))
    prompt = random_ids(20, 1)
    before = scheduler._decoder.forwards
    run(scheduler, *(Call(i, prompt, sampled(max_tokens=1, seed=i)) for i in range(8)))
    assert scheduler._decoder.forwards == before + 1


def test_rows_that_join_and_leave_disturb_nobody() -> None:
    """Calls of unlike length start at different steps, so rows are moved while others run."""
    local = model("lfm2")
    scheduler = scheduler_of(local)
    results: dict[tuple[int, int], Result] = {}
    prompts = [random_ids(3 + 11 * i % 37, i) for i in range(12)]
    for i, prompt in enumerate(prompts):
        settings = sampled(temperature=0.4 + 0.2 * i, seed=i, max_tokens=3 + 5 * i % 17)
        scheduler.submit(Call(i, prompt, settings))
        scheduler.work()
        collect(scheduler, results)
    while scheduler.busy:
        scheduler.work()
    collect(scheduler, results)
    for i, prompt in enumerate(prompts):
        assert gap(local, prompt, results[i, 0], 0.4 + 0.2 * i) < EXACT


def test_samples_do_not_depend_on_batch_mates() -> None:
    local = model("lfm2")
    prompt = random_ids(9, 3)
    call = Call(0, prompt, sampled(seed=11, max_tokens=30))
    alone = run(scheduler_of(local), call)[0, 0].ids
    others = [Call(i, random_ids(4 * i, i), sampled(seed=i)) for i in range(1, 9)]
    together = run(scheduler_of(local), *others, call)[0, 0].ids
    assert together.tolist() == alone.tolist()
    again = run(scheduler_of(local), Call(0, prompt, sampled(seed=12, max_tokens=30)))[0, 0].ids
    assert again.tolist() != alone.tolist()


def test_truncated_logprobs_are_those_of_the_kept_ids() -> None:
    local = model("qwen3")
    prompt = random_ids(6, 4)
    settings = [
        sampled(temperature=0.7, top_p=0.6, seed=1),
        sampled(temperature=1.3, top_k=5, seed=2),
        sampled(temperature=0, seed=3),
    ]
    results = run(scheduler_of(local), *(Call(i, prompt, s) for i, s in enumerate(settings)))
    for i, s in enumerate(settings):
        ids = np.concatenate([prompt, results[i, 0].ids])
        row = torch.from_numpy(ids.astype(np.int64))
        with torch.no_grad():
            logits = local.head(local.hidden(row[None, :-1])[0])[len(prompt) - 1 :]
        for place, (chosen, lp) in enumerate(
            zip(results[i, 0].ids, results[i, 0].logprobs, strict=True)
        ):
            expected = reference_chance(logits[place].double().numpy(), s)
            assert np.log(expected[chosen]) == pytest.approx(lp, abs=EXACT)


def reference_chance(logits: np.ndarray, s: Sampling) -> np.ndarray:
    """Temperature, then top-k, then top-p, written the slow way."""
    if s.temperature == 0:
        return np.eye(len(logits))[int(logits.argmax())]
    chance = np.exp(logits / s.temperature - (logits / s.temperature).max())
    chance /= chance.sum()
    kept, mass = [], 0.0
    order = np.argsort(-chance)[: s.top_k or None]
    total = chance[order].sum()
    for i in order:
        if mass >= s.top_p:
            break
        kept.append(i)
        mass += chance[i] / total
    result = np.zeros_like(chance)
    result[kept] = chance[kept] / chance[kept].sum()
    return result


def test_sampled_frequencies_match_the_distribution() -> None:
    """Chi-square of 20,000 draws from 5 ids, one of them impossible; the seed is fixed."""
    chances = np.array([0.5, 0.25, 0.0, 0.2, 0.05])
    count = 20_000
    rows = SamplerRows(count)
    for row in range(count):
        rows.put(row, Sampling())
    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(chances)).float().expand(count, -1)
    numbers = np.array([uniforms(0, branch, 1) for branch in range(count)])
    drawn = rows.draw(logits, 0, numbers)
    seen = np.bincount(drawn.tokens.numpy(), minlength=5)
    possible = chances > 0
    assert seen[2] == 0
    expected = chances[possible] * count
    assert (((seen[possible] - expected) ** 2) / expected).sum() < 16.3  # 0.1% point, 3 degrees
    assert drawn.logprobs.numpy() == pytest.approx(np.log(chances[drawn.tokens.numpy()]), abs=1e-6)


@pytest.mark.parametrize("number", [0.0, 1 - 2**-24])
def test_extreme_random_numbers_never_reach_an_impossible_id(number: float) -> None:
    logits = torch.full((64, 50), -torch.inf)
    for row in range(64):
        logits[row, 5 : 8 + row % 40] = torch.linspace(-20, 3, 3 + row % 40)
    rows = SamplerRows(64)
    for row in range(64):
        rows.put(row, Sampling())
    drawn = rows.draw(logits, 0, np.full((64, 1), number, dtype=np.float32))
    assert torch.isfinite(drawn.logprobs).all()
    assert torch.isfinite(logits.gather(1, drawn.tokens[:, None])).all()


def test_tiny_top_p_keeps_the_likeliest_id() -> None:
    kept = truncate(torch.tensor([[0.2, 0.5, 0.3]]), torch.tensor([[0.0]]), torch.tensor([[99]]))
    assert kept.tolist() == [[0.0, 1.0, 0.0]]


def test_banned_and_padding_ids_are_never_sampled() -> None:
    banned = tuple(range(0, 60, 2))
    local = model("lfm2", banned_ids=banned, vocab_size=70)
    results = run(
        scheduler_of(local), Call(0, random_ids(4, 1), sampled(temperature=5, max_tokens=40), n=16)
    )
    drawn = np.concatenate([r.ids for r in results.values()])
    assert len(drawn) == 640
    assert not set(drawn.tolist()) & set(banned)
    assert drawn.max() < 70


def test_end_token_ends_a_call_and_is_part_of_it() -> None:
    ends = frozenset(range(0, VOCABULARY, 4))
    local = model("lfm2", end_ids=ends)
    results = run(scheduler_of(local), Call(0, random_ids(4, 1), sampled(max_tokens=200), n=8))
    for result in results.values():
        assert result.reason == "stop"
        assert int(result.ids[-1]) in ends
        assert not set(result.ids[:-1].tolist()) & ends


def test_output_limit_and_full_window_are_told_apart() -> None:
    scheduler = scheduler_of(model("lfm2", context=40))
    results = run(
        scheduler,
        Call(0, random_ids(30, 1), sampled(max_tokens=10)),
        Call(1, random_ids(30, 2), sampled(max_tokens=11)),
        Call(2, random_ids(40, 3), sampled(max_tokens=5), n=2),
    )
    assert (results[0, 0].reason, len(results[0, 0].ids)) == ("length", 10)
    assert (results[1, 0].reason, len(results[1, 0].ids)) == ("context", 10)
    assert [results[2, b].reason for b in (0, 1)] == ["context", "context"]
    assert len(results[2, 0].ids) == 0


def test_forced_logprobs_equal_a_full_forward_and_leave_no_trace() -> None:
    local = model("lfm2")
    scheduler = scheduler_of(local)
    scheduler.submit(Call(0, random_ids(8, 1), sampled(max_tokens=20)))
    scheduler.work()
    ids = random_ids(16, 9)
    forced = scheduler._decoder.forced(ids, prefill=8, temperature=0.7)
    assert forced == pytest.approx(full_forward(local, ids, 0.7)[7:], abs=EXACT)
    results = run(scheduler)
    assert gap(local, random_ids(8, 1), results[0, 0]) < EXACT


def test_unsupported_models_are_named() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16))
    with pytest.raises(EngineError, match="'gpt2'"):
        wrap_model(gpt2, end_ids=())
    sliding = network("qwen3")
    sliding.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(EngineError, match="sliding_attention"):
        wrap_model(sliding, end_ids=())
    with pytest.raises(EngineError, match="banned too"):
        model("lfm2", end_ids=(3,), banned_ids=(3,))
