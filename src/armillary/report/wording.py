"""How numbers and names are written, on the page and in figures."""

from __future__ import annotations

from collections.abc import Collection

from armillary.evaluate.bootstrap import Estimate

DASH = "–"
_STAGES = {"base": "Base", "sft": "SFT", "grpo": "GRPO"}


def stage_title(stage: str) -> str:
    """Known stages by their usual spelling, the user's own names untouched."""
    return _STAGES.get(stage, stage)


def percent(share: float, digits: int = 1) -> str:
    """A share in [0, 1] as a percentage."""
    return f"{100 * share:.{digits}f}%"


def interval(estimate: Estimate) -> str:
    """The 95% interval of a share, in percent."""
    return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f}%"


def signed_interval(estimate: Estimate) -> str:
    """The 95% interval of a difference of shares, in percentage points."""
    return f"{signed(100 * estimate.low)} to {signed(100 * estimate.high)}"


def signed(value: float) -> str:
    """One decimal with its sign, and a true minus."""
    return f"{value:+.1f}".replace("-", "−")


def whole(value: float) -> str:
    return f"{value:,.0f}"


def decimal(value: float) -> str:
    return f"{value:,.2f}"


def duration(seconds: float) -> str:
    """Seconds below two minutes, then minutes, then hours."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def interval_span(values: Collection[int]) -> str:
    """`5`, or `5 to 9`; `0` for none."""
    low, high = min(values, default=0), max(values, default=0)
    return str(low) if low == high else f"{low} to {high}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
