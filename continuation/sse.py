"""Server-sent events: received bytes to events and back, with the received bytes kept.

Follows the event-stream format of the WHATWG HTML standard: lines end in LF, CR or CRLF wherever the reads are
cut, one leading BOM is dropped, `data:` may lack its space, data lines of one event are joined by LF.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BOM = b"\xef\xbb\xbf"
DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"
_LINE_END = re.compile(rb"[\r\n]")


@dataclass(frozen=True, slots=True)
class Event:
    """One block up to and including its blank line.

    raw   the bytes as received; data  its data lines joined, None without any; name  its `event:` field
    """

    raw: bytes
    data: bytes | None = None
    name: str = ""


def data_event(data: bytes) -> bytes:
    """An event of one data line."""
    return b"data: " + data + b"\n\n"


def comment_line(text: str) -> bytes:
    """A comment that belongs to the next block: some clients fail on a block without data."""
    return b": " + text.encode() + b"\n"


def closed(raw: bytes) -> bytes:
    """`raw` with the blank line that a last event may lack."""
    if raw.endswith((b"\n\n", b"\r\r", b"\r\n\r\n")):
        return raw
    return raw + (b"\n" if raw.endswith(b"\n") else b"\n\n")


class EventDecoder:
    """Feed it reads of any size; it returns the events that are complete.

    An event that grows beyond `limit` bytes sets `overflowed`, after which nothing more is decoded; `pending`
    holds all that was received and not returned.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.overflowed = False
        self._buffer = bytearray()
        self._at_start = True
        self._line_start = self._scanned = 0
        self._after_cr = False
        self._data: list[bytes] = []
        self._name = ""

    @property
    def pending(self) -> bytes:
        return bytes(self._buffer)

    def feed(self, read: bytes) -> list[Event]:
        if self._at_start:
            read = self._without_bom(read)
            if self._at_start:
                return []
        if not self._buffer and (events := _plain_events(read)) is not None:
            self._after_cr = False
            return events
        self._buffer += read
        return [] if self.overflowed else self._complete_events()

    def finish(self) -> Event | None:
        """The last event, when the stream ended without its blank line; None if nothing is left."""
        if self._at_start:
            self._at_start = False
        if self.overflowed or not self._buffer:
            return None
        line = bytes(self._buffer[self._line_start :])
        if line:
            self._field(line)
        return self._take(len(self._buffer)) if self._data or self._name else None

    def _without_bom(self, read: bytes) -> bytes:
        head = bytes(self._buffer) + read
        if len(head) < len(BOM) and BOM.startswith(head):
            self._buffer[:] = head
            return b""
        self._buffer.clear()
        self._at_start = False
        return head.removeprefix(BOM)

    def _complete_events(self) -> list[Event]:
        events = []
        while end := _LINE_END.search(self._buffer, self._scanned):
            position, is_cr = end.start(), end.group() == b"\r"
            if self._after_cr and not is_cr and position == self._line_start:
                self._after_cr = False  # the second half of a CRLF
                self._line_start = self._scanned = position + 1
                continue
            line = bytes(self._buffer[self._line_start : position])
            self._after_cr = is_cr
            self._line_start = self._scanned = position + 1
            if line:
                self._field(line)
            else:
                events.append(self._take(self._end_of_block(position)))
        self._scanned = len(self._buffer)
        self.overflowed = len(self._buffer) > self.limit
        return events

    def _end_of_block(self, position: int) -> int:
        """Where the block ends whose blank line ends at `position`; a CRLF that is there is kept whole."""
        if self._after_cr and self._buffer[position + 1 : position + 2] == b"\n":
            self._after_cr = False
            return position + 2
        return position + 1

    def _take(self, end: int) -> Event:
        raw = bytes(self._buffer[:end])
        del self._buffer[:end]
        event = Event(raw, b"\n".join(self._data) if self._data else None, self._name)
        self._line_start = self._scanned = 0
        self._data, self._name = [], ""
        return event

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")


def _plain_events(read: bytes) -> list[Event] | None:
    """The usual case at a fraction of the cost: whole blocks of one `data: ` line each. None if it is not so."""
    if not read.endswith(b"\n\n") or b"\r" in read:
        return None
    events = []
    for block in read[:-2].split(b"\n\n"):
        if not block.startswith(b"data: ") or b"\n" in block:
            return None
        events.append(Event(block + b"\n\n", block[6:]))
    return events
