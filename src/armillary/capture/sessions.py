"""The sessions the proxy knows: the API key is the session.

Only registered keys are served. Keys are secrets of one attempt: they are random, compared as a
whole, and never logged.
"""

from __future__ import annotations

import secrets

from armillary.capture.session import Session


class SessionRegistry:
    """Key -> session."""

    def __init__(self) -> None:
        self._by_key: dict[str, Session] = {}

    def register(self, session: Session) -> str:
        """A fresh key for `session`."""
        key = f"sk-armillary-{secrets.token_hex(16)}"
        self._by_key[key] = session
        return key

    def get(self, key: str) -> Session | None:
        return self._by_key.get(key)

    def remove(self, key: str) -> None:
        """Later calls with `key` are refused."""
        self._by_key.pop(key, None)
