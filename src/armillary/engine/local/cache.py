"""The key-value cache of a ragged batch, as a `transformers` cache.

Rows `0 .. n - 1` of one dense buffer are running and each is at its own length; a forward pass
works on a contiguous range of rows through views, so nothing is copied per token. A conversation
that waits for its next turn leaves the buffer as a `RowState`, exactly as long as its tokens, and
comes back by one copy. Why dense: a 0.5 M-parameter model is bound by call overhead, and gathering
scattered rows costs more calls than moving a row twice per turn.

Right-padded chunks write their padding behind the row's end. That is harmless: a position is
visible only below the row's length, and the next real tokens overwrite it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache


@dataclass(frozen=True, slots=True)
class RowState:
    """What the model remembers of one conversation. Never changed, so branches may share it."""

    length: int
    layers: tuple[tuple[Tensor, ...], ...]
    """Per layer `(keys, values)`, each `[length, kv heads * head size]`, or `(conv tail,)`,
    `[channels, kernel - 1]`."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which part of the buffer the next forward pass uses."""

    start: int
    stop: int
    reach: int
    """Keys `0 .. reach - 1` are offered to attention."""
    slots: Tensor
    """int64 `[(stop - start) * chunk]`: flat buffer positions (row * length + position) of the
    chunk's tokens."""
    sizes: Tensor
    """int64 `[stop - start]`: real tokens of each row in the chunk."""


class BatchCache(Cache):
    """Buffers for `rows` conversations of up to `length` tokens; both grow on demand."""

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        rows: int,
        length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(layers=[])
        count = config.num_hidden_layers
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * count
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.rows, self.length = rows, length
        self._heads: int = config.num_key_value_heads
        self._tail: int = getattr(config, "conv_L_cache", 1) - 1
        self._window: Window | None = None

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._convs: dict[int, Tensor] = {}
        for layer, kind in enumerate(kinds):
            if kind == "conv":
                self._convs[layer] = zeros(rows, config.hidden_size, self._tail)
            else:
                self._keys[layer] = zeros(rows, length, self._heads * size)
                self._values[layer] = zeros(rows, length, self._heads * size)

    # Called by the engine.

    def use(self, window: Window) -> None:
        """Select the rows of the next forward pass."""
        self._window = window

    def grow(self, rows: int, length: int) -> None:
        """Enlarge the buffers; contents stay."""
        for buffers in (self._keys, self._values):
            for layer, old in buffers.items():
                new = old.new_zeros(rows, length, old.shape[2])
                new[: self.rows, : self.length] = old
                buffers[layer] = new
        for layer, old in self._convs.items():
            new = old.new_zeros(rows, *old.shape[1:])
            new[: self.rows] = old
            self._convs[layer] = new
        self.rows, self.length = rows, length

    def store(self, row: int, length: int) -> RowState:
        """A copy of the first `length` tokens of `row`."""
        layers: list[tuple[Tensor, ...]] = []
        for layer in range(len(self._keys) + len(self._convs)):
            if layer in self._convs:
                layers.append((self._convs[layer][row].clone(),))
            else:
                keys, values = self._keys[layer], self._values[layer]
                layers.append((keys[row, :length].clone(), values[row, :length].clone()))
        return RowState(length, tuple(layers))

    def load(self, row: int, state: RowState | None) -> None:
        """Put `state` into `row`; None = a row that has seen nothing."""
        if state is None:
            for conv in self._convs.values():
                conv[row] = 0
            return
        for layer, parts in enumerate(state.layers):
            if layer in self._convs:
                self._convs[layer][row] = parts[0]
            else:
                self._keys[layer][row, : state.length] = parts[0]
                self._values[layer][row, : state.length] = parts[1]

    def copy(self, source: int, target: int, length: int) -> None:
        """Make `target` equal to `source` for `length` tokens."""
        for buffers in (self._keys, self._values):
            for buffer in buffers.values():
                buffer[target, :length] = buffer[source, :length]
        for conv in self._convs.values():
            conv[target] = conv[source]

    # Called by the model's layers.

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return (
            self._append(self._keys[layer_idx], key_states),
            self._append(self._values[layer_idx], value_states),
        )

    def _append(self, buffer: Tensor, new: Tensor) -> Tensor:
        """`new` is `[rows, heads, chunk, size]`; returns a view `[rows, heads, reach, size]`."""
        window = self._current()
        rows, heads, _, size = new.shape
        flat = new.transpose(1, 2).reshape(-1, heads * size)
        buffer.view(-1, heads * size).index_copy_(0, window.slots, flat)
        seen = buffer[window.start : window.stop, : window.reach]
        return seen.view(rows, window.reach, heads, size).transpose(1, 2)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """A view that single-token decoding updates in place."""
        window = self._current()
        return self._convs[layer_idx][window.start : window.stop]

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Put the remembered tail before a chunk `[rows, channels, chunk]` and keep the new one."""
        window = self._current()
        tail = self._convs[layer_idx][window.start : window.stop]
        joined = torch.cat([tail, conv_states], dim=-1)
        # Rows are ragged: the last real columns of row i end at tail + sizes[i].
        last = window.sizes[:, None, None] + torch.arange(self._tail, device=joined.device)
        tail.copy_(joined.gather(2, last.expand(-1, joined.shape[1], -1)))
        return joined

    def _current(self) -> Window:
        assert self._window is not None, "use() comes before a forward pass"
        return self._window
