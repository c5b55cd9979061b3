"""Where attempts of a run happen: harnesses, their sandboxes, the proxy between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from armillary.capture.app import CaptureApp
from armillary.capture.listener import ProxyServer
from armillary.capture.session import Policy, Recorder
from armillary.capture.sessions import SessionRegistry
from armillary.cli.runfile import RunFile
from armillary.cli.workspace import Workspace
from armillary.harness.mini_swe_agent import Wires
from armillary.harness.protocol import Budget, Harness
from armillary.harness.registry import Site as HarnessSite
from armillary.harness.registry import make_harness
from armillary.rollout.attempt import Station
from armillary.rollout.rewards import reward_rule
from armillary.sandbox.protocol import Limits, SandboxProvider


@dataclass(frozen=True, slots=True)
class Site:
    """Prepared harnesses with their sandbox providers."""

    run: RunFile
    harnesses: dict[str, Harness]
    providers: dict[str, SandboxProvider]

    def stations(self, policy: Policy, recorder: Recorder) -> dict[str, Station]:
        """One station per harness, all on the same policy."""
        run = self.run
        budget = Budget(
            calls=run.budget.calls,
            total_tokens=run.budget.total_tokens,
            seconds=run.budget.seconds,
            command_seconds=run.budget.command_seconds,
        )
        limits = Limits(memory_mb=run.sandbox.memory_mb, disk_mb=run.sandbox.disk_mb)
        reward = reward_rule(run.train.reward)
        return {
            name: Station(
                harness,
                self.providers[name],
                policy,
                budget,
                reward,
                recorder,
                limits,
                run.rollout.our_share_limit,
            )
            for name, harness in self.harnesses.items()
        }


@asynccontextmanager
async def open_site(workspace: Workspace) -> AsyncIterator[Site]:
    """Make and prepare the run's harnesses; everything is closed at the end.

    Raises:
        ConfigError, HarnessError, SandboxError: something is missing; the message says what and
            which command brings it.
    """
    run = workspace.run
    sessions = SessionRegistry()
    place = HarnessSite(Wires(ProxyServer(CaptureApp(sessions)), sessions), run.sandbox.name)
    harnesses = {name: make_harness(name, place) for name in run.harness.names}
    async with AsyncExitStack() as stack:
        providers: dict[str, SandboxProvider] = {}
        for name, harness in harnesses.items():
            providers[name] = harness.provider()
            stack.push_async_callback(_close, providers[name], workspace)
        async with asyncio.TaskGroup() as tasks:
            for name, harness in harnesses.items():
                tasks.create_task(harness.prepare(providers[name]))
        yield Site(run, harnesses, providers)


async def _close(provider: SandboxProvider, workspace: Workspace) -> None:
    await provider.close()
    workspace.sandbox_cpu += provider.cpu_seconds
