"""The harness seam: who owns the loop around the model.

White-box: our own tool loop calls the session in process. Black-box: an unmodified agent program
runs in the sandbox and reaches the session through the capture proxy. Both return the same
`Ending`, so nothing above this room knows which one ran. Adding a harness is one new file and one
line in `harness.registry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from armillary.capture.session import Session
from armillary.chat.messages import AssistantTurn, Message, Tool
from armillary.record.outcomes import Ending
from armillary.sandbox.protocol import Sandbox, SandboxProvider
from armillary.tasks.protocol import RunCommand


@dataclass(frozen=True, slots=True)
class Budget:
    """What one attempt may spend. The same section serves training and evaluation."""

    calls: int = 7
    """Model calls."""
    total_tokens: int = 0
    """Sampled tokens of the whole attempt; 0 = no limit."""
    seconds: float = 120.0
    """Wall clock of the whole attempt; an attempt that our own queue starved is ungraded."""
    command_seconds: float = 30.0
    """Wall clock of one tool command."""


class Step(NamedTuple):
    """How a harness answers an assistant turn."""

    kept: bool
    """False: the harness deletes the turn from its history."""
    messages: tuple[Message, ...]
    done: bool


class Flow(Protocol):
    """The messages of one attempt, without a process: the harness as a state machine.

    Demonstrations are written through it; a test holds it equal to the real program.
    """

    @property
    def tools(self) -> tuple[Tool, ...]: ...

    def start(self, instruction: str) -> tuple[Message, ...]: ...

    def step(self, turn: AssistantTurn) -> Step: ...


class ScriptedActions(Protocol):
    """How a scripted policy acts in a harness."""

    def run(self, command: str) -> AssistantTurn: ...

    def finish(self, answer: str) -> Sequence[AssistantTurn]:
        """The turns that hand in `answer`, an argument for `echo` without shell syntax."""
        ...

    def output(self, message: Message) -> str:
        """The command output inside a tool message."""
        ...


class Harness(Protocol):
    """One way of running a task with a model."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def actions(self) -> ScriptedActions: ...

    @property
    def closing(self) -> AssistantTurn:
        """Our reply once the budget is spent; it makes the harness end by itself."""
        ...

    def provider(self) -> SandboxProvider:
        """A new provider of the sandboxes this harness needs; the caller closes it."""
        ...

    async def prepare(self, provider: SandboxProvider) -> None:
        """Learn what must be known before the first attempt, once.

        Raises:
            HarnessError: the program is missing or is not the one this product understands.
        """
        ...

    def flow(self, run_command: RunCommand) -> Flow:
        """The harness as a state machine; only after `prepare`."""
        ...

    def phrases(self) -> tuple[str, ...]:
        """Fixed texts of its prompts, for a tokenizer of our own; only after `prepare`."""
        ...

    async def run(
        self, instruction: str, session: Session, sandbox: Sandbox, budget: Budget
    ) -> Ending:
        """Run one attempt to its end. The caller keeps `budget.seconds`, by cancelling this.

        Raises:
            SandboxError, HarnessError, EngineError, CaptureError: the attempt is ungraded.
        """
        ...
