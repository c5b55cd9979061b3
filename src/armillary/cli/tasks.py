"""`armillary tasks`: build, list, show and check task folders."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from armillary.errors import ArmillaryError, TaskError
from armillary.rollout.grading import VERIFIER_FOLDERS, grade
from armillary.sandbox.dockerfile import image_spec
from armillary.sandbox.protocol import File, Sandbox, SandboxProvider, Spec
from armillary.sandbox.registry import sandbox_provider
from armillary.tasks.folder import Task, TaskSet, load_task


class Finding(NamedTuple):
    task: str
    problem: str


def resolve(folder: Path) -> list[Task]:
    """The tasks below `folder`: one task, a split, or a task set.

    Raises:
        TaskError: there are none, or one is broken.
    """
    if (folder / "task.toml").exists():
        return [load_task(folder)]
    if not folder.is_dir():
        raise TaskError(f"{folder} is not a folder")
    below = sorted(p for p in folder.iterdir() if p.is_dir())
    if any((p / "task.toml").exists() for p in below):
        return [load_task(p) for p in below]
    if not below:
        raise TaskError(f"{folder} holds no task folders")
    tasks = TaskSet(folder)
    return [task for split in tasks.splits() for task in tasks.load(split)]


async def check(tasks: list[Task], sandbox: str) -> list[Finding]:
    """Per task: the reference solution passes, doing nothing fails, the answer is hidden."""
    provider = sandbox_provider(sandbox)
    findings: list[Finding] = []
    try:
        for task in tasks:
            try:
                problems = await _problems(task, provider)
            except ArmillaryError as error:
                problems = [str(error)]
            findings += [Finding(task.id, problem) for problem in problems]
    finally:
        await provider.close()
    return findings


async def _problems(task: Task, provider: SandboxProvider) -> list[str]:
    problems: list[str] = []
    idle = await _open(task, provider)
    try:
        if (await grade(task, idle))["reward"] >= 1:
            problems.append("an attempt that does nothing is graded as correct")
    finally:
        await idle.close()
    solution = task.folder / "solution" / "solve.sh"
    if not solution.exists():
        return [*problems, "there is no solution/solve.sh, so the grader is not proven"]
    solver = await _open(task, provider)
    try:
        if await _reads_answer(task, solver):
            problems.append("the expected answer can be read in the sandbox")
        await solver.write({"/tmp/solve.sh": File(solution.read_bytes(), 0o755)})
        await solver.exec(["/bin/sh", "/tmp/solve.sh"], 60)
        if (await grade(task, solver))["reward"] < 1:
            problems.append("the reference solution is graded as wrong")
    finally:
        await solver.close()
    return problems


async def _open(task: Task, provider: SandboxProvider) -> Sandbox:
    spec = image_spec(task.environment)
    return await provider.open(
        Spec(spec.files, spec.env, (*spec.folders, *VERIFIER_FOLDERS), spec.workdir)
    )


async def _reads_answer(task: Task, sandbox: Sandbox) -> bool:
    """Whether the variable that holds the answer, or the tests, can be seen by an agent."""
    names = "|".join(task.verifier_env) or "EXPECTED_ANSWER"
    seen = await sandbox.exec(["/bin/sh", "-c", f"env | grep -E '^({names})='; ls /tests"], 10)
    return bool(seen.out.strip())
