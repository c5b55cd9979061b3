"""The embedded model: an untrained, seeded LFM2 of about half a million parameters.

One short-convolution layer and one attention layer. The convolution is a previous-token head for
free, which is what lets so small a model learn to copy names and digits within minutes on one
core; attention alone of the same size did not. The folder it writes is an ordinary `transformers`
model folder. `armillary.json` in it says that nobody has trained it: copy warm-up (a pretraining
stage on random ids) is refused for every model without that mark.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from transformers import Lfm2Config, Lfm2ForCausalLM

from armillary.errors import ConfigError

MARK = "armillary.json"
"""File that marks a model folder as made here."""


def make_tiny_model(folder: Path, *, vocab_size: int, seed: int) -> None:
    """Write the model for a tokenizer of `vocab_size` ids into `folder`.

    The embedding is padded to a multiple of 64 rows; `real_vocab_size` in the config says how many
    are real. Equal arguments give equal bytes.
    """
    config = Lfm2Config(
        vocab_size=-(-vocab_size // 64) * 64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
        conv_L_cache=3,
        block_auto_adjust_ff_dim=False,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=1024,
        initializer_range=0.06,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        dtype="float32",
    )
    config.real_vocab_size = vocab_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Lfm2ForCausalLM(config)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        made = Path(temporary)
        model.save_pretrained(made)
        (made / MARK).write_text(json.dumps({"kind": "tiny", "seed": seed}) + "\n")
        # The config comes last: a folder with a config is a whole model, also after a crash.
        for file in sorted(made.iterdir(), key=lambda f: f.name == "config.json"):
            file.rename(folder / file.name)


def require_tiny(folder: Path) -> None:
    """Refuse a model that was not made by `make_tiny_model`.

    Raises:
        ConfigError: it is pretrained.
    """
    path = folder / MARK
    if not path.is_file() or json.loads(path.read_text()).get("kind") != "tiny":
        raise ConfigError(
            f"copy warm-up was asked for on {folder}, which is a pretrained model (it has no "
            f"{MARK} of kind tiny): warm-up on random ids would destroy it; remove the warm-up"
        )
