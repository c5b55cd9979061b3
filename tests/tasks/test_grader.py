"""The data family's verifier, run for real: tiers, odd answers, and answers made to harm it."""

from __future__ import annotations

import shlex
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from armillary.rollout.grading import VERIFIER_FOLDERS, grade
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.protocol import Spec
from armillary.tasks.data.family import write_task
from armillary.tasks.data.labbook import draw
from armillary.tasks.folder import load_task

SHARED = files("armillary.tasks.data") / "files"
PLACES = ("/workdir", "/logs", "/tests")


class Verifier:
    """`test.sh` as it is, but with its three folders below `root`."""

    def __init__(self, root: Path) -> None:
        self.answer = root / "workdir" / "answer.txt"
        self._reward = root / "logs" / "verifier" / "reward.txt"
        for place in PLACES:
            (root / place[1:]).mkdir()
        script = (SHARED / "test.sh").read_text()
        for place in PLACES:
            script = script.replace(place, shlex.quote(f"{root}{place}"))
        self._script = root / "tests" / "test.sh"
        self._script.write_text(script)
        (root / "tests" / "grader.awk").write_bytes((SHARED / "grader.awk").read_bytes())

    def reward(self, expected: str) -> str:
        self._reward.unlink(missing_ok=True)
        env = {"EXPECTED_ANSWER": expected, "PATH": "/usr/bin:/bin"}
        subprocess.run(["/bin/sh", str(self._script)], env=env, check=True, timeout=20)
        return self._reward.read_text()


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    return Verifier(tmp_path)


@pytest.mark.parametrize(
    ("expected", "answer", "good"),
    [
        ("42", "42", True),
        ("42", "42\n", True),
        ("42", " \t42 \r\n\n", True),
        ("42", "42.0", True),
        ("42", "+4.2e1", True),
        ("42", "042", True),
        ("42", "42.03", True),
        ("42", "42.05", False),
        ("42", "41.96", True),
        ("0.5", ".5009", True),
        ("0.5", ".502", False),
        ("0", "0.0009", True),
        ("0", "-0.002", False),
        ("-3.5", "-3.5", True),
        ("-3.5", "3.5", False),
        ("Red", "rED", True),
        ("red", "r ed", False),
        ("42", "", False),
        ("42", "\n\n", False),
        ("42", "nan", False),
        ("42", "inf", False),
        ("42", "1e400", False),
        ("42", "-1e400", False),
        ("42", "0x2A", False),
        ("42", "42 units", False),
        ("42", "42\n43", False),
        ("42", "4\n2", False),
        ("42", "1\n42", False),
        ("42", "42,0", False),
        ("42", "42.", True),
        ("42", ".", False),
        ("42", "1e", False),
        ("42", "\0", False),
        ("", "", False),
        ("44.3", "44.333333", True),
    ],
)
def test_tiers(verifier: Verifier, expected: str, answer: str, good: bool) -> None:
    verifier.answer.write_text(answer)
    assert verifier.reward(expected) == ("1\n" if good else "0\n")


def test_a_missing_answer(verifier: Verifier) -> None:
    assert verifier.reward("42") == "0\n"


def test_answers_that_would_keep_the_grader_busy(verifier: Verifier) -> None:
    answer = verifier.answer
    answer.mkdir()
    assert verifier.reward("42") == "0\n"
    answer.rmdir()
    answer.symlink_to("/dev/zero")
    assert verifier.reward("42") == "0\n"
    answer.unlink()
    subprocess.run(["mkfifo", str(answer)], check=True)
    assert verifier.reward("42") == "0\n"
    answer.unlink()
    answer.write_text("42" + "\n" * 5_000_000)
    assert verifier.reward("42") == "0\n"
    answer.write_text("42" + "\n" * 4000)
    assert verifier.reward("42") == "1\n"


@pytest.mark.needs_bwrap
async def test_in_a_real_sandbox(tmp_path: Path) -> None:
    folder = tmp_path / "train" / "one"
    write_task(folder, draw(1))
    task = load_task(folder)
    provider = BubblewrapProvider()
    sandbox = await provider.open(Spec(folders=VERIFIER_FOLDERS))
    try:
        for command, reward in (
            ("true", 0.0),
            (f"echo {draw(1).answer} > answer.txt", 1.0),
            (f"echo 1{draw(1).answer} > answer.txt", 0.0),
            ("ln -sf /proc/self/environ answer.txt", 0.0),
            ("rm answer.txt; mkfifo answer.txt", 0.0),
        ):
            await sandbox.exec(["/bin/sh", "-c", command], 10)
            assert await grade(task, sandbox) == {"reward": reward}, command
    finally:
        await sandbox.close()
        await provider.close()
