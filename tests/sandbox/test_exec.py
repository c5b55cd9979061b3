"""Running commands: codes, output, time-outs, leftovers, files."""

from __future__ import annotations

import asyncio
import time

import pytest
from shells import DAEMON, Shell, shell_in

from armillary.errors import SandboxError
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.protocol import File, Limits, Sandbox, Spec

pytestmark = pytest.mark.needs_bwrap

PROCESSES = "set -- /proc/[0-9]*; echo $#"
"""2 when nothing else runs: the first process and sh, which counts by itself."""


async def test_codes_and_streams(sandbox: Sandbox) -> None:
    done = await sandbox.exec(["sh", "-c", "echo out; echo err >&2; exit 3"], 10)
    assert done == (3, b"out\n", b"err\n", False)
    merged = await sandbox.exec(["sh", "-c", "echo a; echo b >&2; echo c"], 10, merge_output=True)
    assert merged == (0, b"a\nb\nc\n", b"", False)
    killed = await sandbox.exec(["sh", "-c", "kill -9 $$"], 10)
    assert killed.code == 137


async def test_a_program_that_cannot_start_is_an_exit_code(sandbox: Sandbox) -> None:
    missing = await sandbox.exec(["no-such-tool"], 10)
    assert missing == (127, b"", b"no-such-tool: command not found\n", False)
    assert (await sandbox.exec(["/no/such"], 10)).code == 127
    assert (await sandbox.exec(["/etc/passwd"], 10)).code == 126
    assert (await sandbox.exec(["sh", "-c", "echo a\0b"], 10)).code == 126
    assert (await sandbox.exec(["true"], 10, cwd="/nowhere")).code == 127
    assert (await sandbox.exec(["true", "x" * (1 << 20)], 10)).code == 126


async def test_a_script_without_an_interpreter_line_runs(sandbox: Sandbox) -> None:
    await sandbox.write({"/workdir/go": File(b"echo went $1\n", 0o755)})
    assert (await sandbox.exec(["/workdir/go", "there"], 10)).out == b"went there\n"


async def test_input_is_empty_and_folders_are_kept(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(["cat"], 10)) == (0, b"", b"", False)
    assert (await sandbox.exec(["pwd"], 10, cwd="/tmp")).out == b"/tmp\n"


async def test_state_stays_between_commands(shell: Shell) -> None:
    await shell(f"echo 1 > kept; {DAEMON}")
    assert (await shell(f"cat kept; {PROCESSES}")).out == b"1\n3\n"


async def test_a_time_out_ends_the_whole_group(shell: Shell) -> None:
    late = await shell("echo before; sleep 300 & sleep 300 | cat", seconds=0.3)
    assert late == (124, b"before\n", b"", True)
    assert (await shell(PROCESSES)).out == b"2\n"


async def test_a_background_job_holds_nothing_up(shell: Shell) -> None:
    started = time.monotonic()
    assert (await shell("sleep 300 & echo done", seconds=200)).out == b"done\n"
    held = DAEMON.replace(">/dev/null 2>&1", "")
    assert (await shell(f"{held} echo done", seconds=200)).out == b"done\n"
    assert time.monotonic() - started < 100


async def test_output_is_capped_and_says_so(provider: BubblewrapProvider) -> None:
    sandbox = await provider.open(Spec(limits=Limits(output_bytes=1000)))
    done = await sandbox.exec(["sh", "-c", "head -c 5000000 /dev/zero; echo >&2 err"], 10)
    assert done.out == bytes(1000) + b"\n[output cut: 4999000 more bytes were dropped]\n"
    assert done.err == b"err\n"
    endless = await sandbox.exec(["yes"], 0.3)
    assert endless.timed_out
    assert len(endless.out) < 1100
    await sandbox.close()


async def test_several_commands_run_at_once(sandbox: Sandbox) -> None:
    """Each waits for the next one's file, so they end only together."""
    command = "echo > $0; while ! [ -e $1 ]; do sleep 0.01; done; echo $0"
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(sandbox.exec(["sh", "-c", command, f"f{i}", f"f{(i + 1) % 6}"], 30))
            for i in range(6)
        ]
    assert [task.result().out for task in running] == [b"f%d\n" % i for i in range(6)]


async def test_a_cancelled_command_is_killed(sandbox: Sandbox) -> None:
    task = asyncio.create_task(sandbox.exec(["sleep", "300"], 400))
    await _until(sandbox, b"3\n")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _until(sandbox, b"2\n")


async def _until(sandbox: Sandbox, processes: bytes) -> None:
    for _ in range(1000):
        if (await sandbox.exec(["sh", "-c", PROCESSES], 10)).out == processes:
            return
    pytest.fail(f"the number of processes did not become {processes!r}")


async def test_end_processes_leaves_only_the_first(sandbox: Sandbox) -> None:
    shell = shell_in(sandbox)
    await shell(3 * DAEMON)
    running = asyncio.create_task(sandbox.exec(["sleep", "300"], 400))
    await asyncio.sleep(0)
    await sandbox.end_processes()
    assert (await running).code == 137
    assert (await shell(PROCESSES)).out == b"2\n"


async def test_files_go_in_and_out(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 5000
    await sandbox.write({"/workdir/a/b.bin": File(data, 0o640), "/tmp/c": File(b"")})
    assert await sandbox.read("/workdir/a/b.bin", 1 << 22) == data
    assert await sandbox.read("/workdir/a/b.bin", 10) == data[:10]
    assert await sandbox.read("/tmp/c") == b""
    assert await sandbox.read("/workdir/none") is None
    assert await sandbox.read("/workdir") is None
    shown = await sandbox.exec(["stat", "-c", "%a %U", "/workdir/a/b.bin"], 10)
    assert shown.out == b"640 agent\n"


async def test_what_a_policy_left_in_the_way_is_replaced(sandbox: Sandbox) -> None:
    await shell_in(sandbox)(
        "mkdir -p a/b c; echo x > c/f; chmod 0 c/f; mkfifo pipe; ln -s /etc/issue link; echo > file"
    )
    paths = ["/workdir/a", "/workdir/pipe", "/workdir/link", "/workdir/file/below", "/workdir/c/f"]
    await sandbox.write({path: File(b"ours") for path in paths})
    assert [await sandbox.read(path) for path in paths] == [b"ours"] * len(paths)


async def test_reading_a_named_pipe_does_not_wait(shell: Shell, sandbox: Sandbox) -> None:
    await shell("mkfifo answer.txt")
    assert await sandbox.read("/workdir/answer.txt") is None


async def test_a_write_that_cannot_be_done_is_our_fault(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="Read-only") as caught:
        await sandbox.write({"/etc/passwd": File(b"x")})
    assert caught.value.kind == "io"
    assert (await sandbox.exec(["true"], 10)).code == 0, "the sandbox goes on"


async def test_odd_bytes_pass_unchanged(sandbox: Sandbox) -> None:
    name = "ü\udcff \n'\""
    done = await sandbox.exec(["printf", "%s", name], 10, env={"LC_ALL": "C"})
    assert done.out == name.encode("utf-8", "surrogateescape")
