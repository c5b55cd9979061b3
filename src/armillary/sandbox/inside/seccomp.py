"""The system-call filter of an attempt, as a classic BPF program.

Guarantees, on x86_64 and aarch64: calls that change mounts, namespaces, the kernel or the clock,
or that look into other processes, fail with EPERM; new namespaces cannot be made through clone
either; sockets are Unix, IP or netlink; foreign ABIs (32-bit, x32) get ENOSYS. A list of what is
refused and not of what is allowed, because an agent's tools are arbitrary programs and a tool that
breaks for want of a harmless call would be our fault. On other machines there is no filter, and
the box says so.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_MACHINE, _AT_FIRST_ARGUMENT = 0, 4, 16
_X32_BIT = 0x40000000
_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Not vsock: no network namespace holds it."""


class _Machine(NamedTuple):
    audit: int
    refused: dict[str, int]
    clone: int
    clone3: int
    sockets: list[int]


# Calls with the same number on both machines.
_SHARED = {
    "pidfd_getfd": 438, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431,
    "fsmount": 432, "fspick": 433, "mount_setattr": 442, "quotactl_fd": 443,
    "process_madvise": 440, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427,
}  # fmt: skip

_X86_64 = _Machine(
    audit=0xC000003E,
    refused={
        "ptrace": 101, "syslog": 103, "vhangup": 153, "pivot_root": 155, "adjtimex": 159,
        "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
        "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171,
        "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179,
        "clock_settime": 227, "kexec_load": 246, "add_key": 248, "request_key": 249,
        "keyctl": 250, "unshare": 272, "move_pages": 279, "perf_event_open": 298,
        "fanotify_init": 300, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308,
        "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
        "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, **_SHARED,
    },
    clone=56,
    clone3=435,
    sockets=[41, 53],
)  # fmt: skip

_AARCH64 = _Machine(
    audit=0xC00000B7,
    refused={
        "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "vhangup": 58,
        "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105,
        "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142,
        "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "adjtimex": 171,
        "add_key": 217, "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225,
        "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262,
        "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270,
        "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280,
        "userfaultfd": 282, "kexec_file_load": 294, **_SHARED,
    },
    clone=220,
    clone3=435,
    sockets=[198, 199],
)  # fmt: skip

MACHINES = {"x86_64": _X86_64, "aarch64": _AARCH64}


class _Program:
    """Instructions of 8 bytes: operation, how far to jump if true and if false, operand."""

    def __init__(self) -> None:
        self.code = b""

    def add(self, op: int, value: int, yes: int = 0, no: int = 0) -> None:
        self.code += struct.pack("HBBI", op, yes, no, value)

    def refuse_if(self, op: int, value: int, errno: int) -> None:
        self.add(op, value, 0, 1)
        self.add(_RETURN, _ERRNO | errno)


def build(machine: str) -> bytes | None:
    """The filter for a machine as `platform.machine()` names it, or None where there is none."""
    table = MACHINES.get(machine)
    if table is None:
        return None
    program = _Program()
    program.add(_LOAD, _AT_MACHINE)
    program.add(_EQUAL, table.audit, 1, 0)
    program.add(_RETURN, _ERRNO | _ENOSYS)
    program.add(_LOAD, _AT_NUMBER)
    program.refuse_if(_AT_LEAST, _X32_BIT, _ENOSYS)
    for number in sorted(table.refused.values()):
        program.refuse_if(_EQUAL, number, _EPERM)
    # clone3 hides its flags in memory that a filter cannot read; libc falls back to clone.
    program.refuse_if(_EQUAL, table.clone3, _ENOSYS)
    program.add(_EQUAL, table.clone, 0, 4)
    program.add(_LOAD, _AT_FIRST_ARGUMENT)
    program.add(_ANY_BIT, _NAMESPACES, 0, 1)
    program.add(_RETURN, _ERRNO | _EPERM)
    program.add(_RETURN, _ALLOW)
    for number in table.sockets:
        program.add(_EQUAL, number, 0, len(_FAMILIES) + 3)
        program.add(_LOAD, _AT_FIRST_ARGUMENT)
        for done, family in enumerate(_FAMILIES):
            program.add(_EQUAL, family, len(_FAMILIES) - done, 0)
        program.add(_RETURN, _ERRNO | _EAFNOSUPPORT)
        program.add(_RETURN, _ALLOW)
    program.add(_RETURN, _ALLOW)
    return program.code
