"""`armillary tasks check` finds an answer that an agent could read."""

from __future__ import annotations

from pathlib import Path

import pytest

from armillary.cli.tasks import check, resolve
from armillary.tasks.data.family import DataFamily, write_task
from armillary.tasks.data.labbook import draw
from armillary.tasks.folder import Task, load_task

pytestmark = pytest.mark.needs_bwrap

LONG = next(seed for seed in range(1000) if len(draw(seed).answer) > 3)
SHORT = next(seed for seed in range(1000) if len(draw(seed).answer) < 3)
READABLE = "the expected answer can be read in the sandbox: "


def labbook(folder: Path, seed: int) -> Task:
    write_task(folder / "test" / "one", draw(seed))
    return load_task(folder / "test" / "one")


def add_to_image(task: Task, line: str) -> None:
    dockerfile = task.environment / "Dockerfile"
    dockerfile.write_text(f"{dockerfile.read_text()}{line}\n")


async def problems(task: Task) -> list[str]:
    return [finding.problem for finding in await check([load_task(task.folder)], "bubblewrap")]


async def test_good_tasks_have_no_problems(tmp_path: Path) -> None:
    DataFamily().build(tmp_path / "t", train=1, validation=1, test=12, seed=3)
    assert await check(resolve(tmp_path / "t" / "test"), "bubblewrap") == []


@pytest.mark.parametrize("seed", [LONG, SHORT])
@pytest.mark.parametrize(
    "place", ["/workdir/notes.txt", "/usr/local/share/deep/x", "/home/.hidden"]
)
async def test_an_answer_in_a_file_is_found(tmp_path: Path, seed: int, place: str) -> None:
    task = labbook(tmp_path, seed)
    answer = draw(seed).answer
    line = f"The answer is {answer}." if seed == LONG else answer
    (task.environment / "leak").write_text(f"first\n{line}\nlast\n")
    add_to_image(task, f"COPY leak {place}")
    assert await problems(task) == [READABLE + place]


async def test_an_answer_in_a_variable_is_found(tmp_path: Path) -> None:
    task = labbook(tmp_path, LONG)
    add_to_image(task, f"ENV HINT=it-is:{draw(LONG).answer}")
    assert await problems(task) == [f"{READABLE}the variable HINT"]
    add_to_image(task, "ENV EXPECTED_ANSWER=x")
    assert f"{READABLE}the variable EXPECTED_ANSWER" in await problems(task)


async def test_tests_in_the_image_are_found(tmp_path: Path) -> None:
    task = labbook(tmp_path, SHORT)
    add_to_image(task, "COPY agg /tests/test.sh")
    assert await problems(task) == [f"{READABLE}/tests/test.sh"]
