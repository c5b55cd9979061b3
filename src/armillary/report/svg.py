"""A matplotlib figure as an SVG element that belongs to the page around it.

What it guarantees: no style leaks out, no id collides with another figure's, no address is in it,
colours follow the page (light or dark), text stays text (it can be selected and read aloud).
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
from matplotlib.figure import Figure

from armillary.report.palette import TONES

_FOREIGN = ("metadata", "style")
_REFERENCE = re.compile(r"(url\(#|^#)")
_COLOURS = {tone.light: f"var(--{tone.variable})" for tone in TONES}


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """`figure` as an `<svg>` element. `name` prefixes its ids, `label` is read for it."""
    buffer = io.BytesIO()
    # Text as text, and ids that depend on the content only.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(buffer.getvalue())
    _clean(root, name)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.attrib |= {"class": "plot", "role": "img", "aria-label": label}
    return ET.tostring(root, encoding="unicode")


def _clean(element: ET.Element, name: str) -> None:
    element.tag = _local(element.tag)
    element.attrib = {_local(k): _attribute(k, v, name) for k, v in element.attrib.items()}
    for child in list(element):
        if _local(child.tag) in _FOREIGN:
            element.remove(child)
        else:
            _clean(child, name)


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    value = _REFERENCE.sub(rf"\g<1>{name}-", value)
    for colour, variable in _COLOURS.items():
        value = value.replace(colour, variable)
    return value


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
