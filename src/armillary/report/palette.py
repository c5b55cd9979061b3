"""The colours of a report, named by what they stand for.

What it guarantees: a harness has one colour and one marker on the whole page, text and figures
alike. The hues stay apart for the common kinds of colour blindness (after Okabe and Ito), and
nothing is told by colour alone: markers, line styles, labels and order say it too. Failure classes
are steps of lightness in one hue, so they never look like a harness.

Figures are drawn in the light colours; on the page each is replaced by a CSS variable, so one
figure serves light and dark.
"""

from __future__ import annotations

from typing import NamedTuple


class Tone(NamedTuple):
    variable: str
    """CSS variable, without the dashes."""
    light: str
    dark: str


INK = Tone("ink", "#1c2126", "#e8e6e1")
MUTED = Tone("muted", "#5a636c", "#a3abb3")
RULE = Tone("rule", "#d9dcdf", "#3a4147")
PAPER = Tone("paper", "#ffffff", "#16191c")

HARNESSES = (
    Tone("h0", "#0069a8", "#63b8f2"),
    Tone("h1", "#c04a00", "#ff9b5e"),
    Tone("h2", "#007a5a", "#45cfa5"),
    Tone("h3", "#98468a", "#e5a0d3"),
    Tone("h4", "#806600", "#dfc14a"),
    Tone("h5", "#4a4fb0", "#a9aef5"),
)
MARKERS = ("o", "s", "^", "D", "v", "P")
"""matplotlib markers, one per harness colour."""
SIGNS = ("●", "■", "▲", "◆", "▼", "✚")
"""The same marks as text."""
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1)), (0, (8, 2)))

FAILURES = (
    Tone("f0", "#2b3a48", "#e3e9ee"),
    Tone("f1", "#56697a", "#b3c0cb"),
    Tone("f2", "#8b9cab", "#8596a5"),
    Tone("f3", "#c2ccd5", "#566775"),
)
"""One per failure class, in their order."""

TONES = (INK, MUTED, RULE, PAPER, *HARNESSES, *FAILURES)


def slot(index: int) -> int:
    """Which colour the harness at `index` has; the seventh starts over with the first."""
    return index % len(HARNESSES)


def css_variables(*, dark: bool) -> str:
    return " ".join(f"--{t.variable}: {t.dark if dark else t.light};" for t in TONES)
