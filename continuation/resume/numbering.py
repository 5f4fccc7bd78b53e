"""A guarded stream's bytes become numbered entries of its log. Pure.

Each event gets an `id:` line of its own, as the first of its block. Comments become lines that belong to the next
block: once an id has been seen, some clients fail on a block without data. What an engine calls `id:` itself is
dropped, for a block has one. Lines end in LF, however they came: a CR may have its LF in another entry, and lines
that are dropped may leave two halves that mean something else together.
"""

from __future__ import annotations

import re
from contextlib import suppress

from continuation.resume.log import Entry, State
from continuation.shapes.chat.chunks import is_error
from continuation.shapes.encoding import parse
from continuation.shapes.sse import DONE, Event, EventDecoder

_COMMENT = re.compile(rb"(?:(?<=[\r\n])|\A):[^\r\n]*")
# Of an event that is too large, whose lines come in pieces.
_DATA = re.compile(rb"[\r\n]data[:\r\n]")
_DATA_BYTES = 5  # bytes of it that may still be missing at the end of a piece
_FOREIGN_ID = re.compile(rb"(?<=[\r\n])id(?=[:\r\n])[^\r\n]*")
_UNDECIDED = re.compile(rb"(?<=[\r\n])(?:id?|id:[^\r\n]*)\Z")


class Numbering:
    """Feed it the pieces of one stream, in order. limit: bytes of an event that is kept whole; a larger one becomes
    entries of one number, as it comes."""

    def __init__(self, limit: int, last: int = 0) -> None:
        self.last = last
        self._decoder = EventDecoder(limit)
        self._large = _Large()

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
            self._large = _Large()
            events = self._parts(decoder.skip(), entries)

    def finish(self) -> list[Entry]:
        """What is left when the stream is over, which is nothing unless it was cut."""
        if self._decoder.skipping:
            return self.feed(b"\n\n")[0]
        event = self._decoder.finish()
        if event is None or event.data is None:
            return []
        self.last += 1
        return [Entry(self.last, 0, _numbered(self.last, event.raw))]

    def _parts(self, events: list[Event], entries: list[Entry]) -> list[Event]:
        """The first of these is a part of the event that is too large."""
        if events:
            ends_here = len(events) > 1 or not self._decoder.skipping
            if data := self._large.take(events[0].raw):
                self.last += not self._large.parts
                data = data if self._large.parts else _line(self.last) + data
                entries.append(Entry(self.last, self._large.parts, data, open=not ends_here))
                self._large.parts += 1
        return events[1:]


class _Large:
    """An event that is too large to be kept whole, as it comes. Its own ids become empty comments. If there is no
    data in what came first, all before its data is dropped: comments may be as large as they like.

    parts: how many have been shown."""

    def __init__(self) -> None:
        self.parts = 0
        self._dropped = False
        self._seen = b"\n"  # the byte before what comes next, and what waits for it

    def take(self, raw: bytes) -> bytes:
        """What is to be shown of this piece."""
        text = self._seen + raw
        if not self.parts:
            if (data := _DATA.search(text)) is None:
                self._seen, self._dropped = text[-_DATA_BYTES:], True
                return b""
            text = text[data.start() :] if self._dropped else text
        undecided = _UNDECIDED.search(text)
        end = undecided.start() if undecided else len(text)
        self._seen = text[end - 1 : end + len(b"id:")]
        return _FOREIGN_ID.sub(b":", text[:end])[1:]


def closing(part: bytes) -> bytes:
    """The end of an event that was left open behind this part."""
    return b"\n" if part.endswith(b"\n") else b"\n\n"


def ending_of(newest: bytes) -> State | None:
    """How a stream has ended that has come no further than to log this event; None if that is no ending."""
    if DONE not in newest and b"error" not in newest:  # which costs next to nothing, and is so for almost all
        return None
    for event in EventDecoder(len(newest)).feed(newest):
        if event.data == DONE:
            return State.FINISHED
        with suppress(ValueError):
            if is_error(event, parse(event.data or b"null")):
                return State.FAILED
    return None


def _line(number: int) -> bytes:
    return b"id: %d\n" % number


def _numbered(number: int, raw: bytes) -> bytes:
    if raw.startswith(b"data: ") and raw.endswith(b"\n\n") and b"\n" not in raw[:-2] and b"\r" not in raw:
        return _line(number) + raw
    lines = [line for line in raw.splitlines() if line and line != b"id" and not line.startswith(b"id:")]
    return _line(number) + b"\n".join(lines) + b"\n\n"


def _comments(event: Event) -> bytes:
    return b"".join(line + b"\n" for line in _COMMENT.findall(event.raw))
