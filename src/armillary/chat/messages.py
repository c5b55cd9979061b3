"""Messages in the product's one internal form; every dialect is translated to and from it.

Values are immutable: a message that was recorded cannot change under the record. Tool arguments
are the model's own JSON text, never re-serialised.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ImagePart(msgspec.Struct, frozen=True, tag="image"):
    """An image by digest; its bytes are in the blob store."""

    sha256: str
    media_type: str = "image/png"


Content = str | tuple[TextPart | ImagePart, ...]


class ToolCall(msgspec.Struct, frozen=True):
    """A call the model made."""

    id: str
    """Minted by us; every tool harness sends it back."""
    name: str
    arguments: str
    """JSON text exactly as sampled; may be broken."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Role
    content: Content = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Assistant only."""
    tool_call_id: str = ""
    """Tool only: the call this answers."""
    reasoning: str = ""
    """Assistant only."""


class Tool(msgspec.Struct, frozen=True):
    """A function the model may call."""

    name: str
    schema: str
    """The tool as JSON text, `{"type": "function", "function": {...}}`, keys in the order
    received; this text is what the template shows to the model."""


class AssistantTurn(msgspec.Struct, frozen=True):
    """What a sampled token run means."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    findings: tuple[str, ...] = ()
    """What was wrong with it: the policy's faults, by name."""

    def message(self) -> Message:
        return Message(
            "assistant", self.content, tool_calls=self.tool_calls, reasoning=self.reasoning
        )


def text_of(content: Content) -> str:
    """The text of a content; images are left out."""
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, TextPart))
