"""A labbook task, a sandbox provider and a journal per test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from armillary.record.journal import Journal
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.tasks.data.family import write_task
from armillary.tasks.data.labbook import draw
from armillary.tasks.folder import Task, load_task


@pytest.fixture
def task(tmp_path: Path) -> Task:
    write_task(tmp_path / "test" / "t1", draw(5))
    return load_task(tmp_path / "test" / "t1")


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[BubblewrapProvider]:
    made = BubblewrapProvider()
    yield made
    await made.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "j")
    yield made
    made.close()
