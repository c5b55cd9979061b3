"""Nothing a policy does to the real mini-SWE-agent makes its attempt ungraded."""

from __future__ import annotations

import logging
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from harness_rig import Bench, Reply, recorded, wires

from armillary.capture.session import Session
from armillary.chat.messages import AssistantTurn, text_of
from armillary.errors import EngineError, HarnessError
from armillary.harness.locks import installed_environment
from armillary.harness.mini_flow import MARKER, MiniActions
from armillary.harness.mini_program import TRAJECTORY
from armillary.harness.mini_swe_agent import MiniSweAgent
from armillary.harness.protocol import Budget
from armillary.record.outcomes import Ending
from armillary.sandbox.protocol import File, Limits, SandboxProvider, Spec

pytestmark = [
    pytest.mark.needs_bwrap, pytest.mark.needs_mini, pytest.mark.asyncio(loop_scope="module"),
]  # fmt: skip

RUN = MiniActions().run
END = RUN(f"echo {MARKER}")


@dataclass
class Mini:
    harness: MiniSweAgent
    provider: SandboxProvider
    bench: Bench

    def session(self, *replies: Reply, calls: int = 6) -> Session:
        return self.bench.session("s", replies, self.harness.closing, calls=calls)

    async def run(self, session: Session, budget: Budget, spec: Spec | None = None) -> Ending:
        sandbox = await self.provider.open(spec or Spec(limits=Limits(disk_mb=8)))
        try:
            return await self.harness.run("Go.", session, sandbox, budget)
        finally:
            await sandbox.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mini(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mini]:
    harness = MiniSweAgent(wires(), installed_environment("mini-swe-agent"))
    provider = harness.provider()
    yield Mini(harness, provider, Bench.make(tmp_path_factory.mktemp("tokenizer")))
    await provider.close()


def for_ever(command: str) -> str:
    """`command` again and again, in a daemon that outlives the command line."""
    again = shlex.quote(f"while :; do {command}; done")
    return f"setsid sh -c {again} >/dev/null 2>&1 & sleep 0.2"


@pytest.mark.parametrize(
    "harm",
    [
        "kill -9 -1",
        "kill -9 $PPID",
        "kill -INT $PPID; sleep 1",
        "kill -SEGV $PPID; sleep 1",
        "cat /dev/zero > /tmp/zeros; seq 9000 | (cd /tmp; xargs touch)",
        f"rm -f {TRAJECTORY}; mkdir {TRAJECTORY}",
        f"rm -f {TRAJECTORY}; ln -s /dev/full {TRAJECTORY}",
        f"rm -f {TRAJECTORY}; ln -s /proc/self/mem {TRAJECTORY}",
        for_ever(f"rm -rf {TRAJECTORY}; mkdir {TRAJECTORY}"),
    ],
)
async def test_breaking_the_program_is_the_policys_doing(
    mini: Mini, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ending = await mini.run(mini.session(RUN(harm), END), Budget())
    assert ending.reason in ("agent_killed", "submitted")
    if ending.reason == "agent_killed":
        assert "after commands of the policy: mini-SWE-agent ended with" in caplog.text


@pytest.mark.parametrize("harm", ["kill -9 -1", "cat /dev/zero > /tmp/zeros"])
async def test_a_killed_program_is_said_to_be_one(mini: Mini, harm: str) -> None:
    ending = await mini.run(mini.session(RUN(harm), END), Budget())
    assert ending.reason == "agent_killed"
    assert "ended with exit code" in ending.detail


@pytest.mark.parametrize("text", ['{"info": {"exit_status": "Odd"}}', "[" * 20_000, "{}"])
async def test_writing_over_how_it_ended_is_no_way_out(mini: Mini, text: str) -> None:
    forged = RUN(f"printf %s {shlex.quote(text)} > x; {for_ever(f'cp /workdir/x {TRAJECTORY}')}")
    ending = await mini.run(mini.session(forged, END), Budget())
    assert ending.reason in ("agent_killed", "submitted")


async def test_a_spent_budget_is_named_also_where_the_program_breaks(mini: Mini) -> None:
    harm = RUN(f"{for_ever(f'cp /dev/null {TRAJECTORY}')}")
    ending = await mini.run(mini.session(harm, RUN("ls"), calls=2), Budget(calls=9))
    assert ending.reason == "call_budget"


async def test_a_crash_before_any_command_is_the_programs_own(mini: Mini) -> None:
    blocked = Spec(files={f"{TRAJECTORY}/x": File(b"")})
    with pytest.raises(HarnessError, match="exit code 1 and status None"):
        await mini.run(mini.session(AssistantTurn(content="no call")), Budget(), blocked)


async def test_a_fault_of_ours_comes_first(mini: Mini) -> None:
    session = mini.session(RUN("kill -9 $PPID"))
    session.fault = EngineError("gone", retryable=True)
    with pytest.raises(EngineError, match="gone"):
        await mini.run(session, Budget())


async def test_a_command_ends_at_the_budgets_time(mini: Mini) -> None:
    session = mini.session(RUN("sleep 25"), END)
    await mini.run(session, Budget(command_seconds=0.5))
    reply = text_of(recorded(session)[1].messages[-1].content)
    assert "timed out after 1 seconds" in reply
