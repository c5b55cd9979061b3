"""The verbs. Each parses its options, calls one function and prints its result."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

import armillary
from armillary.cli.load import ALIASES, load_run
from armillary.cli.output import Output, fail
from armillary.cli.runfile import RunFile
from armillary.cli.workspace import cpu_seconds
from armillary.errors import ArmillaryError, ConfigError

Options = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]

_HELP = (
    "Trains and evaluates one model inside many agent harnesses.\n\n"
    "Every key of a run file is an option, `--section.key VALUE`. Short names: "
    + ", ".join(f"`{short}` = `--{key}`" for short, key in ALIASES.items())
)
EXIT_INTERRUPTED = 130

app = App("armillary", help=_HELP, version=armillary.__version__)


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end; Ctrl-C and SIGTERM cancel, so that everything is closed and recorded."""

    async def guarded() -> Any:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    import uvloop

    return uvloop.run(guarded())


@app.command
def quickstart(
    *options: Options, run_file: Path | None = None, seeds: str = "", json: bool = False
) -> None:
    """Train a tiny tool-using model for real: the whole loop on a laptop, no GPU, no account.

    Parameters
    ----------
    run_file: a run file in place of the built-in one.
    seeds: comma-separated seeds; the run is repeated and aggregated.
    json: print one JSON object as the last line.
    """
    from armillary.cli.quickstart import headline
    from armillary.cli.quickstart import quickstart as run_quickstart
    from armillary.evaluate.summary import aggregate_seeds

    output = Output(json=json)
    runs = [load_run(run_file, [*options, *extra]) for extra in _seeds(seeds)]
    summaries = [_run(run_quickstart(run, output)) for run in runs]
    for summary in summaries:
        output.say(headline(summary))
    result = summaries[0] if len(summaries) == 1 else aggregate_seeds(summaries)
    output.result(result, "")


def _seeds(seeds: str) -> list[list[str]]:
    """Extra options of each repetition."""
    if not seeds:
        return [[]]
    if not all(part.strip().isdigit() for part in seeds.split(",")):
        raise ConfigError(f"--seeds {seeds!r}: give numbers separated by commas, such as 0,1,2")
    return [["--seed", part.strip()] for part in seeds.split(",")]


@app.command
def info(*options: Options, run_file: Path | None = None, json: bool = False) -> None:
    """Check machine, sandboxes, harnesses and a run file before spending anything.

    Parameters
    ----------
    run_file: a run file to check.
    json: print one JSON object as the last line.
    """
    from armillary.cli.info import info as look
    from armillary.cli.info import info_text

    file, rest = _leading_file(options, run_file)
    run = load_run(file, rest) if file or rest else None
    facts = _run(look(run))
    Output(json=json).result(facts, info_text(facts))


@app.command
def rollout(
    *options: Options, run_file: Path | None = None, stage: str = "rollout", json: bool = False
) -> None:
    """Run attempts: tasks 0 .. n-1 of the evaluation split, once each in every harness.

    With `--engine scripted` a perfect scripted policy plays; else the run's latest weights.

    Parameters
    ----------
    run_file: a run file.
    stage: name under which the attempts are recorded.
    json: print one JSON object as the last line.
    """
    _measure(_existing(run_file, options), stage, Output(json=json))


@app.command
def sft(*options: Options, run_file: Path | None = None, json: bool = False) -> None:
    """Copy warm-up (tiny model only) and supervised fine-tuning on demonstrations.

    Parameters
    ----------
    run_file: a run file.
    json: print one JSON object as the last line.
    """
    from armillary.cli.train import run_sft

    run = load_run(run_file, options)
    output = Output(json=json)
    result = _run(run_sft(run, output))
    output.result(result, f"weights: {result['checkpoint']}")


@app.command
def train(*options: Options, run_file: Path | None = None, json: bool = False) -> None:
    """Reinforcement learning from the run's SFT weights.

    Parameters
    ----------
    run_file: a run file.
    json: print one JSON object as the last line.
    """
    from armillary.cli.train import run_grpo

    run = load_run(run_file, options)
    output = Output(json=json)
    result = _run(run_grpo(run, output))
    output.result(result, f"weights: {result['checkpoint']}")


@app.command(name="eval")
def evaluate(
    *options: Options, run_file: Path | None = None, stage: str = "eval", json: bool = False
) -> None:
    """Evaluate the run's latest weights across its harnesses.

    Parameters
    ----------
    run_file: a run file.
    stage: name under which the evaluation is recorded; a name is evaluated once.
    json: print one JSON object as the last line.
    """
    _measure(_existing(run_file, options), stage, Output(json=json))


