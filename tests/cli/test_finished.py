"""Run folders that are there already: several seeds together, reports written again."""

from __future__ import annotations

import shutil
from pathlib import Path

from commands import armillary, finished_run, last_json, options

from armillary.cli.load import load_run
from armillary.report.parquet import read_attempts

SMALL = options({"tasks.test": 10, "eval.tasks": 10})
SOLVED = {"base": 0, "sft": 3, "grpo": 9}


def test_seeds_of_finished_runs_are_aggregated_and_cost_what_they_did(tmp_path: Path) -> None:
    for seed, right in ((0, 9), (1, 7)):
        run = load_run(None, [*SMALL, "--seed", str(seed)])
        # An evaluation of the user's own does not change the shape of the result.
        extra = {"mine@grpo-00030": 1} if seed else {}
        finished_run(tmp_path, run, {**SOLVED, "grpo": right, **extra})
    done = armillary(tmp_path, "quickstart", *SMALL, "--seeds", "0,1", "--json")
    result = last_json(done)
    assert result["seeds"] == [0, 1]
    assert (result["seconds"], result["cpu_seconds"]) == (2 * 61.5, 2 * 70.25)
    assert [stage["name"] for stage in result["stages"]] == ["base", "sft", "grpo"]
    assert result["stages"][2]["harnesses"]["loop"]["pass_at_1"]["values"] == [0.9, 0.7]
    assert result["gains"]["loop"]["points"]["mean"] == 50.0
    # The result is on stdout, for people too; what went on is on stderr.
    assert done.stdout.count("report: runs/quickstart-") == 2
    again = last_json(armillary(tmp_path, "quickstart", *SMALL, "--json"))
    assert (again["seconds"], again["cpu_seconds"]) == (61.5, 70.25)


def test_a_report_of_a_run_that_was_interrupted_early(tmp_path: Path) -> None:
    """No weights, no curve, one evaluation begun; and one where nothing was recorded at all."""
    run = load_run(None, SMALL)
    root = finished_run(tmp_path, run, {"base": 1}, done=False)
    done = armillary(tmp_path, "report", str(run.folder), "--json")
    result = last_json(done)
    assert [stage["name"] for stage in result["stages"]] == ["base"]
    assert result["seconds"] == 61.5
    assert "report: runs/quickstart-0/report.html" in done.stdout
    assert (root / "report.html").stat().st_size > 10_000
    assert len(read_attempts(root / "attempts.parquet")) == 20

    shutil.rmtree(root)
    finished_run(tmp_path, run, {}, done=False)
    result = last_json(armillary(tmp_path, "report", str(run.folder), "--json"))
    assert (result["stages"], result["gains"]) == ([], {})


def test_a_report_needs_no_torch(tmp_path: Path) -> None:
    """Where PyTorch is not installed, its metadata is missing too."""
    run = load_run(None, SMALL)
    root = finished_run(tmp_path, run, SOLVED)
    program = (
        "import importlib.metadata as m; real = m.version\n"
        "def version(name):\n"
        "    if name in ('torch', 'transformers'): raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n"
        "from armillary.cli import main; main()"
    )
    done = armillary(tmp_path, "report", str(run.folder), "--json", program=program)
    assert [stage["name"] for stage in last_json(done)["stages"]] == ["base", "sft", "grpo"]
    assert (root / "report.html").exists()
