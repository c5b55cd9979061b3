"""The quickstart: base, SFT, GRPO, each evaluated in every harness, and a report."""

from __future__ import annotations

from armillary.cli.output import Output
from armillary.cli.pipeline import Pipeline, open_pipeline
from armillary.cli.results import RunResults
from armillary.cli.runfile import RunFile
from armillary.cli.workspace import Workspace
from armillary.evaluate.summary import Summary


async def quickstart(run: RunFile, output: Output) -> Summary:
    """Run, or go on with, the whole loop of `run`; its summary."""
    workspace = Workspace(run, output)
    try:
        if not workspace.done("finished"):
            async with open_pipeline(workspace) as pipeline:
                await _stages(pipeline)
            with workspace.stage("finished"):
                pass
        else:
            output.say(f"{workspace.folder} is finished; delete it to run again")
    finally:
        workspace.close()
    results = RunResults(run.folder)
    results.write(run)
    return results.summary(run)


async def _stages(pipeline: Pipeline) -> None:
    run, workspace = pipeline.run, pipeline.workspace
    split, count = run.eval.split, run.eval.tasks

    async def measure(stage: str) -> None:
        if not workspace.done(f"eval/{stage}"):
            await pipeline.rig.evaluate(stage, split, count)

    if not workspace.done("sft"):
        await pipeline.load(pipeline.checkpoints("warmup"))
        await pipeline.warm_up()
        await measure("base")
        await pipeline.sft()
    await pipeline.load(pipeline.checkpoints("sft"))
    await measure("sft")
    await pipeline.grpo()
    await measure("grpo")


def headline(summary: Summary) -> str:
    """The result for a person."""
    lines = [f"seed {summary.seed}, {summary.seconds:.0f} s, {summary.cpu_seconds:.0f} CPU s"]
    for stage in summary.stages:
        for name, h in stage.harnesses.items():
            rate = "-" if h.pass_at_1 is None else f"{h.pass_at_1:6.1%}"
            low, high = h.ci95 or (float("nan"), float("nan"))
            lines.append(
                f"  {stage.name:<6}{name:<18}pass@1 {rate}  [{low:.1%}, {high:.1%}]  "
                f"graded {h.graded}/{h.total}"
            )
    for name, gain in summary.gains.items():
        low, high = gain.ci95
        lines.append(f"  gain  {name:<18}{gain.points:+.1f} points  [{low:+.1f}, {high:+.1f}]")
    return "\n".join([*lines, f"report: {summary.report}"])
