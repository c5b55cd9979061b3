"""One attempt as a flat record: the only thing that statistics and reports read.

What it guarantees: a record is either graded (it has a reward, a verdict and the reason it ended)
or ungraded (it has a kind and none of the first two). A record that is neither cannot be made.
Why flat: every number in a report is a sum over these rows, so the same rows as a Parquet file let
a reader compute each of them again.

`split` tells training from measuring: rows of split `train` are rollouts that a learner may have
used, every other split is an evaluation. Scripted demonstrations are no attempts and are not here.
"""

from __future__ import annotations

import math

import msgspec

from armillary.errors import RecordError
from armillary.record.outcomes import EndReason, FailureKind

TRAIN_SPLIT = "train"
"""The one split whose attempts may train."""


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of an attempt when it is over. Counts are of this attempt alone.

    Raises:
        RecordError: the fields contradict each other.
    """

    attempt_id: str
    stage: str
    """Name of the stage or evaluation: `base`, `sft`, `grpo`, or a name of the user's own."""
    split: str
    """`train`, `validation`, `test`, or another split of the task set."""
    task: str
    harness: str
    group: str = ""
    """Group of a training rollout; empty where there is none."""
    repeat: int = 0
    """Which of the n independent attempts at the same cell, from 0."""
    try_number: int = 0
    """0 = first; counts up each time an ungraded attempt is made again."""

    graded: bool
    reward: float | None = None
    """The reward that trains; None exactly where `graded` is False."""
    correct: bool | None = None
    """The verifier's verdict; None exactly where `graded` is False."""
    stop_reason: EndReason | None = None
    """What the policy did last. An ungraded attempt may have one (its verifier died later)."""
    failure_kind: FailureKind | None = None
    """Whose fault an ungraded attempt was; None exactly where `graded` is True."""
    failure_detail: str = ""

    model_calls: int = 0
    tool_calls: int = 0
    """Readable calls of offered tools that the model wrote. Those whose arguments the harness
    refused, and those of a reply that never reached it, are counted too."""
    malformed_calls: int = 0
    """Assistant turns without a readable tool call where one was needed."""
    unknown_tool_calls: int = 0
    """Readable calls of a tool that the harness does not offer; not in `malformed_calls`."""
    prompt_tokens: int = 0
    """Sum over the model calls of the whole prompt, cached or not: what the model read."""
    output_tokens: int = 0
    """Sampled tokens: what the model wrote."""
    rows: int = 0
    """Training rows made from the attempt and given to a learner; 0 if none."""
    row_tokens: int = 0
    """Tokens of those rows, trained or only context."""
    supervised_tokens: int = 0
    """Tokens of those rows that carry a loss."""
    forks: int = 0
    """Model calls whose prompt was not an exact continuation, the first call left out."""
    policy_version: int = -1
    """Lowest version that sampled a token of the attempt; -1 where none was sampled."""
    seconds: float = 0.0
    """Wall clock."""
    cpu_seconds: float = 0.0
    """Processor time of the agent and its commands; the engine's is not in it."""

    def __post_init__(self) -> None:
        verdict = (self.reward, self.correct)
        if self.graded:
            broken = None in verdict or self.stop_reason is None or self.failure_kind is not None
        else:
            broken = verdict != (None, None) or self.failure_kind is None
        if broken:
            raise RecordError(
                f"attempt {self.attempt_id} says graded={self.graded} with reward {self.reward}, "
                f"correct {self.correct}, stop reason {self.stop_reason}, failure kind "
                f"{self.failure_kind}: a graded attempt has the first three, an ungraded one has "
                "a failure kind and neither reward nor verdict"
            )
        if self.reward is not None and not math.isfinite(self.reward):
            raise RecordError(f"attempt {self.attempt_id}: reward {self.reward} is not finite")
