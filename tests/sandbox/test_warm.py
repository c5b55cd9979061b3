"""Programs kept in memory: a small one made here, and the real mini-SWE-agent."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from model_server import Script
from shells import shell_in

from armillary.errors import SandboxError
from armillary.harness import mini_program
from armillary.harness.install import find_environment
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.protocol import File, Limits, Sandbox, Spec
from armillary.sandbox.warm import WarmProgram

pytestmark = pytest.mark.needs_bwrap

_PROGRAM = """
import atexit, json, os, sys, threading, time

IMPORTED_WITH = os.environ.get("AT_IMPORT")
COUNT = []

def main():
    COUNT.append(1)
    word = sys.argv[1]
    if word == "show":
        print(json.dumps({
            "argv": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ), "count": len(COUNT),
            "import": IMPORTED_WITH, "fds": sorted(os.listdir("/proc/self/fd"))[:-1],
            "session": os.getsid(0) == os.getpid(), "prefix": sys.prefix,
            "stdin": sys.stdin.read(), "late": "warmed_late" in sys.modules,
        }))
        print("to err", file=sys.stderr)
    elif word == "exit":
        sys.exit({"3": 3, "text": "last words", "none": None}[sys.argv[2]])
    elif word == "raise":
        raise ValueError("broken")
    elif word == "return":
        return 5
    elif word == "late":
        atexit.register(print, "at exit")
        threading.Thread(target=lambda: (time.sleep(0.1), print("from a thread"))).start()
    elif word == "sleep":
        time.sleep(300)
    elif word == "eat":
        kept = bytearray(b"x") * (300 << 20); time.sleep(60); print(len(kept))
    elif word == "unprintable":
        sys.stdout.write("\\udcff")
"""


def _environment(folder: Path, **modules: str) -> Path:
    """A virtual environment's bare bones, of the running Python."""
    venv = folder / "venv"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = venv / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    for name, text in modules.items():
        (packages / f"{name}.py").write_text(text)
    return venv


@pytest.fixture
async def warm(tmp_path: Path) -> AsyncIterator[BubblewrapProvider]:
    venv = _environment(tmp_path, warmed=_PROGRAM, warmed_late="")
    provider = BubblewrapProvider(
        WarmProgram(
            command="prog",
            venv=venv,
            module="warmed",
            attribute="main",
            imports=("json",),
            preload=("warmed_late", "not_there", "warmed:NoModel"),
            env={"AT_IMPORT": "yes"},
        )
    )
    yield provider
    await provider.close()


@pytest.fixture
async def sandbox(warm: BubblewrapProvider) -> AsyncIterator[Sandbox]:
    sandbox = await warm.open(Spec())
    yield sandbox
    await sandbox.close()


async def test_it_runs_like_a_new_process(warm: BubblewrapProvider, sandbox: Sandbox) -> None:
    for _ in range(2):
        done = await sandbox.exec(["prog", "show", "a b"], 10, env={"CALL": "1"}, cwd="/tmp")
        assert done.err == b"to err\n"
        seen = json.loads(done.out)
        assert seen["argv"] == ["prog", "show", "a b"]
        assert seen["cwd"] == "/tmp"
        assert seen["env"] == {
            "CALL": "1",
            "HOME": "/home",
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "TERM": "dumb",
            "TMPDIR": "/tmp",
        }
        assert seen["count"] == 1, "each run starts from the same image"
        assert seen["import"] == "yes"
        assert set(seen["fds"]) <= {"0", "1", "2", "3"}
        assert seen["session"]
        assert seen["stdin"] == ""
        assert seen["late"]
        assert seen["prefix"] == "/opt/venv"
    assert warm.facts["missing"] == ["not_there", "warmed:NoModel"]


@pytest.mark.parametrize(
    ("words", "code", "err"),
    [
        (["exit", "3"], 3, b""),
        (["exit", "text"], 1, b"last words\n"),
        (["exit", "none"], 0, b""),
        (["return"], 5, b""),
    ],
)
async def test_exit_codes_are_those_of_a_script(
    sandbox: Sandbox, words: list[str], code: int, err: bytes
) -> None:
    assert await sandbox.exec(["prog", *words], 10) == (code, b"", err, False)


async def test_an_exception_is_a_traceback_and_code_1(sandbox: Sandbox) -> None:
    done = await sandbox.exec(["prog", "raise"], 10)
    assert done.code == 1
    assert done.err.endswith(b"ValueError: broken\n")
    assert (await sandbox.exec(["prog", "unprintable"], 10)).code == 1


