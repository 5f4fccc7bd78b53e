"""The shelf: events that are kept from the client until the tool calls in them are whole.

The bytes of everything from the first tool call on lie here, in order, until the answer finishes and they are
released, or its leg fails and they are dropped. More than `limit` bytes are not kept: then all goes out, and nothing
is held any more.
"""

from __future__ import annotations

from enum import StrEnum


class Fate(StrEnum):
    NONE = ""
    HELD = "held"
    RELEASED = "released"
    DROPPED = "dropped"
    TOO_LARGE = "released: more than the limit"


class Shelf:
    """Holds at most once; `waiting` says that it has not begun to, and will at a tool call."""

    __slots__ = ("_bytes", "_limit", "events", "fate", "size", "waiting")

    def __init__(self, limit: int, *, wanted: bool) -> None:
        self._limit = limit
        self._bytes = bytearray()
        self.waiting = wanted
        self.fate = Fate.NONE
        self.events = 0
        self.size = 0  # of all that was ever held, in bytes

    @property
    def holding(self) -> bool:
        return self.fate is Fate.HELD

    def begin(self) -> None:
        self.waiting, self.fate = False, Fate.HELD

    def take(self, shown: bytes, *, finished: bool) -> bytes:
        """Hold what would have been sent; returns what is sent now."""
        if not self.holding:
            return shown
        if finished:
            return self.release() + shown
        self._bytes += shown
        self.events += bool(shown)
        self.size += len(shown)
        return self.release(Fate.TOO_LARGE) if self.size > self._limit else b""

    def release(self, fate: Fate = Fate.RELEASED) -> bytes:
        return self._emptied(fate)

    def drop(self) -> None:
        self._emptied(Fate.DROPPED)

    def note(self, leg: str) -> dict[str, str]:
        """For the audit, unless nothing was held."""
        if self.fate is Fate.NONE:
            return {}
        return {f"held_{leg}": f"{self.events} events with tool calls, {self.size} bytes: {self.fate}"}

    def _emptied(self, fate: Fate) -> bytes:
        if not self.holding:
            return b""
        held, self._bytes, self.fate = bytes(self._bytes), bytearray(), fate
        return held
