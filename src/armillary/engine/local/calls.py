"""What the scheduler takes in and gives out. Free of torch: both processes import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from armillary.engine.protocol import EngineEvent
from armillary.record.calls import Sampling
from armillary.record.tokens import Ids


@dataclass(frozen=True, slots=True)
class Call:
    """A request for `n` continuations of `prompt`."""

    id: int
    prompt: Ids
    sampling: Sampling
    n: int = 1
    session: str = ""


class Emission(NamedTuple):
    """What happened to a call."""

    call: int
    event: EngineEvent