async def test_threads_and_exit_functions_finish(sandbox: Sandbox) -> None:
    done = await sandbox.exec(["prog", "late"], 10, merge_output=True)
    assert done.out == b"from a thread\nat exit\n"


async def test_time_outs_and_limits_hold(warm: BubblewrapProvider, sandbox: Sandbox) -> None:
    assert (await sandbox.exec(["prog", "sleep"], 0.2)).timed_out
    small = await warm.open(Spec(limits=Limits(memory_mb=100)))
    with pytest.raises(SandboxError) as caught:
        await small.exec(["prog", "eat"], 30)
    assert caught.value.kind == "limit"
    await small.close()


async def test_other_programs_are_ordinary(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(["sh", "-c", "echo $0"], 10)).out == b"sh\n"
    assert (await sandbox.exec(["sh", "-c", "prog show"], 10)).code == 127


async def test_imports_that_fail_or_start_threads_are_refused(tmp_path: Path) -> None:
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True)"
    venv = _environment(tmp_path, broken="import nothing_like_this", threads=f"{threads}.start()")
    for module, why in (("broken", "nothing_like_this"), ("threads", "started 1 threads")):
        provider = BubblewrapProvider(WarmProgram("x", venv, module, "main"))
        with pytest.raises(SandboxError, match=why) as caught:
            await provider.open(Spec())
        assert caught.value.kind == "start"
        await provider.close()


async def test_a_missing_environment_is_named(tmp_path: Path) -> None:
    provider = BubblewrapProvider(WarmProgram("x", tmp_path / "gone", "m", "main"))
    with pytest.raises(SandboxError, match="gone") as caught:
        await provider.open(Spec())
    assert caught.value.kind == "missing"


# -- the real agent ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mini_venv() -> Path:
    lock = Path(__file__).parents[2] / "locks" / "mini-swe-agent.txt"
    venv = find_environment("mini-swe-agent", lock)
    if venv is None:
        pytest.skip("the environment of mini-SWE-agent is not installed")
    return venv


_COMMANDS = (
    "ls; cat /workdir/data.csv",
    "awk -F, '{s+=$2} END {print s}' data.csv > answer.txt",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
)


@pytest.mark.needs_mini
async def test_the_real_agent_solves_eight_tasks_at_once(mini_venv: Path) -> None:
    provider = BubblewrapProvider(mini_program.mini_warm_program(mini_venv))

    async def attempt(number: int) -> None:
        sandbox = await provider.open(
            Spec(files={"/workdir/data.csv": File(b"a,%d\nb,1\n" % number)})
        )
        script = Script(_COMMANDS)
        server = await script.serve(await sandbox.listen(8000))
        done = await sandbox.exec(
            mini_program.mini_argv("Sum the second column.", 7),
            120,
            env=mini_program.mini_env(8000, f"attempt-{number}"),
            merge_output=True,
        )
        server.close()
        assert done.code == 0, done.out.decode()[-2000:]
        assert await sandbox.read("/workdir/answer.txt") == b"%d\n" % (number + 1)
        assert await mini_program.mini_status(sandbox) == "Submitted"
        assert script.keys == [f"attempt-{number}"] * 3
        assert set(script.paths) == {"/v1/chat/completions"}
        first, *_, last = script.requests
        assert set(first) == {"model", "messages", "tools"}
        assert "Sum the second column." in first["messages"][1]["content"]
        assert "Linux 6 1 x86_64" in first["messages"][1]["content"]
        assert last["messages"][: len(first["messages"])] == first["messages"]
        left = await shell_in(sandbox)("set -- /proc/[0-9]*; echo $#")
        assert left.out == b"2\n", "the agent left no process"
        await sandbox.close()

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(attempt(number))
    assert provider.facts["missing"] == []
    await provider.close()


@pytest.mark.needs_mini
async def test_the_real_agent_stops_at_its_call_limit(mini_venv: Path) -> None:
    provider = BubblewrapProvider(mini_program.mini_warm_program(mini_venv))
    sandbox = await provider.open(Spec())
    assert await mini_program.mini_status(sandbox) is None
    script = Script(["true"] * 3)
    server = await script.serve(await sandbox.listen(8000))
    await sandbox.exec(
        mini_program.mini_argv("Go on.", 3), 60, env=mini_program.mini_env(8000, "k")
    )
    server.close()
    assert await mini_program.mini_status(sandbox) == "LimitsExceeded"
    assert len(script.requests) == 3
    await sandbox.close()
    await provider.close()
