"""The same sandbox for a user without any privilege."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs_bwrap

_SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already run without privileges")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the system has no Python")
def test_an_unprivileged_user_has_the_same_sandbox() -> None:
    # A copy that the other user can read, wherever this checkout is.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(_SOURCE / "armillary" / "sandbox", Path(folder, "armillary", "sandbox"))
        for name in ("__init__.py", "errors.py"):
            shutil.copy(_SOURCE / "armillary" / name, Path(folder, "armillary", name))
        run = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("unprivileged_run.py"))],
            env={"PYTHONPATH": folder, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
    assert run.returncode == 0, run.stderr[-3000:]
    seen = json.loads(run.stdout)
    assert seen.pop("refused").endswith(("Operation not permitted", "Read-only file system", "all"))
    assert int(seen.pop("storm")) > 0
    assert seen == {
        "uid": "65534",
        "user": "1000",
        "capabilities": "0000000000000000",
        "interfaces": "lo",
        "processes": "2",
        "after": "fine",
        "port": "8000",
    }
