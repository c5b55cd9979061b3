"""What a command in a bubblewrap sandbox can see, reach and change."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from shells import DAEMON, Shell, shell_in

from armillary.errors import SandboxError
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.protocol import File, Sandbox, Spec

pytestmark = pytest.mark.needs_bwrap


async def test_a_command_sees_its_own_files_and_nothing_of_the_host(shell: Shell) -> None:
    seen = await shell("ls /; ls -A /workdir /tmp /home /dev/shm")
    assert seen.out.decode().split() == (
        ["bin", "dev", "etc", "home", "lib", "lib64", "proc", "sbin", "tmp", "usr", "workdir"]
        if not Path("/lib32").exists()
        else seen.out.decode().split()
    ) + ["/dev/shm:", "/home:", "/tmp:", "/workdir:"]
    for secret in (str(Path.home()), "/etc/shadow", "/etc/ssl", "/run", "/var", "/opt", "/sys"):
        assert (await shell(f"ls {secret}")).code != 0, secret


async def test_the_environment_is_scrubbed(
    provider: BubblewrapProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    sandbox = await provider.open(Spec(env={"TASK": "a"}))
    shown = await sandbox.exec(["env"], 10, env={"CALL": "b"})
    assert sorted(shown.out.decode().split()) == [
        "CALL=b",
        "HOME=/home",
        "LANG=C.UTF-8",
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "TASK=a",
        "TERM=dumb",
        "TMPDIR=/tmp",
    ]
    await sandbox.close()


async def test_the_user_is_nobody_special(shell: Shell) -> None:
    assert (
        await shell("whoami; pwd; stat -c %u:%g /workdir")
    ).out == b"agent\n/workdir\n1000:1000\n"
    status = (await shell("cat /proc/self/status")).out.decode()
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{capabilities}:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status


async def test_only_its_own_processes_are_there(provider: BubblewrapProvider) -> None:
    one, other = await provider.open(Spec()), await provider.open(Spec())
    await shell_in(one)(DAEMON)
    processes = "set -- /proc/[0-9]*; echo $#"
    # The first process and sh; and the sleep in the one sandbox.
    assert (await shell_in(one)(processes)).out == b"3\n"
    assert (await shell_in(other)(processes)).out == b"2\n"
    await one.close()
    await other.close()


async def test_the_first_process_cannot_be_looked_into(shell: Shell) -> None:
    for path in ("/proc/1/environ", "/proc/1/mem", "/proc/1/fd", "/proc/1/root", "/proc/1/maps"):
        looked = await shell(f"ls {path}/ || cat {path}")
        assert b"Permission denied" in looked.out, path
    assert (await shell("kill -9 1; echo alive")).out == b"alive\n"


async def test_an_attempt_sees_no_file_of_another(provider: BubblewrapProvider) -> None:
    one = await provider.open(Spec(files={"/workdir/secret": File(b"x")}))
    other = await provider.open(Spec())
    await one.exec(["sh", "-c", "echo x | tee /tmp/t /home/h /dev/shm/s"], 10)
    found = await shell_in(other)("find / -newer /etc/passwd -name secret; ls -A /tmp /home")
    assert b"secret" not in found.out
    assert found.out.split()[-2:] == [b"/home:", b"/tmp:"]
    await one.close()
    await other.close()


@pytest.mark.parametrize(
    "command",
    [
        "mount -t tmpfs none /tmp",
        "umount /proc",
        "unshare --user true",
        "unshare --net true",
        "nsenter -t 1 -m true",
        "/usr/sbin/chroot / true",
        "touch /x",
        "touch /usr/x",
        "touch /usr/local/bin/x",
        "touch /etc/x",
        "touch /dev/x",
        "chmod 600 /dev/null",
        "chmod 700 /usr/bin",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo h > /proc/sysrq-trigger",
        "echo 1 > /proc/self/oom_score_adj",
        "hostname other",
        "date -s 2000-01-01",
        "su -c true",
    ],
)
async def test_it_cannot_change_the_system(shell: Shell, command: str) -> None:
    assert (await shell(command)).code not in (0, 124, 127)


async def test_devices_and_pseudo_terminals_work(shell: Shell) -> None:
    done = await shell(
        "head -c 3 /dev/zero | wc -c; echo > /dev/null; head -c 5 /dev/random | wc -c"
    )
    assert done.out.split() == [b"3", b"5"]
    assert b"hi" in (await shell("script -qc 'echo hi' /dev/null")).out


async def test_linked_tools_work(shell: Shell) -> None:
    """awk is a chain of links through /etc on Debian."""
    assert (await shell("echo a b | awk '{print $2}'")).out == b"b\n"


async def test_only_its_own_loopback_is_there(shell: Shell, sandbox: Sandbox) -> None:
    interfaces = await shell("tail -n +3 /proc/net/dev | cut -d: -f1")
    assert interfaces.out.split() == [b"lo"]
    with socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        tried = await sandbox.exec(["bash", "-c", connect], 10)
        assert b"refused" in tried.err
        outside = await sandbox.exec(["bash", "-c", "exec 3<>/dev/tcp/192.0.2.1/80"], 10)
        assert b"unreachable" in outside.err
        listener = await sandbox.listen(port)
        assert (await sandbox.exec(["bash", "-c", connect], 10)).code == 0
        listener.close()


async def test_two_sandboxes_listen_on_the_same_port(provider: BubblewrapProvider) -> None:
    sandboxes = [await provider.open(Spec()) for _ in range(2)]
    listeners = [await sandbox.listen(8000) for sandbox in sandboxes]
    assert [listener.getsockname() for listener in listeners] == [("127.0.0.1", 8000)] * 2
    for sandbox, listener in zip(sandboxes, listeners, strict=True):
        listener.close()
        await sandbox.close()


async def test_a_command_holds_no_descriptor_of_ours(provider: BubblewrapProvider) -> None:
    sandbox = await provider.open(Spec())
    await sandbox.listen(8000)
    shown = await sandbox.exec(["ls", "-l", "/proc/self/fd"], 10)
    links = {line.split(" -> ")[0].split()[-1]: line.split(" -> ")[1]
             for line in shown.out.decode().splitlines()[1:]}  # fmt: skip
    assert set(links) == {"0", "1", "2", "3"}  # 3 is the listing's own
    assert links["0"] == "/dev/null"
    await sandbox.close()


async def test_programs_are_put_in_place_read_only(provider: BubblewrapProvider) -> None:
    tool = File(b"#!/bin/sh\necho tool $1\n", 0o755)
    sandbox = await provider.open(
        Spec(files={"/usr/local/bin/tool": tool, "/logs/a": File(b"a")}, folders=("/logs",))
    )
    shell = shell_in(sandbox)
    assert (await shell("tool 3; cat /logs/a; echo b > /logs/b && cat /logs/b")).out == (
        b"tool 3\nab\n"
    )
    assert (await shell("rm /usr/local/bin/tool")).code != 0
    assert (await shell("ls /usr/local/lib")).out == b"", "the host's own programs are hidden"
    await sandbox.close()


@pytest.mark.parametrize("path", ["/etc/passwd", "relative", "/workdir/../etc/x", "/"])
async def test_a_file_outside_the_writable_folders_is_refused(
    provider: BubblewrapProvider, path: str
) -> None:
    with pytest.raises(SandboxError, match="sandbox") as caught:
        await provider.open(Spec(files={path: File(b"")}))
    assert caught.value.kind == "start"


async def test_unusual_sockets_and_calls_are_refused(shell: Shell) -> None:
    """vsock reaches the host of a virtual machine; no network namespace holds it."""
    if (await shell("python3 --version")).code:
        pytest.skip("there is no Python in the system's folders")
    program = """
