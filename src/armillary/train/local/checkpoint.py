"""Learner checkpoints: a model folder that is also everything needed to go on training.

All or nothing: the folder is written under a temporary name, flushed to the disk and renamed, so a
folder with the final name is complete. It holds `model.safetensors` beside the config and
tokenizer files of the original model (so `transformers` loads it as it is), `optimizer.pt` and
`state.json`. Weights are stored exactly, so a resumed run equals an uninterrupted one bit for bit.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from armillary.errors import LearnerError
from armillary.record.disk import write_refused
from armillary.train.local.tiny import MARK

WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.pt", "state.json"
COPIED = {".jinja", ".json", ".model", ".txt"}
"""Suffixes of the original model's files that a checkpoint takes along."""
NOT_COPIED = {MARK, STATE, "model.safetensors.index.json"}


class LearnerState(msgspec.Struct):
    """What `state.json` holds."""

    version: int
    """Policy version = updates applied since the original model."""
    phase: str
    phase_updates: int
    """Updates that the optimizer of `phase` has made."""
    rng: str
    """Torch's generator, base64."""
    schema: int = 1


def save_checkpoint(
    path: Path,
    network: PreTrainedModel,
    optimizer: torch.optim.Optimizer | None,
    state: LearnerState,
    *,
    original: Path,
) -> None:
    """Write folder `path`; one that is there already is replaced.

    Raises:
        LearnerError: the disk refused; what was there before is still there.
    """
    temporary = path.with_name(f".{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        _write(temporary, network, optimizer, state, original)
        _flush(temporary)
        _put_in_place(temporary, path)
    except (OSError, SafetensorError, RuntimeError) as error:
        # torch and safetensors report a full disk by errors of their own.
        shutil.rmtree(temporary, ignore_errors=True)
        raise LearnerError(
            f"the checkpoint could not be put on disk. {write_refused(path, error)}"
        ) from error


def _write(
    temporary: Path,
    network: PreTrainedModel,
    optimizer: torch.optim.Optimizer | None,
    state: LearnerState,
    original: Path,
) -> None:
    for file in sorted(original.iterdir()):
        if file.suffix in COPIED and file.name not in NOT_COPIED:
            shutil.copyfile(file, temporary / file.name)
    _write_mark(temporary, original)
    # Tied weights have one name here, as in `transformers`' own folders.
    weights = {name: p.detach().contiguous() for name, p in network.named_parameters()}
    save_file(weights, temporary / WEIGHTS, metadata={"format": "pt"})
    if optimizer:
        torch.save(optimizer.state_dict(), temporary / OPTIMIZER)
    (temporary / STATE).write_bytes(msgspec.json.format(msgspec.json.encode(state)))


def load_weights(path: Path, network: PreTrainedModel) -> None:
    """Copy the stored weights into the tensors that `network` already has.

    Raises:
        LearnerError: the folder is incomplete or of another model.
    """
    stored = load_file(_need(path, WEIGHTS))
    own = dict(network.named_parameters())
    if stored.keys() != own.keys() or any(stored[n].shape != p.shape for n, p in own.items()):
        raise LearnerError(f"{path} holds the weights of another model than the one loaded")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(stored[name])


def load_state(path: Path) -> LearnerState:
    """Raises LearnerError if the folder is not a checkpoint of this version."""
    state = msgspec.json.decode(_need(path, STATE).read_bytes(), type=LearnerState)
    if state.schema != 1:
        raise LearnerError(f"{path / STATE} has schema {state.schema}; this version reads 1")
    return state


def load_optimizer(path: Path) -> dict[str, Any] | None:
    file = path / OPTIMIZER
    return torch.load(file, weights_only=True) if file.is_file() else None


def rng_text() -> str:
    return base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode()


def set_rng(text: str) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8))


def _write_mark(folder: Path, original: Path) -> None:
    """A checkpoint is trained: warm-up must not start from it."""
    mark = original / MARK
    if mark.is_file():
        content = {"kind": "checkpoint", "of": json.loads(mark.read_text())}
        (folder / MARK).write_text(json.dumps(content) + "\n")


def _need(path: Path, name: str) -> Path:
    file = path / name
    if not file.is_file():
        raise LearnerError(f"{path} is not a complete checkpoint: it has no {name}")
    return file


def _flush(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _put_in_place(temporary: Path, path: Path) -> None:
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old)
    else:
        temporary.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
