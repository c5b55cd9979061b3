"""A tokenizer that keeps text and control apart.

What it guarantees: `encode` never returns a control id, whatever the text says, so a file that
contains `<|im_end|>` cannot end a turn; `bytes_of` gives every id its exact bytes, so text can be
rebuilt id by id.

Why two encoders: marking control tokens as special is not enough, since some models list
`<tool_call>` or `</think>` among their ordinary added tokens. Here *every* added token is removed
from the text encoder, except phrases: long fixed texts without control meaning which a small
vocabulary holds as single tokens, listed in `phrases.json` beside `tokenizer.json`.

Why control texts leave a gap and not a hole: the encoder numbers added tokens by the size of the
vocabulary, so taking an entry away would shift every phrase. Each is replaced by an entry that no
text can reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as RawTokenizer

from armillary.errors import TemplateError
from armillary.record.tokens import Ids, as_ids

TOKENIZER_FILE = "tokenizer.json"
PHRASES_FILE = "phrases.json"


class Tokenizer:
    """Byte-level BPE from a `tokenizer.json`."""

    def __init__(self, definition: bytes, phrases: Sequence[str] = ()) -> None:
        """Build from the bytes of a `tokenizer.json`.

        Raises:
            TemplateError: it is not byte-level, so ids have no exact bytes; or a phrase is not
                one id in it.
        """
        spec = _definition(definition)
        added: dict[str, int] = {t["content"]: t["id"] for t in spec.get("added_tokens", ())}
        self.control: dict[str, int] = {t: i for t, i in added.items() if t not in set(phrases)}
        """Control text -> id."""
        self.control_text: dict[int, str] = {i: t for t, i in self.control.items()}
        self._text = _encoder(spec, self.control)
        self._bytes = _byte_table(spec["model"]["vocab"], added)
        self.size = len(self._bytes)
        """Number of ids."""
        self._cached = lru_cache(maxsize=4096)(self._encode)
        for phrase in phrases:
            if self._encode(phrase).tolist() != [added.get(phrase)]:
                raise TemplateError(
                    f"the phrase {phrase[:40]!r} is not one id of this tokenizer; "
                    f"{PHRASES_FILE} and {TOKENIZER_FILE} do not belong together"
                )

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """From a model folder.

        Raises:
            TemplateError: the folder has no `tokenizer.json`.
        """
        path = folder / TOKENIZER_FILE
        if not path.is_file():
            raise TemplateError(f"{folder} has no {TOKENIZER_FILE}; is it a model folder?")
        phrases = folder / PHRASES_FILE
        known = (
            msgspec.json.decode(phrases.read_bytes(), type=list[str]) if phrases.exists() else ()
        )
        return cls(path.read_bytes(), known)

    def encode(self, text: str) -> Ids:
        """Ids of `text`; never a control id."""
        return self._cached(text)

    def bytes_of(self, token: int) -> bytes:
        """The exact bytes of one id; a control id gives its text."""
        return self._bytes[token] if 0 <= token < self.size else b""

    def decode(self, ids: Ids | Sequence[int]) -> str:
        """Text of `ids`, control texts included; broken UTF-8 is shown as U+FFFD."""
        return b"".join(map(self.bytes_of, map(int, ids))).decode(errors="replace")

    def control_id(self, text: str) -> int:
        """The id of a control text.

        Raises:
            TemplateError: the vocabulary has none.
        """
        if text not in self.control:
            raise TemplateError(f"the tokenizer has no control token {text!r}")
        return self.control[text]

    def _encode(self, text: str) -> Ids:
        return as_ids(self._text.encode(text, add_special_tokens=False).ids)


def _definition(definition: bytes) -> dict[str, Any]:
    """The parsed definition of a byte-level tokenizer."""
    try:
        spec = msgspec.json.decode(definition, type=dict[str, Any])
        decoder: dict[str, Any] = spec.get("decoder") or {}
    except msgspec.MsgspecError as error:
        raise TemplateError(f"{TOKENIZER_FILE} is not a tokenizer definition: {error}") from error
    if decoder.get("type") != "ByteLevel":
        raise TemplateError(
            "the tokenizer's decoder is not ByteLevel; other kinds have no exact bytes per id"
        )
    return spec


def _encoder(spec: dict[str, Any], control: dict[str, int]) -> RawTokenizer:
    try:
        return RawTokenizer.from_str(_without(spec, control).decode())
    except Exception as error:  # the library raises nothing more exact
        raise TemplateError(f"{TOKENIZER_FILE} is not a tokenizer definition: {error}") from error


def _without(spec: dict[str, Any], control: dict[str, int]) -> bytes:
    """The definition with `control` out of reach of any text, and no post-processing."""
    model = spec["model"]
    vocab = {t: i for t, i in model["vocab"].items() if control.get(t) != i}
    # No byte is written as "\0" in a byte-level vocabulary, so these entries match nothing.
    vocab |= {f"\0{i}": i for i in control.values()}
    kept = [t for t in spec.get("added_tokens", ()) if t["content"] not in control]
    vocab |= {t["content"]: t["id"] for t in kept}
    return msgspec.json.encode(
        {**spec, "added_tokens": kept, "post_processor": None, "model": {**model, "vocab": vocab}}
    )


def _byte_table(vocab: dict[str, int], added: dict[str, int]) -> list[bytes]:
    chars = _byte_characters()
    table = [b""] * (1 + max([*vocab.values(), *added.values()], default=-1))
    for text, token in vocab.items():
        if text in added:
            continue
        if not chars.keys() >= set(text):
            raise TemplateError(f"the vocabulary entry {text!r} is not byte-level")
        table[token] = bytes(chars[c] for c in text)
    for text, token in added.items():
        table[token] = text.encode()
    return table


def _byte_characters() -> dict[str, int]:
    """The printable stand-in of each byte in a byte-level vocabulary.

    Source: the byte encoder of GPT-2: printable Latin-1 bytes stand for themselves, the others
    for the code points from 256 on, in order.
    """
    same = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [b for b in range(256) if b not in set(same)]
    table = {chr(b): b for b in same}
    table.update({chr(256 + i): b for i, b in enumerate(other)})
    return table
