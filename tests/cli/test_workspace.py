"""The run folder: whose settings it keeps, which may still change, what a run has cost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from armillary.cli import meter as meters
from armillary.cli.load import load_run
from armillary.cli.meter import Meter
from armillary.cli.output import Output, time_left
from armillary.cli.runfile import RunFile
from armillary.cli.settings import bound, differences, refuse_other_attempts
from armillary.cli.workspace import BEAT_SECONDS, LAST_STAGE, Workspace, read_marks
from armillary.errors import ConfigError, RecordError


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def opened(*options: str, **how: object) -> Workspace:
    return Workspace(load_run(None, options), Output(json=False), **how)  # pyright: ignore


def kept() -> RunFile:
    return load_run(Path("runs/quickstart-0/run.toml"), ())


def test_other_settings_are_refused_by_their_keys() -> None:
    opened().close()
    with pytest.raises(ConfigError) as caught:
        opened("--budget.calls", "9", "--tasks.train", "2900")
    message = str(caught.value)
    assert "budget.calls = 7 there, 9 asked for" in message
    assert "tasks.train = 3000 there, 2900 asked for" in message
    assert "train.steps" not in message
    opened().close()


def test_a_run_file_that_lacks_a_key_of_today_is_the_same_run() -> None:
    folder = Path("runs/quickstart-0")
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text('name = "quickstart"\n[engine]\nthreads = 1\n')
    opened().close()


def test_a_setting_binds_once_something_was_made_with_it() -> None:
    workspace = opened()
    with workspace.stage("sft"):
        pass
    workspace.close()
    opened("--train.steps", "20", "--rollout.groups.loop", "1").close()
    assert kept().train.steps == 20
    with pytest.raises(ConfigError, match=r"sft\.lr"):
        opened("--train.steps", "20", "--rollout.groups.loop", "1", "--sft.lr", "1")
    again = load_run(Path("runs/quickstart-0/run.toml"), ())
    workspace = Workspace(again, Output(json=False))
    with workspace.stage("grpo"):
        pass
    workspace.close()
    with pytest.raises(ConfigError, match=r"train\.lr = .* there, 1"):
        opened("--train.steps", "20", "--rollout.groups.loop", "1", "--train.lr", "1")
    opened("--train.steps", "40", "--rollout.groups.loop", "1", "--rollout.retries", "5").close()
    assert (kept().train.steps, kept().rollout.retries) == (40, 5)


def test_every_key_is_free_or_bound_as_the_table_says() -> None:
    changed = load_run(
        None,
        [
            "--eval.tasks", "9", "--rollout.temperature", "2", "--track.names", "",
            "--rollout.retries", "5", "--engine.threads", "2",
        ],
    )  # fmt: skip
    found = differences(RunFile(), changed)
    assert {d.key for d in found} == {
        "eval.tasks", "rollout.temperature", "track.names", "rollout.retries", "engine.threads",
    }  # fmt: skip
    assert [d.key for d in bound(found, lambda _: False)] == ["engine.threads"]
    measured = {d.key for d in bound(found, lambda stage: stage == "eval/base")}
    assert measured == {"engine.threads", "rollout.temperature", "eval.tasks"}


def test_attempts_of_one_stage_are_made_under_the_same_conditions() -> None:
    refuse_other_attempts(RunFile(), load_run(None, ["-n", "5", "--harness", "loop"]), "x")
    with pytest.raises(ConfigError, match=r"x was .* another --stage:\n  budget.calls = 7 there"):
        refuse_other_attempts(RunFile(), load_run(None, ["--budget.calls", "9"]), "x")


def test_measuring_changes_neither_settings_nor_costs_and_needs_the_same_weights() -> None:
    workspace = opened()
    with workspace.stage("start"):
        pass
    workspace.close()
    before, text = read_marks(workspace.folder), (workspace.folder / "run.toml").read_text()
    own = opened("--budget.calls", "9", measure_only=True)
    with own.stage("start"), own.stage("eval/mine@sft-00500"):
        pass
    own.close()
    after = read_marks(own.folder)
    assert (after.seconds, after.cpu_seconds) == (before.seconds, before.cpu_seconds)
    assert after.stages["start"] == before.stages["start"]
    assert after.done("eval/mine@sft-00500")
    assert (own.folder / "run.toml").read_text() == text
    with pytest.raises(ConfigError, match=r"tasks\.train = 3000 there"):
        opened("--tasks.train", "2900", measure_only=True)


def test_a_refused_workspace_lets_go_of_the_run() -> None:
    first = opened()
    with pytest.raises(RecordError):
        opened()
    first.close()
    with pytest.raises(ConfigError):
        opened("--budget.calls", "9")
    opened().close()


def test_costs_add_up_over_starts_until_the_run_is_over() -> None:
    costs: list[float] = []
    for _ in range(2):
        workspace = opened(meter=Meter(time.monotonic() - 10, meters._cpu_of_process() - 3))
        with workspace.stage("grpo"):
            pass
        workspace.close()
        marks = read_marks(workspace.folder)
        costs += [marks.seconds, marks.cpu_seconds]
    assert costs[0] >= 10
    assert costs[2] - costs[0] >= 10
    assert 3 <= costs[1] <= costs[3] - 3
    last = opened()
    with last.stage(LAST_STAGE):
        pass
    last.close()
    over = read_marks(last.folder)
    later = opened(meter=Meter(time.monotonic() - 99, -99.0))
    with later.stage(LAST_STAGE):
        pass
    later.close()
    assert read_marks(last.folder) == over


def test_a_kill_loses_only_what_came_after_the_last_beat() -> None:
    workspace = opened(meter=Meter(time.monotonic() - 50, 0.0))
    with workspace.stage("grpo"):
        deadline = time.monotonic() + 60
        while read_marks(workspace.folder).stages["grpo"].seconds < BEAT_SECONDS / 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # What a kill would leave behind:
        marks = read_marks(workspace.folder)
    workspace.close()
    assert marks.seconds >= 50
    assert marks.begun("grpo")
    assert not marks.done("grpo")


def test_time_in_an_inner_stage_is_not_counted_twice() -> None:
    workspace = opened()
    with workspace.stage("start"):
        with workspace.stage("tokenizer"):
            time.sleep(0.2)
        stages = workspace.marks.stages
        assert stages["tokenizer"].seconds >= 0.2
    began_to_end = stages["start"].seconds + stages["tokenizer"].seconds
    workspace.close()
    assert began_to_end <= read_marks(workspace.folder).seconds


def test_a_process_counts_from_its_start_and_a_repetition_from_its_own() -> None:
    assert Meter.from_now().cpu_seconds < meters._cpu_of_process()
    assert Meter.of_process().cpu_seconds > 0


def test_the_pace_of_a_resumed_stage_is_its_own() -> None:
    # 90 of 100 were done before; 5 took 10 s, so the last 5 take 10 more.
    assert time_left(10.0, 5, 5) == 10.0
    assert time_left(10.0, 0, 5) is None
