"""`armillary sft` and `armillary train`: single training stages of a run."""

from __future__ import annotations

from typing import Any

from armillary.cli.meter import Meter
from armillary.cli.output import Output
from armillary.cli.pipeline import Pipeline, open_pipeline
from armillary.cli.preflight import preflight
from armillary.cli.runfile import RunFile
from armillary.cli.workspace import Workspace, read_marks
from armillary.errors import ConfigError


async def run_sft(run: RunFile, output: Output, meter: Meter) -> dict[str, Any]:
    """Warm-up and SFT, as far as they are not done.

    Raises:
        ConfigError: something is missing, or the folder holds a run with other settings.
    """
    preflight(run, trains=True)
    workspace = Workspace(run, output, meter=meter)
    try:
        async with open_pipeline(workspace) as pipeline:
            if not workspace.done("sft"):
                await pipeline.load(pipeline.checkpoints("warmup"))
                await pipeline.warm_up()
                await pipeline.sft()
            return _latest(pipeline, "sft")
    finally:
        workspace.close()


async def run_grpo(run: RunFile, output: Output, meter: Meter) -> dict[str, Any]:
    """GRPO from the run's SFT weights.

    Raises:
        ConfigError: the run has none, something is missing, or the folder holds a run with other
            settings.
    """
    if not read_marks(run.folder).done("sft"):
        raise ConfigError(f"{run.folder} has no SFT weights; run `armillary sft` first")
    preflight(run, trains=True)
    workspace = Workspace(run, output, meter=meter)
    try:
        async with open_pipeline(workspace) as pipeline:
            await pipeline.load(pipeline.checkpoints("sft"))
            await pipeline.grpo()
            return _latest(pipeline, "grpo")
    finally:
        workspace.close()


def _latest(pipeline: Pipeline, stage: str) -> dict[str, Any]:
    checkpoints = pipeline.checkpoints(stage)
    latest = checkpoints.latest()
    assert latest is not None
    return {
        "run": str(pipeline.workspace.folder),
        "stage": stage,
        "updates": latest.step,
        "checkpoint": str(checkpoints.root / latest.folder),
    }
