"""Which settings of a run may still change, and how two run files differ.

A run folder belongs to one configuration, but a setting binds only once something was made with
it: `[train]` may change until reinforcement learning begins, so `armillary sft` and then
`armillary train --train.steps 20` is one run. What is compared is what the files mean, not their
text, so a key with a default that a later version adds locks no old run out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from armillary.cli.runfile import RunFile
from armillary.errors import ConfigError


class Difference(NamedTuple):
    """One key that two run files do not agree on; None = it is not there."""

    key: str
    kept: Any
    asked: Any

    def __str__(self) -> str:
        return f"{self.key} = {_shown(self.kept)} there, {_shown(self.asked)} asked for"


HasBegun = Callable[[str], bool]
"""Whether a stage of the run has begun."""

_ALWAYS_FREE = ("rollout.concurrency", "rollout.retries", "train.checkpoint_every", "track")
"""How a run is carried out, not what comes out of it."""
_MEASURED = ("eval/base", "eval/sft", "eval/grpo")
_BOUND_BY: dict[str, tuple[str, ...]] = {
    "sft": ("warmup", "demonstrations", "sft"),
    "eval": (*_MEASURED, "grpo"),
    "rollout.temperature": (*_MEASURED, "grpo"),
    "rollout": ("grpo",),
    "train.steps": ("eval/grpo",),
    "train": ("grpo",),
}
"""Key or section -> stages that bind it; the first entry that fits counts. All else is bound."""
_SHAPES_ATTEMPTS = (
    "engine.context", "budget", "sandbox", "rollout.temperature", "train.reward", "tasks.family",
)  # fmt: skip
_MADE_THE_WEIGHTS = ("model", "revision", "tasks.family", "tasks.train")


def differences(kept: RunFile, asked: RunFile) -> list[Difference]:
    """Keys whose values differ, in the order of the run file."""
    before, after = _flat(kept.model_dump(mode="json")), _flat(asked.model_dump(mode="json"))
    return [
        Difference(key, before.get(key), after.get(key))
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]


def bound(found: list[Difference], has_begun: HasBegun) -> list[Difference]:
    """Those of `found` that cannot change any more."""
    return [difference for difference in found if _is_bound(difference.key, has_begun)]


def refuse_other_attempts(kept: RunFile, asked: RunFile, where: str) -> None:
    """Attempts of one stage are all made under the same conditions.

    Raises:
        ConfigError: `asked` would make other attempts than `kept` did; names the keys.
    """
    _refuse(kept, asked, _SHAPES_ATTEMPTS, f"{where} was measured with other settings", "--stage")


def refuse_other_weights(kept: RunFile, asked: RunFile, where: str) -> None:
    """Weights are measured under the settings that they come from.

    Raises:
        ConfigError: `asked` speaks of another model or other tasks than `kept`; names the keys.
    """
    _refuse(kept, asked, _MADE_THE_WEIGHTS, f"{where} holds weights made otherwise", "--name")


def _refuse(kept: RunFile, asked: RunFile, keys: tuple[str, ...], what: str, option: str) -> None:
    found = [d for d in differences(kept, asked) if _below(d.key, keys)]
    if found:
        raise ConfigError(
            "\n".join([f"{what}; choose another {option}:", *(f"  {d}" for d in found)])
        )


def _is_bound(key: str, has_begun: HasBegun) -> bool:
    if _below(key, _ALWAYS_FREE):
        return False
    for prefix, stages in _BOUND_BY.items():
        if _below(key, (prefix,)):
            return any(has_begun(stage) for stage in stages)
    return True


def _below(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)
