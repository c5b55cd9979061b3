"""`armillary info`: what this machine can do, and whether a run file fits it."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from typing import Any

from armillary.cli.needs import missing_needs
from armillary.cli.preflight import harness_problem, run_problems, run_surprises
from armillary.cli.runfile import RunFile
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
        "harnesses": {n: harness_problem(n, "bubblewrap") or "ready" for n in sorted(HARNESSES)},
        "missing": missing_needs(),
    }
    if run is not None:
        facts["run"] = {
            "folder": str(run.folder), "problems": [*run_problems(run), *run_surprises(run)]
        }  # fmt: skip
    return facts


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
