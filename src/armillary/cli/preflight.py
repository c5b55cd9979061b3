"""Before anything is spent: is what a run file names known, and is what it needs here?

The one list of reasons why a run cannot be had on this machine. `armillary info RUN.toml` prints
it, and every verb that runs something refuses with it before it makes a folder or takes a step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from armillary.capture.app import CaptureApp
from armillary.capture.listener import ProxyServer
from armillary.capture.sessions import SessionRegistry
from armillary.cli.model import pretrained_folder
from armillary.cli.needs import missing_bubblewrap, missing_torch
from armillary.cli.runfile import TINY, RunFile
from armillary.cli.workspace import RUN_FILE
from armillary.errors import ArmillaryError, ConfigError
from armillary.harness.mini_swe_agent import Wires
from armillary.harness.registry import HARNESSES, Site, make_harness
from armillary.rollout.rewards import reward_rule
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.registry import SANDBOXES, sandbox_provider
from armillary.tasks.registry import family


def preflight(run: RunFile, *, trains: bool = False) -> None:
    """Refuse what cannot work. `trains`: with a scripted policy nothing can be learnt.

    Raises:
        ConfigError: one line for each reason, with the command or the setting that helps.
    """
    problems = run_problems(run)
    if trains and run.engine.name == "scripted":
        problems.append("engine.name = 'scripted' cannot train; set it to 'local'")
    if problems:
        raise ConfigError("\n".join(problems))


def run_problems(run: RunFile) -> list[str]:
    """What keeps `run` from being run here; empty where nothing does."""
    problems: list[str] = []
    if run.engine.name not in ("local", "scripted"):
        problems.append(
            f"engine.name = {run.engine.name!r}: this version has the engines local and scripted"
        )
    if run.learner.lora_rank:
        problems.append("learner.lora_rank: this version trains all weights; set it to 0")
    asked = [
        _problem(reward_rule, run.train.reward),
        _problem(family, run.tasks.family),
        _problem(sandbox_provider, run.sandbox.name),
        *(harness_problem(name, run.sandbox.name) for name in run.harness.names),
        missing_torch() if run.engine.name == "local" else None,
        missing_bubblewrap() if _wants_bubblewrap(run) else None,
    ]
    if run.model != TINY:
        asked.append(_problem(pretrained_folder, run.model, run.revision))
    return [*problems, *(problem for problem in asked if problem is not None)]


def run_surprises(run: RunFile) -> list[str]:
    """What can be run, but not as its writer may think."""
    unused = sorted(set(run.rollout.groups) - set(run.harness.names))
    if unused:
        return [f"rollout.groups names {', '.join(unused)}, which harness.names does not"]
    return []


def harness_problem(name: str, sandbox: str) -> str | None:
    """Why harness `name` cannot be used here, or None."""
    return _problem(make_harness, name, _nowhere(sandbox))


def _wants_bubblewrap(run: RunFile) -> bool:
    """Whether a harness's own provider, or the run's, starts bubblewrap."""
    for name in run.harness.names:
        sandbox = run.sandbox.name
        if sandbox not in SANDBOXES or name not in HARNESSES or harness_problem(name, sandbox):
            continue
        provider = make_harness(name, _nowhere(sandbox)).provider()
        if isinstance(provider, BubblewrapProvider):
            return True
    return False


def _nowhere(sandbox: str) -> Site:
    """A site that is good enough to make a harness, not to run it."""
    sessions = SessionRegistry()
    return Site(Wires(ProxyServer(CaptureApp(sessions)), sessions), sandbox)


def _problem(make: Callable[..., Any], *arguments: Any) -> str | None:
    try:
        make(*arguments)
    except ArmillaryError as error:
        return str(error)
    return None


def refuse_no_run(folder: Path) -> None:
    """
    Raises:
        ConfigError: `folder` holds no run yet.
    """
    if not (folder / RUN_FILE).exists():
        raise ConfigError(
            f"there is no run at {folder} (see --name and --seed); run `armillary sft` first"
        )
