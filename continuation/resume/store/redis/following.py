"""Streams of other processes, as they are read from Redis."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from continuation.resume.log import PIECE_BYTES, Cursor, Entry, LogSlice, Standing, State, StoreAway
from continuation.resume.store.redis.lines import ASK_SECONDS, Line, Lines
from continuation.resume.store.redis.scripts import (
    END_PART,
    READ,
    Command,
    Keys,
    call,
    cursor_of,
    id_of,
    keys_of,
    lease_of,
)
from continuation.resume.store.redis.sealing import Seal, Unreadable

# Seconds after which a missing lease is looked for again: Redis may have been away, and its owner back just now.
SECOND_LOOK_SECONDS = 0.5
MISSED_SECONDS = 2.0
# Seconds that a reader waits for Redis to come back, or for a log that Redis has lost to be written again.
AWAY_SECONDS = 2.0
MISSING_SECONDS = 1.0
# Seconds between two signs of a reader to the process that runs the stream. The mark stays for a grace and this.
MARKED_SECONDS = 3.0
MARK_SECONDS = 10.0
# Seconds between two looks at `meta` while nothing comes: the entry that marks the end may have got lost.
LOOK_SECONDS = 1.0
FIRST_COUNT, MOST_COUNT = 8, 512

FIELDS = ("owner", "epoch", "state", "at", "first", "leg2_from", "started_at", "ended_at", "request")

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Meta:
    """A stream's `meta`. owner: empty if its process has handed it over. request: in how many pieces it is there."""

    owner: str
    epoch: int
    at: Cursor
    standing: Standing
    request: int


def meta_of(values: list[bytes | None]) -> Meta | None:
    owner, epoch, state, at, first, leg2_from, started_at, ended_at, request = (
        value.decode() if value else "" for value in values
    )
    if not epoch:
        return None
    cursor = cursor_of(at.encode())
    standing = Standing(
        State(state),
        int(first),
        cursor[0],
        int(leg2_from),
        float(started_at),
        float(ended_at) if ended_at else None,
    )
    return Meta(owner, int(epoch), cursor, standing, int(request or 0))


class Following:
    """What remote logs share: where to ask, how to unseal, and which readers there are to be shown."""

    def __init__(self, lines: Lines, seal: Seal, grace: float) -> None:
        self.lines, self.seal = lines, seal
        self.mark_ms = int((grace + MARK_SECONDS) * 1000)
        self.readers: set[RemoteReader] = set()
        self._missed: dict[str, tuple[float, float]] = {}  # owners without a lease: first and last looked for

    async def meta(self, stream_id: str) -> Meta | None:
        (values,) = await self.lines.ask(("HMGET", keys_of(stream_id).meta, *FIELDS))
        return meta_of(values)

    async def is_dead(self, owner: str) -> bool:
        """Looks twice at a lease that is not there, unless somebody has looked just now."""
        if await self._has_lease(owner):
            return False
        wait = self._missed[owner][0] + SECOND_LOOK_SECONDS - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
            return not await self._has_lease(owner)
        return True

    async def _has_lease(self, owner: str) -> bool:
        (found,) = await self.lines.ask(("EXISTS", lease_of(owner)))
        now = time.monotonic()
        self._missed = {
            each: times for each, times in self._missed.items() if now - times[1] < MISSED_SECONDS
        }
        if found:
            self._missed.pop(owner, None)
        else:
            self._missed[owner] = (self._missed.get(owner, (now, now))[0], now)
        return bool(found)

    async def show_readers(self) -> None:
        """Renew the marks that are about to run out."""
        now = time.monotonic()
        due = [reader for reader in self.readers if now - reader.marked_at > MARKED_SECONDS]
        for reader in due:
            reader.marked_at = now
        if due:
            await self.lines.ask(*(reader.mark() for reader in due))

    async def aclose(self) -> None:
        for reader in list(self.readers):
            await reader.aclose()


def last_mark(stream_id: str) -> tuple[Command, Command]:
    """Asks how long the newest mark of a reader was to last, and how much of that is left, in milliseconds."""
    key = keys_of(stream_id).reader
    return ("GET", key), ("PTTL", key)


class RemoteLog:
    """is_orphaned: whether nobody runs the stream any more."""

    def __init__(
        self, stream_id: str, following: Following, is_orphaned: Callable[[Meta], Awaitable[bool]]
    ) -> None:
        self.stream_id = stream_id
        self._following = following
        self._is_orphaned = is_orphaned

    @property
    def certain(self) -> None:
        """All that it shows is in Redis."""
        return

    async def standing(self) -> Standing | None:
        meta = await self._following.meta(self.stream_id)
        if meta is None:
            return None
        standing = meta.standing
        if standing.state is not State.RUNNING or not await self._is_orphaned(meta):
            return standing
        return Standing(
            State.INTERRUPTED, standing.first, standing.last, standing.leg2_from, standing.started_at
        )

    def reader(self, cursor: Cursor) -> RemoteReader:
        return RemoteReader(keys_of(self.stream_id), cursor, self._following)


