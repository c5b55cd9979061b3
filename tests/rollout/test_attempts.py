"""Attempts in real sandboxes: graded by the rule, or ungraded with their kind; none lost."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest
from attempt_rig import ACT, answering, plan, station

from armillary.chat.messages import AssistantTurn
from armillary.chat.raw import turn_ids
from armillary.chat.template import HermesTemplate
from armillary.engine.scripted import ScriptedEngine
from armillary.errors import EngineError, RolloutError
from armillary.record.codec import AttemptOpened
from armillary.record.journal import Journal, read_journal
from armillary.record.outcomes import Graded, Ungraded
from armillary.record.store import replay
from armillary.rollout.attempt import FinishedAttempt, run_attempt
from armillary.rollout.plan import GroupPlan, training_groups
from armillary.rollout.rewards import correct_and_efficient, correctness
from armillary.rollout.scheduler import Scheduler
from armillary.tasks.folder import Task, load_task

pytestmark = pytest.mark.needs_bwrap


async def test_right_and_wrong_answers_are_graded(tmp_path, provider, journal, task) -> None:
    gold = task.verifier_env["EXPECTED_ANSWER"]
    right = await run_attempt(plan(task), station(tmp_path, provider, journal, answering(gold)))
    assert right.outcome == Graded(1.0, "submitted", {"reward": 1.0})
    wrong = await run_attempt(
        plan(task, 1), station(tmp_path, provider, journal, answering("nope"))
    )
    assert wrong.outcome == Graded(0.0, "submitted", {"reward": 0.0})
    assert right.facts["tool_calls"] == 2
    (row,) = right.rows()
    assert row.trained_tokens == right.facts["output_tokens"]


async def test_a_spent_budget_and_giving_up_are_graded(tmp_path, provider, journal, task) -> None:
    looping = await run_attempt(
        plan(task), station(tmp_path, provider, journal, lambda *_: ACT.run("ls"))
    )
    assert looping.outcome == Graded(0.0, "call_budget", {"reward": 0.0})
    assert looping.facts["model_calls"] == 6
    idle = await run_attempt(
        plan(task, 1),
        station(tmp_path, provider, journal, lambda *_: AssistantTurn(content="hm")),
    )
    assert idle.outcome == Graded(0.0, "gave_up", {"reward": 0.0})


async def test_a_spent_token_budget_is_graded(tmp_path, provider, journal, task) -> None:
    talking = station(tmp_path, provider, journal, lambda *_: ACT.run("ls"), total_tokens=10)
    done = await run_attempt(plan(task), talking)
    assert done.outcome == Graded(0.0, "token_budget", {"reward": 0.0})
    assert done.facts["model_calls"] == 1


async def test_time_spent_by_the_agent_is_graded(tmp_path, provider, journal, task) -> None:
    slow = station(tmp_path, provider, journal, lambda *_: ACT.run("sleep 30"), seconds=1.0)
    done = await run_attempt(plan(task), slow)
    assert done.outcome == Graded(0.0, "agent_time", {"reward": 0.0})


async def test_time_spent_by_our_engine_is_not(tmp_path, provider, journal, task) -> None:
    made = station(tmp_path, provider, journal, answering("1"), seconds=1.0)
    template = made.policy.template
    assert isinstance(template, HermesTemplate)
    reply = turn_ids(template, ACT.run("ls"))
    slow = ScriptedEngine(lambda *_: reply, seconds_per_token=0.5 / len(reply))
    late = replace(made, policy=replace(made.policy, engine=slow))
    done = await run_attempt(plan(task), late)
    assert isinstance(done.outcome, Ungraded)
    assert done.outcome.kind == "engine"
    patient = replace(late, our_share_limit=1.0)
    assert (await run_attempt(plan(task, 1), patient)).outcome == Graded(
        0.0, "agent_time", {"reward": 0.0}
    )


async def test_a_hung_engine_is_our_fault(tmp_path, provider, journal, task) -> None:
    made = station(tmp_path, provider, journal, answering("1"), seconds=0.7)
    template = made.policy.template
    assert isinstance(template, HermesTemplate)
    hung = ScriptedEngine(lambda *_: turn_ids(template, ACT.run("ls")), seconds_per_token=60)
    done = await run_attempt(plan(task), replace(made, policy=replace(made.policy, engine=hung)))
    assert isinstance(done.outcome, Ungraded)
    assert done.outcome.kind == "engine"


async def test_a_full_disk_under_the_journal_is_ungraded_and_the_run_goes_on(
    tmp_path, provider, journal, task, monkeypatch
) -> None:
    made = station(tmp_path, provider, journal, answering("1"))
    real = os.fdatasync

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    done = await run_attempt(plan(task), made)
    assert isinstance(done.outcome, Ungraded)
    assert done.outcome.kind == "capture"
    assert "No space left" in done.outcome.detail
    monkeypatch.setattr(os, "fdatasync", real)
    done = await run_attempt(plan(task, 1), made)
    assert isinstance(done.outcome, Graded)


async def test_an_engine_fault_is_ungraded_with_its_text(tmp_path, provider, journal, task) -> None:
    def broken(session: str, number: int) -> AssistantTurn:
        raise EngineError("the engine is on fire", retryable=False)

    done = await run_attempt(plan(task), station(tmp_path, provider, journal, broken))
    assert done.outcome == Ungraded("engine", "the engine is on fire", retryable=False)


async def test_a_dead_grader_is_ungraded(tmp_path, provider, journal, task) -> None:
    for script in ("exit 1\n", "echo nonsense > /logs/verifier/reward.txt\n", "kill -9 $$\n"):
        (task.folder / "tests" / "test.sh").write_text(script)
        done = await run_attempt(plan(task), station(tmp_path, provider, journal, answering("1")))
        assert isinstance(done.outcome, Ungraded)
        assert done.outcome.kind == "verifier"


async def test_an_agent_cannot_write_its_own_reward(tmp_path, provider, journal, task) -> None:
    forge = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}'"
    turns = [ACT.run(f"{forge} > /logs/verifier/reward.json"), *ACT.finish("wrong")]
    done = await run_attempt(
        plan(task), station(tmp_path, provider, journal, lambda _, n: turns[min(n, 1)])
    )
    assert done.outcome == Graded(0.0, "submitted", {"reward": 0.0})


async def test_the_expected_answer_is_not_in_the_sandbox(tmp_path, provider, journal, task) -> None:
    path = task.folder / "task.toml"
    secret = "s3cret-4711-answer"
    gold = task.verifier_env["EXPECTED_ANSWER"]
    path.write_text(path.read_text().replace(f'"{gold}"', f'"{secret}"'))
    hidden = load_task(task.folder)
    assert hidden.verifier_env["EXPECTED_ANSWER"] == secret
    look = (
        "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; ls -R /tests /logs 2>&1; "
        "grep -rl s3cret-4711 /workdir /tmp /home /usr/local /etc /run /logs /tests 2>/dev/null"
    )
    turns = [ACT.run(look), *ACT.finish("1")]
    done = await run_attempt(
        plan(hidden), station(tmp_path, provider, journal, lambda _, n: turns[min(n, 1)])
    )
    assert isinstance(done.outcome, Graded)
    seen = b"".join(call.request for call in done.tree.calls()).decode()
    assert "PATH=" in seen
    assert secret not in seen
    assert "EXPECTED_ANSWER" not in seen
    assert "grader" not in seen


async def test_a_killed_sandbox_ends_one_attempt_and_no_other(
    tmp_path, provider, journal, task
) -> None:
    gold = task.verifier_env["EXPECTED_ANSWER"]
    turns = [ACT.run("kill -9 1; kill -9 -1"), ACT.run("ls"), *ACT.finish(gold)]
    made = station(tmp_path, provider, journal, lambda _, n: turns[min(n, 2)])
    group = GroupPlan("eval/x", task, "loop", 4)
    scheduler = Scheduler({"loop": made}, {"loop": 4}, retries=0)
    (done,) = await scheduler.run_groups([group])
    # Killing what it may kill harms the attempt's own commands only.
    assert all(isinstance(m.outcome, Graded) and m.outcome.correct for m in done.members)


async def test_ungraded_attempts_are_tried_again_and_counted(
    tmp_path, provider, journal, task
) -> None:
    gold = task.verifier_env["EXPECTED_ANSWER"]

    def flaky(session: str, number: int) -> AssistantTurn:
        if session.endswith("#1.0"):
            raise EngineError("hiccup", retryable=True)
        return answering(gold)(session, number)

    made = station(tmp_path, provider, journal, flaky)
    scheduler = Scheduler({"loop": made}, {"loop": 2}, retries=2)
    (group,) = await scheduler.run_groups([GroupPlan("eval/x", task, "loop", 3)])
    assert [m.opened.try_number for m in group.members] == [0, 1, 0]
    assert len(group.tries) == 4
    assert all(isinstance(m.outcome, Graded) for m in group.members)


async def test_nothing_graded_stops_with_the_reason(tmp_path, provider, journal, task) -> None:
    def broken(session: str, number: int) -> AssistantTurn:
        raise EngineError("out of order", retryable=True)

    made = station(tmp_path, provider, journal, broken)
    scheduler = Scheduler({"loop": made}, {"loop": 4}, retries=1)
    with pytest.raises(RolloutError, match=r"none of 3 attempts was graded.*out of order"):
        await scheduler.run_groups([GroupPlan("eval/x", task, "loop", 3)])


async def test_finished_attempts_are_used_and_unfinished_ones_run_again(
    tmp_path, provider, task
) -> None:
    gold = task.verifier_env["EXPECTED_ANSWER"]
    path = tmp_path / "resume"
    first = Journal(path)
    made = station(tmp_path, provider, first, answering(gold))
    group = GroupPlan("eval/x", task, "loop", 3)
    begun = Scheduler({"loop": made}, {"loop": 1}, retries=0)
    finished: list[FinishedAttempt] = []
    one_is_done = asyncio.Event()

    def note(attempt: FinishedAttempt) -> None:
        finished.append(attempt)
        one_is_done.set()

    running = asyncio.create_task(begun.run_groups([group], note))
    await one_is_done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    first.close()

    second = Journal(path)
    record = replay(second.entries)
    again = Scheduler(
        {"loop": replace(made, recorder=second)}, {"loop": 3}, retries=0,
        known=record.attempts,
    )  # fmt: skip
    (done,) = await again.run_groups([group])
    second.close()
    assert [m.outcome.correct for m in done.members if isinstance(m.outcome, Graded)] == [True] * 3
    kept = finished[0].opened.attempt
    whole = replay(read_journal(path).entries)
    opened = [e for e in read_journal(path).entries if isinstance(e, AttemptOpened)]
    assert [e.attempt for e in opened].count(kept) == 1
    graded = {
        name
        for name, a in whole.finished().items()
        if a.closed is not None and isinstance(a.closed.outcome, Graded)
    }
    assert graded == {m.opened.attempt for m in done.members}
    before, after = finished[0].rows(), done.members[0].rows()
    assert [r.tokens for r in before] == [r.tokens for r in after]


def test_rewards_never_pay_without_correctness() -> None:
    assert correctness({"reward": 1.0}, 9) == 1.0
    assert correct_and_efficient({"reward": 0.0}, 0) == 0.0
    assert correct_and_efficient({"reward": 1.0}, 5) == pytest.approx(1.075)
    assert correct_and_efficient({"reward": 1.0}, 15) == pytest.approx(1.05)


def test_the_schedule_is_a_pure_function_of_the_step(task: Task) -> None:
    tasks = [replace(task, id=f"train/{i}") for i in range(5)]
    groups = {"loop": 2, "mini-swe-agent": 1}
    one = training_groups(1, tasks, groups, 8)
    assert one == training_groups(1, tasks, groups, 8)
    assert [(g.harness, g.task.id) for g in one] == [
        ("loop", "train/3"), ("loop", "train/4"), ("mini-swe-agent", "train/0"),
    ]  # fmt: skip
    names = [a.attempt for g in one for a in g.attempts()]
    assert len(set(names)) == 24
