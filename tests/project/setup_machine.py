"""A make-believe machine for the set-up script: a copy of it, and only the programs named.

Nothing here reaches a network. `uv`, `python3` and their like are small shell programs that note
how they were called; the tools of a plain Debian (sh, awk, grep, ...) are the real ones.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PLAIN_TOOLS = (
    *("awk", "cat", "cksum", "date", "dirname", "env", "grep", "head", "id", "ls", "mkdir"),
    *("rm", "sed", "sh", "tail", "tr"),
)

UV = """
case "$*" in
"venv --help") echo --clear ;;
"python find"*) [ -e "$MACHINE/uv-python" ] && cat "$MACHINE/uv-python" ;;
"python install"*)
    [ -e "$MACHINE/downloads" ] && echo /downloaded/python3.12 >"$MACHINE/uv-python" ;;
"venv --clear"*)
    mkdir -p .venv/bin
    printf '#!/bin/sh\\nexit 0\\n' >.venv/bin/python
    chmod +x .venv/bin/python ;;
"pip sync"*) [ ! -e "$MACHINE/offline" ] || { echo "no route to host"; exit 2; } ;;
esac
"""

PYTHON = """
case "$1:$2" in
-c:*"version_info < (3, 8)"*) exit 0 ;;
-c:*ensurepip*) if [ -e "$MACHINE/wheel" ]; then cat "$MACHINE/wheel"; fi; exit 0 ;;
-c:*"(3, MINOR)"*) exit 0 ;;
-c:*version_info*) exit 1 ;;
-c:*sys.executable*) echo "$0"; exit 0 ;;
-m:pip | *pip-1.whl/pip:install) ;;
-m:venv) [ -e "$MACHINE/venv" ] || exit 1
    mkdir -p "$4/bin" && cp "$0" "$4/bin/python" && touch "$MACHINE/pip"; exit 0 ;;
*) exit 1 ;;
esac
if [ "$1" = -m ] && [ ! -e "$MACHINE/pip" ]; then echo "No module named pip"; exit 1; fi
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/bin" && cp "$MACHINE/uv" "$2/bin/uv"
"""


@dataclass
class Machine:
    """A folder that plays a machine: `bin` is its PATH, `home` its HOME, `clone` the checkout."""

    folder: Path

    def __post_init__(self) -> None:
        for name in ("bin", "home", "clone/scripts", "clone/locks"):
            (self.folder / name).mkdir(parents=True)
        for name in ("scripts/setup.sh", "locks/dev.txt", "pyproject.toml"):
            shutil.copy(REPOSITORY / name, self.clone / name)
        for tool in (*PLAIN_TOOLS, "chmod", "cp", "touch"):
            real = shutil.which(tool)
            assert real, f"this machine lacks {tool}"
            (self.folder / "bin" / tool).symlink_to(real)
        self.program(self.folder / "uv", UV)
        self.answers("id", "echo 1000")

    @property
    def clone(self) -> Path:
        return self.folder / "clone"

    @property
    def calls(self) -> list[str]:
        """Every call of a make-believe program: its name and arguments."""
        noted = self.folder / "calls"
        return noted.read_text().splitlines() if noted.exists() else []

    def program(self, path: Path, body: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >>"$MACHINE/calls"\n{body}')
        path.chmod(0o755)
        return path

    def answers(self, name: str, body: str) -> Path:
        """Put a program on PATH."""
        return self.program(self.folder / "bin" / name, body)

    def python(self, path: Path, minor: int) -> Path:
        return self.program(path, PYTHON.replace("MINOR", str(minor)))

    def has(self, *facts: str) -> None:
        """`pip`, `venv`, `downloads`, `offline`: what works here."""
        for fact in facts:
            (self.folder / fact).touch()

    def setup(self, *step: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", str(self.clone / "scripts" / "setup.sh"), *step],
            env={
                "PATH": str(self.folder / "bin"),
                "HOME": str(self.folder / "home"),
                "MACHINE": str(self.folder),
                **env,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