class RemoteReader:
    """Reads ahead by one answer of Redis at most; follows over a connection of its own."""

    def __init__(self, keys: Keys, cursor: Cursor, following: Following) -> None:
        self.marked_at = 0.0
        self._keys, self._following = keys, following
        self._fetched = cursor
        # Whether more parts of the newest event follow; at first that is not known.
        self._is_open: bool | None = None
        self._ahead: deque[Entry] = deque()
        self._count = FIRST_COUNT
        self._lost = self._ended = False
        self._missing_since = self._looked_at = 0.0
        self._line: Line | None = None
        following.readers.add(self)

    # -- for its reader ----------------------------------------------------------------------------

    async def read(self, most: int = PIECE_BYTES) -> LogSlice:
        if not self._has_news:
            await self._patiently(self._fetch)
        entries: list[Entry] = []
        while self._ahead and (not entries or len(self._ahead[0].data) <= most):
            entries.append(self._ahead.popleft())
            most -= len(entries[-1].data)
        return LogSlice(
            tuple(entries), lost=self._lost and not entries, ended=self._ended and not self._ahead
        )

    async def changed(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self._has_news:
            now = time.monotonic()
            if now - self._looked_at >= LOOK_SECONDS or self._missing_since:
                await self._patiently(self._fetch)
            elif now < until:
                await self._patiently(partial(self._block, min(until - now, LOOK_SECONDS)))
            if time.monotonic() >= until:
                break
            if self._missing_since and not self._has_news:
                await asyncio.sleep(min(0.1, seconds))
        return self._has_news

    async def aclose(self) -> None:
        self._following.readers.discard(self)
        await self._hang_up()

    def mark(self) -> Command:
        """Its name says how long it lasts, so that its age is known."""
        lasts = self._following.mark_ms
        return ("SET", self._keys.reader, lasts, "PX", lasts)

    # -- with Redis --------------------------------------------------------------------------------

    @property
    def _has_news(self) -> bool:
        return bool(self._ahead) or self._lost or self._ended

    async def _patiently(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """A Redis that is started anew is waited for, not for long. Raises StoreAway."""
        until = time.monotonic() + AWAY_SECONDS
        while True:
            try:
                return await ask()
            except StoreAway:
                if time.monotonic() >= until:
                    raise
                await asyncio.sleep(0.1)

    async def _fetch(self) -> None:
        keys = self._keys
        commands: list[Command] = [call(READ, (keys.meta, keys.log), f"({id_of(self._fetched)}", self._count)]
        if not self.marked_at:
            self.marked_at = time.monotonic()
            commands.append(self.mark())
        ((at, state), found), *_ = await self._following.lines.ask(*commands)
        self._looked_at = time.monotonic()
        if at is None:
            self._note_missing()
            return
        self._missing_since = 0.0
        self._take(found)
        if not self._has_news:  # what Redis says of the log, and what is in it, are of one moment
            self._lost = cursor_of(at) > self._fetched
            self._ended = not self._lost and state != State.RUNNING.value.encode()

    def _note_missing(self) -> None:
        """It has expired, or Redis has lost it and it is written again soon."""
        self._missing_since = self._missing_since or time.monotonic()
        self._lost = time.monotonic() - self._missing_since >= MISSING_SECONDS

    async def _block(self, seconds: float) -> None:
        """Until something comes. A wait that is given up leaves an answer behind: its connection is closed."""
        if self._line is None:
            self._line = await self._following.lines.open()
        block = max(1, int(seconds * 1000))
        command = (
            "XREAD",
            "COUNT",
            self._count,
            "BLOCK",
            block,
            "STREAMS",
            self._keys.log,
            id_of(self._fetched),
        )
        try:
            (found,) = await self._line.ask([command], seconds + ASK_SECONDS)
        except BaseException:
            await self._hang_up()
            raise
        if found:
            self._take(found[0][1])

    async def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.aclose()

    # -- what it says ------------------------------------------------------------------------------

    def _take(self, found: list[Any]) -> None:
        size = 0
        for entry_id, (kind, sealed) in found:
            cursor = cursor_of(entry_id)
            if cursor[1] == END_PART:
                self._ended = True
                return
            if not self._is_next(cursor):
                self._lost = True
                return
            try:
                data = self._following.seal.open(sealed)
            except Unreadable:
                self._lost = True
                return
            size += len(data)
            self._fetched, self._is_open = cursor, kind == b"o"
            self._ahead.append(Entry(*cursor, data, open=self._is_open))
        if found:
            room = PIECE_BYTES * len(found) // max(size, 1)
            self._count = max(1, min(room, 2 * self._count, MOST_COUNT))

    def _is_next(self, cursor: Cursor) -> bool:
        return follows(self._fetched, self._is_open, cursor)


def follows(before: Cursor, is_open: bool | None, cursor: Cursor) -> bool:
    """Whether nothing is missing between the two. is_open: of the first one, whether it has more parts; None if that
    is not known."""
    next_part, next_event = (before[0], before[1] + 1), (before[0] + 1, 0)
    if is_open is None:
        return cursor in (next_part, next_event)
    return cursor == (next_part if is_open else next_event)
