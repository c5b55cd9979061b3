"""The data family: disjoint splits, repeatable builds, honest emulation, demonstrations."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections import Counter
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from armillary.errors import TaskError
from armillary.tasks.data.demonstrations import EmulatedShell, demonstrate
from armillary.tasks.data.family import BUILDING, COMPLETE, DataFamily, split_of
from armillary.tasks.data.labbook import (
    CATEGORIES,
    NUMBERS,
    OPERATIONS,
    VALUES,
    Labbook,
    draw,
)
from armillary.tasks.folder import TaskSet
from armillary.tasks.protocol import CommandResult, Demonstration, DemonstrationStyle, RunCommand

FAMILY = DataFamily()


def build(root: Path, *, train: int = 12, seed: int = 3) -> TaskSet:
    return FAMILY.build(root, train=train, validation=3, test=5, seed=seed)


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_splits_share_no_question_and_no_table() -> None:
    questions: dict[str, set[str]] = {"train": set(), "validation": set(), "test": set()}
    tables: dict[str, set[str]] = {split: set() for split in questions}
    for book in map(draw, range(4000)):
        split = split_of(book.question)
        questions[split].add(book.question)
        tables[split].add(book.csv)
    for sets in (questions, tables):
        for one in sets:
            assert not any(sets[one] & sets[other] for other in sets if other != one)
    shares = {split: len(found) / 4000 for split, found in tables.items()}
    assert 0.12 < shares["test"] < 0.18
    assert 0.03 < shares["validation"] < 0.07


def test_built_splits_share_no_instruction_and_no_file(tmp_path: Path) -> None:
    tasks = build(tmp_path / "set", train=60)
    assert tasks.splits() == ["test", "train", "validation"]
    seen: dict[str, str] = {}
    for split, wanted in (("train", 60), ("validation", 3), ("test", 5)):
        loaded = tasks.load(split)
        assert len(loaded) == wanted
        for task in loaded:
            (table,) = (task.environment / "input").iterdir()
            for text in (task.instruction, table.read_text()):
                assert seen.setdefault(text, split) == split


def test_every_question_has_rows_and_an_answer() -> None:
    for book in map(draw, range(500)):
        assert len(book.columns) == len({*book.columns}) == 3
        assert {str(row[-1]) for row in book.rows} >= {book.value}
        assert not book.answer.startswith("agg:")
        float(book.answer)


def test_a_build_repeats_and_depends_on_its_seed(tmp_path: Path) -> None:
    build(tmp_path / "a")
    build(tmp_path / "b")
    build(tmp_path / "c", seed=4)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    mine, other = tree(tmp_path / "a"), tree(tmp_path / "c")
    tables = {name for name in mine if name.endswith(".csv")}
    assert not {mine[n] for n in tables} & {other[n] for n in other if n.endswith(".csv")}


def test_a_finished_build_is_kept_and_another_one_replaces_it(tmp_path: Path) -> None:
    root = tmp_path / "set"
    build(root)
    marked = root / "train" / "labbook-00000" / "instruction.md"
    marked.write_text("mine")
    build(root)
    assert marked.read_text() == "mine"
    assert len(build(root, train=4).names("train")) == 4
    assert marked.read_text() != "mine"


@pytest.mark.parametrize("left", ["nothing", "mark", "half", "old"])
def test_an_interrupted_build_is_built_again(tmp_path: Path, left: str) -> None:
    root, whole = tmp_path / "set", tmp_path / "whole"
    build(whole)
    if left == "nothing":
        root.mkdir()
    else:
        shutil.copytree(whole, root)
        (root / COMPLETE).unlink()
        (root / BUILDING).write_text("")
        shutil.rmtree(root / "test")
        if left == "old":
            (root / COMPLETE).write_text("data 0 seed 3")
        if left == "mark":
            shutil.rmtree(root / "train")
    build(root)
    assert tree(root) == tree(whole)
    assert not (root / BUILDING).exists()


def test_somebodys_folder_is_never_cleared(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(TaskError, match=f"{tmp_path} is not empty"):
        build(tmp_path)
    assert tree(tmp_path) == {"thesis.tex": b"years of work"}


@pytest.mark.parametrize("mark", [COMPLETE, BUILDING])
def test_a_folder_is_not_ours_by_the_name_of_a_file(tmp_path: Path, mark: str) -> None:
    (tmp_path / mark).write_text("the kitchen is finished")
    (tmp_path / "train").mkdir()
    before = tree(tmp_path)
    with pytest.raises(TaskError, match="is no task set of this family"):
        build(tmp_path)
    assert tree(tmp_path) == before


def test_what_somebody_put_into_a_task_set_is_not_cleared(tmp_path: Path) -> None:
    root = tmp_path / "set"
    build(root)
    for name in ("notes.txt", "train/mine.txt"):
        (root / name).write_text("mine")
        with pytest.raises(TaskError, match=f"it holds {name}"):
            build(root, train=4)
        assert (root / name).read_text() == "mine"
        (root / name).unlink()


class Shell:
    """The commands of a demonstration, run for real in a folder with the real tool."""

    def __init__(self, folder: Path, book: Labbook) -> None:
        self._work, tools = folder / "work", folder / "tools"
        self._work.mkdir(parents=True)
        tools.mkdir()
        (self._work / book.file).write_text(book.csv)
        with as_file(files("armillary.tasks.data") / "files" / "agg") as agg:
            shutil.copy(agg, tools / "agg")
        (tools / "agg").chmod(0o755)
        self._env = {"PATH": f"{tools}:{os.environ['PATH']}", "LC_ALL": "C"}

    def run(self, command: str) -> CommandResult:
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=self._work, env=self._env, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return CommandResult(done.stdout, done.returncode)


def commands(book: Labbook, rng: random.Random) -> list[str]:
    """Right, wrong and odd commands around one table."""
    column = rng.choice([*book.columns, *book.columns, book.category, rng.choice(NUMBERS), "x"])
    category = rng.choice([book.category] * 4 + [rng.choice(CATEGORIES), rng.choice(book.columns)])
    cells = [str(cell) for row in book.rows for cell in row]
    value = rng.choice([book.value, rng.choice(VALUES), rng.choice(cells), "05", "5.0", "0", "1e1"])
    operation = rng.choice([*OPERATIONS, *OPERATIONS, "median", "MEAN"])
    name = rng.choice([book.file] * 6 + ["data.csv"])
    return [
        f"agg {name} {operation} {column} {category} {value}",
        rng.choice(
            [
                "ls", f"head -2 {name}", f"agg {name}", f"echo {book.answer}", "agg", "echo a b",
                f"agg {name} {operation} {column} {category} {value} more",
            ]
        ),
    ]  # fmt: skip


def test_the_emulated_shell_says_what_the_real_one_says(tmp_path: Path) -> None:
    rng = random.Random(11)
    seen: Counter[str] = Counter()
    for number in range(60):
        book = draw(number)
        real, emulated = Shell(tmp_path / str(number), book), EmulatedShell(book)
        for command in commands(book, rng):
            result = real.run(command)
            assert emulated.run(command) == result, command
            seen[result.output.split(" ")[0] + str(result.code)] += 1
        written = f"echo {book.answer} > answer.txt"
        assert emulated.run(written) == real.run(written)
        assert emulated.run("ls") == real.run("ls")
        assert emulated.answer == real.run("cat answer.txt").output
    assert seen["agg:1"] > 10, "errors were among them"


def test_an_unknown_command() -> None:
    shell = EmulatedShell(draw(1))
    assert shell.run("cat x") == CommandResult("/bin/sh: 1: cat: not found\n", 127)
    assert shell.run("head -2 x").code == 1


def play(book: Labbook, style: DemonstrationStyle, seed: int) -> tuple[str, list[str]]:
    """The answer of one demonstration, and its commands."""
    return finish(demonstrate(book, style, seed), EmulatedShell(book).run)


def finish(steps: Demonstration, run: RunCommand) -> tuple[str, list[str]]:
    asked: list[str] = []
    try:
        command = next(steps)
        while True:
            asked.append(command)
            command = steps.send(run(command).output)
    except StopIteration as stop:
        return stop.value, asked


def test_demonstrations_are_right_as_often_as_their_style_says() -> None:
    books = [draw(number) for number in range(1000)]

    def right(style: DemonstrationStyle) -> int:
        return sum(play(book, style, 0)[0] == book.answer for book in books)

    assert right(DemonstrationStyle(careless=0.0, wrong_operation=0.0)) == 1000
    assert right(DemonstrationStyle(careless=1.0, wrong_operation=0.0)) == 0
    # Half look at the files; of these 15 % take an operation at random, which may be the right one.
    assert right(DemonstrationStyle()) == 447


def test_a_demonstration_repeats_and_looks_before_it_acts() -> None:
    for book in map(draw, range(50)):
        style = DemonstrationStyle(careless=0.0)
        answer, asked = play(book, style, 5)
        assert play(book, style, 5) == (answer, asked)
        assert asked[:2] == ["ls", f"head -2 {book.file}"]
        assert asked[2].startswith(f"agg {book.file} ")


def test_a_task_leads_back_to_its_table(tmp_path: Path) -> None:
    (task,) = build(tmp_path / "set").load("test", 0, 1)
    run = FAMILY.emulate(task)
    (table,) = (task.environment / "input").iterdir()
    assert run("ls").output == f"{table.name}\n"
    steps = FAMILY.demonstrate(task, DemonstrationStyle(0.0, 0.0), 0)
    answer, _ = finish(steps, run)
    assert answer == task.verifier_env["EXPECTED_ANSWER"]


def test_the_solution_of_a_task_solves_it(tmp_path: Path) -> None:
    for task in build(tmp_path / "set").load("train", 0, 6):
        (table,) = (task.environment / "input").iterdir()
        book = draw(int(task.metadata["seed"]))
        shell = Shell(tmp_path / task.folder.name, book)
        assert shell.run(f"cat {table.name}").output == table.read_text()
        script = (task.folder / "solution" / "solve.sh").read_text()
        shell.run(script.replace("cd /workdir && ", ""))
        expected = task.verifier_env["EXPECTED_ANSWER"]
        assert shell.run("cat answer.txt").output == f"{expected}\n"


def test_phrases_are_texts_of_the_family(tmp_path: Path) -> None:
    (task,) = build(tmp_path / "set").load("test", 0, 1)
    question, how, *_ = phrases = FAMILY.phrases()
    assert task.instruction.startswith(question)
    assert task.instruction.endswith(how)
    assert len(set(phrases)) == len(phrases)
