"""The verbs. Each parses its options, calls one function and prints its result."""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

import armillary
from armillary.cli.load import ALIASES, load_kept_run, load_run
from armillary.cli.meter import Meter
from armillary.cli.output import Output, fail
from armillary.cli.runfile import RunFile
from armillary.errors import ArmillaryError, ConfigError, LearnerError

if TYPE_CHECKING:
    from armillary.evaluate.summary import Summary

Options = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]

_HELP = (
    "Trains and evaluates one model inside many agent harnesses.\n\n"
    "Every key of a run file is an option, `--section.key VALUE`. Short names: "
    + ", ".join(f"`{short}` = `--{key}`" for short, key in ALIASES.items())
)
EXIT_INTERRUPTED = 130
_AGAIN = (
    "the same command makes the same update from the recorded attempts; if it ends like this "
    "again, change the setting under a new --name"
)
_NO_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)

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
    run_file:
        A run file in place of the built-in one; also as first argument.
    seeds:
        Comma-separated seeds; the run is repeated and aggregated.
    json:
        Print one JSON object as the last line.
    """
    from armillary.cli.quickstart import headline
    from armillary.cli.quickstart import quickstart as run_quickstart
    from armillary.evaluate.summary import aggregate_seeds

    output = Output(json=json)
    file, rest = _leading_file(options, run_file)
    runs = [load_run(file, [*rest, *extra]) for extra in _seeds(seeds)]
    summaries: list[Summary] = []
    for run in runs:
        meter = Meter.from_now() if summaries else Meter.of_process()
        summaries.append(_run(run_quickstart(run, output, meter)))
        if len(runs) > 1:
            output.say(headline(summaries[-1]))
    result = summaries[0] if len(summaries) == 1 else aggregate_seeds(summaries)
    output.result(result, "\n".join(headline(summary) for summary in summaries))


def _seeds(seeds: str) -> list[list[str]]:
    """Extra options of each repetition."""
    if not seeds:
        return [[]]
    parts = [part.strip() for part in seeds.split(",")]
    if not all(part.isdigit() for part in parts):
        raise ConfigError(f"--seeds {seeds!r}: give numbers separated by commas, such as 0,1,2")
    if len({int(part) for part in parts}) < len(parts):
        raise ConfigError(f"--seeds {seeds!r}: a seed occurs twice")
    return [["--seed", part] for part in parts]


@app.command
def info(*options: Options, run_file: Path | None = None, json: bool = False) -> None:
    """Check machine, sandboxes, harnesses and a run file before spending anything.

    Parameters
    ----------
    run_file:
        A run file to check; also as first argument.
    json:
        Print one JSON object as the last line.
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

    With `--engine scripted` a perfect scripted policy plays, in a run folder of its own
    (`runs/NAME-scripted-SEED`); else the run's latest weights.

    Parameters
    ----------
    run_file:
        A run file; also as first argument. By default the one that the run folder keeps.
    stage:
        Name under which the attempts are recorded, with who played them: `STAGE@PLAYER`.
    json:
        Print one JSON object as the last line.
    """
    _measure(_kept(options, run_file), stage, Output(json=json))


@app.command
def sft(*options: Options, run_file: Path | None = None, json: bool = False) -> None:
    """Copy warm-up (tiny model only) and supervised fine-tuning on demonstrations.

    Parameters
    ----------
    run_file:
        A run file; also as first argument. By default the one that the run folder keeps.
    json:
        Print one JSON object as the last line.
    """
    from armillary.cli.train import run_sft

    output = Output(json=json)
    result = _run(run_sft(_kept(options, run_file), output, Meter.of_process()))
    output.result(result, f"weights: {result['checkpoint']}")


@app.command
def train(*options: Options, run_file: Path | None = None, json: bool = False) -> None:
    """Reinforcement learning from the run's SFT weights.

    Parameters
    ----------
    run_file:
        A run file; also as first argument. By default the one that the run folder keeps.
    json:
        Print one JSON object as the last line.
    """
    from armillary.cli.train import run_grpo

    output = Output(json=json)
    result = _run(run_grpo(_kept(options, run_file), output, Meter.of_process()))
    output.result(result, f"weights: {result['checkpoint']}")


@app.command(name="eval")
def evaluate(
    *options: Options, run_file: Path | None = None, stage: str = "eval", json: bool = False
) -> None:
    """Evaluate the run's latest weights across its harnesses.

    Parameters
    ----------
    run_file:
        A run file; also as first argument. By default the one that the run folder keeps.
    stage:
        Name under which the evaluation is recorded, with the checkpoint: `STAGE@CHECKPOINT`.
    json:
        Print one JSON object as the last line.
    """
    _measure(_kept(options, run_file), stage, Output(json=json))


@app.command
def report(folder: Path, *, json: bool = False) -> None:
    """Write report.html, figures and Parquet of a run folder again, from its record.

    Parameters
    ----------
    folder:
        A run folder, such as runs/quickstart-0.
    json:
        Print one JSON object as the last line.
    """
    from armillary.cli.quickstart import headline
    from armillary.cli.results import RunResults

    run = load_run(folder / "run.toml", ())
    results = RunResults(folder)
    results.write(run)
    summary = results.summary(run)
    Output(json=json).result(summary, headline(summary))


tasks_app = App("tasks", help="Build, list, show and check task folders.")
app.command(tasks_app)


@tasks_app.command(name="build")
def tasks_build(
    *options: Options,
    run_file: Path | None = None,
    out: Path = Path("tasks"),
    json: bool = False,
) -> None:
    """Write the task folders of a run file's [tasks] section.

    Parameters
    ----------
    run_file:
        A run file; also as first argument.
    out:
        Folder for the splits.
    json:
        Print one JSON object as the last line.
    """
    from armillary.tasks.registry import family

    # Only [tasks] matters here, so the other sections must not stand in its way.
    neutral = {"eval": {"tasks": 1, "validation_tasks": 0}, "sft": {"demonstrations": 1}}
    file, rest = _leading_file(options, run_file)
    run = load_run(file, rest, neutral)
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
    Output(json=json).result({"tasks": [task.id for task in found]}, "\n".join(lines))


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


def _kept(options: tuple[str, ...], run_file: Path | None) -> RunFile:
    """The run file given, or the one that the run's folder keeps, with overrides."""
    file, rest = _leading_file(options, run_file)
    return load_kept_run(file, rest)


