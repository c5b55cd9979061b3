"""A learner's checkpoint on a disk that refuses."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from armillary.errors import LearnerError
from armillary.train.local.checkpoint import LearnerState, load_state, save_checkpoint

pytestmark = pytest.mark.needs_learn


@pytest.mark.parametrize("limit", [5_000, 100_000], ids=["weights", "optimizer"])
def test_a_full_disk_is_told_and_leaves_the_checkpoint_before(tmp_path: Path, limit: int) -> None:
    original = tmp_path / "model"
    original.mkdir()
    network = cast("Any", torch.nn.Linear(100, 200))
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    path = tmp_path / "step"
    save_checkpoint(path, network, None, LearnerState(1, "sft", 1, ""), original=original)
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    later = LearnerState(2, "sft", 2, "")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(LearnerError, match=r"could not be put on disk.*again"):
            save_checkpoint(path, network, optimizer, later, original=original)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {p.name: p.read_bytes() for p in path.iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "step"]
    save_checkpoint(path, network, optimizer, later, original=original)
    assert load_state(path) == later
