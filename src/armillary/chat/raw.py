"""Turns written by hand to ids, for scripted policies and demonstrations."""

from __future__ import annotations

import re

import numpy as np

from armillary.chat.messages import AssistantTurn, Message
from armillary.chat.template import HermesTemplate
from armillary.chat.tokenizer import Tokenizer
from armillary.record.tokens import Ids, as_ids


def turn_ids(template: HermesTemplate, turn: AssistantTurn) -> Ids:
    """What a model would have sampled to say `turn`, its end token included."""
    rendered = template.render((Message("user", "?"), turn.message()), (), reply=False)
    ((start, stop),) = rendered.assistant
    return rendered.tokens.ids[start:stop]


def raw_ids(tokenizer: Tokenizer, text: str) -> Ids:
    """Ids of a raw reply in which control texts *are* control ids: only for text we wrote."""
    pattern = "|".join(re.escape(t) for t in sorted(tokenizer.control, key=len, reverse=True))
    parts: list[Ids] = [as_ids(())]
    for piece in re.split(f"({pattern})", text):
        if piece in tokenizer.control:
            parts.append(as_ids([tokenizer.control[piece]]))
        elif piece:
            parts.append(tokenizer.encode(piece))
    return as_ids(np.concatenate(parts))
