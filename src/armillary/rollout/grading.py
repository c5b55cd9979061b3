"""Running a task's verifier after an attempt.

Harbor's contract: the tests are put into the sandbox only now, `tests/test.sh` runs, its exit code
is ignored, and `/logs/verifier/reward.json` (an object of finite numbers) or `reward.txt` (one
number) is the result. Neither file, or an unreadable one, is the verifier's failure, not reward 0.
Every process of the agent is ended first, so none can read the expected answer.
"""

from __future__ import annotations

import math

import msgspec

from armillary.errors import ArmillaryError
from armillary.sandbox.protocol import File, Sandbox
from armillary.tasks.folder import Task

REWARD_JSON, REWARD_TEXT = "/logs/verifier/reward.json", "/logs/verifier/reward.txt"
VERIFIER_FOLDERS = ("/logs", "/tests")


class VerifierError(ArmillaryError, RuntimeError):
    """The verifier did not run or left no usable reward."""


async def grade(task: Task, sandbox: Sandbox) -> dict[str, float]:
    """The scores of what is in the sandbox now.

    Raises:
        VerifierError: no usable score.
        SandboxError: the sandbox was lost.
    """
    await sandbox.end_processes()
    tests = {f"/tests/{name}": File(data, 0o755) for name, data in task.tests().items()}
    # Result files that the agent left must not count.
    await sandbox.exec(["rm", "-rf", REWARD_JSON, REWARD_TEXT], 10)
    await sandbox.write(tests)
    done = await sandbox.exec(
        ["/bin/sh", "/tests/test.sh"], task.verifier_seconds, env=task.verifier_env
    )
    if done.timed_out:
        raise VerifierError(f"the verifier of {task.id} ran longer than {task.verifier_seconds} s")
    scores = _scores(await sandbox.read(REWARD_JSON), await sandbox.read(REWARD_TEXT))
    if scores is None:
        tail = (done.out + done.err)[-500:].decode(errors="replace").strip()
        raise VerifierError(f"the verifier of {task.id} left no usable reward; it said: {tail!r}")
    return scores


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
