"""Reading task folders: what is missing or malformed is named, with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from armillary.errors import TaskError
from armillary.tasks.data.family import write_task
from armillary.tasks.data.labbook import draw
from armillary.tasks.folder import REQUIRED, TaskSet, load_task
from armillary.tasks.registry import family


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "train" / "labbook-00000"
    write_task(path, draw(1))
    return path


def test_a_task_is_read_as_written(folder: Path) -> None:
    book, task = draw(1), load_task(folder)
    assert (task.id, task.split, task.folder) == ("train/labbook-00000", "train", folder)
    assert task.instruction.startswith(book.question)
    assert task.verifier_env == {"EXPECTED_ANSWER": book.answer}
    assert task.verifier_seconds == 60.0
    assert task.metadata["seed"] == 1
    assert sorted(task.tests()) == ["grader.awk", "test.sh"]
    assert (task.environment / "input" / book.file).read_text() == book.csv


def test_the_answer_is_in_no_file_that_an_agent_may_see(folder: Path) -> None:
    task = load_task(folder)
    seen = [p for p in (folder / "environment").rglob("*") if p.is_file()]
    told = [task.instruction, *(p.read_text() for p in seen if p.suffix != ".csv")]
    book = draw(1)
    assert all(f"EXPECTED_ANSWER = {book.answer}" not in text for text in told)
    assert "EXPECTED_ANSWER" not in "".join(told)
    assert sorted(p.name for p in seen) == sorted(["Dockerfile", "agg", book.file])


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_file_is_named_with_its_folder(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(TaskError, match=f"{folder} lacks {name}"):
        load_task(folder)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"nothing lacks task.toml, instruction.md, environment"):
        load_task(tmp_path / "nothing")


def _write(text: str | bytes) -> Callable[[Path], object]:
    data = text.encode() if isinstance(text, str) else text
    return lambda folder: (folder / "task.toml").write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_write("[verifier\n"), r"task\.toml: .*line 1"),
        (_write("verifier = 5\n"), r"task\.toml: `verifier` must be a table"),
        (_write("[verifier]\nenv = []\n"), r"task\.toml: `env` must be a table"),
        (_write("[verifier]\ntimeout_sec = 'long'\n"), r"`verifier\.timeout_sec` .* not 'long'"),
        (_write("[verifier]\ntimeout_sec = -1\n"), "must be a number of seconds above 0"),
        (_write("[verifier]\ntimeout_sec = nan\n"), "must be a number of seconds above 0"),
        (_write("[verifier]\ntimeout_sec = true\n"), "must be a number of seconds above 0"),
        (_write(b"\xff"), "must be UTF-8"),
        (lambda f: (f / "instruction.md").write_bytes(b"\xff"), "must be UTF-8"),
    ],
)
def test_a_malformed_task(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    with pytest.raises(TaskError, match=message) as caught:
        load_task(folder)
    assert str(folder) in str(caught.value)


def test_what_a_task_need_not_say(folder: Path) -> None:
    (folder / "task.toml").write_text('schema_version = "1.4"\n')
    task = load_task(folder)
    assert (task.verifier_seconds, dict(task.verifier_env), dict(task.metadata)) == (600.0, {}, {})


def test_a_task_set(tmp_path: Path) -> None:
    for split, number in (("train", 0), ("train", 1), ("test", 0)):
        write_task(tmp_path / split / f"t{number}", draw(number))
    (tmp_path / "notes.txt").write_text("not a split")
    tasks = TaskSet(tmp_path)
    assert tasks.splits() == ["test", "train"]
    assert tasks.names("train") == ["t0", "t1"]
    assert [t.id for t in tasks.load("train", 1)] == ["train/t1"]
    assert [t.id for t in tasks.load("train", 0, 1)] == ["train/t0"]
    with pytest.raises(TaskError, match=r"no split 'validation' \(it has: test, train\)"):
        tasks.names("validation")
    with pytest.raises(TaskError, match="has 2 tasks, 3 are needed"):
        tasks.load("train", 1, 2)
    with pytest.raises(TaskError, match="no task set at"):
        TaskSet(tmp_path / "nowhere").splits()
    with pytest.raises(TaskError, match="it has: none"):
        TaskSet(tmp_path / "nowhere").names("train")


def test_an_unknown_family() -> None:
    with pytest.raises(ValueError, match="no task family 'spectra'; there are: data"):
        family("spectra")
