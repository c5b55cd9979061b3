"""What lies beside the page: figures as files, attempts as a table."""

from __future__ import annotations

import struct
from pathlib import Path

import matplotlib as mpl
import matplotlib.image
import numpy as np
import pyarrow.parquet as pq
import pytest

from armillary.errors import RecordError
from armillary.evaluate.attempts import AttemptResult
from armillary.report.build import PNG_DPI
from armillary.report.data import ReportData
from armillary.report.figures import plots
from armillary.report.parquet import SCHEMA_KEY, read_attempts, schema, write_attempts
from armillary.report.plotting import NARROW, WIDE, trailing_mean, window_of

NAMES = ["pass_at_1", "training_correct", "training_tool_calls", "failures", "ratio_and_loss"]


def test_the_five_figures_are_there(data: ReportData, run_dir: Path):
    assert [plot.name for plot in plots(data)] == NAMES
    files = {path.name for path in (run_dir / "figures").iterdir()}
    assert files == {f"{name}.{kind}" for name in NAMES for kind in ("png", "pdf")}


@pytest.mark.parametrize("name", NAMES)
def test_each_figure_is_a_real_picture_of_its_size(name: str, run_dir: Path):
    path = run_dir / "figures" / f"{name}.png"
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", header[16:24])
    assert width == round(WIDE * PNG_DPI)
    assert 2 * PNG_DPI < height < 6 * PNG_DPI
    pixels = matplotlib.image.imread(path)
    assert pixels.shape[:2] == (height, width)
    drawn = (pixels[..., :3] < 0.9).any(axis=-1).mean()
    assert 0.005 < drawn < 0.6
    assert (run_dir / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_a_figure_is_laid_out_anew_for_a_telephone(data: ReportData):
    for plot in plots(data):
        figure = plot.draw(NARROW)
        assert figure.get_figwidth() == NARROW
        figure.draw_without_rendering()
        assert not figure.get_tightbbox().width > NARROW + 0.05, plot.name


def test_shares_are_drawn_on_the_whole_range(data: ReportData):
    for plot in plots(data):
        axes = plot.draw(WIDE).axes[0]
        if plot.name in {"pass_at_1", "training_correct"}:
            low, high = axes.get_ylim()
            assert low <= 0
            assert high >= 1
        if plot.name == "failures":
            assert axes.get_xlim() == (0, 1)


def test_captions_state_n_and_the_interval(data: ReportData):
    captions = {plot.name: plot.caption for plot in plots(data)}
    assert "n = 30 graded tasks" in captions["pass_at_1"]
    assert "95% percentile-bootstrap interval over tasks" in captions["pass_at_1"]
    assert "mean of the last 3 of them" in captions["training_correct"]
    assert "64 tasks each" in captions["training_correct"]
    assert "12 updates" in captions["ratio_and_loss"]


def test_building_leaves_the_settings_of_matplotlib_alone(data: ReportData, run_dir: Path):
    assert run_dir.exists()
    assert mpl.rcParams["svg.fonttype"] == mpl.rcParamsDefault["svg.fonttype"]
    assert mpl.rcParams["pdf.fonttype"] == mpl.rcParamsDefault["pdf.fonttype"]


def test_smoothing_never_looks_ahead():
    assert trailing_mean([1.0, 3.0, 5.0, 7.0], 2) == [1.0, 2.0, 4.0, 6.0]
    assert trailing_mean([2.0, 4.0], 1) == [2.0, 4.0]
    values = list(np.random.default_rng(0).normal(size=30))
    assert trailing_mean(values[:20], 5) == pytest.approx(trailing_mean(values, 5)[:20])
    assert [window_of(n) for n in (1, 5, 6, 40, 1000)] == [1, 1, 2, 8, 9]


def test_attempts_survive_the_table(data: ReportData, run_dir: Path, tmp_path: Path):
    valid = [a for a in data.attempts if a.graded]
    assert len(valid) < len(data.attempts)
    write_attempts(tmp_path / "t.parquet", valid)
    assert read_attempts(tmp_path / "t.parquet") == valid
    whole = read_attempts(run_dir / "attempts.parquet")
    assert len(whole) == len(data.attempts)
    assert [a.attempt_id for a in whole] == [a.attempt_id for a in data.attempts]
    lost = [a for a in whole if not a.graded]
    assert lost[0].failure_detail.endswith("?")
    assert lost[0].reward is None


def test_the_table_has_a_column_per_field_and_its_version(run_dir: Path, tmp_path: Path):
    stored = pq.read_schema(run_dir / "attempts.parquet")
    assert stored.names == list(AttemptResult.__struct_fields__)
    assert stored.metadata[SCHEMA_KEY] == b"attempts/1"
    write_attempts(tmp_path / "empty.parquet", [])
    assert read_attempts(tmp_path / "empty.parquet") == []
    assert pq.read_schema(tmp_path / "empty.parquet").equals(schema())


@pytest.mark.parametrize("mark", [b"attempts/2", b"calls/1", b""])
def test_another_schema_is_refused_by_name(mark: bytes, tmp_path: Path):
    path = tmp_path / "t.parquet"
    pq.write_table(schema().empty_table().replace_schema_metadata({SCHEMA_KEY: mark}), path)
    with pytest.raises(RecordError, match=r"this version reads attempts/1"):
        read_attempts(path)
