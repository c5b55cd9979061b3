"""Text never becomes control, and every id has its bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import (
    NOT_SPECIAL,
    PHRASES,
    SPECIAL,
    family_vocabulary,
    phrase_vocabulary,
    texts,
)

from armillary.chat.raw import raw_ids
from armillary.chat.template import CONTROL_TEXTS
from armillary.chat.tokenizer import PHRASES_FILE, TOKENIZER_FILE, Tokenizer
from armillary.errors import TemplateError


@given(text=texts)
@settings(max_examples=300, deadline=None)
def test_no_text_encodes_to_control(tokenizer: Tokenizer, text: str) -> None:
    assert not set(tokenizer.encode(text).tolist()) & set(tokenizer.control_text)


@given(text=texts)
@settings(max_examples=300, deadline=None)
def test_decoding_gives_the_text_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=texts)
@settings(max_examples=100, deadline=None)
def test_raw_text_becomes_control_and_decodes_to_itself(tokenizer: Tokenizer, text: str) -> None:
    ids = raw_ids(tokenizer, text)
    assert tokenizer.decode(ids) == text
    marks = sum(int(i) in tokenizer.control_text for i in ids)
    assert bool(marks) == any(mark in text for mark in tokenizer.control)


def test_every_control_text_is_control_special_or_not(vocabularies: dict[str, Tokenizer]) -> None:
    assert set(vocabularies["phrases"].control) == set(CONTROL_TEXTS)
    family = vocabularies["family"]
    assert set(family.control) == {*SPECIAL, *NOT_SPECIAL}
    for text, token in family.control.items():
        assert family.control_id(text) == token
        assert family.bytes_of(token) == text.encode()
        assert token not in family.encode(f"a{text}b")


def test_a_phrase_is_one_id_of_its_own(vocabularies: dict[str, Tokenizer]) -> None:
    tokenizer = vocabularies["phrases"]
    phrase_ids = [tokenizer.encode(phrase).tolist() for phrase in PHRASES]
    assert all(len(ids) == 1 for ids in phrase_ids)
    assert len({ids[0] for ids in phrase_ids}) == len(PHRASES)
    for phrase, (token,) in zip(PHRASES, phrase_ids, strict=True):
        assert tokenizer.bytes_of(token) == phrase.encode()
        around = tokenizer.encode(f"x{phrase}y").tolist()
        assert around == [*tokenizer.encode("x"), token, *tokenizer.encode("y")]


def test_ids_differ_and_spell_different_bytes(tokenizer: Tokenizer) -> None:
    spelled = [tokenizer.bytes_of(i) for i in range(tokenizer.size)]
    assert all(spelled)
    assert len(set(spelled)) == tokenizer.size
    assert tokenizer.bytes_of(-1) == tokenizer.bytes_of(tokenizer.size) == b""


@given(st.binary(max_size=12))
@settings(max_examples=100, deadline=None)
def test_any_bytes_can_be_spelled_and_broken_utf8_is_shown(
    tokenizer: Tokenizer, data: bytes
) -> None:
    by_byte = {tokenizer.bytes_of(i): i for i in range(tokenizer.size)}
    ids = [by_byte[bytes([b])] for b in data]
    assert tokenizer.decode(ids) == data.decode(errors="replace")


def test_the_same_training_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        phrase_vocabulary(tmp_path / name)
    for file in (TOKENIZER_FILE, PHRASES_FILE):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_other_kinds_of_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="has no tokenizer"):
        Tokenizer.load(tmp_path)
    with pytest.raises(TemplateError, match="not a tokenizer definition"):
        Tokenizer(b"not JSON")
    metaspace = {"decoder": {"type": "Metaspace"}, "added_tokens": [], "model": {"vocab": {}}}
    with pytest.raises(TemplateError, match="not ByteLevel"):
        Tokenizer(json.dumps(metaspace).encode())
    with pytest.raises(TemplateError, match="not ByteLevel"):
        Tokenizer(json.dumps({**metaspace, "decoder": None}).encode())


def test_phrases_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    family_vocabulary(tmp_path)
    definition = (tmp_path / TOKENIZER_FILE).read_bytes()
    with pytest.raises(TemplateError, match="do not belong together"):
        Tokenizer(definition, ["What is the "])
    with pytest.raises(TemplateError, match="no control token"):
        Tokenizer(definition).control_id("<|nothing|>")
