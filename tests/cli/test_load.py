"""Bad run files and options: the key, the line, the nearest valid name."""

from __future__ import annotations

from pathlib import Path

import pytest

from armillary.cli.load import load_kept_run, load_run
from armillary.cli.preflight import run_problems, run_surprises
from armillary.cli.runfile import RunFile
from armillary.errors import ConfigError

EXAMPLES = Path(__file__).parents[2] / "examples"


def refused(tmp_path: Path, text: str, *options: str) -> str:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_run(file, options)
    return str(caught.value)


def test_unknown_keys_name_line_and_nearest(tmp_path: Path) -> None:
    text = 'name = "x"\n\n[train]\nsteps = 3\nlearning_rate = 1\n\n[rolout]\nretries = 1\n'
    message = refused(tmp_path, text)
    assert "run.toml:5: unknown key `train.learning_rate`" in message
    assert "run.toml:7: unknown key `rolout`; did you mean `rollout`?" in message


def test_wrong_types_and_values_name_line_and_value(tmp_path: Path) -> None:
    assert "run.toml:2: `train.steps` = 'many'" in refused(tmp_path, '[train]\nsteps = "many"\n')
    assert "run.toml:2: `budget.calls` = 0" in refused(tmp_path, "[budget]\ncalls = 0\n")
    assert "run.toml" in refused(tmp_path, "[train\n")


def test_options_are_named_as_written(tmp_path: Path) -> None:
    assert refused(tmp_path, "", "--train.stepz", "3").startswith(
        "--train.stepz: unknown key `train.stepz`; did you mean `train.steps`?"
    )
    assert refused(tmp_path, "", "-n", "lots").startswith("-n: `eval.tasks` = 'lots'")
    assert "--seed needs a value" in refused(tmp_path, "", "--seed")
    assert "'seed' is no option" in refused(tmp_path, "", "seed")
    assert "A run file comes first" in refused(tmp_path, "", "seed")
    assert "is a value, not a section" in refused(tmp_path, 'name = "x"\n', "--name.x", "1")


def test_a_fault_of_the_file_is_not_blamed_on_an_option_with_a_longer_name(tmp_path: Path) -> None:
    message = refused(tmp_path, "seeds = 3\n", "--seed", "1")
    assert message.startswith(f"{tmp_path / 'run.toml'}:1: unknown key `seeds`")


def test_options_are_read_as_their_key_wants() -> None:
    run = load_run(
        None,
        [
            "--name", "2024", "--model=7", "--revision", "0123", "--sft.warmup_steps", "0",
            "--harness", "loop", "--track.names", "jsonl", "--tasks.family=1e3",
            "--rollout.groups", "{loop = 2}",
        ],
    )  # fmt: skip
    assert (run.name, run.model, run.revision, run.tasks.family) == ("2024", "7", "0123", "1e3")
    assert (run.harness.names, run.track.names) == (["loop"], ["jsonl"])
    assert run.rollout.groups == {"loop": 2}
    both = load_run(None, ["--harness", '["loop", "mini-swe-agent"]'])
    assert both == load_run(None, ["--harness", "loop,mini-swe-agent"]) == RunFile()


def test_a_kept_run_file_is_read_before_options_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = load_run(None, ["--name", "big", "--tasks.test", "250"])
    kept.folder.mkdir(parents=True)
    (kept.folder / "run.toml").write_text(kept.to_toml())
    run = load_kept_run(None, ["--name", "big", "-n", "200"])
    assert (run.tasks.test, run.eval.tasks) == (250, 200)
    assert load_kept_run(None, ["--name", "other"]).tasks.test == 128
    with pytest.raises(ConfigError, match=r"-n: |tasks\.test = 250"):
        load_kept_run(None, ["--name", "big", "-n", "300"])


def test_what_a_script_plays_has_a_folder_of_its_own() -> None:
    assert load_run(None, ()).folder == Path("runs/quickstart-0")
    assert load_run(None, ["--engine", "scripted"]).folder == Path("runs/quickstart-scripted-0")


def test_a_missing_file_says_so() -> None:
    with pytest.raises(ConfigError, match=r"run file nowhere\.toml cannot be read"):
        load_run(Path("nowhere.toml"), ())


def test_warm_up_on_a_pretrained_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sft\.warmup_steps = \d+.*pretrained"):
        load_run(None, ["--model", "some/model"])


def test_impossible_combinations_are_refused() -> None:
    for options, words in (
        (["--budget.output_tokens", "600"], "no room for a prompt"),
        (["--eval.tasks", "500"], "tasks.test = 128"),
        (["--eval.validation_tasks", "65"], "tasks.validation = 64"),
        (["--sft.demonstrations", "3000"], "for reinforcement learning"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_run(None, options)


def test_overrides_beat_the_file_and_aliases_work(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("seed = 3\n[train]\nsteps = 5\n[rollout.groups]\nloop = 1\n")
    run = load_run(file, ["--seed=7", "--harness", "loop", "--rollout.groups.loop", "2"])
    assert (run.seed, run.train.steps, run.harness.names) == (7, 5, ["loop"])
    assert run.rollout.groups == {"loop": 2}


def test_the_effective_file_reads_back_equal(tmp_path: Path) -> None:
    run = load_run(None, ["--seed", "5", "--train.lr", "1e-3", "--harness", "loop"])
    file = tmp_path / "run.toml"
    file.write_text(run.to_toml())
    assert load_run(file, ()) == run


def test_the_quickstart_example_is_the_built_in_run() -> None:
    assert load_run(EXAMPLES / "data/quickstart.toml", ()) == RunFile()


def test_the_two_gpu_example_is_valid_and_info_says_what_it_lacks() -> None:
    run = load_run(EXAMPLES / "data/qwen3.5-4b-2gpu.toml", ())
    problems = run_problems(run)
    assert any("engine.name = 'vllm'" in p for p in problems)
    assert any("lora_rank" in p for p in problems)
    assert any("hf download Qwen/Qwen3.5-4B --revision main" in p for p in problems)
    assert any('set model = "models/Qwen3.5-4B"' in p for p in problems)


def test_groups_of_a_harness_that_does_not_run_are_a_surprise_and_no_problem() -> None:
    (surprise,) = run_surprises(load_run(None, ["--harness", "loop"]))
    assert "mini-swe-agent" in surprise
