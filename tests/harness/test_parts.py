"""Parts of harnesses that need no agent program."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import pytest
from harness_rig import Bench, wires

from armillary.capture.session import ChatRequest, Session, SessionEvent
from armillary.chat.messages import AssistantTurn
from armillary.errors import ConfigError
from armillary.harness.loop import LoopHarness
from armillary.harness.mini_program import mini_argv
from armillary.harness.mini_protocol import MiniProtocol, load_or_store
from armillary.harness.protocol import Budget
from armillary.harness.registry import Site, make_harness
from armillary.sandbox.process import ProcessProvider
from armillary.sandbox.protocol import Spec

LEARNT = MiniProtocol("1", "s", "b", "a", (), "e", "f", "c")


def learning(made: list[str]) -> Callable[[], Awaitable[MiniProtocol]]:
    async def record() -> MiniProtocol:
        made.append("made")
        await asyncio.sleep(0.01)
        return LEARNT

    return record


async def test_first_runs_may_learn_the_protocol_at_once(tmp_path: Path) -> None:
    made: list[str] = []
    path = tmp_path / "p.json"
    got = await asyncio.gather(*(load_or_store(path, learning(made)) for _ in range(8)))
    assert got == [LEARNT] * 8
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]
    made.clear()
    assert await load_or_store(path, learning(made)) == LEARNT
    assert made == []


@pytest.mark.parametrize("kept", [b"", b"[1]", b'{"version": "1", "system": 4}', b"\xff"])
async def test_a_kept_protocol_of_another_form_is_made_anew(tmp_path: Path, kept: bytes) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(kept)
    made: list[str] = []
    for _ in range(2):
        assert await load_or_store(path, learning(made)) == LEARNT
    assert len(made) == 1


async def test_an_environment_that_cannot_be_written_is_used_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    with caplog.at_level(logging.INFO):
        assert await load_or_store(tmp_path / "file" / "p.json", learning([])) == LEARNT
    assert "cannot be kept" in caplog.text


def test_mini_is_refused_in_a_sandbox_it_cannot_run_in() -> None:
    site = Site(wires(), "process")
    with pytest.raises(ConfigError, match=r'mini-swe-agent needs bubblewrap.*"process"'):
        make_harness("mini-swe-agent", site)
    assert isinstance(make_harness("loop", site), LoopHarness)


def test_the_budget_reaches_minis_command_line() -> None:
    argv = mini_argv("x", 7, 2.5)
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "-c"] == [
        "mini.yaml", "agent.step_limit=7", "environment.timeout=3",
    ]  # fmt: skip


class Watched(Session):
    """A session that knows how many of its calls were open at once."""

    opened: ClassVar[list[int]] = []

    async def call(self, request: ChatRequest) -> AsyncGenerator[SessionEvent]:
        self.opened.append(1)
        try:
            async for event in super().call(request):
                yield event
        finally:
            self.opened.append(-1)


async def test_the_loop_closes_every_call_before_it_goes_on(tmp_path: Path) -> None:
    bench = Bench.make(tmp_path)
    plain = bench.session("s", [AssistantTurn(content="hm")], AssistantTurn(content="end"))
    session = Watched("s", plain.policy, plain.recorder, plain.budget, plain.closing)
    provider = ProcessProvider()
    sandbox = await provider.open(Spec())
    try:
        ending = await LoopHarness("process").run("Go.", session, sandbox, Budget())
    finally:
        await provider.close()
    assert ending.reason == "gave_up"
    assert Watched.opened == [1, -1] * 3
