"""One stream's log in the memory of the process that runs the stream."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from continuation.resume.log import PIECE_BYTES, Cursor, Entry, Held, Limits, LogSlice, Standing, State, after

# The generation runs ahead of its fastest reader by no more than this, or half of the log if that is less.
WINDOW_BYTES = 2**18
# Of the comments that a reader has not taken yet no more is kept.
ASIDE_BYTES = 2**12
# Entries that were trimmed are let go together: this many, or bytes of this part of the limit.
COMPACTED = 256
COMPACTED_PART = 16


class HotLog:
    """Append and read, within limits. A gated log shows its readers only what `show` has let through."""

    def __init__(self, stream_id: str, limits: Limits, held: Held, *, gated: bool = False) -> None:
        self.stream_id = stream_id
        self.limits = limits
        self.state = State.RUNNING
        self.started_at = time.time()
        self.ended_at: float | None = None
        self.leg2_from = 0
        self.last = 0
        self.bytes = 0
        self.gone = False  # expired, or another process's by now
        # Of one that has been lost: up to where the other process has the same.
        self.certain: Cursor | None = None
        self.readers_changed: Callable[[], None] | None = None
        self._held = held
        self._gated = gated
        self._entries: list[Entry] = []
        self._start = 0
        self._trimmed_bytes = 0  # of entries that are trimmed, and not let go of yet
        self._appended: Cursor = (0, 0)
        self._shown: Cursor = (0, 0)
        self._trimmed: Cursor = (0, 0)
        self._readers: set[HotReader] = set()
        self._waiting: set[asyncio.Future[None]] = set()
        self._room: asyncio.Future[None] | None = None
        self._coming = 0
        self._hurried = False
        held.streams += 1

    # -- writing -----------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        if self.gone:
            return
        for entry in entries:
            size = len(entry.data)
            self._entries.append(entry)
            self.bytes += size
            self._held.bytes += size
            self._held.bytes_appended += size
            for reader in self._readers:
                reader.behind_bytes += size
                reader.behind_entries += 1
        if not entries:
            return
        self._held.events += len(entries)
        self._held.events_appended += len(entries)
        self.last, self._appended = entries[-1].number, entries[-1].cursor
        self._trim()
        if not self._gated:
            self.show(self._appended)

    def aside(self, comments: bytes) -> None:
        for reader in self._readers:
            if len(reader.aside) + len(comments) <= ASIDE_BYTES:
                reader.aside += comments
        self._wake()

    def restore(self, entries: Sequence[Entry], standing: Standing, at: Cursor) -> None:
        """What another process has written of it, up to `at`, into an empty log. What is missing before the entries
        counts as trimmed."""
        self.started_at, self.leg2_from = standing.started_at, standing.leg2_from
        self.last, self._appended, self._trimmed = standing.last, at, at
        if entries:
            number, part = entries[0].cursor
            self._trimmed = (number, part - 1) if part else after(number - 1) if number > 1 else (0, 0)
        self.append(entries)
        self._held.events_appended -= len(entries)  # by that process, which has counted them
        self._held.bytes_appended -= sum(len(entry.data) for entry in entries)
        self.show_all()

    def show(self, cursor: Cursor) -> None:
        if cursor > self._shown:
            self._shown = cursor
            self._wake()

    def show_all(self) -> None:
        self.show(self._appended)

    def end(self, state: State) -> None:
        if self.ended_at is None:
            self.state, self.ended_at = state, time.time()
            self._wake()

    def expire(self) -> None:
        """Nothing of it is left; who reads it learns so."""
        if self.gone:
            return
        self.gone = True
        self._held.streams -= 1
        self._held.bytes -= self.bytes
        self._held.events -= len(self._entries) - self._start
        self._entries.clear()
        self._start = self._trimmed_bytes = self.bytes = 0
        self._wake()
        self._readers_moved()

    async def room(self, coming: int = 0) -> None:
        """Wait while even the fastest of the readers is a window behind, or an entry of `coming` bytes would push out
        what it has not read; without a reader there is always room."""
        while self._is_full(coming):
            self._room, self._coming = asyncio.get_running_loop().create_future(), coming
            try:
                await self._room
            finally:
                self._room = None

    def hurry(self) -> None:
        """The stream ends now: nobody is waited for any more."""
        self._hurried = True
        self._readers_moved()

    def has_room(self, coming: int) -> bool:
        """Whether `room` would not wait."""
        return not self._is_full(coming)

    def _is_full(self, coming: int) -> bool:
        if self._hurried or self.gone:
            return False
        return bool(self._readers) and all(self._is_far(reader, coming) for reader in self._readers)

    def _is_far(self, reader: HotReader, coming: int) -> bool:
        limits, behind = self.limits, reader.behind_bytes
        if behind > min(WINDOW_BYTES, limits.bytes // 2) or reader.behind_entries > limits.events // 2:
            return True
        overtaken = behind + coming > limits.bytes or reader.behind_entries >= limits.events
        return overtaken and reader.behind_entries > 0

    def _trim(self) -> None:
        entries, at = self._entries, self._start
        while len(entries) - at > 1 and (
            self.bytes > self.limits.bytes or len(entries) - at > self.limits.events
        ):
            size = len(entries[at].data)
            self._trimmed = entries[at].cursor
            self.bytes -= size
            self._held.bytes -= size
            self._held.events -= 1
            self._trimmed_bytes += size
            at += 1
        self._start = at
        many = at > COMPACTED and at > len(entries) // 2
        if many or self._trimmed_bytes > self.limits.bytes // COMPACTED_PART:
            del entries[:at]
            self._start = self._trimmed_bytes = 0

    # -- reading -----------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The oldest event that is there whole; last + 1 if none is."""
        if self._start >= len(self._entries):
            return self.last + 1
        oldest = self._entries[self._start]
        return oldest.number if oldest.part == 0 else oldest.number + 1

    @property
    def appended(self) -> Cursor:
        return self._appended

    @property
    def trimmed(self) -> Cursor:
        """The newest entry that is not there any more, (0, 0) if none is."""
        return self._trimmed

    @property
    def oldest(self) -> Cursor:
        """The entry that comes first now; the next one if there is none."""
        at = self._start
        return self._entries[at].cursor if at < len(self._entries) else (self.last + 1, 0)

    @property
    def reader_count(self) -> int:
        return len(self._readers)

    async def standing(self) -> Standing | None:
        return None if self.gone else self.stands()

    def stands(self) -> Standing:
        return Standing(self.state, self.first, self.last, self.leg2_from, self.started_at, self.ended_at)

    def reader(self, cursor: Cursor) -> HotReader:
        return HotReader(self, cursor)

    def since(self, cursor: Cursor, most: int | None = None) -> list[Entry]:
        """The entries after a cursor, shown or not, of about `most` bytes; the oldest ones if some were trimmed."""
        if cursor >= self._appended:
            return []
        at = bisect_right(self._entries, cursor, self._start, key=_cursor)
        if most is None:
            return self._entries[at:]
        found: list[Entry] = []
        for index in range(at, len(self._entries)):
            entry = self._entries[index]
            most -= len(entry.data)
            if most < 0 and found:
                break
            found.append(entry)
        return found

    def has_trimmed(self, cursor: Cursor) -> bool:
        """Whether something right behind the cursor was there once and is not there any more."""
        return cursor < self._trimmed

    def _piece(self, cursor: Cursor, most: int) -> LogSlice:
        if self.gone or self.has_trimmed(cursor):
            return LogSlice(lost=True)
        entries = self.since(cursor, most)
        while entries and entries[-1].cursor > self._shown:
            entries.pop()
        at = entries[-1].cursor if entries else cursor
        return LogSlice(tuple(entries), ended=self.ended_at is not None and at >= self._appended)

    def _has_news(self, cursor: Cursor, reader: HotReader) -> bool:
        return (
            bool(reader.aside)
            or self.gone
            or self._shown > cursor
            or (self.ended_at is not None and cursor >= self._appended)
        )

    async def _changed(self, cursor: Cursor, reader: HotReader, seconds: float) -> bool:
        if self._has_news(cursor, reader):
            return True
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting.add(waiting)
        # For each event of each reader: cheaper than a timeout.
        end = loop.call_later(seconds, _wake, waiting)
        try:
            await waiting
        finally:
            end.cancel()
            self._waiting.discard(waiting)
        return self._has_news(cursor, reader)

    def _wake(self) -> None:
        for waiting in self._waiting:
            _wake(waiting)

    def _readers_moved(self) -> None:
        if self._room is not None and not self._room.done() and not self._is_full(self._coming):
            self._room.set_result(None)