@app.command
def report(folder: Path, *, json: bool = False) -> None:
    """Write report.html, figures and Parquet of a run folder again, from its record.

    Parameters
    ----------
    folder: a run folder, such as runs/quickstart-0.
    json: print one JSON object as the last line.
    """
    from armillary.cli.quickstart import headline
    from armillary.cli.results import RunResults

    run = load_run(folder / "run.toml", ())
    results = RunResults(folder)
    page = results.write(run)
    summary = results.summary(run)
    output = Output(json=json)
    output.say(headline(summary))
    output.result(summary, str(page))


tasks_app = App("tasks", help="Build, list, show and check task folders.")
app.command(tasks_app)


@tasks_app.command(name="build")
def tasks_build(*options: Options, out: Path = Path("tasks"), json: bool = False) -> None:
    """Write the task folders of a run file's [tasks] section.

    Parameters
    ----------
    out: folder for the splits.
    json: print one JSON object as the last line.
    """
    from armillary.tasks.registry import family

    # Only [tasks] matters here, so the other sections must not stand in its way.
    neutral = {"eval": {"tasks": 1, "validation_tasks": 0}, "sft": {"demonstrations": 1}}
    run = load_run(None, options, neutral)
    t = run.tasks
    made = family(t.family).build(
        out, train=t.train, validation=t.validation, test=t.test, seed=run.seed
    )
    counts = {split: len(made.names(split)) for split in made.splits()}
    text = ", ".join(f"{split}: {n} tasks" for split, n in counts.items())
    Output(json=json).result({"folder": str(out), "splits": counts}, f"{out}: {text}")


@tasks_app.command(name="list")
def tasks_list(folder: Path, *, json: bool = False) -> None:
    """List the tasks below a folder."""
    from armillary.cli.tasks import resolve

    found = resolve(folder)
    lines = [f"{task.id}  {task.instruction.splitlines()[0]}" for task in found]
    Output(json=json).result([task.id for task in found], "\n".join(lines))


@tasks_app.command(name="show")
def tasks_show(folder: Path, *, json: bool = False) -> None:
    """Show one task as an agent sees it: instruction and work folder."""
    from armillary.cli.tasks import resolve
    from armillary.sandbox.dockerfile import image_spec

    (task, *_) = resolve(folder)
    files = sorted(image_spec(task.environment).files)
    value = {"id": task.id, "instruction": task.instruction, "files": files}
    listing = "\n".join(f"  {name}" for name in files)
    Output(json=json).result(value, f"{task.id}\n\n{task.instruction}\n\nfiles:\n{listing}")


@tasks_app.command(name="check")
def tasks_check(folder: Path, *, sandbox: str = "bubblewrap", json: bool = False) -> None:
    """Prove tasks: the solution passes, doing nothing fails, the answer is hidden."""
    from armillary.cli.tasks import check, resolve

    found = resolve(folder)
    findings = _run(check(found, sandbox))
    lines = [f"{f.task}: {f.problem}" for f in findings]
    text = "\n".join([*lines, f"{len(found)} tasks, {len(findings)} problems"])
    value = {"tasks": len(found), "problems": [f._asdict() for f in findings]}
    Output(json=json).result(value, text)
    if findings:
        sys.exit(1)


def _existing(run_file: Path | None, options: tuple[str, ...]) -> RunFile:
    """The run file of the folder that the options name, if it exists, with overrides."""
    run = load_run(run_file, options)
    kept = run.folder / "run.toml"
    return load_run(kept, options) if run_file is None and kept.exists() else run


def _measure(run: RunFile, stage: str, output: Output) -> None:
    """Run attempts with the run's latest weights and print what came out."""
    from armillary.cli.quickstart import headline
    from armillary.cli.rollout import rollout as run_rollout
    from armillary.evaluate.summary import summarise

    began = time.monotonic()
    results = _run(run_rollout(run, output, stage=stage, count=run.eval.tasks))
    folder = run.folder / "rollouts" / stage
    summary = summarise(
        results, seed=run.seed, seconds=time.monotonic() - began, cpu_seconds=cpu_seconds(),
        report=folder, split=run.eval.split,
    )  # fmt: skip
    output.say(headline(summary))
    output.result(summary, str(folder))


def _leading_file(options: tuple[str, ...], run_file: Path | None) -> tuple[Path | None, list[str]]:
    """`info RUN.toml`: a first argument that is no option is the run file."""
    if options and not options[0].startswith("-"):
        return Path(options[0]), list(options[1:])
    return run_file, list(options)


def main() -> None:
    """Entry point of the `armillary` command."""
    try:
        app()
    except* ArmillaryError as group:
        for error in _leaves(group):
            fail(error)
        sys.exit(2 if any(isinstance(e, ConfigError) for e in _leaves(group)) else 1)
    except* (KeyboardInterrupt, asyncio.CancelledError):
        print("armillary: interrupted; the same command continues", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_INTERRUPTED)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
