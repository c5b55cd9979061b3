"""Every error the product raises on purpose, named by the boundary that was crossed.

Each class is also the standard-library class a caller would expect, so `except ValueError` and
`except ArmillaryError` both work. Messages are written for the person who has to act: what was
wrong, where, and what to do. Extensions raise plain Python errors; `rollout.failures` is the one
place that turns whatever escapes an attempt into data.
"""

from __future__ import annotations

from typing import Literal

SandboxFault = Literal["missing", "start", "died", "limit", "io"]


class ArmillaryError(Exception):
    """Base of all deliberate errors. The command line prints its text and no traceback."""


class ConfigError(ArmillaryError, ValueError):
    """A run file, an option or an argument cannot be used as it is."""


class TaskError(ArmillaryError, ValueError):
    """A task folder or task set is incomplete or malformed."""


class RecordError(ArmillaryError, ValueError):
    """A record, journal or row breaks one of its invariants."""


class TemplateError(ArmillaryError, ValueError):
    """Messages cannot be rendered, or a tokenizer lacks what the template needs."""


class CaptureError(ArmillaryError, RuntimeError):
    """The proxy could not keep an exact record of a call."""


class EngineError(ArmillaryError, RuntimeError):
    """The engine failed. `retryable` says whether the same request may succeed later."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class SandboxError(ArmillaryError, OSError):
    """A sandbox could not be started or was lost. `kind` says at which point."""

    def __init__(self, message: str, *, kind: SandboxFault) -> None:
        super().__init__(message)
        self.kind: SandboxFault = kind


class HarnessError(ArmillaryError, RuntimeError):
    """An agent program is not installed, or crashed by itself."""


class RolloutError(ArmillaryError, RuntimeError):
    """Attempts cannot go on: none of many was graded, and it is not the policy's doing."""


class LearnerError(ArmillaryError, RuntimeError):
    """A training step was refused or the learner process ended."""
