"""docs/metrics.md explains each metric once, and the report reads metrics by those names."""

from __future__ import annotations

import re
from pathlib import Path

from armillary.report.data import training_point

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

METRICS = {
    "reward/mean": 0.5,
    "reward/mean/loop": 0.6,
    "reward/mean/mini-swe-agent": 0.4,
    "reward/correct/loop": 0.7,
    "rollout/tool_calls/loop": 3.5,
    "loss/policy": -0.01,
    "grad/norm": 0.4,
    "ratio/p1": 0.9,
    "ratio/p50": 1.0,
    "ratio/p99": 1.1,
    "groups/used": 7.0,
    "groups/skipped_equal": 2.0,
    "groups/too_few_graded": 1.0,
    "tokens/trained": 4000.0,
    "time/step": 2.5,
}


def names_of_page() -> list[str]:
    return re.findall(r"^\| `([a-z_0-9]+/[a-z_0-9]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)


def test_each_metric_is_explained_once_with_unit_and_advice():
    names = names_of_page()
    assert len(names) == len(set(names)) > 25
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 4, line
            assert all(cells), line


def test_a_point_is_read_by_the_names_of_the_page():
    names = set(names_of_page())
    assert {"/".join(name.split("/")[:2]) for name in METRICS} <= names
    point = training_point(3, METRICS)
    assert point.step == 3
    assert point.reward == {"loop": 0.6, "mini-swe-agent": 0.4}
    assert point.correct == {"loop": 0.7}
    assert point.tool_calls == {"loop": 3.5}
    assert (point.loss, point.grad_norm) == (-0.01, 0.4)
    assert (point.ratio_p1, point.ratio_p50, point.ratio_p99) == (0.9, 1.0, 1.1)
    assert point.groups_used == 7
    assert point.groups_skipped == {"equal": 2, "too few graded": 1}
    assert (point.trained_tokens, point.seconds) == (4000, 2.5)


def test_missing_metrics_stay_empty():
    point = training_point(0, {})
    assert (point.loss, point.ratio_p50, point.reward, point.groups_skipped) == (None, None, {}, {})
