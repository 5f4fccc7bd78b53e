"""How fast a client sends its request: whether it is too slow, and for how long it has sent none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Part(Enum):
    """What of a request is on its way."""

    NONE = "none"
    HEAD = "head"
    BODY = "body"


@dataclass(frozen=True, slots=True)
class Slowest:
    """The slowest client that is waited for.

    head: seconds from the first byte of a head to its end.
    window, rate: in each `window` seconds of a body at least `rate` bytes for each of them arrive; 0 is no least rate.
    """

    head: float
    window: float
    rate: float

    @property
    def shortest(self) -> float:
        """Seconds until the first of these limits can be passed."""
        return min(self.head, self.window) if self.rate else self.head


class Pace:
    """Of one connection. It is looked at now and then, which costs the arriving bytes nothing; so a limit is noticed
    late by up to the time between two looks, and never early."""

    def __init__(self) -> None:
        self._sending: tuple[Part, int] | None = None
        self._since = 0.0
        self._received = 0

    def look(self, now: float, part: Part, heads: int, received: int) -> None:
        """heads: how many have arrived whole on the connection; received: how many bytes of bodies."""
        if self._sending != (part, heads):
            self._sending = part, heads
            self._restart(now, received)

    def is_too_slow(self, now: float, received: int, slowest: Slowest) -> bool:
        """Of what was on its way at the last look. Where a window is over, the next one begins."""
        waited = now - self._since
        match self._sending:
            case Part.HEAD, _:
                return waited >= slowest.head
            case Part.BODY, _ if waited >= slowest.window:
                arrived = received - self._received
                self._restart(now, received)
                return arrived < slowest.rate * waited
            case _:
                return False

    def idle_seconds(self, now: float) -> float:
        """Since the first look that saw no request on its way; 0 while one is."""
        return now - self._since if self._sending is not None and self._sending[0] is Part.NONE else 0.0

    def _restart(self, now: float, received: int) -> None:
        self._since, self._received = now, received
