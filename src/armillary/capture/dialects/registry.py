"""Every dialect the proxy speaks. A new one is one more line."""

from __future__ import annotations

from armillary.capture.dialects.chat_completions import ChatCompletions
from armillary.capture.dialects.protocol import Dialect

DIALECTS: tuple[Dialect, ...] = (ChatCompletions(),)
