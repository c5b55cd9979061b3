"""Engine and learner of one real process, over its real socket."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

pytest.importorskip("torch")

from armillary.engine.local.client import LocalEngine, LocalProcess
from armillary.engine.protocol import Finish, Span
from armillary.errors import ConfigError, EngineError, LearnerError
from armillary.record.calls import Sampling
from armillary.record.rows import TrainingRow
from armillary.record.tokens import TokenSequence
from armillary.train.advantages import group_advantages
from armillary.train.local.client import LocalLearner, start_learner
from armillary.train.protocol import Optimizer, PolicyLoss

pytestmark = pytest.mark.needs_learn
in_module_loop = pytest.mark.asyncio(loop_scope="module")

VOCABULARY = 100
END = 2
BANNED = (0, 1, 5, 6)
FAST = Optimizer(lr=3e-3, total_steps=0, warmup_steps=1)
PROMPT = TokenSequence([20, 21, 22, 23])


@asynccontextmanager
async def started(folder: Path, **options: Any) -> AsyncIterator[LocalProcess]:
    process = await start_learner(
        folder,
        tiny_seed=3,
        **{
            "end_ids": [END],
            "banned_ids": BANNED,
            "vocab_size": VOCABULARY,
            "log": folder.parent / "engine.log",
            **options,
        },
    )
    try:
        yield process
    finally:
        await process.close()
    # It ends by itself when the connection closes, so it also ends when its parent is killed.
    assert process.exit_status in (0, -signal.SIGKILL)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalProcess]:
    async with started(tmp_path_factory.mktemp("shared") / "model") as running:
        yield running


@pytest.fixture(scope="module")
def engine(process: LocalProcess) -> LocalEngine:
    return LocalEngine(process)


@pytest.fixture(scope="module")
def learner(process: LocalProcess) -> LocalLearner:
    return LocalLearner(process)


async def sample(
    engine: LocalEngine, sampling: Sampling, n: int = 1, session: str = ""
) -> list[list[Span]]:
    branches: list[list[Span]] = [[] for _ in range(n)]
    finished: set[int] = set()
    async for event in engine.generate(PROMPT, sampling, n=n, session=session):
        if isinstance(event, Finish):
            finished.add(event.branch)
        else:
            branches[event.branch].append(event)
    assert finished == set(range(n))
    return branches


def row_of(spans: Sequence[Span], advantage: float) -> TrainingRow:
    ids = np.concatenate([s.ids for s in spans])
    logprobs = np.concatenate([s.logprobs for s in spans])
    before = len(PROMPT)
    return TrainingRow(
        PROMPT + TokenSequence(ids),
        np.arange(before + len(ids)) >= before,
        np.concatenate([np.zeros(before, np.float32), logprobs]),
        advantage,
    )


def demonstration(seed: int) -> TrainingRow:
    ids = np.random.default_rng(seed).integers(15, VOCABULARY, 30).astype(np.int32)
    return TrainingRow(TokenSequence(ids), np.arange(30) >= 10, np.zeros(30, np.float32))


async def weights(learner: LocalLearner) -> np.ndarray:
    """A fingerprint of the weights: exact log-probabilities of a fixed sequence."""
    return await learner.score(TokenSequence(range(10, 60)))


def test_the_asyncio_side_imports_no_torch() -> None:
    code = (
        "import sys, armillary.train.local.client, armillary.engine.local.client;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@in_module_loop
async def test_hello_names_what_was_loaded(process: LocalProcess, engine: LocalEngine) -> None:
    assert process.hello.model_type == "lfm2"
    assert process.hello.vocab_size == VOCABULARY
    assert engine.capabilities.context == 1024
    assert engine.capabilities.level == "tokens"


@in_module_loop
async def test_samples_come_with_the_full_forward_logprobs(engine: LocalEngine) -> None:
    branches = await sample(engine, Sampling(temperature=0.7, max_tokens=20, seed=1), n=4)
    for spans in branches:
        ids = TokenSequence(np.concatenate([s.ids for s in spans]))
        logprobs = np.concatenate([s.logprobs for s in spans])
        full = await engine.score(PROMPT + ids, temperature=0.7)
        assert full[len(PROMPT) - 1 :] == pytest.approx(logprobs, abs=1e-4)
        assert not set(ids.ids.tolist()) & set(BANNED)
        assert max(ids.ids.tolist()) < VOCABULARY


@in_module_loop
async def test_first_update_has_ratio_one_at_any_temperature(
    engine: LocalEngine, learner: LocalLearner
) -> None:
    """Banned ids and temperature are treated alike by sampler and trainer."""
    branches = await sample(engine, Sampling(temperature=1.6, max_tokens=24, seed=2), n=8)
    rows = [row_of(spans, (-1.0) ** i) for i, spans in enumerate(branches)]
    before = await learner.publish()
    right = await learner.step(rows, loss=PolicyLoss(temperature=1.6), optimizer=FAST)
    assert right.applied
    assert right.values["ratio/max_abs_diff"] < 1e-4
    assert right.values["clip/fraction"] == 0
    assert right.values["tokens/trained"] == sum(r.trained_tokens for r in rows)
    assert await learner.publish() == before + 1
    wrong = await learner.step(rows, loss=PolicyLoss(temperature=1.0), optimizer=FAST)
    assert wrong.values["ratio/max_abs_diff"] > 0.1


@in_module_loop
async def test_a_step_that_is_not_finite_changes_nothing(learner: LocalLearner) -> None:
    before, version = await weights(learner), await learner.publish()
    spans = [Span(0, np.array([30, 31], np.int32), np.array([-1, -1], np.float32), version)]
    refused = await learner.step([row_of(spans, float("nan"))], loss=PolicyLoss(), optimizer=FAST)
    assert not refused.applied
    assert "not finite" in refused.refused
    assert all(np.isfinite(v) for v in refused.values.values())
    assert await learner.publish() == version
    assert np.array_equal(await weights(learner), before)


@in_module_loop
async def test_training_a_banned_id_is_refused(learner: LocalLearner) -> None:
    spans = [Span(0, np.array([5], np.int32), np.array([-1], np.float32), 0)]
    with pytest.raises(LearnerError, match="id 5"):
        await learner.step([row_of(spans, 1.0)], loss=PolicyLoss(), optimizer=FAST)
    empty = await learner.step([], loss=PolicyLoss(), optimizer=FAST)
    assert not empty.applied


@in_module_loop
async def test_decoding_goes_on_during_an_update(
    engine: LocalEngine, learner: LocalLearner
) -> None:
    """Many tokens under the old version while the update is computed, then some under the new."""
    version = await learner.publish()
    rows = [demonstration(i).with_advantage(1.0) for i in range(400)]
    tokens: dict[int, list[int]] = {version: [0] * 64, version + 1: [0] * 64}
    first = asyncio.Event()

    async def consume() -> None:
        async for event in engine.generate(PROMPT, Sampling(max_tokens=900, seed=3), n=64):
            if isinstance(event, Span):
                tokens[event.policy_version][event.branch] += len(event.ids)
                first.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(consume())
        await first.wait()
        before = max(tokens[version])
        metrics = await learner.step(rows, loss=PolicyLoss(), optimizer=FAST)
    assert metrics.applied
    assert max(tokens[version]) > before + 20
    assert max(tokens[version + 1]) > 0


@in_module_loop
async def test_a_cancelled_call_frees_the_engine(engine: LocalEngine) -> None:
    stream = engine.generate(PROMPT, Sampling(max_tokens=900, temperature=0.01), n=8)
    async for _ in stream:
        break
    await stream.aclose()  # pyright: ignore[reportAttributeAccessIssue]
    assert (await engine.status()).running == 0


@in_module_loop
async def test_a_session_is_kept_until_it_ends(engine: LocalEngine) -> None:
    before = await engine.status()
    await sample(engine, Sampling(max_tokens=3), session="s")
    after = await engine.status()
    assert after.kept == before.kept + 1
    assert 0 < after.sampled - before.sampled <= 3
    await engine.end_session("s")
    assert (await engine.status()).kept == before.kept


@in_module_loop
async def test_impossible_requests_are_refused_by_name(engine: LocalEngine) -> None:
    with pytest.raises(EngineError, match="empty"):
        async for _ in engine.generate(TokenSequence([]), Sampling()):
            pass
    with pytest.raises(EngineError, match="300 branches"):
        async for _ in engine.generate(PROMPT, Sampling(), n=300):
            pass


@in_module_loop
async def test_resume_equals_an_uninterrupted_run_bit_for_bit(
    learner: LocalLearner, tmp_path: Path
) -> None:
    rows = [demonstration(i) for i in range(20)]
    plan = Optimizer(lr=2e-3, total_steps=6, warmup_steps=2)

    async def train(first: int, steps: int) -> None:
        await learner.supervised(rows, first=first, steps=steps, batch=4, optimizer=plan, seed=9)

    async def policy_step() -> np.ndarray:
        trained = [r.with_advantage(0.1 * i) for i, r in enumerate(rows[:6])]
        await learner.step(trained, loss=PolicyLoss(), optimizer=plan)
        return await weights(learner)

    start = tmp_path / "start"
    await learner.save(start)
    await train(0, 6)
    whole = await weights(learner)
    await policy_step()
    whole_then_policy = await policy_step()

    await learner.load(start)
    await train(0, 3)
    version = await learner.publish()
    await learner.save(tmp_path / "half")
    await train(3, 1)
    assert await learner.load(tmp_path / "half") == version
    with pytest.raises(LearnerError, match="update 5 of sft"):
        await train(5, 1)
    await train(3, 3)
    assert np.array_equal(await weights(learner), whole)
    await policy_step()
    await learner.save(tmp_path / "half")
    await learner.load(tmp_path / "half")
    assert np.array_equal(await policy_step(), whole_then_policy)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    with pytest.raises(LearnerError, match="not a complete checkpoint"):
        await learner.load(tmp_path)


@in_module_loop
async def test_a_checkpoint_is_a_model_folder(learner: LocalLearner, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    await learner.save(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(str(tmp_path / "model"))
    with torch.no_grad():
        logits = model(input_ids=torch.arange(10, 60)[None]).logits[0, :-1]
    logits[:, [*BANNED, *range(VOCABULARY, logits.shape[1])]] = -torch.inf
    own = torch.log_softmax(logits, -1).gather(1, torch.arange(11, 60)[:, None])[:, 0]
    assert own.numpy() == pytest.approx(await weights(learner), abs=1e-5)
    mark = json.loads((tmp_path / "model" / "armillary.json").read_text())
    assert mark == {"kind": "checkpoint", "of": {"kind": "tiny", "seed": 3}}


@in_module_loop
async def test_warm_up_learns_and_repeats_by_seed(learner: LocalLearner, tmp_path: Path) -> None:
    plan = Optimizer(lr=4e-3, total_steps=0)
    await learner.save(tmp_path / "start")
    first = await learner.warm_up(first=0, steps=4, optimizer=plan, seed=1)
    once = await weights(learner)
    await learner.load(tmp_path / "start")
    await learner.warm_up(first=0, steps=2, optimizer=plan, seed=1)
    await learner.warm_up(first=2, steps=2, optimizer=plan, seed=1)
    assert np.array_equal(await weights(learner), once)
    later = await learner.warm_up(first=4, steps=30, optimizer=plan, seed=1)
    assert later["warmup/loss_last"] < first["warmup/loss"]


@in_module_loop
async def test_reward_rises_over_fifteen_updates(
    engine: LocalEngine, learner: LocalLearner
) -> None:
    """The reward is the share of one token in the reply; sampled, scored and trained for real."""
    plan = Optimizer(lr=3e-3, total_steps=0, warmup_steps=1)
    means: list[float] = []
    for update in range(15):
        sampling = Sampling(max_tokens=12, seed=100 + update)
        branches = await sample(engine, sampling, n=32)
        rewards = [float(np.mean(np.concatenate([s.ids for s in b]) == 42)) for b in branches]
        means.append(float(np.mean(rewards)))
        advantages = group_advantages(rewards).advantages
        rows = [row_of(b, a) for b, a in zip(branches, advantages, strict=True) if a is not None]
        if not rows:
            continue
        metrics = await learner.step(rows, loss=PolicyLoss(), optimizer=plan)
        assert metrics.values["ratio/max_abs_diff"] < 1e-4
        await learner.publish()
    assert np.mean(means[:3]) < 0.3
    assert np.mean(means[-3:]) > np.mean(means[:3]) + 0.3


@in_module_loop
async def test_warm_up_is_refused_on_a_pretrained_model(tmp_path: Path) -> None:
    """And a killed process fails every waiting call at once, with the end of its log."""
    folder = tmp_path / "model"
    async with started(folder) as process:
        (folder / "armillary.json").unlink()
        learner, engine = LocalLearner(process), LocalEngine(process)
        with pytest.raises(ConfigError, match="pretrained"):
            await learner.warm_up(first=0, steps=1, optimizer=FAST, seed=0)
        waiting = [
            asyncio.create_task(sample(engine, Sampling(max_tokens=900), n=8)) for _ in range(3)
        ]
        await asyncio.sleep(0.1)
        os.kill(process.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        for result in results:
            assert isinstance(result, EngineError)
            assert result.retryable
            assert "SIGKILL" in str(result)
        with pytest.raises(EngineError, match="SIGKILL"):
            await sample(engine, Sampling())
        with pytest.raises(LearnerError, match="SIGKILL"):
            await learner.publish()


@in_module_loop
async def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no config\.json") as caught:
        await LocalProcess.start(tmp_path, end_ids=[1], log=tmp_path / "log")
    assert not caught.value.retryable
