"""mini-SWE-agent: a black-box harness, the real program unmodified.

It runs warm in its own locked environment, in a sandbox of its own per attempt, and reaches the
session through the capture proxy on a socket made inside that sandbox.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from armillary.capture.listener import ProxyServer
from armillary.capture.session import Policy, Session, SessionBudget
from armillary.capture.sessions import SessionRegistry
from armillary.chat.messages import AssistantTurn, ToolCall
from armillary.chat.parser import HermesParser
from armillary.chat.raw import turn_ids
from armillary.chat.template import HermesTemplate, call_opening
from armillary.chat.train_tokenizer import train_tokenizer
from armillary.engine.scripted import ScriptedEngine
from armillary.errors import HarnessError
from armillary.harness.mini_flow import MARKER, OBSERVATION_PHRASES, MiniActions, MiniFlow
from armillary.harness.mini_program import (
    VERSION,
    mini_argv,
    mini_env,
    mini_status,
    mini_warm_program,
)
from armillary.harness.mini_protocol import PROBE, MiniProtocol, extract, load_or_store
from armillary.harness.protocol import Budget, Flow
from armillary.record.calls import Sampling
from armillary.record.journal import NullRecorder
from armillary.record.outcomes import Ending, EndReason
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.protocol import ExecResult, Sandbox, SandboxProvider, Spec
from armillary.tasks.protocol import RunCommand

_log = logging.getLogger(__name__)

PORT = 8000
"""Where the proxy listens inside every sandbox."""

_ENDINGS: dict[str, EndReason] = {
    "Submitted": "submitted",
    "LimitsExceeded": "call_budget",
    "RepeatedFormatError": "malformed_calls",
}
"""The program's own exit status -> what that means here."""


@dataclass(frozen=True, slots=True)
class Wires:
    """What a black-box harness needs to reach the model."""

    proxy: ProxyServer
    sessions: SessionRegistry


class MiniSweAgent:
    """The harness."""

    name: str = "mini-swe-agent"
    version: str = VERSION
    actions = MiniActions()
    closing: AssistantTurn = MiniActions().run(f"echo {MARKER}")

    def __init__(self, wires: Wires, environment: Path) -> None:
        """`environment` is the program's installed virtual environment."""
        self._wires = wires
        self._environment = environment
        self._protocol: MiniProtocol | None = None

    def provider(self) -> SandboxProvider:
        return BubblewrapProvider(mini_warm_program(self._environment))

    async def prepare(self, provider: SandboxProvider) -> None:
        kept = self._environment / f"armillary-protocol-{self.version}.json"
        self._protocol = await load_or_store(kept, lambda: self._record(provider))

    def flow(self, run_command: RunCommand) -> Flow:
        return MiniFlow(self._known(), run_command)

    def phrases(self) -> tuple[str, ...]:
        p = self._known()
        texts = (p.system, p.before, p.after, p.error_before, p.error_after, p.error_cut)
        schemas = (tool.schema for tool in p.tools)
        return (*texts, *schemas, MARKER, call_opening("bash", "command"), *OBSERVATION_PHRASES)

    async def run(
        self, instruction: str, session: Session, sandbox: Sandbox, budget: Budget
    ) -> Ending:
        key = self._wires.sessions.register(session)
        try:
            sock = await sandbox.listen(PORT)
            listener = await self._wires.proxy.listen(sock, session_key=key)
            try:
                argv = mini_argv(instruction, budget.calls, budget.command_seconds)
                done = await sandbox.exec(argv, budget.seconds, env=mini_env(PORT, key))
            finally:
                await listener.close()
        finally:
            self._wires.sessions.remove(key)
        if session.fault is not None:
            raise session.fault
        status = await mini_status(sandbox)
        if status in _ENDINGS:
            return Ending(session.spent or _ENDINGS[status], status)
        return _unforeseen(session, done, status)

    def _known(self) -> MiniProtocol:
        if self._protocol is None:
            raise HarnessError("mini-SWE-agent is not prepared; call `prepare` first")
        return self._protocol

    async def _record(self, provider: SandboxProvider) -> MiniProtocol:
        """Two real runs against a scripted engine, to learn the program's texts."""
        nope = AssistantTurn(tool_calls=(ToolCall("", "nope", "{}"),))
        malformed, cut = await asyncio.gather(
            self._probe(provider, "malformed", nope),
            self._probe(provider, "cut", AssistantTurn(content="word " * 40)),
        )
        return extract(self.version, malformed, cut)

    async def _probe(self, provider: SandboxProvider, name: str, first: AssistantTurn) -> Session:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = train_tokenizer([], [], Path(folder))
        template = HermesTemplate(tokenizer)
        replies = [turn_ids(template, turn) for turn in (first, self.closing)]
        engine = ScriptedEngine(lambda _, number, __: replies[min(number, 1)])
        policy = Policy(
            template, lambda mint: HermesParser(tokenizer, mint), engine, Sampling(max_tokens=150)
        )
        session = Session(name, policy, NullRecorder(), SessionBudget(4), self.closing)
        sandbox = await provider.open(Spec())
        try:
            await self.run(PROBE, session, sandbox, Budget(calls=4))
        finally:
            await sandbox.close()
        return session


def _unforeseen(session: Session, done: ExecResult, status: str | None) -> Ending:
    """The ending of a program that does not say how it ended, or says what we do not know.

    Its commands run beside it: they can kill it, fill the disk it writes to, or write anything
    over what it wrote. No sign it leaves proves that they did not, so from the first command on
    such an ending is the policy's; otherwise breaking the program would be a way out of a wrong
    answer.

    Raises:
        HarnessError: the policy had run nothing yet, so the program crashed by itself.
    """
    tail = (done.out + done.err)[-2000:].decode(errors="replace").strip()
    how = f"mini-SWE-agent ended with exit code {done.code} and status {status!r}: {tail}"
    if session.spent is None and not session.counts.tool_calls:
        raise HarnessError(how)
    _log.warning("%s, after commands of the policy: %s", session.attempt, how)
    return Ending(session.spent or "agent_killed", how)
