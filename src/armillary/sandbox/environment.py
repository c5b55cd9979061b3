"""The environment every command of a sandbox starts from; nothing of the host's is passed on."""

from __future__ import annotations

BASE_PATH = "/usr/local/bin:/usr/bin:/bin"
BASE_ENV = {
    "PATH": BASE_PATH,
    "HOME": "/home",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
