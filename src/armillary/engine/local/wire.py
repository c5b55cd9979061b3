"""The wire between the asyncio process and the model process: frames of msgpack over a Unix socket.

A frame is a 4-byte little-endian length and one msgpack value. Token ids travel as int32 bytes and
logprobs as float32 bytes, little-endian: no per-token objects on either side. Requests carry a
method name and a body of that method's own type, so that the learner adds methods without this
file knowing them.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final

import msgspec
import numpy as np

from armillary.engine.local.calls import Emission
from armillary.engine.protocol import Finish, Span, Usage
from armillary.errors import (
    ArmillaryError,
    ConfigError,
    EngineError,
    LearnerError,
    RecordError,
)
from armillary.record.calls import Sampling, StopReason
from armillary.record.tokens import Ids, Logprobs

LARGEST: Final = 1 << 30
"""Bytes of the largest frame; a longer one means a broken peer."""


class Request(msgspec.Struct, array_like=True):
    id: int
    method: str
    body: msgspec.Raw


class Reply(msgspec.Struct, array_like=True, tag="r"):
    id: int
    body: msgspec.Raw


class Failure(msgspec.Struct, array_like=True, tag="f"):
    """The request could not be done; `id` -1 = the process could not start."""

    id: int
    error: str
    message: str
    retryable: bool = False


class SpanFrame(msgspec.Struct, array_like=True, tag="s"):
    call: int
    branch: int
    ids: bytes
    logprobs: bytes
    version: int


class FinishFrame(msgspec.Struct, array_like=True, tag="e"):
    call: int
    branch: int
    reason: StopReason
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int


class Events(msgspec.Struct, array_like=True, tag="v"):
    """What happened to calls since the last such frame."""

    events: list[SpanFrame | FinishFrame]


ServerFrame = Reply | Failure | Events


class GenerateBody(msgspec.Struct, array_like=True):
    ids: bytes
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    seed: int
    n: int
    session: str


class ScoreBody(msgspec.Struct, array_like=True):
    ids: bytes
    temperature: float


class ScoreReply(msgspec.Struct, array_like=True):
    logprobs: bytes


class StatusReply(msgspec.Struct, array_like=True):
    """What the engine is doing and has done."""

    running: int
    """Branches being sampled."""
    waiting: int
    """Calls in the queue."""
    kept: int
    """Conversations whose cache waits for their next turn."""
    sampled: int
    """Tokens since the start."""
    forwards: int
    """Forward passes since the start."""
    version: int


class Hello(msgspec.Struct, array_like=True):
    """First reply of the process: what it loaded."""

    model_type: str
    context: int
    vocab_size: int
    parameters: int


class Nothing(msgspec.Struct, array_like=True):
    """Body of a request or reply that says no more than its method."""


_LENGTH = struct.Struct("<I")
_ERRORS: dict[str, type[ArmillaryError]] = {
    e.__name__: e for e in (ConfigError, LearnerError, RecordError)
}


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame, or None when the peer is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > LARGEST:
            return None
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def frame(value: msgspec.Struct) -> bytes:
    """`value` as one frame.

    Raises:
        EngineError: it is too large for one frame.
    """
    data = msgspec.msgpack.encode(value)
    if len(data) > LARGEST:
        raise EngineError(f"a message of {len(data)} bytes is too large", retryable=False)
    return _LENGTH.pack(len(data)) + data


def ids_of(data: bytes) -> Ids:
    return np.frombuffer(data, dtype="<i4")


def logprobs_of(data: bytes) -> Logprobs:
    return np.frombuffer(data, dtype="<f4")


def generate_body(ids: Ids, sampling: Sampling, n: int, session: str) -> GenerateBody:
    s = sampling
    return GenerateBody(
        # msgpack integers end at 64 bits; the generator uses as many.
        ids.tobytes(),
        s.temperature,
        s.top_p,
        s.top_k,
        s.max_tokens,
        s.seed & ((1 << 64) - 1),
        n,
        session,
    )


def sampling_of(body: GenerateBody) -> Sampling:
    return Sampling(body.temperature, body.top_p, body.top_k, body.max_tokens, body.seed)


def events_frame(emissions: list[Emission]) -> Events:
    """Emissions of the scheduler as one frame."""
    events: list[SpanFrame | FinishFrame] = []
    for call, event in emissions:
        if isinstance(event, Span):
            ids, logprobs = event.ids.tobytes(), event.logprobs.tobytes()
            events.append(SpanFrame(call, event.branch, ids, logprobs, event.policy_version))
        else:
            u = event.usage
            counts = (u.prompt_tokens, u.output_tokens, u.cached_tokens)
            events.append(FinishFrame(call, event.branch, event.reason, *counts))
    return Events(events)


def event_of(frame: SpanFrame | FinishFrame) -> Span | Finish:
    if isinstance(frame, SpanFrame):
        return Span(frame.branch, ids_of(frame.ids), logprobs_of(frame.logprobs), frame.version)
    usage = Usage(frame.prompt_tokens, frame.output_tokens, frame.cached_tokens)
    return Finish(frame.branch, frame.reason, usage)


def failure_of(call: int, error: ArmillaryError) -> Failure:
    retryable = isinstance(error, EngineError) and error.retryable
    return Failure(call, type(error).__name__, str(error), retryable)


def error_of(failure: Failure) -> ArmillaryError:
    """The exception on the caller's side."""
    kind = _ERRORS.get(failure.error)
    if kind is None:
        return EngineError(failure.message, retryable=failure.retryable)
    return kind(failure.message)
