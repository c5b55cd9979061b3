"""Nothing a policy does to its sandbox turns a wrong answer into an ungraded one."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace

import pytest
from attempt_rig import ACT, answering, in_order, plan, station

from armillary.chat.messages import AssistantTurn, ToolCall
from armillary.errors import EngineError, HarnessError, SandboxError
from armillary.harness.loop import BAD_ARGUMENTS, LoopFlow, LoopHarness
from armillary.record.codec import AttemptClosed, Entry
from armillary.record.journal import Journal, read_journal
from armillary.record.outcomes import Graded, Ungraded
from armillary.record.store import replay
from armillary.rollout.attempt import run_attempt
from armillary.rollout.failures import classify
from armillary.rollout.grading import SpoiledError, VerifierError, grade
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.protocol import Limits, Spec
from armillary.tasks.folder import Task

pytestmark = pytest.mark.needs_bwrap

FILL = "cat /dev/zero > /home/zeros; seq 9000 | (cd /home; xargs touch)"
WRONG = Graded(0.0, "submitted", {"reward": 0.0})
SPENT = Graded(0.0, "resource_limit", {"reward": 0.0})


@pytest.mark.parametrize(
    "harm",
    [
        FILL,
        f"({FILL}); chmod 0 /workdir",
        "chmod 0 /workdir",
        "chmod 0 /workdir /tmp /home /logs /tests",
        "mkdir -p answer.txt/in; touch answer.txt/in/x; chmod 0 answer.txt/in answer.txt",
        "mkdir answer.txt; touch answer.txt/x; chmod 0 answer.txt",
        "rm -rf /logs/verifier; touch /logs/verifier",
        "mkdir -p /logs/verifier/reward.txt/x; chmod -R 0 /logs/verifier",
        "mkdir -p /logs/verifier; ln -s /dev/full /logs/verifier/reward.txt",
        "mkdir -p /logs/verifier; ln -s /proc/self/mem /logs/verifier/reward.json",
        "mkdir -p /logs/verifier; mkfifo /logs/verifier/reward.txt",
        "mkdir -p /tests/test.sh/x /tests/grader.awk/y; chmod -R 0 /tests/test.sh",
        "while :; do rm -rf /logs/*; touch /logs/verifier; done & sleep 0.2",
        "trap '' TERM INT; kill -9 -1",
    ],
)
async def test_a_wrong_answer_stays_wrong(tmp_path, provider, journal, task, harm) -> None:
    made = station(tmp_path, provider, journal, in_order(ACT.run(harm), *ACT.finish("nope")))
    made = replace(made, limits=Limits(disk_mb=8))
    done = await run_attempt(plan(task), made)
    assert done.outcome == WRONG


@pytest.mark.parametrize("harm", [FILL, "rm -rf /logs; touch /logs/verifier; chmod 0 /tests /tmp"])
async def test_a_right_answer_stays_right(tmp_path, provider, journal, task, harm) -> None:
    gold = task.verifier_env["EXPECTED_ANSWER"]
    made = station(tmp_path, provider, journal, in_order(ACT.run(harm), *ACT.finish(gold)))
    done = await run_attempt(plan(task), replace(made, limits=Limits(disk_mb=8)))
    assert done.outcome == Graded(1.0, "submitted", {"reward": 1.0})


async def test_a_memory_limit_that_the_policy_hits_is_graded(
    tmp_path, provider, journal, task
) -> None:
    greedy = ACT.run("(head -c 400m /dev/zero; sleep 60) | tail")
    made = station(tmp_path, provider, journal, in_order(greedy, *ACT.finish("nope")))
    done = await run_attempt(plan(task), replace(made, limits=Limits(memory_mb=100)))
    assert done.outcome == SPENT
    # Also by a process that it left behind.
    later = "touch /tmp/up; sleep 0.5; (head -c 400m /dev/zero; sleep 60) | tail"
    behind = f"setsid sh -c '{later}' >/dev/null 2>&1 & until [ -e /tmp/up ]; do sleep 0.01; done"
    turns = ACT.run(behind), ACT.run("sleep 20")
    made = station(tmp_path, provider, journal, in_order(*turns), calls=2)
    done = await run_attempt(plan(task, 1), replace(made, limits=Limits(memory_mb=100)))
    assert done.outcome == SPENT
    kept = replay(read_journal(tmp_path / "j").entries).attempts[done.opened.attempt].closed
    assert kept is not None
    assert kept.outcome == SPENT


async def test_a_limit_that_is_hit_before_the_policy_acts_is_not_its_doing(
    tmp_path, provider, journal, task
) -> None:
    class Greedy(LoopHarness):
        async def run(self, instruction, session, sandbox, budget):
            await sandbox.exec(["sh", "-c", "(head -c 400m /dev/zero; sleep 60) | tail"], 60)
            raise AssertionError

    made = station(tmp_path, provider, journal, answering("1"))
    made = replace(made, harness=Greedy("bubblewrap"), limits=Limits(memory_mb=100))
    done = await run_attempt(plan(task), made)
    assert isinstance(done.outcome, Ungraded)
    assert done.outcome.kind == "sandbox"


async def test_an_engine_fault_beside_a_limit_is_ours(tmp_path, provider, journal, task) -> None:
    made = station(tmp_path, provider, journal, in_order(ACT.run(FILL)))

    class Faulty(LoopHarness):
        async def run(self, instruction, session, sandbox, budget):
            ending = await super().run(instruction, session, sandbox, budget)
            session.fault = EngineError("gone", retryable=True)
            return ending

    done = await run_attempt(plan(task), replace(made, harness=Faulty("bubblewrap")))
    assert done.outcome == Ungraded("engine", "gone", retryable=True)


BROAD = """head -c 3m /dev/zero > /logs/work && echo 0 > /logs/verifier/reward.txt"""
"""A verifier that needs more disk than is kept in reserve."""


async def test_no_disk_for_the_verifier_is_the_policys_doing(
    tmp_path, provider, journal, task
) -> None:
    (task.folder / "tests" / "test.sh").write_text(BROAD)
    made = station(tmp_path, provider, journal, in_order(ACT.run(FILL), *ACT.finish("nope")))
    done = await run_attempt(plan(task), replace(made, limits=Limits(disk_mb=16)))
    assert done.outcome == SPENT
    (task.folder / "tests" / "large").write_bytes(bytes(3 << 20))
    done = await run_attempt(plan(task, 1), replace(made, limits=Limits(disk_mb=16)))
    assert done.outcome == SPENT
    # A verifier that fails where there is room fails by itself.
    (task.folder / "tests" / "large").unlink()
    (task.folder / "tests" / "test.sh").write_text("exit 1")
    made = station(tmp_path, provider, journal, answering("nope"))
    done = await run_attempt(plan(task, 2), made)
    assert isinstance(done.outcome, Ungraded)
    assert done.outcome.kind == "verifier"


async def test_a_work_folder_of_its_own_may_be_deleted(
    provider: BubblewrapProvider, task: Task
) -> None:
    sandbox = await provider.open(Spec(folders=("/logs", "/tests", "/app"), workdir="/app/repo/x"))
    try:
        await sandbox.exec(["sh", "-c", "rm -rf /app/repo; touch /app/repo"], 10)
        assert await grade(task, sandbox, "/app/repo/x") == {"reward": 0.0}
    finally:
        await sandbox.close()


def test_arguments_nested_too_deeply_to_read_are_bad_arguments() -> None:
    call = ToolCall("c", "bash", '{"command": ' + "[" * 5000 + "]" * 5000 + "}")
    step = LoopFlow(lambda _: pytest.fail("nothing to run")).step(AssistantTurn(tool_calls=(call,)))
    assert [message.content for message in step.messages] == [BAD_ARGUMENTS]


async def test_a_cancellation_while_the_outcome_is_written_adds_no_second_one(
    tmp_path, provider, task, monkeypatch
) -> None:
    journal = Journal(tmp_path / "slow")
    written, gate = asyncio.Event(), threading.Event()
    real = os.fdatasync

    def slow(fd: int) -> None:
        gate.wait(10)
        real(fd)

    class Slow:
        async def append(self, entry: Entry) -> None:
            if isinstance(entry, AttemptClosed):
                monkeypatch.setattr(os, "fdatasync", slow)
                asyncio.get_running_loop().call_soon(written.set)
            await journal.append(entry)

        def append_soon(self, entry: Entry) -> None:
            journal.append_soon(entry)

    made = station(tmp_path, provider, Slow(), answering("nope"))
    running = asyncio.create_task(run_attempt(plan(task), made))
    await written.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.set()
    journal.close()
    closed = [e for e in read_journal(tmp_path / "slow").entries if isinstance(e, AttemptClosed)]
    assert [c.outcome for c in closed] == [WRONG]


def test_only_a_failure_that_may_pass_is_tried_again() -> None:
    assert not classify(SandboxError("no bwrap", kind="missing")).retryable
    assert classify(SandboxError("lost", kind="died")).retryable
    assert classify(HarnessError("crashed")).retryable
    assert classify(VerifierError("no reward")).retryable
    assert classify(SpoiledError("no disk")).kind == "verifier"
    assert not classify(EngineError("wrong key", retryable=False)).retryable
    assert not classify(asyncio.CancelledError()).retryable
