"""What can go wrong: each is a StreamError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .values import Position


class StreamError(Exception):
    """position: where one can go on; None where there is no coming back."""

    position: Position | None = None


class Refused(StreamError):
    """status, and what the body's error object says; code is "" and message the reason phrase where there is none."""

    def __init__(self, status: int, code: str, message: str, error: Mapping[str, Any]) -> None:
        super().__init__(f"{status} {code}: {message}" if code else f"{status}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.error = error


class BadCursor(Refused):
    """400: the position lies outside the stream."""


class NotFound(Refused):
    """404: there is no such stream, or not for this caller or this token."""


class Gone(Refused):
    """410: the code is "expired" or "trimmed"."""

    @property
    def available(self) -> tuple[int, int] | None:
        """The first and the last event that can be had still."""
        found = self.error.get("available")
        if not isinstance(found, Mapping):
            return None
        first, last = found.get("first"), found.get("last")
        return (first, last) if isinstance(first, int) and isinstance(last, int) else None


class Failed(StreamError):
    """The stream has ended with an error; error is its object."""

    def __init__(self, error: Any) -> None:
        known = error if isinstance(error, Mapping) else {"message": str(error)}
        self.code = known.get("code")
        self.type = known.get("type")
        self.message = str(known.get("message") or "")
        self.error = error
        super().__init__(f"{self.code}: {self.message}" if self.code else self.message)


class Disconnected(StreamError):
    """The connection broke, or never was; the cause is httpx's exception, if there is one."""


class GaveUp(Disconnected):
    """attempts: how many were made since the last new event. What the last of them met is in the message."""

    def __init__(self, why: str, attempts: int) -> None:
        super().__init__(why)
        self.attempts = attempts


class NotUnderstood(StreamError):
    """An answer that breaks the rules: trying again would not mend it."""
