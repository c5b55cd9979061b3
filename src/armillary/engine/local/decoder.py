"""Batched decoding of ragged conversations over an unmodified model.

`admit` prefills new rows behind the running ones, `step` samples one token for every running row,
`remove` takes a row out and moves the last one into the hole; so running rows are always
`0 .. running - 1` and a forward pass reads them through views. All bookkeeping is in arrays: a
step costs the same Python work for 1 row and for 64. Why: with a small model the interpreter, not
the arithmetic, is the limit.

The decoder knows rows, not calls; `scheduler` decides who runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from armillary.engine.local.cache import BatchCache, RowState, Window
from armillary.engine.local.lengths import group_by_length
from armillary.engine.local.model import MASK_BY_LAYER_TYPE, LocalModel
from armillary.engine.local.rows import Progress
from armillary.engine.local.sampling import SamplerRows, uniforms
from armillary.record.calls import Sampling
from armillary.record.tokens import Ids, Logprobs

PASS_COST = 96
"""Prompt tokens that one more forward pass is worth (measured on the tiny model)."""
MOST_TOKENS = 8192
"""Padded prompt tokens of one forward pass."""
LENGTH_STEP = 64
"""The buffer's length is a multiple of this."""


@dataclass(frozen=True, slots=True)
class Admission:
    """One row to start: the tokens it has not seen yet, and how to go on."""

    state: RowState | None
    """What it has seen; None = nothing."""
    pending: Ids
    """At least one token."""
    sampling: Sampling
    branch: int
    most: int
    """Tokens to sample at most, at least 1."""

    @property
    def start(self) -> int:
        return self.state.length if self.state else 0

    @property
    def prefill_key(self) -> tuple[int, bytes]:
        """Equal for rows whose prefill is the same computation."""
        return id(self.state), self.pending.tobytes()


class Taken(NamedTuple):
    """Tokens of one row since the last take."""

    ids: Ids
    logprobs: Logprobs


class _Chunk(NamedTuple):
    """Rows `start ..`, each with the tokens it gets in the next forward pass."""

    start: int
    ids: list[Ids]


