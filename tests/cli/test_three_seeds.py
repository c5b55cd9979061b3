"""The quickstart's own claim, at full size: three seeds learn in both harnesses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow, pytest.mark.needs_bwrap, pytest.mark.needs_mini, pytest.mark.needs_learn,
]  # fmt: skip


def test_three_seeds_learn_in_both_harnesses(tmp_path: Path) -> None:
    program = "from armillary.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "quickstart", "--seeds", "0,1,2", "--json"], cwd=tmp_path,
        text=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True, timeout=3600,
    )  # fmt: skip
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["seeds"] == [0, 1, 2]
    sft, grpo = result["stages"][1]["harnesses"], result["stages"][2]["harnesses"]
    for harness, least in (("loop", 0.85), ("mini-swe-agent", 0.80)):
        assert max(sft[harness]["pass_at_1"]["values"]) <= 0.45
        assert min(grpo[harness]["pass_at_1"]["values"]) >= least
        assert result["gains"][harness]["above_zero"] == 3
        assert grpo[harness]["graded"] == grpo[harness]["total"] == 3 * 128
