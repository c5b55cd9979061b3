"""Frames, and the parts of the sandbox that need no sandbox to be tested."""

from __future__ import annotations

import asyncio
import struct

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from armillary.errors import SandboxError
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.bwrap import bwrap_path
from armillary.sandbox.inside import seccomp, wire
from armillary.sandbox.probe import sandbox_facts
from armillary.sandbox.protocol import File, Spec

_FRAMES = st.lists(st.tuples(st.dictionaries(st.text(), st.integers()), st.binary()), max_size=5)


@given(_FRAMES, st.lists(st.integers(1, 40)))
def test_frames_survive_any_cut(
    frames: list[tuple[dict[str, int], bytes]], cuts: list[int]
) -> None:
    stream = b"".join(wire.encode(header, body) for header, body in frames)
    decoder = wire.Decoder()
    found: list[wire.Frame] = []
    for cut in [*cuts, len(stream)]:
        found += decoder.feed(stream[:cut])
        stream = stream[cut:]
    assert found == frames


def test_an_impossible_length_is_refused_before_it_is_read() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        wire.Decoder().feed(struct.pack("!II", 10, 1 << 31))


@given(st.lists(st.tuples(st.text(min_size=1), st.integers(0, 0o777), st.binary())))
def test_packed_files_come_out_again(files: list[tuple[str, int, bytes]]) -> None:
    packed = [wire.PackedFile(*file) for file in files]
    assert wire.unpack(*wire.pack(packed)) == packed


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_a_well_formed_program(machine: str) -> None:
    program = seccomp.build(machine)
    assert program is not None
    steps = list(struct.iter_unpack("HBBI", program))
    assert len(steps) < 4096
    returns = {value for op, _, _, value in steps if op == 0x06}
    assert returns == {0x7FFF0000, 0x50001, 0x50026, 0x50061}
    for position, (op, yes, no, _) in enumerate(steps):
        if op & 0x07 == 0x05:
            assert position + 1 + max(yes, no) < len(steps), "a jump stays inside"
    assert steps[-1][0] == 0x06


def test_an_unknown_machine_has_no_filter() -> None:
    assert seccomp.build("riscv64") is None


@pytest.mark.needs_bwrap
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_both_event_loops_serve(loop: str) -> None:
    async def run() -> bytes:
        provider = BubblewrapProvider()
        sandbox = await provider.open(Spec(files={"/workdir/a": File(bytes(3 << 20))}))
        (await sandbox.listen(8000)).close()
        counted = await sandbox.exec(["wc", "-c", "a"], 10)
        await sandbox.close()
        await provider.close()
        return counted.out

    factory = uvloop.new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(run()) == b"3145728 a\n"


@pytest.mark.needs_bwrap
async def test_the_facts_say_what_works() -> None:
    facts = await sandbox_facts()
    assert facts.works, facts.problem
    assert facts.bubblewrap
    assert "tmpfs" in facts.disk


async def test_without_bubblewrap_the_facts_name_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError) as caught:
        bwrap_path()
    assert caught.value.kind == "missing"
    assert "install" in str(caught.value)
    facts = await sandbox_facts()
    assert not facts.works
    assert facts.problem == str(caught.value)
