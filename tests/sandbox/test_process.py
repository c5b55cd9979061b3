"""Plain processes: the same calls, no isolation, said aloud."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from shells import shell_in

from armillary.errors import ConfigError, SandboxError
from armillary.sandbox.process import ProcessProvider
from armillary.sandbox.protocol import File, Limits, Sandbox, Spec
from armillary.sandbox.registry import SANDBOXES, sandbox_provider


@pytest.fixture
async def provider() -> AsyncIterator[ProcessProvider]:
    provider = ProcessProvider()
    yield provider
    await provider.close()


@pytest.fixture
async def sandbox(provider: ProcessProvider) -> Sandbox:
    tool = File(b"#!/bin/sh\necho tool\n", 0o755)
    files = {"/workdir/a": File(b"a"), "/usr/local/bin/my-tool": tool}
    return await provider.open(Spec(files=files, env={"X": "1"}, limits=Limits(output_bytes=100)))


async def test_it_warns_once(provider: ProcessProvider, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await provider.open(Spec())
        await provider.open(Spec())
    assert [record.message for record in caplog.records] == [
        "the sandbox `process` isolates nothing: commands run as you, on your files"
    ]


async def test_commands_files_and_codes(sandbox: Sandbox) -> None:
    shell = shell_in(sandbox)
    assert (await shell("cat a; my-tool; echo $X; echo b > b; exit 3")) == (
        3, b"atool\n1\n", b"", False,
    )  # fmt: skip
    assert await sandbox.read("/workdir/b") == b"b\n"
    assert await sandbox.read("/workdir/none") is None
    await sandbox.write({"/tmp/c/d": File(b"d", 0o600)})
    assert (await shell("cat $TMPDIR/c/d")).out == b"d"
    split = await sandbox.exec(["sh", "-c", "echo out; echo err >&2"], 10)
    assert split == (0, b"out\n", b"err\n", False)
    assert (await sandbox.exec(["no-such-tool"], 10)).code == 127
    assert (await shell("kill -9 $$")).code == 137


async def test_time_outs_output_and_background_jobs(sandbox: Sandbox) -> None:
    shell = shell_in(sandbox)
    assert await shell("echo x; sleep 300 & sleep 300", seconds=0.3) == (124, b"x\n", b"", True)
    assert (await shell("sleep 300 & echo done", seconds=200)).out == b"done\n"
    long = await shell("head -c 5000 /dev/zero")
    assert long.out == bytes(100) + b"\n[output cut: 4900 more bytes were dropped]\n"


async def test_a_busy_port_becomes_another(sandbox: Sandbox) -> None:
    first = await sandbox.listen(0)
    port = first.getsockname()[1]
    second = await sandbox.listen(port)
    assert second.getsockname()[1] != port
    first.close()
    second.close()


async def test_closing_removes_the_folder(sandbox: Sandbox) -> None:
    folder = Path((await shell_in(sandbox)("pwd")).out.decode().strip())
    assert folder.is_dir()
    await sandbox.close()
    assert not folder.exists()
    with pytest.raises(SandboxError):
        await sandbox.exec(["true"], 10)


async def test_sandboxes_have_names() -> None:
    for name in SANDBOXES:
        await sandbox_provider(name).close()
    with pytest.raises(ConfigError, match="known are bubblewrap, process"):
        sandbox_provider("docker")
