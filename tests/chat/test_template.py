"""Rendering: spans, exact continuation, untrusted text, and the families' published form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from conversations import answers, openings, tools, turns
from golden import Conversation
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models
from vocabularies import texts

from armillary.chat.messages import AssistantTurn, ImagePart, Message, Tool, ToolCall
from armillary.chat.raw import raw_ids, turn_ids
from armillary.chat.template import IM_END, HermesTemplate
from armillary.chat.tokenizer import Tokenizer
from armillary.errors import TemplateError
from armillary.record.tokens import TokenSequence

GOLDEN = Path(__file__).with_name("golden_qwen3.json")
rounds = st.lists(st.tuples(turns(), answers), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def template(tokenizer: Tokenizer) -> HermesTemplate:
    return HermesTemplate(tokenizer)


def whole(
    opening: Sequence[Message], played: Sequence[tuple[AssistantTurn, Sequence[Message]]]
) -> list[Message]:
    return [*opening, *(m for turn, new in played for m in (turn.message(), *new))]


@given(opening=openings, played=rounds, offered=tools)
@settings(max_examples=100, deadline=None)
def test_sampled_ids_and_suffixes_are_the_rendered_conversation(
    template: HermesTemplate,
    opening: tuple[Message, ...],
    played: list[tuple[AssistantTurn, tuple[Message, ...]]],
    offered: tuple[Tool, ...],
) -> None:
    ids = template.render(opening, offered).tokens
    for turn, new in played:
        ids = ids + TokenSequence(turn_ids(template, turn))
        ids = ids + template.suffix(ended=True, new=new)
    assert ids == template.render(whole(opening, played), offered).tokens


@given(opening=openings, played=rounds, offered=tools)
@settings(max_examples=100, deadline=None)
def test_spans_hold_what_each_assistant_samples(
    template: HermesTemplate,
    opening: tuple[Message, ...],
    played: list[tuple[AssistantTurn, tuple[Message, ...]]],
    offered: tuple[Tool, ...],
) -> None:
    rendered = template.render(whole(opening, played), offered)
    assert len(rendered.assistant) == len(played)
    for (start, stop), (turn, _) in zip(rendered.assistant, played, strict=True):
        assert rendered.tokens.ids[start:stop].tolist() == turn_ids(template, turn).tolist()
        assert int(rendered.tokens.ids[stop - 1]) in template.end_ids


@given(opening=openings, turn=turns(), new=answers)
@settings(max_examples=50, deadline=None)
def test_a_cut_turn_is_closed_by_an_end_that_nobody_sampled(
    template: HermesTemplate,
    opening: tuple[Message, ...],
    turn: AssistantTurn,
    new: tuple[Message, ...],
) -> None:
    cut = turn_ids(template, turn)[:-1]
    suffix = template.suffix(ended=False, new=new)
    assert int(suffix.ids[0]) in template.end_ids
    ids = [*template.render(opening, ()).tokens.ids, *cut, *suffix.ids]
    assert ids == template.render([*opening, turn.message(), *new], ()).tokens.ids.tolist()


@given(opening=openings, played=st.tuples(turns(), answers, turns(), answers))
@settings(max_examples=50, deadline=None)
def test_an_assistant_turn_nobody_sampled_is_context(
    template: HermesTemplate,
    opening: tuple[Message, ...],
    played: tuple[AssistantTurn, tuple[Message, ...], AssistantTurn, tuple[Message, ...]],
) -> None:
    sampled, new, foreign, after = played
    suffix = template.suffix(ended=True, new=[*new, foreign.message(), *after])
    ids = [*template.render(opening, ()).tokens.ids, *turn_ids(template, sampled), *suffix.ids]
    messages = [*opening, sampled.message(), *new, foreign.message(), *after]
    assert ids == template.render(messages, ()).tokens.ids.tolist()


@given(text=texts)
@settings(max_examples=100, deadline=None)
def test_untrusted_text_makes_no_control_ids(template: HermesTemplate, text: str) -> None:
    def control_of(said: str) -> list[int]:
        calls = (ToolCall("call_0", said, said),)
        messages = [
            Message("system", said), Message("user", said), Message("system", said),
            Message("assistant", said, tool_calls=calls), Message("tool", said),
            Message("tool", said), Message("assistant", said), Message("user", said),
        ]  # fmt: skip
        ids = template.render(messages, (Tool("t", said), Tool("t", said))).tokens.ids
        return [i for i in ids.tolist() if i in template._tokenizer.control_text]

    assert control_of(text or "x") == control_of("x")


def published() -> list[Conversation]:
    return msgspec.json.decode(GOLDEN.read_bytes(), type=list[Conversation])


@pytest.mark.parametrize("conversation", published(), ids=lambda c: c.name)
def test_equal_to_the_published_template(thinking: Tokenizer, conversation: Conversation) -> None:
    """Their text, cut where their tokenizer cuts, is our sequence of ids."""
    rendered = HermesTemplate(thinking).render(
        conversation.internal_messages(), conversation.internal_tools(), reply=conversation.reply
    )
    assert thinking.decode(rendered.tokens.ids) == conversation.text
    assert rendered.tokens.ids.tolist() == raw_ids(thinking, conversation.text).tolist()


def test_a_vocabulary_without_reasoning_marks_gets_them_as_text(
    vocabularies: dict[str, Tokenizer],
) -> None:
    tokenizer = vocabularies["phrases"]
    turn = AssistantTurn(content="yes", reasoning="why")
    said = tokenizer.decode(turn_ids(HermesTemplate(tokenizer), turn))
    assert said == f"<think>\nwhy\n</think>\n\nyes{IM_END}"


def test_what_may_be_sampled(thinking: Tokenizer) -> None:
    template = HermesTemplate(thinking)
    allowed = {"<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"}
    banned = {thinking.control_text[i] for i in template.banned_ids}
    assert banned == set(thinking.control) - allowed


def test_a_vocabulary_without_the_control_texts_is_refused() -> None:
    raw = RawTokenizer(models.BPE())
    raw.decoder = decoders.ByteLevel()
    with pytest.raises(TemplateError, match="no control token"):
        HermesTemplate(Tokenizer(raw.to_str().encode()))


def test_images_are_refused(template: HermesTemplate) -> None:
    with pytest.raises(TemplateError, match="takes no images"):
        template.render([Message("user", (ImagePart("0" * 64),))], ())
