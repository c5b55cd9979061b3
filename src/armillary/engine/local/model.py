"""A causal language model as the engine and the learner see it: hidden states, and *one* rule that
turns logits into the distribution sampled from.

What it guarantees: sampler and trainer use the same tensors and the same `distribution`, so a token
has the same probability in both; ids that the policy must never emit (control tokens, the padding
rows of the vocabulary) have probability zero in both. Why one place: two copies of this rule are
how importance ratios come to differ from 1 at the first step.

The model itself is an unmodified `transformers` class. Only families whose caching was checked
against a full forward pass are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from armillary.errors import EngineError

MASK_BY_LAYER_TYPE = {"lfm2": True, "llama": False, "qwen2": True, "qwen3": True}
"""Model type -> whether its forward takes a dict of masks, one per layer type."""

LAYER_TYPES = {"full_attention", "conv"}


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A loaded model and what may be sampled from it."""

    network: PreTrainedModel
    body: torch.nn.Module
    """The network without its output head."""
    head: torch.nn.Module
    ban: Tensor
    """float `[vocabulary rows]`: 0 where an id may be sampled, -inf where not."""
    end_ids: frozenset[int]
    context: int
    """Most tokens of prompt and output together."""
    vocab_size: int
    """Real ids are `0 .. vocab_size - 1`; the embedding may have more rows."""

    @property
    def config(self) -> PretrainedConfig:
        return self.network.config

    @property
    def device(self) -> torch.device:
        return self.ban.device

    def hidden(self, ids: Tensor) -> Tensor:
        """Last hidden states `[rows, length, d]` of right-padded `ids`, by one full forward pass.

        No mask is needed: the model is causal, so nothing real can see padding at its right.
        """
        return self.body(input_ids=ids, use_cache=False).last_hidden_state

    def distribution(self, hidden: Tensor, temperature: float | Tensor) -> Tensor:
        """Logits after temperature and ban, float32 `[..., vocabulary rows]`, not normalised."""
        return self.head(hidden).float() / temperature + self.ban


def wrap_model(
    network: PreTrainedModel,
    *,
    end_ids: Iterable[int],
    banned_ids: Iterable[int] = (),
    vocab_size: int = 0,
    context: int = 0,
) -> LocalModel:
    """Check that `network` can be decoded here and fix what may be sampled.

    `vocab_size` 0 = `real_vocab_size` of the config, else all rows; `context` 0 = the config's.

    Raises:
        EngineError: the model type or a layer type is not supported, or an id is out of range.
    """
    config = network.config
    _check_supported(config)
    rows = int(config.vocab_size)
    real = vocab_size or int(getattr(config, "real_vocab_size", 0)) or rows
    ends, banned = frozenset(end_ids), frozenset(banned_ids)
    wrong = sorted(i for i in ends | banned if not 0 <= i < rows)
    if wrong or not 0 < real <= rows:
        raise EngineError(
            f"vocabulary of {real} ids, end or banned ids {wrong}: the model has {rows} rows",
            retryable=False,
        )
    if ends & banned:
        raise EngineError(f"end ids {sorted(ends & banned)} are banned too", retryable=False)
    ban = torch.zeros(rows, device=network.device)
    ban[real:] = -torch.inf
    ban[sorted(banned)] = -torch.inf
    head = network.get_output_embeddings()
    if head is None:
        raise EngineError(f"{type(network).__name__} has no output head", retryable=False)
    limit = int(config.max_position_embeddings)
    network.eval()
    return LocalModel(
        network=network,
        body=network.base_model,
        head=head,
        ban=ban,
        end_ids=ends,
        context=min(context or limit, limit),
        vocab_size=real,
    )


def load_model(folder: Path, *, device: str = "cpu", **options: Any) -> LocalModel:
    """Load the model folder in its stored precision; `options` as for `wrap_model`.

    Raises:
        EngineError: the folder holds no usable model.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise EngineError(f"{folder} is not a model folder: it has no config.json", retryable=False)
    kind = json.loads(path.read_text()).get("model_type")
    if kind not in MASK_BY_LAYER_TYPE:
        raise _unsupported(f"model type {kind!r} in {folder}")
    network = AutoModelForCausalLM.from_pretrained(str(folder), dtype="auto", local_files_only=True)
    torch.nn.Module.to(network, torch.device(device))
    return wrap_model(network, **options)


def _check_supported(config: PretrainedConfig) -> None:
    if config.model_type not in MASK_BY_LAYER_TYPE:
        raise _unsupported(f"model type {config.model_type!r}")
    other = set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES
    if other:
        raise _unsupported(f"layer type {sorted(other)[0]!r} of a {config.model_type} model")


def _unsupported(what: str) -> EngineError:
    return EngineError(
        f"the local engine cannot decode {what}; it takes {', '.join(sorted(MASK_BY_LAYER_TYPE))} "
        "with full attention or short convolutions. Serve other models with vLLM or SGLang.",
        retryable=False,
    )
