"""Bad run files and options: the key, the line, the nearest valid name."""

from __future__ import annotations

from pathlib import Path

import pytest

from armillary.cli.info import run_problems
from armillary.cli.load import load_run
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
    assert "is a value, not a section" in refused(tmp_path, 'name = "x"\n', "--name.x", "1")


def test_a_missing_file_says_so() -> None:
    with pytest.raises(ConfigError, match=r"run file nowhere\.toml cannot be read"):
        load_run(Path("nowhere.toml"), ())


def test_warm_up_on_a_pretrained_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sft\.warmup_steps = 250.*pretrained"):
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
