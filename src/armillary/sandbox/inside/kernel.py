"""The few system calls that Python's standard library lacks (or has only from 3.12 on).

Each function raises OSError with what was tried. ctypes instead of os.unshare and os.setns, so
that a system Python of 3.9 can start a box.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import socket
import struct

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REMOUNT, MS_NOATIME, MS_NODIRATIME, MS_BIND = 0x20, 0x400, 0x800, 0x1000
MS_REC, MS_PRIVATE, MS_RELATIME = 0x4000, 0x40000, 0x200000
_MNT_DETACH = 2

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 4, 22, 24
_PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 28, 38, 47
_SECCOMP_MODE_FILTER, _AMBIENT_CLEAR_ALL = 2, 4
_SECBIT_NO_SETUID_FIXUP = 0x4
_CAPABILITY_VERSION_3 = 0x20080522

# Machines not listed use the kernel's generic table, where it is 41.
_PIVOT_ROOT = {"x86_64": 155, "ppc64le": 203, "s390x": 217}

# statvfs and mount name the same restrictions by different bits from 0x1000 on.
_KEPT_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME
_ST_RELATIME = 0x1000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    result = _libc.mount(
        source.encode() if source else None,
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    _check(result, f"mounting {kind or source or 'flags'} on {target}")


def bind(source: str, target: str) -> None:
    """Show `source`, with all mounted below it, at `target` too."""
    mount(source, target, None, MS_BIND | MS_REC)


def make_read_only(mountpoint: str) -> None:
    """Forbid writing through this one mount; restrictions it already has are kept."""
    have = os.statvfs(mountpoint).f_flag
    kept = (have & _KEPT_FLAGS) | (MS_RELATIME if have & _ST_RELATIME else 0)
    mount(None, mountpoint, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def pivot_root_here() -> None:
    """Make the current folder (a mount) the root and let go of the old root."""
    number = _PIVOT_ROOT.get(platform.machine(), 41)
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "detaching the old root")
    os.chdir("/")


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def set_dumpable(value: bool) -> None:
    """Whether processes of the same user may look into this one through /proc or ptrace."""
    _prctl(_PR_SET_DUMPABLE, int(value), "dumpable")


def keep_capabilities_across_setuid() -> None:
    _prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, "securebits")


def drop_capabilities() -> None:
    """Give up all capabilities for good, those in the bounding and ambient sets included."""
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) == 0:
        capability += 1
    _prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, "ambient capabilities")
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "no_new_privs")


def install_filter(program: bytes) -> None:
    """Load a seccomp program of 8-byte BPF instructions. Needs no_new_privs."""
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    result = _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), head, 0, 0)
    _check(result, "seccomp filter")


def _prctl(option: int, value: int, what: str) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), what)


def raise_loopback() -> None:
    """Set the interface `lo` of the current network namespace up."""
    siocsifflags, iff_up, iff_running = 0x8914, 0x1, 0x40
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", iff_up | iff_running)
        fcntl.ioctl(probe, siocsifflags, request)