import ctypes, errno, os, socket, threading
for family in (40, 17, 38):
    try: socket.socket(family, socket.SOCK_STREAM); print("made", family)
    except OSError as error: assert error.errno in (errno.EAFNOSUPPORT, errno.EPERM), error
libc = ctypes.CDLL(None, use_errno=True)
def refused(number, *args):
    assert libc.syscall(number, *args) == -1
    return ctypes.get_errno()
assert libc.ptrace(16, os.getppid(), 0, 0) == -1 and ctypes.get_errno() == errno.EPERM
assert libc.unshare(0x10000000) == -1 and ctypes.get_errno() == errno.EPERM
assert refused(435, 0, 0) == errno.ENOSYS     # clone3
assert refused(425, 1, 0) == errno.EPERM      # io_uring_setup
if os.uname().machine == "x86_64":
    assert refused(56, 0x10000000 | 17, 0, 0, 0, 0) == errno.EPERM   # clone(CLONE_NEWUSER)
    assert refused(0x40000000 | 39) == errno.ENOSYS                  # x32 getpid
thread = threading.Thread(target=print, args=("threads work",))
thread.start(); thread.join()
left, right = socket.socketpair(); socket.socket().close()
print(os.system("true"))
"""
    done = await shell(f"python3 -c '{program.replace(chr(39), chr(34))}'")
    assert done.out == b"threads work\n0\n", done.out.decode()
