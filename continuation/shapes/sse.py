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
_BLANK_LINE = re.compile(rb"(?:\r\n?+|\n)(?:\r\n?+|\n)")
# Whole blocks without a data or event field, and bare blank lines: read at once, for they may come by the thousand.
_SILENT = re.compile(rb"(?:(?:(?!data[:\r\n]|event[:\r\n])[^\r\n]++(?:\r\n?+|\n))*+(?:\r\n?+|\n)++)++")


@dataclass(frozen=True, slots=True)
class Event:
    """One block up to and including its blank line, or several in a row that say nothing (comments, blank lines).

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

    An event of more than `limit` bytes before its blank line sets `overflowed`, after which nothing more is decoded,
    until `skip` gives it up. `pending` holds all that was received and not returned.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.overflowed = False
        self.skipping = False  # in the middle of an event that was given up
        self._skipped_end = b""
        self._buffer = bytearray()
        self._at_start = True
        self._line_start = self._scanned = 0
        self._after_cr = False
        self._data: bytearray | None = None
        self._name = ""

    @property
    def pending(self) -> bytes:
        return bytes(self._buffer)

    def feed(self, read: bytes) -> list[Event]:
        if self._at_start:
            read = self._without_bom(read)
            if self._at_start:
                return []
        if self.skipping:
            return self._skipped(read)
        if not self._buffer and (events := _plain_events(read, self.limit)) is not None:
            return events
        self._buffer += read
        return [] if self.overflowed else self._complete_events()

    def skip(self) -> list[Event]:
        """Give up the event that is too large: its bytes come as they are, as events without data, up to its end."""
        pending = bytes(self._buffer)
        self._buffer.clear()
        self._reset()
        self.overflowed, self.skipping, self._skipped_end = False, True, b""
        return self.feed(pending)

    def finish(self) -> Event | None:
        """The last event, when the stream ended without its blank line; None if nothing is left."""
        self._at_start = False
        if self.overflowed or not self._buffer:
            return None
        line = bytes(self._buffer[self._line_start :])
        if line:
            self._field(line)
        return self._take(len(self._buffer)) if self._data is not None or self._name else None

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
        while not self.overflowed:
            if not self._scanned and (run := _SILENT.match(self._buffer)) and run.end() <= self.limit:
                events.append(self._take(run.end()))
                continue
            end = _LINE_END.search(self._buffer, self._scanned)
            if end is None:
                self._scanned = len(self._buffer)
                self.overflowed = self._scanned > self.limit
                break
            if block := self._line(end.start(), is_cr=end.group() == b"\r"):
                self.overflowed = end.start() > self.limit
                events += [] if self.overflowed else [self._take(block)]
        return events

    def _line(self, position: int, *, is_cr: bool) -> int:
        """Read the line that ends at `position`; where the block ends if that is its blank line, else 0."""
        start = self._line_start
        second_half = self._after_cr and not is_cr and position == start  # of a CRLF
        self._after_cr = is_cr
        self._line_start = self._scanned = position + 1
        if second_half:
            return 0
        if position > start:
            self._field(bytes(self._buffer[start:position]))
            return 0
        return position + (2 if is_cr and self._buffer[position + 1 : position + 2] == b"\n" else 1)

    def _take(self, end: int) -> Event:
        raw = bytes(self._buffer[:end])
        del self._buffer[:end]
        event = Event(raw, None if self._data is None else bytes(self._data), self._name)
        self._reset()
        return event

    def _reset(self) -> None:
        self._line_start = self._scanned = 0
        self._after_cr = False
        self._data, self._name = None, ""

    def _skipped(self, read: bytes) -> list[Event]:
        seen = self._skipped_end + read
        end = _BLANK_LINE.search(seen)
        if end is None:
            last = seen[-2:]
            self._skipped_end = last[len(last.rstrip(b"\r\n")) :]
            return [Event(read)] if read else []
        at = end.end() - len(self._skipped_end)
        self.skipping = False
        return [Event(read[:at]), *self.feed(read[at:])]

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            if self._data is None:
                self._data = bytearray(value)
            else:
                self._data += b"\n" + value
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")


def _plain_events(read: bytes, limit: int) -> list[Event] | None:
    """The usual case at a fraction of the cost: whole blocks of one `data: ` line each. None if it is not so."""
    if not read.endswith(b"\n\n") or b"\r" in read:
        return None
    events = []
    for block in read[:-2].split(b"\n\n"):
        if not block.startswith(b"data: ") or b"\n" in block or len(block) >= limit:
            return None
        events.append(Event(block + b"\n\n", block[6:]))
    return events