def _measure(run: RunFile, stage: str, output: Output) -> None:
    """Run attempts and print what came out."""
    from armillary.cli.quickstart import headline
    from armillary.cli.rollout import rollout as run_rollout
    from armillary.evaluate.summary import summarise

    meter = Meter.of_process()
    measured = _run(run_rollout(run, output, stage=stage, count=run.eval.tasks))
    summary = summarise(
        measured.results, seed=run.seed, seconds=meter.seconds,
        cpu_seconds=meter.cpu_seconds + measured.sandbox_cpu, report=measured.folder,
        split=run.eval.split,
    )  # fmt: skip
    output.result(summary, headline(summary))


def _leading_file(options: tuple[str, ...], run_file: Path | None) -> tuple[Path | None, list[str]]:
    """`VERB RUN.toml`: a first argument that is no option is the run file."""
    if not options or options[0].startswith("-"):
        return run_file, list(options)
    if run_file is not None:
        raise ConfigError(f"two run files are given: {options[0]} and {run_file}")
    return Path(options[0]), list(options[1:])


def main() -> None:
    """Entry point of the `armillary` command."""
    try:
        app()
    except* ArmillaryError as group:
        errors = _leaves(group)
        for error in errors:
            fail(error)
        if any(isinstance(error, LearnerError) for error in errors):
            fail(ArmillaryError(_AGAIN))
        sys.exit(2 if any(isinstance(error, ConfigError) for error in errors) else 1)
    except* OSError as group:
        errors = _leaves(group)
        if not all(isinstance(error, OSError) and error.errno in _NO_DISK for error in errors):
            raise
        for error in errors:
            fail(error)
        fail(ArmillaryError("make room or access, then the same command continues"))
        sys.exit(1)
    except* (KeyboardInterrupt, asyncio.CancelledError):
        print("armillary: interrupted; the same command continues", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_INTERRUPTED)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