class Decoder:
    """Running rows of one model."""

    def __init__(self, model: LocalModel, *, rows: int = 16, length: int = 256) -> None:
        self.model = model
        self.running = 0
        self.forwards = 0
        """Forward passes so far."""
        self.sampled = 0
        """Tokens sampled so far."""
        length = min(length, _rounded(model.context))
        self._cache = BatchCache(
            model.config,
            rows=rows,
            length=length,
            dtype=model.network.dtype,
            device=model.device,
        )
        self._takes_dict = MASK_BY_LAYER_TYPE[model.config.model_type]
        self._is_end = np.zeros(len(model.ban), dtype=np.bool_)
        self._is_end[sorted(model.end_ids)] = True
        self._visible = self._hidden_mask(rows, length)
        self._sampler = SamplerRows(rows)
        self._rows = Progress(rows, LENGTH_STEP)

    def _hidden_mask(self, rows: int, length: int) -> Tensor:
        """Additive attention mask per row, -inf = not seen yet."""
        return torch.full(
            (rows, length), -torch.inf, dtype=self.model.network.dtype, device=self.model.device
        )

    @torch.inference_mode()
    def admit(self, admissions: Sequence[Admission]) -> list[int]:
        """Start rows and sample the first token of each; the row of each admission.

        Rows whose prefill would be the same computation are computed once and copied.
        """
        leaders, followers = _split(admissions)
        first = self.running
        self._make_room(admissions)
        chunks = group_by_length(
            [len(admissions[i].pending) for i in leaders],
            pass_cost=PASS_COST,
            most_tokens=MOST_TOKENS,
        )
        rows = [0] * len(admissions)
        states: list[Tensor] = []
        for chunk in chunks:
            members = [leaders[i] for i in chunk]
            start = self.running
            for index in members:
                rows[index] = self._open(admissions[index])
            states.append(self._prefill(_Chunk(start, [admissions[i].pending for i in members])))
        last_hidden = torch.cat(states)
        if followers:
            sources = [rows[leader] for leader in followers.values()]
            for index, source in zip(followers, sources, strict=True):
                rows[index] = self._follow(source, admissions[index])
            last_hidden = torch.cat([last_hidden, last_hidden[np.subtract(sources, first)]])
        self._sample(last_hidden, first)
        return rows

    @torch.inference_mode()
    def step(self) -> None:
        """Feed the last token of every running row and sample the next one."""
        n = self.running
        lengths = self._rows.length[:n]
        shortest, reach = int(lengths.min()) + 1, int(lengths.max()) + 1
        self._make_length(reach)
        slots = torch.from_numpy(np.arange(n) * self._cache.length + lengths).to(self.model.device)
        self._visible.view(-1).index_fill_(0, slots, 0)
        mask = None
        if shortest != reach or not self._takes_dict:
            mask = self._visible[:n, None, None, :reach]
        hidden = self._forward(
            Window(0, n, reach, slots, slots),
            self._rows.next[:n, None],
            lengths[:, None],
            mask,
        )
        self._rows.length[:n] += 1
        self._sample(hidden[:, -1], 0)

    def finished(self) -> list[int]:
        """Rows that sampled an end token or all they may, ascending."""
        return np.flatnonzero(self._rows.done[: self.running]).tolist()

    def ended(self, row: int) -> bool:
        """Whether the last token of `row` is an end token."""
        return bool(self._is_end[self._rows.next[row]])

    def take(self, row: int) -> Taken:
        """Tokens sampled by `row` since the last take."""
        part = slice(int(self._rows.taken[row]), int(self._rows.produced[row]))
        self._rows.taken[row] = part.stop
        return Taken(self._rows.ids[row, part].copy(), self._rows.logprobs[row, part].copy())

    def output(self, row: int) -> Ids:
        """All tokens sampled by `row`."""
        return self._rows.ids[row, : self._rows.produced[row]].copy()

    @torch.inference_mode()
    def store(self, row: int) -> RowState:
        """What `row` has seen: everything but its last sampled token."""
        return self._cache.store(row, int(self._rows.length[row]))

    @torch.inference_mode()
    def remove(self, row: int) -> int:
        """Free `row`; the row that took its place is the returned old number (maybe itself)."""
        last = self.running = self.running - 1
        if row != last:
            self._cache.copy(last, row, int(self._rows.length[last]))
            self._visible[row] = self._visible[last]
            self._sampler.move(last, row)
            self._rows.move(last, row)
        return last

    @torch.inference_mode()
    def forced(self, ids: Ids, *, prefill: int, temperature: float) -> Logprobs:
        """Logprobs of `ids[prefill:]` through the cached path: one prefill, then token by token.

        The row is taken away again; nothing else changes.
        """
        plan = Admission(None, ids[:prefill], Sampling(temperature=temperature), 0, 1)
        self._make_room([plan])
        row = self._open(plan)
        result = np.zeros(len(ids) - prefill, dtype=np.float32)
        for offset in range(len(result)):
            part = ids[:prefill] if offset == 0 else ids[prefill + offset - 1 : prefill + offset]
            self._make_length(int(self._rows.length[row]) + len(part))
            hidden = self._prefill(_Chunk(row, [part]))
            logits = self.model.distribution(hidden, temperature)
            result[offset] = torch.log_softmax(logits, -1)[0, int(ids[prefill + offset])].item()
        self.remove(row)
        return result

    # Rows.

    def _open(self, admission: Admission) -> int:
        row = self.running
        self.running += 1
        self._cache.load(row, admission.state)
        self._rows.length[row] = admission.start
        self._visible[row, : admission.start] = 0
        self._visible[row, admission.start :] = -torch.inf
        self._begin(row, admission)
        return row

    def _follow(self, source: int, admission: Admission) -> int:
        row = self.running
        self.running += 1
        self._cache.copy(source, row, int(self._rows.length[source]))
        self._visible[row] = self._visible[source]
        self._rows.length[row] = self._rows.length[source]
        self._begin(row, admission)
        return row

    def _begin(self, row: int, admission: Admission) -> None:
        self._sampler.put(row, admission.sampling)
        self._rows.produced[row] = self._rows.taken[row] = 0
        self._rows.most[row] = admission.most
        self._rows.done[row] = False
        self._rows.numbers[row, : admission.most] = uniforms(
            admission.sampling.seed, admission.branch, admission.most
        )

    # Computation.

    def _prefill(self, chunk: _Chunk) -> Tensor:
        """Feed ragged tokens to consecutive rows; hidden state of each row's last, `[rows, d]`."""
        device, count = self.model.device, len(chunk.ids)
        rows = slice(chunk.start, chunk.start + count)
        sizes = np.array([len(ids) for ids in chunk.ids], dtype=np.int64)
        width = int(sizes.max())
        tokens = np.zeros((count, width), dtype=np.int64)
        for i, ids in enumerate(chunk.ids):
            tokens[i, : len(ids)] = ids
        before = self._rows.length[rows].copy()
        positions = before[:, None] + np.arange(width)
        reach = int(before.max()) + width
        slots = np.arange(rows.start, rows.stop)[:, None] * self._cache.length + positions
        mask = None
        if before.any() or not self._takes_dict:
            keys = torch.arange(reach, device=device)
            open_keys = keys <= torch.from_numpy(positions).to(device)[:, :, None]
            mask = torch.where(open_keys, 0.0, -torch.inf).to(self._visible.dtype)[:, None]
        window = Window(
            rows.start,
            rows.stop,
            reach,
            torch.from_numpy(slots.reshape(-1)).to(device),
            torch.from_numpy(sizes).to(device),
        )
        hidden = self._forward(window, tokens, positions, mask)
        self._rows.length[rows] += sizes
        seen = torch.arange(reach, device=device) < torch.from_numpy(self._rows.length[rows, None])
        self._visible[rows, :reach] = torch.where(seen, 0.0, -torch.inf).to(self._visible.dtype)
        return hidden[torch.arange(count, device=device), window.sizes - 1]

    def _forward(
        self,
        window: Window,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        mask: Tensor | None,
    ) -> Tensor:
        """Hidden states `[rows, chunk, d]`; `mask` None = plain causal."""
        device = self.model.device
        self._cache.use(window)
        self.forwards += 1
        return self.model.body(
            input_ids=torch.from_numpy(tokens).to(device),
            position_ids=torch.from_numpy(positions).to(device),
            attention_mask={"full_attention": mask, "conv": None} if self._takes_dict else mask,
            cache=self._cache,
            use_cache=True,
        ).last_hidden_state

    def _sample(self, hidden: Tensor, start: int) -> None:
        """Sample rows `start ..` from their last hidden states `[rows, d]`."""
        stop = start + len(hidden)
        temperature = torch.from_numpy(self._sampler.temperature[start:stop]).to(hidden.device)
        logits = self.model.distribution(hidden, temperature)
        rows, column = np.arange(start, stop), self._rows.produced[start:stop]
        drawn = self._sampler.draw(logits, start, self._rows.numbers[rows, column][:, None])
        tokens = drawn.tokens.cpu().numpy()
        self._rows.ids[rows, column] = tokens
        self._rows.logprobs[rows, column] = drawn.logprobs.cpu().numpy()
        self._rows.next[start:stop] = tokens
        column += 1
        self._rows.done[start:stop] = self._is_end[tokens] | (column >= self._rows.most[start:stop])
        self.sampled += len(tokens)

    # Memory.

    def _make_room(self, admissions: Sequence[Admission]) -> None:
        rows = self.running + len(admissions)
        if rows > self._cache.rows:
            self._resize(max(rows, 2 * self._cache.rows), self._cache.length)
        # A padded chunk may write up to the longest pending part behind any row's end.
        self._make_length(
            max(a.start for a in admissions) + max(len(a.pending) for a in admissions)
        )
        self._rows.widen(max(a.most for a in admissions))

    def _make_length(self, length: int) -> None:
        if length > self._cache.length:
            self._resize(self._cache.rows, _rounded(max(length, 3 * self._cache.length // 2)))

    def _resize(self, rows: int, length: int) -> None:
        old = self._visible
        self._visible = self._hidden_mask(rows, length)
        self._visible[: old.shape[0], : old.shape[1]] = old
        if rows > self._cache.rows:
            self._sampler.grow(rows)
            self._rows.grow(rows)
        self._cache.grow(rows, length)


def _rounded(length: int) -> int:
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def _split(admissions: Sequence[Admission]) -> tuple[list[int], dict[int, int]]:
    """Indices that prefill, and follower -> leader for those that copy."""
    seen: dict[tuple[int, bytes], int] = {}
    followers: dict[int, int] = {}
    for index, admission in enumerate(admissions):
        leader = seen.setdefault(admission.prefill_key, index)
        if leader != index:
            followers[index] = leader
    return list(seen.values()), followers
