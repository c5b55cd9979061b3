"""Token sequences: ids plus the images they stand for.

What it guarantees: two sequences are equal only if their ids *and* their image digests are, and no
operation cuts inside an image span. Why: an image becomes a run of identical placeholder ids, so
ids alone would make two different pictures share a prefix.

Ids are `int32[n]`, read-only. Image spans are sorted, disjoint and inside the ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from armillary.errors import RecordError

Ids = npt.NDArray[np.int32]
"""Token ids, `int32[n]`."""

Logprobs = npt.NDArray[np.float32]
"""Natural-log probabilities, `float32[n]`."""


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """A run of placeholder ids that stands for one image."""

    start: int
    """Index of the first placeholder id, in the sequence that holds the span."""
    length: int
    """Number of placeholder ids, at least 1."""
    sha256: str
    """Digest of the encoded image bytes, 64 hex digits; the pixels live in the blob store."""
    grid: tuple[int, int, int]
    """(frames, rows, columns) of vision patches, as the model's processor counts them."""

    @property
    def end(self) -> int:
        return self.start + self.length

    def moved(self, by: int) -> ImageSpan:
        return ImageSpan(self.start + by, self.length, self.sha256, self.grid)


def as_ids(ids: Iterable[int] | Ids) -> Ids:
    """`ids` as a read-only `int32[n]` array (no copy if it already is one)."""
    array: Ids
    if isinstance(ids, np.ndarray):
        array = cast("Ids", ids).astype(np.int32, copy=bool(ids.flags.writeable))
    else:
        array = np.array(list(ids), dtype=np.int32)
    if array.ndim != 1:
        raise RecordError(f"token ids must be one-dimensional, got shape {array.shape}")
    array.flags.writeable = False
    return array


class TokenSequence:
    """An immutable sequence of token ids with its image spans."""

    __slots__ = ("ids", "images")

    def __init__(self, ids: Iterable[int] | Ids, images: Sequence[ImageSpan] = ()) -> None:
        self.ids: Ids = as_ids(ids)
        self.images: tuple[ImageSpan, ...] = tuple(images)
        edge = 0
        for span in self.images:
            if span.length < 1 or span.start < edge or span.end > len(self.ids):
                raise RecordError(
                    f"image span [{span.start}, {span.end}) overlaps its neighbour or leaves "
                    f"the {len(self.ids)} ids of its sequence"
                )
            edge = span.end

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenSequence):
            return NotImplemented
        return self.images == other.images and np.array_equal(self.ids, other.ids)

    def __hash__(self) -> int:
        return hash((self.ids.tobytes(), self.images))

    def __repr__(self) -> str:
        return f"TokenSequence({len(self.ids)} ids, {len(self.images)} images)"

    def __add__(self, other: TokenSequence) -> TokenSequence:
        moved = tuple(span.moved(len(self.ids)) for span in other.images)
        return TokenSequence(np.concatenate([self.ids, other.ids]), self.images + moved)

    def slice(self, start: int, stop: int) -> TokenSequence:
        """Positions `[start, stop)`.

        Raises:
            RecordError: if a bound lies inside an image span.
        """
        for span in self.images:
            for bound in (start, stop):
                if span.start < bound < span.end:
                    raise RecordError(
                        f"position {bound} cuts the image at [{span.start}, {span.end})"
                    )
        inside = tuple(s.moved(-start) for s in self.images if start <= s.start and s.end <= stop)
        return TokenSequence(self.ids[start:stop], inside)

    def starts_with(self, prefix: TokenSequence) -> bool:
        return len(prefix) <= len(self) and common_prefix(self, prefix) == len(prefix)


EMPTY = TokenSequence(())


def common_prefix(a: TokenSequence, b: TokenSequence) -> int:
    """Length of the longest common prefix of `a` and `b` that cuts no image of either."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a.ids[:n] != b.ids[:n])
    n = int(differ[0]) if differ.size else n
    if not a.images and not b.images:
        return n
    shared = set(a.images) & set(b.images)
    for span in sorted((*a.images, *b.images), key=lambda s: s.start):
        if span.start >= n:
            break
        if span not in shared or span.end > n:
            return span.start
    return n
