"""Named reward rules: from the verifier's scores and the attempt's tool calls to one number."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from armillary.errors import ConfigError

RewardRule = Callable[[Mapping[str, float], int], float]
"""(scores, tool calls) -> reward."""


def correctness(scores: Mapping[str, float], tool_calls: int) -> float:
    """The verifier's own reward, in [0, 1]."""
    return scores["reward"]


def correct_and_efficient(scores: Mapping[str, float], tool_calls: int) -> float:
    """0 if wrong; 1 + 1.5 / (15 + tool calls) if right. Never pays without correctness.

    Source: the multi-harness experiment this product follows; 5 calls give 1.075, 15 give 1.05.
    """
    if scores["reward"] < 1.0:
        return 0.0
    return 1.0 + 1.5 / (15 + tool_calls)


REWARDS: dict[str, RewardRule] = {
    "correctness": correctness,
    "correct-and-efficient": correct_and_efficient,
}


def reward_rule(name: str) -> RewardRule:
    """
    Raises:
        ConfigError: there is no such rule.
    """
    if name not in REWARDS:
        raise ConfigError(f"no reward {name!r}; there are: {', '.join(sorted(REWARDS))}")
    return REWARDS[name]
