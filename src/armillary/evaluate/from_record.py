"""From the rollout room's attempts to flat results."""

from __future__ import annotations

from typing import Any

from armillary.evaluate.attempts import AttemptResult
from armillary.record.codec import AttemptOpened
from armillary.record.outcomes import Graded, Outcome, Ungraded

_COPIED = (
    "model_calls", "tool_calls", "unknown_tool_calls", "malformed_calls", "prompt_tokens",
    "output_tokens", "rows", "row_tokens", "supervised_tokens", "policy_version", "seconds",
)  # fmt: skip


def attempt_result(
    opened: AttemptOpened, outcome: Outcome, facts: dict[str, Any], *, trained: bool
) -> AttemptResult:
    """One recorded attempt as a flat result. `trained`: a learner was given its rows."""
    copied = {name: facts[name] for name in _COPIED if name in facts}
    if not trained:
        copied |= {"rows": 0, "row_tokens": 0, "supervised_tokens": 0}
    stage = opened.stage.removeprefix("eval/")
    common = {
        "attempt_id": opened.attempt, "stage": "grpo" if stage.startswith("train/") else stage,
        "split": opened.split, "task": opened.task, "harness": opened.harness,
        "group": opened.group, "repeat": opened.repeat, "try_number": opened.try_number,
        "forks": len(facts.get("forks", ())), **copied,
    }  # fmt: skip
    match outcome:
        case Graded():
            return AttemptResult(
                **common, graded=True, reward=outcome.reward, correct=outcome.correct,
                stop_reason=outcome.stop_reason,
            )  # fmt: skip
        case Ungraded():
            return AttemptResult(
                **common, graded=False, failure_kind=outcome.kind, failure_detail=outcome.detail
            )
