"""Random conversations for the template and the parser."""

from __future__ import annotations

import json

from hypothesis import strategies as st
from vocabularies import texts

from armillary.chat.messages import AssistantTurn, Message, Role, Tool, ToolCall

names = st.sampled_from(["bash", "submit", "read_file", "naïve"])


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


_escapes = st.sampled_from(
    ['\\"', "\\\\", "\\/", "\\u0041", "\\ud83d\\ude00", "\\n", "{", "}", "[,]"]
)
_strings = st.lists(texts.map(_escaped) | _escapes, max_size=3).map(
    lambda parts: '"' + "".join(parts) + '"'
)


_space = st.sampled_from(["", "", " ", "\n", "  ", "\t"])
_scalars = st.one_of(
    _strings,
    st.sampled_from(["1", "-0", "1e3", "1.10", "0.1E-5", "123456789012345678901", "true", "null"]),
)


def _containers(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    items = st.lists(st.tuples(_space, children, _space), max_size=3)
    arrays = items.map(lambda found: "[" + ",".join("".join(i) for i in found) + "]")
    return arrays | _objects(children)


def _objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Object texts; keys may come twice."""
    keys = st.sampled_from(['"a"', '"a"', '"name"', '"arguments"', '"<tool_call>"', '"\\u0062"'])
    pairs = st.lists(st.tuples(_space, keys, _space, values, _space), max_size=4)
    return pairs.map(
        lambda found: (
            "{" + ",".join(f"{a}{key}{b}:{value}{c}" for a, key, b, value, c in found) + "}"
        )
    )


arguments = _objects(st.recursive(_scalars, _containers, max_leaves=5))
"""Text of JSON objects as a model may write them: odd spacing, escapes, numbers, keys twice."""

stripped = texts.map(str.strip)
_calls = st.lists(st.tuples(names, arguments), max_size=2)


@st.composite
def turns(draw: st.DrawFn, *, reasoning: bool = False) -> AssistantTurn:
    """Turns as the template writes them."""
    calls = draw(_calls)
    return AssistantTurn(
        content=draw(stripped),
        reasoning=draw(stripped) if reasoning else "",
        tool_calls=tuple(ToolCall(f"call_{i}", n, a) for i, (n, a) in enumerate(calls)),
    )


tools = st.lists(st.tuples(names, texts), max_size=2).map(
    lambda found: tuple(
        Tool(n, json.dumps({"type": "function", "function": {"name": n, "description": d}}))
        for n, d in found
    )
)

openings = st.tuples(st.none() | texts, texts).map(
    lambda pair: (
        *([] if pair[0] is None else [Message("system", pair[0])]),
        Message("user", pair[1]),
    )
)

_roles: list[Role] = ["tool", "tool", "user", "system"]
answers = st.lists(st.tuples(st.sampled_from(_roles), texts), min_size=1, max_size=3).map(
    lambda found: tuple(Message(role, text) for role, text in found)
)
"""What follows an assistant turn."""
