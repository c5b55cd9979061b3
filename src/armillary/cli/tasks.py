"""`armillary tasks`: build, list, show and check task folders."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from armillary.errors import ArmillaryError, TaskError
from armillary.rollout.grading import VERIFIER_FOLDERS, grade
from armillary.sandbox.dockerfile import image_spec
from armillary.sandbox.environment import BASE_PATH
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
    # A task's id is its own name and its parent's, which `.` does not have.
    folder = folder.resolve()
    if (folder / "task.toml").exists():
        return [load_task(folder)]
    if not folder.is_dir():
        raise TaskError(f"{folder} is not a folder")
    below = sorted(p for p in folder.iterdir() if p.is_dir())
    if any((p / "task.toml").exists() for p in below):
        return [load_task(p) for p in below]
    tasks = TaskSet(folder)
    found = [task for split in tasks.splits() for task in tasks.load(split)]
    if not found:
        raise TaskError(f"{folder} holds no task folders")
    return found


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
    image = image_spec(task.environment)
    spec = Spec(image.files, image.env, (*image.folders, *VERIFIER_FOLDERS), image.workdir)
    idle = await provider.open(spec)
    try:
        if (await grade(task, idle, spec.workdir))["reward"] >= 1:
            problems.append("an attempt that does nothing is graded as correct")
    finally:
        await idle.close()
    solver = await provider.open(spec)
    try:
        problems += [
            f"the expected answer can be read in the sandbox: {place}"
            for place in await _leaks(task, solver)
        ]
        problems += await _unsolved(task, solver, spec.workdir)
    finally:
        await solver.close()
    return problems


async def _unsolved(task: Task, sandbox: Sandbox, workdir: str) -> list[str]:
    solution = task.folder / "solution" / "solve.sh"
    if not solution.exists():
        return ["there is no solution/solve.sh, so the grader is not proven"]
    await sandbox.write({"/tmp/solve.sh": File(solution.read_bytes(), 0o755)})
    await sandbox.exec(["/bin/sh", "/tmp/solve.sh"], 60)
    if (await grade(task, sandbox, workdir))["reward"] < 1:
        return ["the reference solution is graded as wrong"]
    return []


_SHORT = 3
"""An answer of fewer characters stands in many files by chance: there only a whole line counts."""
_NAMES_ANSWER = re.compile("ANSWER|EXPECTED|GOLD|SOLUTION", re.IGNORECASE)
# All of the sandbox's own file systems: what the task brought, and no file of the machine.
_SEARCH = 'find . usr/local -xdev -type f -exec grep -lsaF "$0" -e "$1" {} +'
_SEARCH_SECONDS = 60


async def _leaks(task: Task, sandbox: Sandbox) -> list[str]:
    """Where an agent could read what only the verifier may know."""
    shown = await sandbox.exec(["/bin/sh", "-c", "env"], 10)
    lines = shown.out.decode(errors="replace").splitlines()
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    leaks = [f"the variable {name}" for name in task.verifier_env if name in variables]
    listed = await sandbox.exec(["/bin/sh", "-c", "ls -A tests"], 10, cwd="/")
    leaks += [f"/tests/{name}" for name in listed.out.decode(errors="replace").split()]
    for answer in _answers(task):
        if len(answer) >= _SHORT:
            word = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)")
            leaks += [f"the variable {name}" for name, v in variables.items() if word.search(v)]
        how = "-w" if len(answer) >= _SHORT else "-x"
        found = await sandbox.exec(
            ["/bin/sh", "-c", _SEARCH, how, answer],
            _SEARCH_SECONDS, env={"PATH": BASE_PATH}, cwd="/",
        )  # fmt: skip
        paths = found.out.decode(errors="replace").splitlines()
        leaks += [str(PurePosixPath("/", path)) for path in paths]
    return list(dict.fromkeys(leaks))


def _answers(task: Task) -> list[str]:
    """What to look for: of each value, the line that says most."""
    env = task.verifier_env
    named = [value for name, value in env.items() if _NAMES_ANSWER.search(name)]
    values = named or list(env.values())
    return [max(v.splitlines(), key=len).strip() for v in values if v.strip()]
