"""Limits and losses: disk, memory, processes, and sandboxes killed from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from shells import DAEMON, shell_in

from armillary.errors import SandboxError
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.protocol import File, Limits, Sandbox, Spec

pytestmark = pytest.mark.needs_bwrap


async def test_a_full_disk_is_full_for_this_attempt_only(provider: BubblewrapProvider) -> None:
    small = await provider.open(Spec(limits=Limits(disk_mb=4)))
    other = await provider.open(Spec(limits=Limits(disk_mb=4)))
    shell = shell_in(small)
    filled = await shell("head -c 8m /dev/zero > big")
    assert filled.code != 0
    assert b"No space left" in filled.out
    assert (await shell("echo x > /tmp/y || echo x > /home/y")).code != 0
    assert (await shell("rm big; echo x > y; cat y")).out == b"x\n"
    assert (await shell_in(other)("head -c 3m /dev/zero > big")).code == 0
    many = await shell("i=0; while [ $i -lt 9000 ]; do : > f$i || exit 9; i=$((i+1)); done")
    assert many.code != 0, "empty files cost memory too"
    await small.close()
    await other.close()


async def test_a_disk_filled_on_purpose_can_still_be_graded(provider: BubblewrapProvider) -> None:
    sandbox = await provider.open(Spec(limits=Limits(disk_mb=2), folders=("/tests",)))
    fill = "cd /home; cat /dev/zero > zeros; seq 4000 | xargs touch"
    assert (await shell_in(sandbox)(f"({fill}) 2>/dev/null")).code != 0
    with pytest.raises(SandboxError, match="No space"):
        await sandbox.write({"/tests/test.sh": File(b"x")})
    await sandbox.end_processes()
    await sandbox.write({"/tests/test.sh": File(b"echo 0 > /tests/reward.txt")})
    assert (await sandbox.exec(["sh", "/tests/test.sh"], 10)).code == 0
    assert await sandbox.read("/tests/reward.txt") == b"0\n"
    await sandbox.close()


async def test_a_file_can_be_too_large(provider: BubblewrapProvider) -> None:
    sandbox = await provider.open(Spec(limits=Limits(file_mb=1)))
    done = await shell_in(sandbox)("head -c 2m /dev/zero > big; stat -c %s big")
    assert done.out.endswith(b"1048576\n")
    await sandbox.close()


async def test_too_much_memory_ends_the_sandbox(provider: BubblewrapProvider) -> None:
    greedy = await provider.open(Spec(limits=Limits(memory_mb=100)))
    modest = await provider.open(Spec(limits=Limits(memory_mb=100)))
    assert (await shell_in(modest)("head -c 20m /dev/zero | tail | wc -c")).out == b"20971520\n"
    with pytest.raises(SandboxError, match=r"memory: .* 100 allowed") as caught:
        # tail keeps what it reads until it sees a line end
        await shell_in(greedy)("(head -c 400m /dev/zero; sleep 60) | tail", seconds=60)
    assert caught.value.kind == "limit"
    with pytest.raises(SandboxError) as again:
        await greedy.exec(["true"], 10)
    assert again.value.kind == "limit"
    assert (await modest.exec(["true"], 10)).code == 0
    await greedy.close()
    await modest.close()


async def test_a_fork_storm_is_bounded_and_stays_at_home(provider: BubblewrapProvider) -> None:
    stormy = await provider.open(Spec(limits=Limits(processes=40)))
    calm = await provider.open(Spec(limits=Limits(processes=40)))
    storm = asyncio.create_task(
        stormy.exec(["sh", "-c", "f() { f | f & }; f; f; f; f; sleep 1; f; sleep 1"], 10)
    )
    for _ in range(20):
        done = await calm.exec(["sh", "-c", "for i in 1 2 3; do (true); done; echo fine"], 20)
        assert done.out == b"fine\n"
    try:
        await storm
        await stormy.end_processes()
        assert (await shell_in(stormy)("set -- /proc/[0-9]*; echo $#")).out == b"2\n"
    except SandboxError as error:  # kernels without a limit per user namespace
        assert error.kind == "limit"  # noqa: PT017
    await stormy.close()
    await calm.close()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _first_processes(provider: BubblewrapProvider) -> list[int]:
    """Host process ids of the attempts: driver -> bwrap -> its init -> starter -> attempts."""
    box = provider._box
    assert box is not None
    (init,) = _children(box._process.pid)
    (starter,) = _children(init)
    return _children(starter)


async def test_an_attempt_killed_from_outside_has_died(provider: BubblewrapProvider) -> None:
    victim, other = await provider.open(Spec()), await provider.open(Spec())
    running = asyncio.create_task(victim.exec(["sleep", "300"], 400))
    await asyncio.sleep(0.1)
    os.kill(_first_processes(provider)[0], signal.SIGKILL)
    with pytest.raises(SandboxError) as caught:
        await running
    assert caught.value.kind == "died"
    assert (await other.exec(["true"], 10)).code == 0
    await victim.close()
    await other.close()


async def test_a_box_killed_from_outside_is_replaced(provider: BubblewrapProvider) -> None:
    lost = [await provider.open(Spec()) for _ in range(3)]
    running = [asyncio.create_task(sandbox.exec(["sleep", "300"], 400)) for sandbox in lost]
    await asyncio.sleep(0.1)
    box = provider._box
    assert box is not None
    box._process.kill()
    for task in running:
        with pytest.raises(SandboxError) as caught:
            await task
        assert caught.value.kind == "died"
    fresh = await provider.open(Spec())
    assert (await fresh.exec(["true"], 10)).code == 0
    for sandbox in (*lost, fresh):
        await sandbox.close()


async def test_closing_ends_every_process(provider: BubblewrapProvider) -> None:
    sandbox = await provider.open(Spec())
    await shell_in(sandbox)(3 * DAEMON)
    (first,) = _first_processes(provider)
    below = _children(first)
    assert len(below) == 3
    await sandbox.close()
    assert not [pid for pid in (first, *below) if Path(f"/proc/{pid}").exists()]
    await sandbox.close()
    with pytest.raises(SandboxError):
        await sandbox.exec(["true"], 10)


async def test_eight_attempts_at_once(provider: BubblewrapProvider) -> None:
    async def attempt(number: int) -> bytes | None:
        sandbox: Sandbox = await provider.open(Spec())
        for step in range(5):
            await sandbox.exec(["sh", "-c", f"echo {number}.{step} >> log"], 30)
        log = await sandbox.read("/workdir/log")
        await sandbox.close()
        return log

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(number)) for number in range(8)]
    for number, task in enumerate(tasks):
        assert task.result() == b"".join(b"%d.%d\n" % (number, step) for step in range(5))
    assert provider.cpu_seconds > 0


async def test_no_more_are_open_than_asked_for() -> None:
    provider = BubblewrapProvider(max_open=2)
    first, second = await provider.open(Spec()), await provider.open(Spec())
    third = asyncio.create_task(provider.open(Spec()))
    await asyncio.sleep(0.1)
    assert not third.done()
    await first.close()
    await (await third).close()
    await second.close()
    await provider.close()


_DRIVER = """
import asyncio
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.protocol import Spec

async def main():
    provider = BubblewrapProvider()
    sandbox = await provider.open(Spec())
    print("open", flush=True)
    await sandbox.exec(["sleep", "300"], 400)

asyncio.run(main())
"""


async def test_a_killed_driver_leaves_nothing_behind() -> None:
    driver = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _DRIVER, stdout=asyncio.subprocess.PIPE
    )
    assert driver.stdout is not None
    assert await driver.stdout.readline() == b"open\n"
    left = _descendants(driver.pid)
    assert len(left) >= 4
    driver.kill()
    await driver.wait()
    for _ in range(200):
        if not any(Path(f"/proc/{pid}").exists() for pid in left):
            return
        await asyncio.sleep(0.05)
    pytest.fail("processes of the box outlived its driver")


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for child in _children(pid):
        found += [child, *_descendants(child)]
    return found


async def test_a_sandbox_that_cannot_start_says_why(provider: BubblewrapProvider) -> None:
    with pytest.raises(SandboxError, match="/usr/share/x") as caught:
        await provider.open(Spec(folders=("/usr/share/x",)))
    assert caught.value.kind == "start"
    sandbox = await provider.open(Spec())
    assert (await sandbox.exec(["true"], 10)).code == 0
    await sandbox.close()
