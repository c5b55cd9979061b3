"""Tests marked `needs_X` are skipped where X is missing, with the reason `armillary info` gives."""

from __future__ import annotations

import pytest

from armillary.cli.needs import missing_needs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {f"needs_{need}": why for need, why in missing_needs().items()}
    for item in items:
        for mark in list(item.iter_markers()):
            if why := reasons.get(mark.name):
                item.add_marker(pytest.mark.skip(reason=why))
