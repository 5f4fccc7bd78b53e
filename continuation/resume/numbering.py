"""A guarded stream's bytes become numbered entries of its log. Pure.

Each event gets an `id:` line of its own, as the first of its block. Comments become lines that belong to the next
block: once an id has been seen, some clients fail on a block without data. What an engine calls `id:` itself is
dropped, for a block has one.
"""

from __future__ import annotations

import re

from continuation.resume.log import Entry
from continuation.sse import Event, EventDecoder, closed

_COMMENT = re.compile(rb"(?:(?<=[\r\n])|\A):[^\r\n]*")
_FOREIGN_ID = re.compile(rb"(?:(?<=[\r\n])|\A)id(?::[^\r\n]*)?(?:\r\n?|\n)")


class Numbering:
    """Feed it the pieces of one stream, in order. limit: bytes of an event that is kept whole; a larger one becomes
    entries of one number, as it comes."""

    def __init__(self, limit: int, last: int = 0) -> None:
        self.last = last
        self._decoder = EventDecoder(limit)
        self._part = 0

    def feed(self, piece: bytes) -> tuple[list[Entry], bytes]:
        """The entries that are complete, and the comment lines in between."""
        entries: list[Entry] = []
        comments = b""
        decoder = self._decoder
        events = decoder.feed(piece) if not decoder.skipping else self._parts(decoder.feed(piece), entries)
        while True:
            for event in events:
                if event.data is None:
                    comments += _comments(event)
                else:
                    self.last += 1
                    entries.append(Entry(self.last, 0, _numbered(self.last, event.raw)))
            if not decoder.overflowed:
                return entries, comments
            self.last, self._part = self.last + 1, 0
            events = self._parts(decoder.skip(), entries)

    def finish(self) -> list[Entry]:
        """What is left when the stream is over, which is nothing unless it was cut."""
        event = self._decoder.finish()
        if event is None or event.data is None:
            return []
        self.last += 1
        return [Entry(self.last, 0, _numbered(self.last, closed(event.raw)))]

    def _parts(self, events: list[Event], entries: list[Entry]) -> list[Event]:
        """The first of these is a part of the event that is too large."""
        if events:
            ends_here = len(events) > 1 or not self._decoder.skipping
            data = events[0].raw if self._part else _line(self.last) + events[0].raw.lstrip(b"\r\n")
            entries.append(Entry(self.last, self._part, data, open=not ends_here))
            self._part += 1
        return events[1:]


def _line(number: int) -> bytes:
    return b"id: %d\n" % number


def _numbered(number: int, raw: bytes) -> bytes:
    if raw.startswith(b"data: ") and raw.endswith(b"\n\n") and b"\n" not in raw[:-2] and b"\r" not in raw:
        return _line(number) + raw
    block = _FOREIGN_ID.sub(b"", raw.lstrip(b"\r\n"))
    # The second half of a CRLF may come with the next read, where it would be a blank line of its own.
    return _line(number) + block + (b"\n" if block.endswith(b"\r") else b"")


def _comments(event: Event) -> bytes:
    return b"".join(line + b"\n" for line in _COMMENT.findall(event.raw))
