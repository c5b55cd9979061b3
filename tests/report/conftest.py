"""One small run with every part of a report in it, and a page built from it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from armillary.evaluate.attempts import AttemptResult
from armillary.report.build import build_report
from armillary.report.data import (
    ReportData,
    TrainingPoint,
    Transcript,
    Turn,
    ValidationPoint,
)

HOSTILE = '<script>alert("1")</script><img src="https://example.org/x.png" onerror=alert(1)>'
HARNESSES = ("loop", "mini-swe-agent", "odd $x_1$ <b>&")
SHARE = {"base": 0.05, "sft": 0.4, "grpo": 0.9}


def _evaluations() -> list[AttemptResult]:
    draw = random.Random(5)
    found: list[AttemptResult] = []
    for stage, share in SHARE.items():
        for harness in HARNESSES:
            for number in range(30):
                solved = draw.random() < share
                found.append(
                    AttemptResult(
                        attempt_id=f"{stage}-{harness}-{number}",
                        stage=stage,
                        split="test",
                        task=f"task-{number}",
                        harness=harness,
                        graded=True,
                        reward=float(solved),
                        correct=solved,
                        stop_reason="submitted" if number % 3 else "call_budget",
                        tool_calls=3 + number % 2,
                        model_calls=4,
                        prompt_tokens=400,
                        output_tokens=60,
                    )
                )
    return found


def _lost() -> list[AttemptResult]:
    return [
        AttemptResult(
            attempt_id=f"lost-{number}",
            stage="sft",
            split="test",
            task=f"lost-{HOSTILE}",
            harness="loop",
            try_number=number,
            graded=False,
            failure_kind="sandbox",
            failure_detail=HOSTILE + "\udc80",
        )
        for number in range(2)
    ]


def _training() -> list[AttemptResult]:
    return [
        AttemptResult(
            attempt_id=f"train-{stage}-{harness}-{number}",
            stage=stage,
            split="train",
            task=f"train-{number % 4}",
            harness=harness,
            group=f"g{number // 8}",
            graded=True,
            reward=1.0,
            correct=True,
            stop_reason="submitted",
            rows=2,
            row_tokens=200,
            supervised_tokens=70 if harness == "loop" else 30,
        )
        for stage in ("sft", "grpo")
        for harness in HARNESSES[:2]
        for number in range(16)
    ]


def _point(step: int) -> TrainingPoint:
    rising = {h: min(1.0, 0.3 + 0.05 * step + 0.1 * (step % 2)) for h in HARNESSES[:2]}
    return TrainingPoint(
        step=step,
        reward=rising,
        correct=rising,
        tool_calls=dict.fromkeys(HARNESSES[:2], 3.0 + 0.1 * step),
        loss=0.01 * (step % 3),
        grad_norm=0.5,
        ratio_p1=0.93,
        ratio_p50=1.0,
        ratio_p99=1.08,
        groups_used=7,
        groups_skipped={"equal": 2, "too few graded": 1},
        trained_tokens=1500,
    )


@pytest.fixture(scope="session")
def data() -> ReportData:
    return ReportData(
        name=f"run {HOSTILE}",
        seed=7,
        attempts=_evaluations() + _lost() + _training(),
        model={"Kind": "tiny"},
        config={"name": "run", "engine": {"kind": "local", "path": Path("/x"), "unset": None}},
        versions={"armillary": "0.1.0"},
        stage_seconds={"sft": 40.0},
        seconds=312.0,
        cpu_seconds=401.0,
        curve=[_point(step) for step in range(1, 13)],
        validation=[
            ValidationPoint(step=6, pass_at_1={"loop": 0.6}, graded={"loop": 64}),
        ],
        notes=["The model is tiny."],
        limits=["Temperature 1."],
        transcripts=[
            Transcript(
                title=HOSTILE,
                harness="loop",
                stage="grpo",
                correct=True,
                turns=(Turn("user", "What is 1 + 1?"), Turn("assistant", HOSTILE + "\udc80")),
            )
        ],
    )


@pytest.fixture(scope="session")
def run_dir(data: ReportData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert build_report(folder, data) == folder / "report.html"
    return folder


@pytest.fixture(scope="session")
def page(run_dir: Path) -> str:
    return (run_dir / "report.html").read_text(encoding="utf-8")
