"""Why a graded attempt was not correct, in four exclusive classes.

The order of the rules is the point: an attempt that handed in an answer failed by that answer,
whatever went wrong before; one that did not is put down to its calls only if they were mostly
broken; all others simply never handed in.
"""

from __future__ import annotations

from typing import Literal

from armillary.evaluate.attempts import AttemptResult

FailureClass = Literal["malformed call", "unknown tool", "no submission", "wrong answer"]

MEANING: dict[FailureClass, str] = {
    "malformed call": "handed in nothing; at least half of its model calls, or the turns that "
    "ended it, had no readable tool call",
    "unknown tool": "the same, but most of the broken calls named a tool the harness does not have",
    "no submission": "ran out of its budget, its context, its own time or its sandbox, stopped, "
    "or ended its agent program, before it handed in an answer",
    "wrong answer": "handed in an answer that the verifier refused",
}
"""Every class with what it says about an attempt, in the order that reports show."""


def failure_class(attempt: AttemptResult) -> FailureClass | None:
    """The class of a graded, incorrect attempt; None for a correct or an ungraded one."""
    if not attempt.graded or attempt.correct:
        return None
    if attempt.stop_reason == "submitted":
        return "wrong answer"
    broken = attempt.malformed_calls + attempt.unknown_tool_calls
    mostly_broken = broken > 0 and 2 * broken >= attempt.model_calls
    if attempt.stop_reason == "malformed_calls" or mostly_broken:
        unknown = attempt.unknown_tool_calls > attempt.malformed_calls
        return "unknown tool" if unknown else "malformed call"
    return "no submission"
