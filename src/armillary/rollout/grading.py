"""Running a task's verifier after an attempt.

Harbor's contract: the tests are put into the sandbox only now, `tests/test.sh` runs, its exit code
is ignored, and `/logs/verifier/reward.json` (an object of finite numbers) or `reward.txt` (one
number) is the result. Neither file, or an unreadable one, is the verifier's failure, not reward 0.
Every process of the agent is ended first, so none can read the expected answer.

The sandbox is the one the policy worked in, so it is put in order first: what it left in the
verifier's folders goes, folders it shut are opened. A verifier that then finds no disk left did
not fail by itself (`SpoiledError`), and that is told apart from a verifier that is broken.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import PurePosixPath

import msgspec

from armillary.errors import ArmillaryError, SandboxError
from armillary.sandbox.environment import BASE_PATH
from armillary.sandbox.protocol import WORKDIR, File, Sandbox
from armillary.tasks.folder import Task

REWARD_JSON, REWARD_TEXT = "/logs/verifier/reward.json", "/logs/verifier/reward.txt"
VERIFIER_FOLDERS = ("/logs", "/tests")

_OPENED = ("/tmp", "/home", *VERIFIER_FOLDERS)
# Paths here are relative to the sandbox's root, so that they mean the same in every sandbox.
_PUT_IN_ORDER = """
for folder in "$@"; do
    [ -d "$folder" ] || { rm -f "$folder"; mkdir "$folder"; }
    chmod u+rwx "$folder"
done
chmod -R u+rwx logs tests
find logs tests -mindepth 1 -delete
stat -f -c '%a %b %S %d %c' .
mkdir logs/verifier
"""
_ORDER_SECONDS = 60
_ROOM_BYTES, _ROOM_FILES = 4 << 20, 64
"""A verifier with less disk than this, and less than half of all, has been left none."""


class VerifierError(ArmillaryError, RuntimeError):
    """The verifier did not run or left no usable reward."""


class SpoiledError(VerifierError):
    """The same, because of how the sandbox was left: the disk is full, or cannot be written."""


async def grade(task: Task, sandbox: Sandbox, workdir: str = WORKDIR) -> dict[str, float]:
    """The scores of what is in the sandbox now. The verifier starts in `workdir`.

    Raises:
        SpoiledError: no usable score, and whoever used the sandbox left no room for a verifier.
        VerifierError: no usable score.
        SandboxError: the sandbox was lost.
    """
    await sandbox.end_processes()
    files = await asyncio.to_thread(task.tests)
    has_room = await _put_in_order(sandbox, workdir)
    try:
        await sandbox.write({f"/tests/{name}": File(data, 0o755) for name, data in files.items()})
    except SandboxError as fault:
        if fault.kind != "io":
            raise
        raise SpoiledError(f"the tests of {task.id} cannot be written: {fault}") from fault
    done = await sandbox.exec(
        ["/bin/sh", "/tests/test.sh"], task.verifier_seconds, env=task.verifier_env, cwd=workdir
    )
    if done.timed_out:
        raise VerifierError(f"the verifier of {task.id} ran longer than {task.verifier_seconds} s")
    scores = _scores(await sandbox.read(REWARD_JSON), await sandbox.read(REWARD_TEXT))
    if scores is None:
        tail = (done.out + done.err)[-500:].decode(errors="replace").strip()
        text = f"the verifier of {task.id} left no usable reward; it said: {tail!r}"
        raise VerifierError(text) if has_room else SpoiledError(f"the disk is full: {text}")
    return scores


async def _put_in_order(sandbox: Sandbox, workdir: str) -> bool:
    """Open and empty what the verifier needs; whether there is room on the disk."""
    work = PurePosixPath(workdir)
    outer = [str(folder) for folder in (*reversed(work.parents), work)[1:]]
    folders = [folder.removeprefix("/") for folder in (*_OPENED, *outer)]
    # A path of the task's own may lead to programs that the policy wrote.
    done = await sandbox.exec(
        ["/bin/sh", "-c", _PUT_IN_ORDER, "sh", *folders], _ORDER_SECONDS,
        env={"PATH": BASE_PATH}, cwd="/",
    )  # fmt: skip
    return _has_room(done.out)


def _has_room(figures: bytes) -> bool:
    """Reads `stat -f`: free and all blocks, bytes per block, free and all files."""
    try:
        free, blocks, size, free_files, files = map(int, figures.split())
    except ValueError:
        return True  # this system does not say
    short_of_files = files > 0 and free_files < min(_ROOM_FILES, files // 2)
    return free * size >= min(_ROOM_BYTES, blocks * size // 2) and not short_of_files


def _scores(as_json: bytes | None, as_text: bytes | None) -> dict[str, float] | None:
    """Finite scores by key, or None."""
    try:
        if as_json is not None:
            scores = msgspec.json.decode(as_json, type=dict[str, float])
        elif as_text is not None:
            scores = {"reward": float(as_text)}
        else:
            return None
    except (msgspec.MsgspecError, ValueError):
        return None
    finite = all(math.isfinite(v) for v in scores.values())
    return scores if finite and "reward" in scores else None
