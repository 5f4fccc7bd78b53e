"""Line ends that the reads have cut in two."""

from __future__ import annotations

from dataclasses import replace

from continuation.shapes.sse import Event


class LineEnds:
    """A CRLF may be cut by the reads: its second half is lost where the event before was not passed on as it came."""

    __slots__ = ("is_due",)

    def __init__(self) -> None:
        self.is_due = False  # the line feed of a CRLF whose first half was not passed on

    def mended(self, event: Event, *, as_received: bool) -> Event:
        """The event without a line feed that belongs to the one before. as_received: it is passed on as it came."""
        raw = event.raw[1:] if self.is_due and event.raw.startswith(b"\n") else event.raw
        self.is_due = not as_received and raw.endswith(b"\r")
        return event if raw is event.raw else replace(event, raw=raw)
