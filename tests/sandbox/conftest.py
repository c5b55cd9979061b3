"""A provider and a sandbox per test."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest
from shells import Shell, shell_in

from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.protocol import Sandbox, Spec


@pytest.fixture
async def provider() -> AsyncIterator[BubblewrapProvider]:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    provider = BubblewrapProvider()
    yield provider
    await provider.close()


@pytest.fixture
async def sandbox(provider: BubblewrapProvider) -> AsyncIterator[Sandbox]:
    sandbox = await provider.open(Spec())
    yield sandbox
    await sandbox.close()


@pytest.fixture
def shell(sandbox: Sandbox) -> Shell:
    return shell_in(sandbox)
