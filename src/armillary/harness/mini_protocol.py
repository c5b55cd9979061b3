"""What mini-SWE-agent says, recorded from a run of the real program.

Its prompts and replies are not in this product: they are read once from two real runs against a
scripted engine, and kept beside the installed environment. A new version of the program is then
recorded anew, never assumed to be like the old one. Only a few words are written out in code: how
it names what is wrong with a call (`PROBE_REASON`, and the reasons in `mini_flow`), which the
probe and a test compare with the real program.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from armillary.capture.session import Session
from armillary.chat.messages import Message, Tool, text_of
from armillary.errors import HarnessError

_log = logging.getLogger(__name__)


class MiniProtocol(msgspec.Struct, frozen=True):
    """The fixed texts around a task."""

    version: str
    system: str
    before: str
    """User turn before the instruction."""
    after: str
    """User turn after the instruction."""
    tools: tuple[Tool, ...]
    error_before: str
    """User turn that replaces a malformed turn, before the reason."""
    error_after: str
    error_cut: str
    """User turn that replaces a turn cut by the length limit."""


class _Request(msgspec.Struct):
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


PROBE = "The probe task 4711."
"""An instruction that occurs nowhere in the program's own texts."""
PROBE_REASON = "Unknown tool 'nope'.Missing 'command' argument in bash tool call."
"""The program's own words about a call to tool `nope` without arguments."""


def extract(version: str, malformed: Session, cut: Session) -> MiniProtocol:
    """Read the texts out of two recorded sessions.

    `malformed`: first reply calls tool `nope` with `{}`; `cut`: first reply ends by length.

    Raises:
        HarnessError: the program does not speak as this product understands it.
    """
    first, second = (_request(malformed, i) for i in (0, 1))
    system, user = first.messages[0], first.messages[1]
    before, found, after = text_of(user.content).partition(PROBE)
    error = text_of(second.messages[-1].content)
    error_before, reason, error_after = error.partition(PROBE_REASON)
    if system.role != "system" or not found or not reason:
        raise HarnessError(
            f"mini-SWE-agent {version} does not speak as this product understands it. "
            f"First messages: {[m.role for m in first.messages]}, reason found: {bool(reason)}"
        )
    return MiniProtocol(
        version=version,
        system=text_of(system.content),
        before=before,
        after=after,
        tools=first.tools,
        error_before=error_before,
        error_after=error_after,
        error_cut=text_of(_request(cut, 1).messages[-1].content),
    )


def _request(session: Session, index: int) -> _Request:
    calls = session.tree.calls()
    if index >= len(calls):
        raise HarnessError(
            f"mini-SWE-agent made {len(calls)} model calls in its probe run, 2 were expected"
        )
    return msgspec.json.decode(calls[index].request, type=_Request)


async def load_or_store(path: Path, record: Callable[[], Awaitable[MiniProtocol]]) -> MiniProtocol:
    """The protocol kept at `path`; if none is there that can be read, `record` makes it.

    What was made is kept, unless the environment cannot be written: then every start makes it
    anew. Any number of first runs may do this at once.
    """
    if (kept := _load(path)) is not None:
        return kept
    protocol = await record()
    try:
        _store(path, protocol)
    except OSError as error:
        _log.info("what mini-SWE-agent says cannot be kept, so each start learns it: %s", error)
    return protocol


def _load(path: Path) -> MiniProtocol | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=MiniProtocol)
    except (OSError, msgspec.MsgspecError):  # none yet, or written by another version of ours
        return None


def _store(path: Path, protocol: MiniProtocol) -> None:
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        part.write_bytes(msgspec.json.encode(protocol))
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
