"""The root that one attempt sees: its own folders, the system read-only, nothing else.

Everything an attempt can write lies in tmpfs of bounded size, so nothing reaches the host's disk
and all of it goes when the attempt's mount namespace does. Called in the attempt's first process,
inside fresh mount, network, ipc and uts namespaces, while it still has capabilities.

/proc and /dev are read-only: when the box was started by root, files there belong to the host's
root, and a kernel setting or the mode of /dev/null must stay out of reach. Device nodes can still
be read and written, since a read-only mount does not concern them.
"""

# pathlib would slow every start, and has no descriptors.
# ruff: noqa: PTH102, PTH103, PTH108, PTH112, PTH120, PTH123, PTH211
from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterable
from typing import NamedTuple

from . import kernel, reserve
from .wire import PackedFile

ROOT = "/box"
"""Where the new root is put together; a folder of the box's base."""
PROGRAMS = "/usr/local"
_SAFE = kernel.MS_NOSUID | kernel.MS_NODEV


class Base(NamedTuple):
    """What every attempt of a box shares: folders of the box's root and links beside them."""

    folders: list[str]
    links: list[tuple[str, str]]


def build(
    base: Base, writable: Iterable[str], files: list[PackedFile], disk_mb: int, owner: int
) -> int:
    """Put the root together and move into it.

    Gives back a descriptor of this process's folder in a writable /proc that nothing else can
    reach: the caller needs it once, to map its user id.
    """
    _tmpfs(ROOT, disk_mb + reserve.MEGABYTES)
    for link, target in base.links:
        os.symlink(target, ROOT + link)
    for folder in base.folders:
        os.makedirs(ROOT + folder, exist_ok=True)
        kernel.bind(folder, ROOT + folder)
    kernel.make_read_only(ROOT + "/etc")
    _tmpfs(ROOT + "/dev/shm", disk_mb, mode=1777)
    _pseudo_terminals(ROOT + "/dev/pts")
    _programs([file for file in files if below(file.path, PROGRAMS)], disk_mb)
    for folder in writable:
        _writable(ROOT + folder, owner)
    proc = _proc(ROOT + "/proc")
    os.chdir(ROOT)
    kernel.pivot_root_here()
    kernel.make_read_only("/")
    kernel.raise_loopback()
    socket.sethostname("sandbox")
    return proc


def _tmpfs(target: str, size_mb: int, mode: int = 755) -> None:
    # A file costs kernel memory even when it is empty, so their number is bounded too.
    options = f"size={size_mb}m,nr_inodes={size_mb * 1024},mode={mode}"
    kernel.mount("tmpfs", target, "tmpfs", _SAFE, options)


def _pseudo_terminals(target: str) -> None:
    flags = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount("devpts", target, "devpts", flags, "newinstance,ptmxmode=0666,mode=620")


def _programs(files: list[PackedFile], disk_mb: int) -> None:
    """A /usr/local of its own, which hides the host's."""
    target = ROOT + PROGRAMS
    _tmpfs(target, disk_mb)
    for folder in ("bin", "lib", "share"):
        os.mkdir(f"{target}/{folder}")
    write_files(PackedFile(ROOT + file.path, file.mode, file.data) for file in files)
    kernel.make_read_only(target)


def _writable(folder: str, owner: int) -> None:
    os.makedirs(folder, exist_ok=True)
    os.chown(folder, owner, owner)
    kernel.bind(folder, folder)


def _proc(target: str) -> int:
    os.mkdir(target)
    kernel.mount("proc", target, "proc", _SAFE | kernel.MS_NOEXEC)
    own = os.open(target + "/self", os.O_RDONLY | os.O_DIRECTORY)
    kernel.bind(target, target)
    kernel.make_read_only(target)
    return own


def below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def write_files(files: Iterable[PackedFile]) -> None:
    """Write files whatever is in their place: a policy may have put a folder or a pipe there."""
    for path, mode, data in files:
        _make_parents(os.path.dirname(path))
        _clear(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)


def _make_parents(folder: str) -> None:
    if os.path.isdir(folder):
        return
    _make_parents(os.path.dirname(folder))
    if os.path.lexists(folder):
        os.unlink(folder)
    os.mkdir(folder)


def _clear(path: str) -> None:
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(kind):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def read_file(path: str, limit: int) -> bytes | None:
    """First `limit` bytes of a regular file, or None. Never waits, also not for a named pipe."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    with open(fd, "rb") as file:
        return file.read(limit)
