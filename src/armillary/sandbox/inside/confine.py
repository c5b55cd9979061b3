"""Takes the rights of an attempt away, for good: user, capabilities, limits, system calls.

Called in the attempt's first process after its root is built; every process of the attempt comes
from this one. The attempt gets a user namespace of its own as the last step, because limits on the
number of processes count per user *and* user namespace: without it, attempts of one box would use
up each other's.
"""

# pathlib would slow every start, and has no descriptors.
# ruff: noqa: PTH123
from __future__ import annotations

import os
import platform
import resource
from typing import NamedTuple

from . import kernel, seccomp

_OPEN_FILES = (1024, 4096)


class Confinement(NamedTuple):
    """What could be enforced on this kernel; shown by `armillary info`."""

    own_user: bool
    """The attempt has a user namespace, and with it a process limit, of its own."""
    filtered: bool
    """The system-call filter is loaded."""


def confine(user: int, own_proc: int, *, processes: int, file_mb: int) -> Confinement:
    """Confine this process. `own_proc` is its folder in a writable /proc; it is closed.

    Raises:
        OSError: a right could not be taken away; the attempt must not start.
    """
    _become(user)
    own_user = _own_user_namespace(user, own_proc)
    os.close(own_proc)
    kernel.drop_capabilities()
    limits = [(resource.RLIMIT_CORE, (0, 0)), (resource.RLIMIT_NOFILE, _OPEN_FILES)]
    limits.append((resource.RLIMIT_FSIZE, (file_mb << 20, file_mb << 20)))
    if own_user and _counts_per_namespace():
        limits.append((resource.RLIMIT_NPROC, (processes, processes)))
    for kind, value in limits:
        resource.setrlimit(kind, value)
    # Commands run as the same user: they must not read or change this process's memory.
    kernel.set_dumpable(False)
    program = seccomp.build(platform.machine())
    if program is not None:
        kernel.install_filter(program)
    return Confinement(own_user, program is not None)


def _become(user: int) -> None:
    if os.getuid() == user:
        return
    kernel.keep_capabilities_across_setuid()
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _own_user_namespace(user: int, own_proc: int) -> bool:
    kernel.set_dumpable(True)  # or its own map below would belong to root
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
    except OSError:
        return False
    same = f"{user} {user} 1"
    for name, text in (("setgroups", "deny"), ("uid_map", same), ("gid_map", same)):
        with open(os.open(name, os.O_WRONLY, dir_fd=own_proc), "w") as file:
            file.write(text)
    return True


def _counts_per_namespace() -> bool:
    """From Linux 5.14 on; before, the limit would count the user's processes on the whole host."""
    major, minor = (int(part) for part in platform.release().split(".")[:2])
    return (major, minor) >= (5, 14)
