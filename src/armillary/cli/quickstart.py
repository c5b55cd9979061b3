"""The quickstart: base, SFT, GRPO, each evaluated in every harness, and a report."""

from __future__ import annotations

from armillary.cli.meter import Meter
from armillary.cli.output import Output
from armillary.cli.pipeline import Pipeline, open_pipeline
from armillary.cli.preflight import preflight
from armillary.cli.results import RunResults
from armillary.cli.runfile import RunFile
from armillary.cli.workspace import LAST_STAGE, Workspace, read_marks
from armillary.evaluate.statistics import TRAINING_ORDER
from armillary.evaluate.summary import Summary


async def quickstart(run: RunFile, output: Output, meter: Meter) -> Summary:
    """Run, or go on with, the whole loop of `run`; its summary.

    Raises:
        ConfigError: something is missing, or the folder holds a run with other settings.
    """
    if not read_marks(run.folder).done("finished"):
        preflight(run, trains=True)
    workspace = Workspace(run, output, meter=meter)
    try:
        if workspace.done("finished"):
            output.say(f"{workspace.folder} is finished; delete it to run again")
        else:
            async with open_pipeline(workspace) as pipeline:
                await _stages(pipeline)
            with workspace.stage("finished"):
                pass
        with workspace.stage(LAST_STAGE):
            results = RunResults(run.folder)
            results.write(run)
    finally:
        workspace.close()
    # Evaluations of the user's own are in the report; the result of a run is always of one shape.
    return results.summary(run, TRAINING_ORDER)


async def _stages(pipeline: Pipeline) -> None:
    run, workspace = pipeline.run, pipeline.workspace
    split, count = run.eval.split, run.eval.tasks

    async def measure(stage: str) -> None:
        if not workspace.done(f"eval/{stage}"):
            await pipeline.rig.evaluate(stage, split, count)

    warmed = await pipeline.load(pipeline.checkpoints("warmup"))
    if not workspace.done("sft"):
        await pipeline.warm_up()
        await measure("base")
        await pipeline.sft()
    elif warmed or not run.sft.warmup_steps:
        # `armillary sft` made the weights and measured nothing.
        await measure("base")
    elif not workspace.done("eval/base"):
        workspace.output.say("base cannot be measured any more: its checkpoint is gone")
    await pipeline.load(pipeline.checkpoints("sft"))
    await measure("sft")
    await pipeline.grpo()
    await measure("grpo")


def headline(summary: Summary) -> str:
    """The result for a person."""
    lines = [f"seed {summary.seed}, {summary.seconds:.0f} s, {summary.cpu_seconds:.0f} CPU s"]
    width = max((len(stage.name) for stage in summary.stages), default=0)
    for stage in summary.stages:
        for name, h in stage.harnesses.items():
            rate = "-" if h.pass_at_1 is None else f"{h.pass_at_1:6.1%}"
            interval = "" if h.ci95 is None else f"  [{h.ci95[0]:.1%}, {h.ci95[1]:.1%}]"
            lines.append(
                f"  {stage.name:<{width}}  {name:<18}pass@1 {rate}{interval}"
                f"  graded {h.graded}/{h.total}"
            )
    for name, gain in summary.gains.items():
        low, high = gain.ci95
        lines.append(
            f"  {'gain':<{width}}  {name:<18}{gain.points:+.1f} points  [{low:+.1f}, {high:+.1f}]"
        )
    return "\n".join([*lines, f"report: {summary.report}"])
