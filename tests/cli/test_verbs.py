"""The command line as a user runs it: exit codes, messages without tracebacks, JSON last."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import armillary, last_json

from armillary.tasks.data.family import DataFamily

SMALL = ["--tasks.train", "60", "--tasks.validation", "4", "--tasks.test", "4"]
SMALL += ["--sft.demonstrations", "50", "--eval.tasks", "3", "--eval.validation_tasks", "0"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["quickstart", "--train.stps", "3"], 2, "did you mean `train.steps`"),
        (["quickstart", "--seeds", "a,b"], 2, "--seeds 'a,b'"),
        (["quickstart", "--seeds", "0,00"], 2, "a seed occurs twice"),
        (["quickstart", "nowhere.toml"], 2, "run file nowhere.toml cannot be read"),
        (["sft", "a.toml", "--run-file", "b.toml"], 2, "two run files are given"),
        (["quickstart", "--engine", "scripted"], 2, "cannot train"),
        (["quickstart", "--train.reward", "fame"], 2, "no reward 'fame'"),
        (["eval", "--name", "fresh"], 2, "no run at runs/fresh-0"),
        (["rollout", "--engine", "scripted", "--stage", "../x"], 2, "--stage '../x'"),
        (["rollout", "--harness", "nobody", "--engine", "scripted"], 2, "no harness 'nobody'"),
        (["rollout", "--sandbox", "vault", "--engine", "scripted"], 2, "vault"),
        (["quickstart", "--model", "no/model", "--sft.warmup_steps", "0"], 2, "no/model"),
        (["train", "--name", "fresh"], 2, "run `armillary sft` first"),
        (["report", "nowhere"], 2, "nowhere"),
        (["tasks", "check", "nowhere"], 1, "nowhere is not a folder"),
        (["tasks", "show", "."], 1, "holds no task folders"),
    ],
)
def test_a_users_mistake_is_one_message_and_no_traceback(
    tmp_path: Path, words: list[str], code: int, text: str
) -> None:
    done = armillary(tmp_path, *words)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists(), "a refused command leaves nothing behind"


@pytest.mark.parametrize("words", [["quickstart"], ["sft"], ["rollout", "--engine", "scripted"]])
def test_what_is_missing_is_told_before_anything_is_spent(tmp_path: Path, words: list[str]) -> None:
    done = armillary(tmp_path, *words, PATH=str(tmp_path), ARMILLARY_CACHE=str(tmp_path))
    assert done.returncode == 2
    assert "bubblewrap" in done.stderr
    assert "environment of mini-swe-agent is not installed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("verb", ["quickstart", "rollout", "sft", "train", "eval", "info"])
def test_a_verb_takes_its_run_file_as_first_argument(tmp_path: Path, verb: str) -> None:
    (tmp_path / "own.toml").write_text("[train]\nstps = 3\n")
    done = armillary(tmp_path, verb, "own.toml", "--seed", "1")
    assert done.returncode == 2
    assert "own.toml:2: unknown key `train.stps`; did you mean `train.steps`?" in done.stderr


def test_info_lists_the_machine_and_what_is_missing(tmp_path: Path) -> None:
    done = armillary(tmp_path, "info", "--json")
    assert done.returncode == 0
    facts = last_json(done)
    assert facts["harnesses"]["loop"] == "ready"
    assert set(facts) == {"machine", "sandbox", "harnesses", "missing"}
    assert "memory" in done.stdout


def test_info_checks_a_run_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[harness]\nnames = ["loop", "ghost"]\n')
    facts = last_json(armillary(tmp_path, "info", str(file), "--json"))
    assert any("ghost" in p for p in facts["run"]["problems"])


@pytest.mark.needs_bwrap
def test_tasks_build_list_show_check(tmp_path: Path) -> None:
    done = armillary(tmp_path, "tasks", "build", "--out", "t", *SMALL[:6], "--json")
    assert last_json(done)["splits"] == {"test": 4, "train": 60, "validation": 4}
    done = armillary(tmp_path, "tasks", "list", "t/test", "--json")
    names = [f"test/labbook-0000{i}" for i in range(4)]
    assert last_json(done) == {"tasks": names}
    alone = tmp_path / "t" / "test" / "labbook-00000"
    assert last_json(armillary(alone, "tasks", "show", ".", "--json"))["id"] == names[0]
    assert last_json(armillary(alone.parent, "tasks", "list", ".", "--json"))["tasks"] == names
    shown = last_json(armillary(tmp_path, "tasks", "show", "t/test/labbook-00000", "--json"))
    assert "/usr/local/bin/agg" in shown["files"]
    assert any(name.startswith("/workdir/") for name in shown["files"])
    done = armillary(tmp_path, "tasks", "check", "t/test", "--json")
    assert last_json(done) == {"tasks": 4, "problems": []}


@pytest.mark.needs_bwrap
def test_tasks_check_finds_what_is_wrong(tmp_path: Path) -> None:
    DataFamily().build(tmp_path / "t", train=1, validation=1, test=3, seed=0)
    split = tmp_path / "t" / "test"
    (split / "labbook-00000" / "solution" / "solve.sh").write_text("echo 0 > /dev/null\n")
    lenient = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt\n"
    (split / "labbook-00001" / "tests" / "test.sh").write_text(lenient)
    done = armillary(tmp_path, "tasks", "check", "t/test")
    assert done.returncode == 1
    assert "labbook-00000: the reference solution is graded as wrong" in done.stdout
    assert "labbook-00001: an attempt that does nothing is graded as correct" in done.stdout
    assert "3 tasks, 2 problems" in done.stdout


def test_a_task_folder_with_a_missing_file_names_both(tmp_path: Path) -> None:
    DataFamily().build(tmp_path / "t", train=1, validation=1, test=1, seed=0)
    (tmp_path / "t" / "test" / "labbook-00000" / "tests" / "test.sh").unlink()
    done = armillary(tmp_path, "tasks", "list", "t")
    assert done.returncode == 1
    assert "labbook-00000 lacks tests/test.sh" in done.stderr


@pytest.mark.needs_bwrap
@pytest.mark.needs_mini
def test_rollout_with_the_scripted_teacher_solves_everything_in_both_harnesses(
    tmp_path: Path,
) -> None:
    words = ["rollout", "--engine", "scripted", "--name", "s", *SMALL, "--json"]
    done = armillary(tmp_path, *words)
    (stage,) = last_json(done)["stages"]
    assert stage["name"] == "rollout@scripted"
    for harness in ("loop", "mini-swe-agent"):
        assert stage["harnesses"][harness]["pass_at_1"] == 1.0
        assert stage["harnesses"][harness]["graded"] == 3
    lines = (
        (tmp_path / "runs/s-scripted-0/rollouts/rollout@scripted/attempts.jsonl")
        .read_text()
        .splitlines()
    )
    assert len(lines) == 6
    again = armillary(tmp_path, *words)
    assert last_json(again)["stages"] == [stage]
