"""Publishing is proved: an engine that does not have the learner's weights is found out."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from armillary.engine.local.calls import Call  # noqa: E402
from armillary.engine.local.model import LocalModel, load_model, wrap_model  # noqa: E402
from armillary.engine.local.server import Server  # noqa: E402
from armillary.errors import LearnerError  # noqa: E402
from armillary.record.calls import Sampling  # noqa: E402
from armillary.record.rows import TrainingRow  # noqa: E402
from armillary.record.tokens import TokenSequence  # noqa: E402
from armillary.train.local.learner import LocalLearnerCore  # noqa: E402
from armillary.train.local.tiny import make_tiny_model  # noqa: E402
from armillary.train.protocol import Optimizer, PolicyLoss  # noqa: E402

pytestmark = pytest.mark.needs_learn


@pytest.fixture
def server(tmp_path: Path) -> Server:
    make_tiny_model(tmp_path, vocab_size=80, seed=1)
    return Server(load_model(tmp_path, end_ids=[2]), slots=4)


@pytest.fixture
def core(server: Server, tmp_path: Path) -> LocalLearnerCore:
    return LocalLearnerCore(server, folder=tmp_path, micro_tokens=512, first_ordinary_id=15)


async def update(core: LocalLearnerCore) -> None:
    mask = np.arange(12) >= 4
    logprobs = np.where(mask, -4, 0).astype(np.float32)
    row = TrainingRow(TokenSequence(range(20, 32)), mask, logprobs, 1.0)
    plan = Optimizer(lr=1e-3, total_steps=0)
    metrics = await core.step([row], loss=PolicyLoss(), optimizer=plan)
    assert metrics.applied


def stale_copy(model: LocalModel) -> LocalModel:
    return wrap_model(copy.deepcopy(model.network), end_ids=[2])


async def test_shared_weights_pass(core: LocalLearnerCore) -> None:
    assert await core.publish() == 0
    await update(core)
    await update(core)
    assert await core.publish() == 2


async def test_an_engine_with_a_copy_of_the_weights_is_found(
    core: LocalLearnerCore, server: Server
) -> None:
    server.decoder.model = stale_copy(server.model)
    await core.publish()
    await update(core)
    with pytest.raises(LearnerError, match="other weights"):
        await core.publish()


async def test_an_update_that_did_not_arrive_is_found(
    core: LocalLearnerCore, server: Server
) -> None:
    before = copy.deepcopy(server.model.network.state_dict())
    await core.publish()
    await update(core)
    server.model.network.load_state_dict(before)
    with pytest.raises(LearnerError, match="did not change"):
        await core.publish()


async def test_an_update_drops_kept_caches(core: LocalLearnerCore, server: Server) -> None:
    prompt = np.arange(20, 30, dtype=np.int32)
    server.scheduler.submit(Call(0, prompt, Sampling(max_tokens=4), session="s"))
    while server.scheduler.busy:
        server.scheduler.work()
    assert server.scheduler.kept == 1
    await update(core)
    assert server.scheduler.kept == 0
    assert server.scheduler.version == 1


def test_tiny_models_repeat_by_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_tiny_model(tmp_path / name, vocab_size=80, seed=seed)
    a, b, c = ((tmp_path / n / "model.safetensors").read_bytes() for n in "abc")
    assert a == b
    assert a != c
    model = load_model(tmp_path / "a", end_ids=[2])
    assert model.vocab_size == 80
    assert model.network.config.vocab_size == 128
    assert model.context == 1024
