"""A scanner for one Hermes call, `{"name": ..., "arguments": ...}`, fed piece by piece.

It finds the name and the raw bytes of the arguments without re-serialising anything, in time
linear in the text: every character is looked at once. It judges only the outer object; whether the
arguments are good JSON is for the caller to say. A second `name` or `arguments` breaks the call,
since the first may have been given out already.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

_SPACE = " \t\r\n"


class _State(Enum):
    BEFORE = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    AFTER_VALUE = auto()
    DONE = auto()
    BROKEN = auto()


class CallScanner:
    """State of one call."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.began_arguments = False
        self._pieces: list[str] = []
        self._arguments: list[str] = []
        self._rest: list[str] = []
        self._state = _State.BEFORE
        self._token: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._key = ""
        self._given = 0
        self._announced = False

    @property
    def raw(self) -> str:
        """Everything fed."""
        return "".join(self._pieces)

    @property
    def arguments(self) -> str:
        """The arguments' own characters so far."""
        return "".join(self._arguments)

    @property
    def rest(self) -> str:
        """What was fed from the character on that broke the call."""
        return "".join(self._rest)

    @property
    def complete(self) -> bool:
        """The outer object is closed and nothing but white space follows."""
        return self._state is _State.DONE

    def feed(self, piece: str) -> tuple[str | None, str]:
        """The name, once, when the call can be announced; and new argument characters.

        Arguments that come before the name are held back until it is known.
        """
        self._pieces.append(piece)
        for char in piece:
            self._step(char)
        if self.name is None or not self.began_arguments:
            return None, ""
        opened = None if self._announced else self.name
        self._announced = True
        new = "".join(self._arguments[self._given :])
        self._given = len(self._arguments)
        return opened, new

    def _step(self, char: str) -> None:
        match self._state:
            case _State.BEFORE:
                self._expect(char, "{", _State.KEY)
            case _State.KEY:
                self._read_key(char)
            case _State.COLON:
                self._expect(char, ":", _State.VALUE)
            case _State.VALUE:
                self._read_value(char)
            case _State.AFTER_VALUE:
                self._after_value(char)
            case _State.DONE:
                if char not in _SPACE:
                    self._state = _State.BROKEN
            case _State.BROKEN:
                pass
        if self._state is _State.BROKEN:
            self._rest.append(char)

    def _expect(self, char: str, wanted: str, then: _State) -> None:
        if char == wanted:
            self._state = then
        elif char not in _SPACE:
            self._state = _State.BROKEN

    def _read_key(self, char: str) -> None:
        if not self._token and char in _SPACE:
            return
        if not self._token and char != '"':
            self._state = _State.BROKEN
            return
        if self._string_char(char):
            self._key = _string(self._token) or ""
            self._token = []
            seen = {"name": self.name is not None, "arguments": self.began_arguments}
            self._state = _State.BROKEN if seen.get(self._key) else _State.COLON

    def _string_char(self, char: str) -> bool:
        """Add a character of a string literal to the token; whether it closed the literal."""
        opening = not self._token
        self._token.append(char)
        if opening:
            return False
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            return True
        return False

    def _read_value(self, char: str) -> None:
        if not self._token and not self._depth and char in _SPACE:
            return
        if self._ends_bare_value(char):
            self._end_value()
            self._after_value(char)
            return
        if not self._depth and not self._in_string and char in "}],:":
            self._state = _State.BROKEN
            return
        self._token.append(char)
        if self._key == "arguments":
            self.began_arguments = True
            self._arguments.append(char)
        if self._in_string:
            self._inside_string(char)
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        closes = char in '}]"' and not self._in_string and not self._depth
        if closes and len(self._token) > 1:
            self._end_value()

    def _ends_bare_value(self, char: str) -> bool:
        """A number or word at the top level ends at a comma, a brace or white space."""
        return bool(self._token) and not self._depth and not self._in_string and (
            char in ",}" or char in _SPACE
        )  # fmt: skip

    def _inside_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False

    def _end_value(self) -> None:
        if self._key == "name":
            self.name = _string(self._token)
            if self.name is None:
                self._state = _State.BROKEN
                return
        self._token = []
        self._state = _State.AFTER_VALUE

    def _after_value(self, char: str) -> None:
        if self._state is _State.BROKEN:
            return
        if char == ",":
            self._state = _State.KEY
        elif char == "}":
            self._state = _State.DONE
        elif char not in _SPACE:
            self._state = _State.BROKEN


def _string(literal: list[str]) -> str | None:
    try:
        return msgspec.json.decode("".join(literal), type=str)
    except (msgspec.MsgspecError, UnicodeError):
        return None
