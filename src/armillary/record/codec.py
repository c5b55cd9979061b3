"""Journal entries and their bytes.

Every entry is one msgpack array with a fixed field order, so that a file written today can be read
by code that knows its schema version (in the journal's header). Arrays are raw little-endian
bytes: int32 ids, float32 logprobs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from armillary.errors import RecordError
from armillary.record.calls import (
    CaptureLevel,
    Fork,
    ForkReason,
    ModelCall,
    PolicySpan,
    PromptRef,
    Sampling,
    StopReason,
    Times,
)
from armillary.record.outcomes import Graded, Ungraded
from armillary.record.tokens import ImageSpan, TokenSequence

SCHEMA_VERSION = 1


class AttemptOpened(msgspec.Struct, frozen=True, array_like=True, tag="opened"):
    """An attempt began. `attempt` is unique in a run; a repeated one has a higher try number."""

    attempt: str
    stage: str
    """`train` or the name of an evaluation."""
    split: str
    task: str
    harness: str
    group: str
    repeat: int
    try_number: int
    opened_at: float


class Delivery(msgspec.Struct, frozen=True, array_like=True, tag="delivery"):
    """Whether the last byte of a call reached the agent."""

    attempt: str
    index: int
    delivered: bool


class AttemptClosed(msgspec.Struct, frozen=True, array_like=True, tag="closed"):
    """An attempt ended; only now may it be used."""

    attempt: str
    outcome: Graded | Ungraded
    facts: dict[str, Any] = {}
    """Counts and times that are not in the calls."""


class UpdateApplied(msgspec.Struct, frozen=True, array_like=True, tag="update"):
    """The learner made policy version `version` from these attempts."""

    step: int
    version: int
    attempts: tuple[str, ...]


class _CallFrame(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    session: str
    index: int
    parent: int | None
    delta: bytes
    images: tuple[tuple[int, int, str, tuple[int, int, int]], ...]
    prompt_length: int
    output_ids: bytes
    output_logprobs: bytes
    policy: tuple[tuple[int, int, int], ...]
    stop_reason: StopReason
    dialect: str
    engine: str
    level: CaptureLevel
    fork: tuple[int, ForkReason] | None
    n_tools: int
    system_digest: str
    sampling: Sampling
    sampling_asked: dict[str, Any]
    request: bytes
    response: bytes
    times: Times
    findings: tuple[str, ...]
    faults: tuple[str, ...]
    trainable: bool
    untrainable_reason: str


Entry = AttemptOpened | ModelCall | Delivery | AttemptClosed | UpdateApplied

_Frame = AttemptOpened | _CallFrame | Delivery | AttemptClosed | UpdateApplied

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Frame)

ENTRY_TAG = re.compile(
    b"|".join(
        re.escape(_encoder.encode(kind.__struct_config__.tag))
        for kind in (AttemptOpened, _CallFrame, Delivery, AttemptClosed, UpdateApplied)
    )
)
"""Matches the first field of an entry's array: entries can be found behind damaged bytes."""


def encode(entry: Entry) -> bytes:
    """The bytes of one journal entry."""
    return _encoder.encode(_frame(entry) if isinstance(entry, ModelCall) else entry)


def decode(data: bytes) -> Entry:
    """The entry in `data`.

    Raises:
        RecordError: the bytes are no entry of this schema version.
    """
    try:
        frame = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise RecordError(f"journal entry of unknown form: {error}") from error
    return _call(frame) if isinstance(frame, _CallFrame) else frame


def apply_delivery(call: ModelCall, delivery: Delivery) -> ModelCall:
    return replace(call, delivered=delivery.delivered)


def _frame(call: ModelCall) -> _CallFrame:
    delta = call.prompt.delta
    return _CallFrame(
        session=call.session,
        index=call.index,
        parent=call.prompt.parent,
        delta=delta.ids.tobytes(),
        images=tuple((s.start, s.length, s.sha256, s.grid) for s in delta.images),
        prompt_length=call.prompt_length,
        output_ids=call.output_ids.tobytes(),
        output_logprobs=call.output_logprobs.tobytes(),
        policy=tuple((s.start, s.length, s.version) for s in call.policy),
        stop_reason=call.stop_reason,
        dialect=call.dialect,
        engine=call.engine,
        level=call.level,
        fork=(call.fork.at_message, call.fork.reason) if call.fork else None,
        n_tools=call.n_tools,
        system_digest=call.system_digest,
        sampling=call.sampling,
        sampling_asked=call.sampling_asked,
        request=call.request,
        response=call.response,
        times=call.times,
        findings=call.findings,
        faults=call.faults,
        trainable=call.trainable,
        untrainable_reason=call.untrainable_reason,
    )


def _call(frame: _CallFrame) -> ModelCall:
    images = tuple(ImageSpan(*span) for span in frame.images)
    delta = TokenSequence(np.frombuffer(frame.delta, np.int32), images)
    return ModelCall(
        session=frame.session,
        index=frame.index,
        prompt=PromptRef(frame.parent, delta),
        prompt_length=frame.prompt_length,
        output_ids=np.frombuffer(frame.output_ids, np.int32),
        output_logprobs=np.frombuffer(frame.output_logprobs, np.float32),
        policy=tuple(PolicySpan(*span) for span in frame.policy),
        stop_reason=frame.stop_reason,
        dialect=frame.dialect,
        engine=frame.engine,
        level=frame.level,
        fork=Fork(frame.fork[0], frame.fork[1]) if frame.fork else None,
        n_tools=frame.n_tools,
        system_digest=frame.system_digest,
        sampling=frame.sampling,
        sampling_asked=frame.sampling_asked,
        request=frame.request,
        response=frame.response,
        times=frame.times,
        findings=frame.findings,
        faults=frame.faults,
        trainable=frame.trainable,
        untrainable_reason=frame.untrainable_reason,
    )
