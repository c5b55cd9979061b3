"""Harbor's own agents, verifier and trial on our sandbox, in Harbor's own environment."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from model_server import Script

from armillary.harness.install import ensure_environment
from armillary.tasks.data.family import write_task
from armillary.tasks.data.labbook import draw

pytestmark = [pytest.mark.needs_harbor, pytest.mark.needs_bwrap]

_ROOT = Path(__file__).parents[2]
_TASK = """
version = "1.0"
[task]
name = "tests/sum"
[environment]
network_mode = "no-network"
memory_mb = 2048
storage_mb = 256
"""
_TEST = """#!/bin/bash
[ "$(cat /workdir/answer.txt)" = 7 ] && echo 1 > /logs/verifier/reward.txt \\
  || echo 0 > /logs/verifier/reward.txt
"""


def _task(folder: Path, dockerfile: str, *, task: str = _TASK) -> Path:
    for name, text in {
        "task.toml": task,
        "instruction.md": "Add the numbers in data.csv.",
        "environment/Dockerfile": dockerfile,
        "environment/data.csv": "3\n4\n",
        "tests/test.sh": _TEST,
        "solution/solve.sh": "awk '{s+=$1} END {print s}' data.csv > answer.txt\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


_DOCKERFILE = "FROM debian:12\nWORKDIR /workdir\nCOPY data.csv .\n"


async def _trial(tmp_path: Path, task: Path, *options: str) -> dict[str, Any]:
    """Run one trial by Harbor's command line; its result."""
    venv = ensure_environment("harbor", _ROOT / "locks" / "harbor.txt")
    command = [str(venv / "bin" / "harbor"), "run", "-p", str(task), "-k", "1", "-q"]
    command += [
        "-e",
        "armillary.sandbox.harbor:BubblewrapEnvironment",
        "-o",
        str(tmp_path / "jobs"),
    ]
    env = {**os.environ, "PYTHONPATH": str(_ROOT / "src"), "HARBOR_TELEMETRY": "0"}
    run = await asyncio.create_subprocess_exec(
        *command, *options, env=env, cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    shown, _ = await run.communicate()
    found = [json.loads(path.read_text()) for path in (tmp_path / "jobs").rglob("result.json")]
    trials = [result for result in found if "trial_name" in result]
    assert len(trials) == 1, shown.decode()[-3000:]
    return trials[0]


async def test_the_oracle_solves_a_task(tmp_path: Path) -> None:
    result = await _trial(tmp_path, _task(tmp_path / "sum", _DOCKERFILE), "-a", "oracle")
    assert result["exception_info"] is None, result["exception_info"]
    assert result["verifier_result"]["rewards"] == {"reward": 1.0}
    assert result["reward_valid"]


async def test_the_oracle_solves_a_task_of_the_data_family(tmp_path: Path) -> None:
    write_task(tmp_path / "labbook", draw(3))
    result = await _trial(tmp_path, tmp_path / "labbook", "-a", "oracle")
    assert result["exception_info"] is None, result["exception_info"]
    assert result["verifier_result"]["rewards"] == {"reward": 1.0}
    assert result["reward_valid"]


async def test_doing_nothing_is_a_valid_zero(tmp_path: Path) -> None:
    result = await _trial(tmp_path, _task(tmp_path / "sum", _DOCKERFILE), "-a", "nop")
    assert result["verifier_result"]["rewards"] == {"reward": 0.0}
    assert result["reward_valid"]


@pytest.mark.needs_mini
async def test_an_agent_of_harbors_reaches_its_model_and_solves_a_task(tmp_path: Path) -> None:
    """Harbor's own mini-swe-agent class runs the real program inside, over one forwarded port."""
    mini = ensure_environment("mini-swe-agent", _ROOT / "locks" / "mini-swe-agent.txt")
    python = Path(os.path.realpath(mini / "bin" / "python")).parents[1]
    script = Script(
        ["cat data.csv", "echo 7 > answer.txt", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = await script.serve(listener)
    port = listener.getsockname()[1]
    shown = ":".join(str(p) for p in (mini, python) if not p.is_relative_to("/usr"))
    result = await _trial(
        tmp_path, _task(tmp_path / "sum", _DOCKERFILE), "-a", "mini-swe-agent",
        "-m", "openai/armillary", "--base-url", "http://127.0.0.1:8000/v1",
        "--ak", "skip_install=true", "--ae", "OPENAI_API_KEY=attempt-1",
        "--ae", "LITELLM_LOCAL_MODEL_COST_MAP=True",
        "--ek", f"show={shown}", "--ek", f"path={mini}/bin",
        "--ek", f"forward=8000=127.0.0.1:{port}",
    )  # fmt: skip
    server.close()
    assert result["exception_info"] is None, result["exception_info"]
    assert result["verifier_result"]["rewards"] == {"reward": 1.0}
    assert script.keys == ["attempt-1"] * 3
    assert r'"3\n4\n"' in script.requests[1]["messages"][-1]["content"]


async def test_a_task_that_wants_a_network_is_refused(tmp_path: Path) -> None:
    task = _task(tmp_path / "sum", _DOCKERFILE, task=_TASK.replace("no-network", "public"))
    result = await _trial(tmp_path, task, "-a", "oracle")
    assert result["exception_info"]["exception_type"] == "SandboxBuildFailedError"
    assert not result["reward_valid"]
    assert "have no network" in result["exception_info"]["exception_message"]


async def test_a_dockerfile_that_needs_a_build_is_no_valid_reward(tmp_path: Path) -> None:
    task = _task(tmp_path / "sum", _DOCKERFILE + "RUN apt-get install -y jq\n")
    result = await _trial(tmp_path, task, "-a", "oracle")
    assert result["exception_info"]["exception_type"] == "SandboxBuildFailedError"
    assert "apt-get" in result["exception_info"]["exception_message"]
    assert not result["reward_valid"]


async def test_using_up_the_memory_is_no_valid_reward(tmp_path: Path) -> None:
    task = _task(tmp_path / "sum", _DOCKERFILE, task=_TASK.replace("2048", "100"))
    (task / "solution" / "solve.sh").write_text("(head -c 400m /dev/zero; sleep 60) | tail\n")
    result = await _trial(tmp_path, task, "-a", "oracle")
    assert result["exception_info"]["exception_type"] == "MemoryLimitExceededError"
    assert not result["reward_valid"]
