"""What is noted about one stream: what the injector did to it, and what its client saw."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from continuation.testbed.drill.plans import STALLS, Plan
from continuation.testbed.drill.wire import Head

HEADER = "X-Drill-Stream"


@dataclass(slots=True)
class FlownLeg:
    """One request that reached the injector, and its answer.

    raw        bytes of whole events that were handed on, as they were dressed: what a guarded client may see of them
    events     the same events as the engine wrote them
    body       every byte of the answer's body: what an unguarded client must see
    struck     the fault has happened; went_on: it was a silence, and it was over before the gateway left
    ended      how the answer ended, for the gateway: clean, broken, left (by the gateway), or "" while it runs
    silence    the longest time between two events that the injector did not mean
    asked_at, handed_at, left_at   when the request came, when the last event went out, and when the gateway was
               seen to have left, by time.monotonic()
    """

    number: int
    request: Head
    sent: bytes
    status: int = 0
    events: list[bytes] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)
    body: bytearray = field(default_factory=bytearray)
    struck: bool = False
    went_on: bool = False
    ended: str = ""
    silence: float = 0.0
    asked_at: float = field(default_factory=time.monotonic)
    handed_at: float = field(default_factory=time.monotonic)
    left_at: float | None = None

    @property
    def noted(self) -> str:
        """In words, for a report of what went wrong."""
        told = f"leg {self.number}: status {self.status}, {len(self.events)} events, {self.ended or 'open'}"
        return (
            f"{told}, fault {'struck' if self.struck else 'not struck'}, longest silence {self.silence:.1f} s"
        )

    def leave(self) -> None:
        self.ended = "left"
        self.left_at = time.monotonic()


@dataclass(slots=True)
class Heard:
    """The client's side. ended: clean, broken, left (by the client itself), late (it gave up waiting), or "".

    Times are those of time.monotonic(); first_at is that of the first event, gaps are seconds between reads.
    last_id is the number of the newest event of a client that comes back, misnumbered what is wrong with the numbers.
    """

    status: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    raw: bytearray = field(default_factory=bytearray)
    ended: str = ""
    trouble: str = ""
    sent_at: float = 0.0
    first_at: float | None = None
    last_at: float = 0.0
    gaps: list[float] = field(default_factory=list)
    seam_gap: float | None = None
    last_id: int = 0
    misnumbered: str = ""

    def take(self, piece: bytes, leg1: FlownLeg | None, *, continued: bool) -> None:
        now = time.monotonic()
        if self.first_at is None:
            self.first_at = now
        else:
            self.gaps.append(now - self.last_at)
        if continued and self.seam_gap is None and leg1 is not None and len(self.raw) >= len(leg1.raw):
            self.seam_gap = now - self.last_at
        self.last_at = now
        self.raw += piece


@dataclass(slots=True)
class Flight:
    """One stream of the drill, from its plan to its end. sent is the body that the client sent."""

    plan: Plan
    request_id: str
    sent: bytes = b""
    legs: list[FlownLeg] = field(default_factory=list)
    heard: Heard = field(default_factory=Heard)

    @property
    def leg1(self) -> FlownLeg | None:
        return next((leg for leg in self.legs if leg.number == 1), None)

    @property
    def leg2(self) -> FlownLeg | None:
        return next((leg for leg in self.legs if leg.number == 2), None)

    def take(self, piece: bytes) -> None:
        self.heard.take(piece, self.leg1, continued=self.leg2 is not None)

    def starved(self, limit: float) -> bool:
        """Whether leg 1 may have been silent for `limit` seconds without any fault: on a machine that is too busy."""
        leg1, leg2, strike = self.leg1, self.leg2, self.plan.leg1
        if leg1 is None:
            return False
        if leg1.silence > limit or (leg1.went_on and leg2 is not None):
            return True
        if strike and leg1.struck and strike.name in STALLS:
            return False
        return (leg2.asked_at if leg2 else self.heard.last_at) - leg1.handed_at > limit

    def take_numbered(self, block: bytes) -> None:
        """An event of a resumable stream, less its number and the comments before it."""
        heard = self.heard
        number, data = -1, []
        for line in block.splitlines(keepends=True):
            if line.startswith(b"id:") and line[3:].strip().isdigit():
                number = int(line[3:])
            elif not line.startswith(b":"):
                data.append(line)
        if number != heard.last_id + 1 and not heard.misnumbered:
            heard.misnumbered = (
                f"event {heard.last_id} was followed by {number if number >= 0 else block[:60]!r}"
            )
        heard.last_id = max(number, heard.last_id)
        self.take(b"".join(data))

    @property
    def client_has_leg1(self) -> bool:
        """Whether all that was handed on has arrived, headers included; a BOM is dropped on the way."""
        leg = self.leg1
        return leg is None or (self.heard.status != 0 and len(self.heard.raw) + 3 >= len(leg.raw))
