"""Tiny real models for the tests of the local engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from armillary.engine.local.calls import Call
from armillary.engine.local.model import LocalModel, wrap_model
from armillary.engine.local.scheduler import Scheduler
from armillary.engine.protocol import Finish, Span
from armillary.record.calls import Sampling
from armillary.record.tokens import Ids

VOCABULARY = 96
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "tie_word_embeddings": True,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES = ("lfm2", "qwen3", "llama")


def network(family: str, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    if family == "lfm2":
        layers = ["conv", "full_attention", "conv"]
        return Lfm2ForCausalLM(
            Lfm2Config(
                num_hidden_layers=3,
                layer_types=layers,
                conv_L_cache=3,
                block_auto_adjust_ff_dim=False,
                **SIZES,
            )
        )
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(num_hidden_layers=2, head_dim=16, **SIZES))
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **SIZES))


def model(family: str, **options: Any) -> LocalModel:
    options.setdefault("end_ids", ())
    return wrap_model(network(family), **options)


def random_ids(count: int, seed: int, high: int = VOCABULARY) -> Ids:
    return np.random.default_rng(seed).integers(0, high, count).astype(np.int32)


class Result:
    """What one branch gave."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.finish: Finish | None = None

    @property
    def ids(self) -> Ids:
        return np.concatenate([s.ids for s in self.spans] or [np.empty(0, np.int32)])

    @property
    def logprobs(self) -> np.ndarray:
        return np.concatenate([s.logprobs for s in self.spans] or [np.empty(0, np.float32)])

    @property
    def reason(self) -> str:
        assert self.finish is not None
        return self.finish.reason


def collect(scheduler: Scheduler, results: dict[tuple[int, int], Result]) -> None:
    for call, event in scheduler.take():
        result = results.setdefault((call, event.branch), Result())
        assert result.finish is None, "nothing comes after the finish"
        if isinstance(event, Span):
            result.spans.append(event)
        else:
            result.finish = event


def run(scheduler: Scheduler, *calls: Call) -> dict[tuple[int, int], Result]:
    """Run calls to their end; results by (call, branch)."""
    for call in calls:
        scheduler.submit(call)
    results: dict[tuple[int, int], Result] = {}
    while scheduler.busy:
        scheduler.work()
        collect(scheduler, results)
    return results


def sampling(**fields: Any) -> Sampling:
    return Sampling(**({"max_tokens": 12} | fields))
