"""`armillary info`: what this machine can do, and whether a run file fits it."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from typing import Any

from armillary.cli.needs import missing_needs
from armillary.cli.runfile import TINY, RunFile
from armillary.errors import ArmillaryError
from armillary.harness.locks import installed_environment
from armillary.harness.registry import HARNESSES
from armillary.sandbox.probe import sandbox_facts


async def info(run: RunFile | None) -> dict[str, Any]:
    """Facts for people and programs; `problems` is empty where everything is there."""
    facts: dict[str, Any] = {
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        },
        "sandbox": asdict(await sandbox_facts()),
        "harnesses": {name: _harness(name) for name in sorted(HARNESSES)},
        "missing": missing_needs(),
    }
    if run is not None:
        facts["run"] = {"folder": str(run.folder), "problems": run_problems(run)}
    return facts


def run_problems(run: RunFile) -> list[str]:
    """What keeps `run` from being run here, and what would surprise its user."""
    problems: list[str] = []
    if run.engine.name not in ("local", "scripted"):
        problems.append(
            f"engine.name = {run.engine.name!r}: this version has the engines local and scripted"
        )
    if run.learner.lora_rank:
        problems.append("learner.lora_rank: this version trains all weights; set it to 0")
    if run.model != TINY and not os.path.isdir(run.model):  # noqa: PTH112
        problems.append(f"model = {run.model!r} is not a folder on this machine")
    for name in run.harness.names:
        if name not in HARNESSES:
            problems.append(f"harness {name!r} is unknown; there are {', '.join(HARNESSES)}")
        elif _harness(name) != "ready":
            problems.append(f"harness {name!r}: {_harness(name)}")
    unused = sorted(set(run.rollout.groups) - set(run.harness.names))
    if unused:
        problems.append(f"rollout.groups names {', '.join(unused)}, which harness.names does not")
    return problems


def _harness(name: str) -> str:
    if name == "loop":
        return "ready"
    try:
        installed_environment(name)
    except ArmillaryError as error:
        return str(error)
    return "ready"


def info_text(facts: dict[str, Any]) -> str:
    """`info` for a person."""
    lines: list[str] = []
    for section, values in facts.items():
        lines.append(section)
        lines += _lines(values)
    return "\n".join(lines)


def _lines(values: dict[str, Any]) -> list[str]:
    if not values:
        return ["  nothing"]
    shown: list[str] = []
    for key, value in values.items():
        if isinstance(value, list):
            shown += [f"  {key}: {item}" for item in value] or [f"  {key}: none"]
        else:
            shown.append(f"  {key}: {value}")
    return shown
