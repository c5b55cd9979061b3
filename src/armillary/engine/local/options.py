"""Options of the model process, as its parent gives them."""

from __future__ import annotations

import msgspec


class LocalOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model_dir: str
    """A `transformers` model folder."""
    end_ids: tuple[int, ...]
    """Sampling one of these ends a call."""
    banned_ids: tuple[int, ...] = ()
    """Never sampled, and without probability in training."""
    vocab_size: int = 0
    """Real ids; 0 = what the model's config says."""
    context: int = 0
    """Most tokens of prompt and output; 0 = what the model's config says."""
    slots: int = 256
    """Conversations whose cache is held, running or waiting for their next turn."""
    threads: int = 1
    """Of torch. One is fastest for a small model."""
    device: str = "cpu"
    decode_share: float = 1.0
    """Seconds of decoding that a learner allows per second of its own work."""
    micro_tokens: int = 2048
    """Padded tokens of one training pass; decoding waits that long at most."""
    first_ordinary_id: int = 15
    """Copy warm-up draws ids from here on; lower ones are control tokens."""
    descriptor: int = -1
    """Of the inherited socket."""