class HotReader:
    """A reader in this process; how far it is behind slows the generation down."""

    def __init__(self, log: HotLog, cursor: Cursor) -> None:
        self._log = log
        self._cursor = cursor
        self.aside = b""
        unread = log.since(cursor)
        self.behind_entries = len(unread)
        self.behind_bytes = sum(len(entry.data) for entry in unread)
        log._readers.add(self)
        if log.readers_changed:
            log.readers_changed()

    async def read(self, most: int = PIECE_BYTES) -> LogSlice:
        piece = self._log._piece(self._cursor, most)
        if piece.entries:
            self._cursor = piece.entries[-1].cursor
            self.behind_entries -= len(piece.entries)
            self.behind_bytes -= sum(len(entry.data) for entry in piece.entries)
            self._log._readers_moved()
        aside, self.aside = self.aside, b""
        return replace(piece, aside=aside) if aside else piece

    async def changed(self, seconds: float) -> bool:
        return await self._log._changed(self._cursor, self, seconds)

    async def aclose(self) -> None:
        if self in self._log._readers:
            self._log._readers.discard(self)
            self._log._readers_moved()
            if self._log.readers_changed:
                self._log.readers_changed()


class HotWriter:
    """What writers of all stores do with the log in this process."""

    def __init__(self, log: HotLog) -> None:
        self.log = log

    @property
    def stream_id(self) -> str:
        return self.log.stream_id

    def aside(self, comments: bytes) -> None:
        self.log.aside(comments)

    async def room(self, coming: int) -> None:
        await self.log.room(coming)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _cursor(entry: Entry) -> Cursor:
    return entry.cursor
