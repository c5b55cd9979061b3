"""Writes a report: the page, its figures as files, and the attempts as a table.

What it guarantees: each file appears only when it is whole, the page last, so a page that is there
has everything beside it. The result is `report.html`, `figures/NAME.png`, `figures/NAME.pdf` and
`attempts.parquet` in the run folder.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from armillary.report.data import ReportData
from armillary.report.figures import Plot, plots
from armillary.report.page import Drawing, render_page
from armillary.report.parquet import write_attempts
from armillary.report.plotting import NARROW, WIDE
from armillary.report.svg import inline_svg

PNG_DPI = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def build_report(run_dir: Path, data: ReportData) -> Path:
    """Write the report of `data` into `run_dir` and return the path of its page.

    Raises:
        OSError: a file cannot be written.
    """
    figures = run_dir / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    drawings = [_draw(figures, plot) for plot in plots(data)]
    write_attempts(run_dir / "attempts.parquet", data.attempts)
    page = run_dir / "report.html"
    part = run_dir / "report.html.part"
    # Names of files that an agent made may hold bytes that are no text.
    part.write_bytes(render_page(data, drawings).encode("utf-8", "replace"))
    part.replace(page)
    return page


def _draw(folder: Path, plot: Plot) -> Drawing:
    wide = plot.draw(WIDE)
    _save(wide, folder / f"{plot.name}.png")
    _save(wide, folder / f"{plot.name}.pdf")
    return Drawing(
        plot.name,
        plot.title,
        plot.caption,
        inline_svg(wide, f"{plot.name}-wide", plot.title),
        inline_svg(plot.draw(NARROW), f"{plot.name}-narrow", plot.title),
    )


def _save(figure: Figure, path: Path) -> None:
    # Type 42 embeds fonts that other programs can edit; a fixed date makes equal data equal bytes.
    kind = path.suffix.removeprefix(".")
    metadata = {"CreationDate": _EPOCH} if kind == "pdf" else {}
    part = path.with_name(path.name + ".part")
    with mpl.rc_context({"pdf.fonttype": 42}):
        figure.savefig(part, format=kind, dpi=PNG_DPI, metadata=metadata)
    part.replace(path)
