"""Requests and replies of the learner, on the wire of the local engine."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from armillary.engine.local.wire import ids_of, logprobs_of
from armillary.errors import LearnerError
from armillary.record.rows import TrainingRow
from armillary.record.tokens import TokenSequence
from armillary.train.protocol import Optimizer, PolicyLoss


class RowBody(msgspec.Struct, array_like=True):
    ids: bytes
    mask: bytes
    """One byte per id."""
    logprobs: bytes
    advantage: float
    attempt: str


class WarmUpBody(msgspec.Struct, array_like=True):
    first: int
    steps: int
    optimizer: Optimizer
    seed: int


class SupervisedBody(msgspec.Struct, array_like=True):
    rows: list[RowBody]
    first: int
    steps: int
    batch: int
    optimizer: Optimizer
    seed: int


class StepBody(msgspec.Struct, array_like=True):
    rows: list[RowBody]
    loss: PolicyLoss
    optimizer: Optimizer


class StepReply(msgspec.Struct, array_like=True):
    applied: bool
    refused: str
    values: dict[str, float]


class ValuesReply(msgspec.Struct, array_like=True):
    values: dict[str, float]


class PathBody(msgspec.Struct, array_like=True):
    path: str


class VersionReply(msgspec.Struct, array_like=True):
    version: int


def pack_rows(rows: Sequence[TrainingRow]) -> list[RowBody]:
    """Rows for the wire.

    Raises:
        LearnerError: a row holds images.
    """
    for row in rows:
        if row.tokens.images:
            raise LearnerError(
                f"row of {row.attempt or 'unknown attempt'} holds an image; the local learner "
                "trains text only"
            )
    return [
        RowBody(
            row.tokens.ids.tobytes(),
            row.mask.tobytes(),
            row.logprobs.astype(np.float32).tobytes(),
            row.advantage,
            row.attempt,
        )
        for row in rows
    ]


def unpack_rows(rows: Sequence[RowBody]) -> list[TrainingRow]:
    return [
        TrainingRow(
            TokenSequence(ids_of(row.ids)),
            np.frombuffer(row.mask, dtype=np.bool_),
            logprobs_of(row.logprobs),
            row.advantage,
            row.attempt,
        )
        for row in rows
    ]
