"""What one reader of a stream gets: everything behind its cursor, then what comes, to the end."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from continuation.http.ending import break_off
from continuation.relay import KEEPALIVE
from continuation.resume.log import Cursor, Log, LogSlice, Reader, Standing, State, StoreAway
from continuation.resume.numbering import closing, ending_of
from continuation.shapes.encoding import event_of

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

# Seconds between two looks of a reader that hears nothing: does somebody still write?
LOOK_SECONDS = 1.0
# Seconds between two questions to a store that is away, and after which the reader is sent away to come back.
RETRY_SECONDS = 0.25
AWAY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reader's request says. checkpoints: seconds between tokens inside the stream, 0 for none.
    token: makes one for a position. keepalive: seconds between comments while nothing else is sent, 0 for none."""

    request_id: str
    cursor: Cursor
    token: Callable[[int], str]
    keepalive: float
    checkpoints: float = 0.0
    scope: Mapping[str, Any] = field(default_factory=dict)


class Reading:
    """Runs one reader.

    find: the log as it is kept now, None if it is not any more. take_over: go on with a stream whose process is gone.
    """

    def __init__(
        self,
        log: Log,
        asked: Asked,
        find: Callable[[], Awaitable[Log | None]],
        take_over: Callable[[], Awaitable[None]],
    ) -> None:
        self._asked = asked
        self._find = find
        self._take_over = take_over
        self._cursor = asked.cursor
        self._log = log
        self._reader: Reader | None = None
        self._open = b""  # the newest byte, where more of its event is to come
        # The last event has been sent, and there is no block that a comment could belong to.
        self._is_over = False
        self._leaving = False
        self._is_lost = False
        self._away_since = 0.0
        self._checkpoint = asked.cursor[0]
        self._sent_at = self._checkpoint_at = self._looked_at = time.monotonic()
        self.on_event: Callable[[], None] = _nothing  # an event is on its way to the reader
        self.on_live: Callable[[], None] = _nothing  # all that was there has been sent

    def leave(self) -> None:
        """The server waits no longer: break off soon, and let the reader come back to another process."""
        self._leaving = True

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        self._reader = self._log.reader(self._cursor)
        try:
            while not self._leaving:
                piece = await self._tried(self._reader.read)
                for data in (self._told(piece) if piece else b"", self._due()):
                    if data:
                        yield data
                        self._sent_at = time.monotonic()
                if piece is None:
                    continue
                if piece.ended:
                    return
                self._is_lost = self._is_lost and piece.lost
                if piece.lost and await self._tried(self._found_again) is False:
                    yield self._gap()
                    return
                if not (piece.entries or piece.lost):
                    await self._tried(self._wait)
        except StoreAway as trouble:
            logger.warning("request %s: the resume log stays away: %s", self._asked.request_id, trouble)
        finally:
            await self._reader.aclose()
        await break_off(self._asked.scope)

    async def _tried(self, step: Callable[[], Awaitable[_Answer]]) -> _Answer | None:
        """What the step returns; None while the store is away. Raises StoreAway when it has been for too long."""
        try:
            answer = await step()
        except StoreAway:
            now = time.monotonic()
            self._away_since = self._away_since or now
            if now >= self._away_since + AWAY_SECONDS:
                raise
            await asyncio.sleep(RETRY_SECONDS)
            return None
        self._away_since = 0.0
        return answer

    def _told(self, piece: LogSlice) -> bytes:
        if piece.entries:
            last = piece.entries[-1]
            self._cursor, self._open = last.cursor, last.data[-1:] if last.open else b""
            self._is_over = ending_of(last.data) is not None
            self.on_event()
        if not piece.entries or piece.ended:
            self.on_live()
        data = b"".join(entry.data for entry in piece.entries)
        return data if self._open or self._is_over else data + piece.aside

    def _due(self) -> bytes:
        """What comes by the clock: a token to come back with, a comment."""
        if self._open or self._is_over:
            return b""
        now = time.monotonic()
        if self._checkpoint_is_due(now):
            return self._checkpoint_event(now)
        return KEEPALIVE if self._keepalive_at <= now else b""

    @property
    def _due_at(self) -> float:
        """When something comes by the clock, if nothing else comes before."""
        if self._open or self._is_over:
            return math.inf
        spacing, is_new = self._asked.checkpoints, self._cursor[0] > self._checkpoint
        return min(self._keepalive_at, self._checkpoint_at + spacing if spacing and is_new else math.inf)

    @property
    def _keepalive_at(self) -> float:
        return self._sent_at + self._asked.keepalive if self._asked.keepalive else math.inf

    def _checkpoint_is_due(self, now: float) -> bool:
        spacing = self._asked.checkpoints
        return spacing > 0 and self._cursor[0] > self._checkpoint and now >= self._checkpoint_at + spacing

    def _checkpoint_event(self, now: float) -> bytes:
        self._checkpoint, self._checkpoint_at = self._cursor[0], now
        said = {"token": self._asked.token(self._checkpoint), "last_event_id": self._checkpoint}
        return b"event: resume_token\n" + event_of(said)

    async def _wait(self) -> None:
        assert self._reader
        look_at = self._looked_at + LOOK_SECONDS
        seconds = max(0.0, min(look_at, self._due_at) - time.monotonic())
        if await self._reader.changed(seconds):
            self._looked_at = time.monotonic()
        elif time.monotonic() >= look_at:
            self._looked_at = time.monotonic()
            await self._look()

    async def _look(self) -> None:
        """Nothing has come for a while: is there anybody who writes?"""
        standing = await self._log.standing()
        if standing is not None and standing.state is State.INTERRUPTED:
            await self._take_over()
            await self._reopened()

    async def _found_again(self) -> bool:
        """What has been lost."""
        if self._is_lost:  # and was found again, which has not helped
            return False
        is_there = await self._reopened()
        self._is_lost = True
        return is_there

    async def _reopened(self) -> bool:
        """The log is another process's by now, or this one's."""
        found = await self._find()
        if found is None or (standing := await found.standing()) is None:
            return False
        certain = self._log.certain
        if not can_be_read(standing, self._cursor) or (certain is not None and self._cursor > certain):
            return False
        if self._reader is not None:
            await self._reader.aclose()
        self._log, self._reader = found, found.reader(self._cursor)
        return True

    def _gap(self) -> bytes:
        message = "The stream was interrupted: its log does not hold the events that come next any more."
        error = {"message": message, "type": "stream_interrupted", "code": "resume_gap"}
        return (closing(self._open) if self._open else b"") + event_of({"error": error})


def can_be_read(standing: Standing, cursor: Cursor) -> bool:
    """Whether everything behind the cursor is still there, and the cursor is a place in this stream."""
    return standing.first - 1 <= cursor[0] <= standing.last


def _nothing() -> None:
    pass
