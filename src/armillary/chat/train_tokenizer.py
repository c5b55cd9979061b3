"""A byte-level BPE of our own for tiny models.

What it guarantees: every control text and every phrase is one id; a digit is one id; a space is
its own id, so a word has the same id wherever it stands and copying it is copying one id.

Why phrases: real harnesses begin with kilobytes of fixed text. Held as merges they would need
thousands of entries; held as one id each they leave the sequence to what changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RawTokenizer

from armillary.chat.template import CONTROL_TEXTS
from armillary.chat.tokenizer import PHRASES_FILE, TOKENIZER_FILE, Tokenizer

_WORDS = r"\\n|\d|[A-Za-z]+|[^\sA-Za-z\d\\]+|\s+"
_ROLE_TEXTS = ("system\n", "user\n", "assistant\n")


def train_tokenizer(
    texts: Iterable[str], phrases: Sequence[str], folder: Path, *, size: int = 1024
) -> Tokenizer:
    """Train on `texts`, write `tokenizer.json` and `phrases.json` into `folder`.

    `size` bounds the vocabulary before phrases are added. The result depends on nothing but the
    arguments.
    """
    raw = RawTokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    raw.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=size,  # pyright: ignore[reportCallIssue]
        special_tokens=list(CONTROL_TEXTS),  # pyright: ignore[reportCallIssue]
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # pyright: ignore[reportCallIssue]
        show_progress=False,  # pyright: ignore[reportCallIssue]
    )
    known = list(dict.fromkeys(phrases))
    cut = re.compile("|".join(map(re.escape, sorted(known, key=len, reverse=True))) or r"(?!)")
    pieces = (piece for text in texts for piece in cut.split(text) if piece)
    raw.train_from_iterator([*(_ROLE_TEXTS * 200), *pieces], trainer)
    added = [AddedToken(p, normalized=False, special=False) for p in known]
    raw.add_tokens(added)  # pyright: ignore[reportUnknownMemberType]
    folder.mkdir(parents=True, exist_ok=True)
    raw.save(str(folder / TOKENIZER_FILE))
    (folder / PHRASES_FILE).write_bytes(msgspec.json.encode(known))
    return Tokenizer.load(folder)
