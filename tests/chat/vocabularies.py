"""Two small vocabularies: our own kind with phrases, and one laid out like a real model family's.

The second has its control texts behind the vocabulary, some of them *not* marked special, and a
pre-tokenizer that lets words take a space with them, as Qwen's tokenizers do.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RawTokenizer

from armillary.chat.template import CONTROL_TEXTS, HermesTemplate
from armillary.chat.tokenizer import TOKENIZER_FILE, Tokenizer
from armillary.chat.train_tokenizer import train_tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>")
NOT_SPECIAL = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip
PHRASES = ("What is the ", "ls: cannot access", *HermesTemplate.phrases)
_FAMILY_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEXTS = [
    "system\nuser\nassistant\n",
    "The file runs12.csv holds the numbers of the survey, naïve café 北京 😀.",
    '{"name": "bash", "arguments": {"command": "ls -la"}}',
] * 20


def phrase_vocabulary(folder: Path) -> Tokenizer:
    return train_tokenizer(_TEXTS, PHRASES, folder, size=600)


def family_vocabulary(folder: Path) -> Tokenizer:
    folder.mkdir(parents=True, exist_ok=True)
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_FAMILY_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    raw.train_from_iterator(_TEXTS, trainer)
    raw.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    raw.add_tokens([AddedToken(t, normalized=False, special=False) for t in NOT_SPECIAL])
    raw.save(str(folder / TOKENIZER_FILE))
    return Tokenizer.load(folder)


_MARKS = sorted({*CONTROL_TEXTS, *SPECIAL, *NOT_SPECIAL})

texts = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(_MARKS),
        st.sampled_from(_MARKS).map(lambda t: t[:-1]),
        st.sampled_from(PHRASES),
        st.sampled_from(["\n", " ", "\\n", "'", "\u0301", "😀", "user\n", "0\x001"]),
    ),
    max_size=8,
).map("".join)
"""Anything, often with texts of control ids, parts of them, and phrases."""
