"""The page itself: report data and drawn figures in, one HTML text out.

What it guarantees: the text needs no other file, no script and no network, and its policy header
forbids all three. Everything that a model, a tool or a user wrote goes through the template's
escaping; only figures drawn here are inserted as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from armillary.evaluate.bootstrap import RESAMPLES
from armillary.evaluate.failures import MEANING
from armillary.report import tables, wording
from armillary.report.data import ReportData
from armillary.report.palette import SIGNS, css_variables, slot


class Drawing(NamedTuple):
    """One figure as it is put on the page."""

    name: str
    title: str
    caption: str
    wide: str
    """An `<svg>` element for large screens and print."""
    narrow: str
    """The same data laid out for a telephone."""


def render_page(data: ReportData, drawings: Sequence[Drawing]) -> str:
    """The whole HTML document."""
    ungraded = tables.ungraded_rows(data)
    values: dict[str, object] = {
        "data": data,
        "drawings": {d.name: _safe(d) for d in drawings},
        "stages": tables.stage_rows(data),
        "gains": tables.gain_rows(data),
        "failures": tables.failure_rows(data),
        "failure_meaning": MEANING,
        "ungraded": ungraded,
        "ungraded_total": sum(row.found.lost_attempts for row in ungraded),
        "exposure": tables.exposure_rows(data),
        "groups": tables.group_rows(data),
        "updates": sum(point.groups_used > 0 for point in data.curve),
        "trained_tokens": sum(point.trained_tokens for point in data.curve),
        "resamples": RESAMPLES,
        "config_text": config_text(data.config),
        "colour": {h: slot(i) for i, h in enumerate(data.harnesses)},
        "sign": {h: SIGNS[slot(i)] for i, h in enumerate(data.harnesses)},
        "light": Markup(css_variables(dark=False)),
        "dark": Markup(css_variables(dark=True)),
    }
    return _environment().get_template("report.html.j2").render(values)


def config_text(config: Mapping[str, object]) -> str:
    """A configuration as TOML; unset values are left out, values of unknown types as their text."""
    return tomli_w.dumps({k: _plain(v) for k, v in config.items() if v is not None})


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value if v is not None]
    return value if isinstance(value, str | bool | int | float) else str(value)


def _safe(drawing: Drawing) -> dict[str, str]:
    return {
        "name": drawing.name,
        "title": drawing.title,
        "caption": drawing.caption,
        "wide": Markup(drawing.wide),
        "narrow": Markup(drawing.narrow),
    }


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("armillary.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": wording.percent,
        "interval": wording.interval,
        "signed_interval": wording.signed_interval,
        "signed": wording.signed,
        "whole": wording.whole,
        "decimal": wording.decimal,
        "duration": wording.duration,
        "plural": wording.plural,
        "stage": wording.stage_title,
    }
    return environment
