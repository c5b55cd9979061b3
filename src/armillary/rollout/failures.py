"""The one place that turns whatever escapes an attempt into an outcome.

An extension raises plain Python errors; an unknown one is ungraded, because an error we did not
foresee says nothing about the policy.
"""

from __future__ import annotations

import asyncio

from armillary.errors import CaptureError, EngineError, HarnessError, RecordError, SandboxError
from armillary.record.outcomes import FailureKind, Ungraded
from armillary.rollout.grading import VerifierError

_KINDS: tuple[tuple[type[BaseException], FailureKind], ...] = (
    (SandboxError, "sandbox"),
    (EngineError, "engine"),
    (VerifierError, "verifier"),
    (CaptureError, "capture"),
    (RecordError, "capture"),
    (HarnessError, "harness"),
    (asyncio.CancelledError, "cancelled"),
)


def classify(error: BaseException) -> Ungraded:
    """The outcome of an attempt that ended with `error`."""
    for kind, name in _KINDS:
        if isinstance(error, kind):
            retryable = _may_pass(error) and name != "cancelled"
            return Ungraded(name, str(error) or type(error).__name__, retryable)
    return Ungraded("harness", f"unforeseen {type(error).__name__}: {error}", retryable=False)


def _may_pass(error: BaseException) -> bool:
    """Whether the failure may be gone at the next try."""
    if isinstance(error, SandboxError):
        return error.kind != "missing"
    return bool(getattr(error, "retryable", True))
