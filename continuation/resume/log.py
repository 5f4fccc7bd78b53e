"""The resume log's port: what is kept of a stream, how it is read, and what a store of such logs has to do.

Events are numbered 1, 2, 3 ... over the whole stream. An event that is too large to be kept whole is kept in pieces,
parts 0, 1, 2 ... of its number. A cursor is the place after an entry; entries are read in order from a cursor on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

# Bytes that a reader is given at a time; or one entry, if that is larger.
PIECE_BYTES = 2**16

Cursor = tuple[int, int]
START: Cursor = (0, 2**31)


def after(number: int) -> Cursor:
    """The cursor behind the whole event of that number; 0 is the beginning."""
    return (number, 2**31)


class State(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"  # with [DONE]
    FAILED = "failed"  # with the failed ending
    STOPPED = "stopped"  # by a DELETE
    ABANDONED = "abandoned"  # no reader came back within the grace
    INTERRUPTED = "interrupted"  # the process that ran it is gone; a reader's coming starts it again


@dataclass(frozen=True, slots=True)
class Entry:
    """One event as its readers get it, or one part of it. open: more parts of this event follow."""

    number: int
    part: int
    data: bytes
    open: bool = False

    @property
    def cursor(self) -> Cursor:
        return (self.number, self.part)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a stream stands. first: the oldest event that is still there whole, last + 1 if none is; last: the newest,
    0 before any. leg2_from: the first event of leg 2, 0 while there is none. Times are seconds since 1970."""

    state: State
    first: int
    last: int
    leg2_from: int = 0
    started_at: float = 0.0
    ended_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.state not in (State.RUNNING, State.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Entries after a cursor, none if there is nothing new. aside: comment lines that came while this reader was there,
    which are in no log. lost: what came right after the cursor has been trimmed,
    or the whole log has expired, or is another process's by now: `Store.find` tells. ended: nothing comes after these
    entries."""

    entries: tuple[Entry, ...] = ()
    aside: bytes = b""
    lost: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Per stream: events, bytes (the newest entry is always kept). Of the process: streams, total_bytes.
    ttl: seconds that a log is kept after its end. grace: seconds that a generation goes on without a reader."""

    events: int = 20000
    bytes: int = 4 * 2**20
    streams: int = 10000
    total_bytes: int = 256 * 2**20
    ttl: float = 300.0
    grace: float = 120.0


@dataclass(slots=True)
class Held:
    """What the logs in this process's memory hold, and have taken in since the start."""

    streams: int = 0
    events: int = 0
    bytes: int = 0
    events_appended: int = 0
    bytes_appended: int = 0


class StoreAway(Exception):
    """The store does not answer, or not in time; whether there is such a stream is not known."""


class Reader(Protocol):
    """One who reads a log from a cursor on. As long as it is open the stream has a reader. Raises StoreAway where the
    log is not in this process."""

    async def read(self, most: int = PIECE_BYTES) -> LogSlice:
        """What comes next, as much as is there; nothing is given twice."""
        ...

    async def changed(self, seconds: float) -> bool:
        """Wait until `read` has something new, for `seconds` at most; whether it has. May be cancelled."""
        ...

    async def aclose(self) -> None: ...


class Log(Protocol):
    """One stream's log, for readers. Raises StoreAway where the log is not in this process."""

    @property
    def certain(self) -> Cursor | None:
        """Of a log that is lost to another process: up to where that one has the same. What a reader has beyond it,
        from a time in which the store was late, is another text than that one's."""
        ...

    async def standing(self) -> Standing | None:
        """None if the log has expired."""
        ...

    def reader(self, cursor: Cursor) -> Reader: ...


class LocalLog(Log, Protocol):
    """The log of a stream that runs in this process, as its generation sees it."""

    readers_changed: Callable[[], None] | None  # called when a reader has come or gone

    @property
    def last(self) -> int:
        """The newest event, 0 before any."""
        ...

    @property
    def reader_count(self) -> int: ...

    def since(self, cursor: Cursor) -> list[Entry]:
        """The entries after a cursor, whether readers see them already or not."""
        ...

    def has_room(self, coming: int) -> bool:
        """Whether `Writer.room` would not wait."""
        ...

    def hurry(self) -> None:
        """The stream ends now: nobody is waited for any more."""
        ...


class LogWriter(Protocol):
    """One stream's log, for the generation that runs in this process. None of these raises."""

    @property
    def stream_id(self) -> str: ...

    @property
    def log(self) -> LocalLog:
        """What readers in this process read."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether another process could go on with the stream, if this one handed it over now."""
        ...

    def append(self, entries: Sequence[Entry]) -> None:
        """Also before it is sent to anybody: readers see it only through the log."""
        ...

    def aside(self, comments: bytes) -> None:
        """Whole comment lines for the readers that are there now; they are not kept."""
        ...

    async def room(self, coming: int) -> None:
        """The one call that waits, for an entry of so many bytes: while readers in this process have not taken what is
        there, a window of it, or would lose what they have not taken."""
        ...

    def leg2_begins(self) -> None:
        """A second leg is asked for: whoever takes the stream over may not ask for another. Its first event is the
        next one."""
        ...

    def end(self, state: State) -> None: ...

    def hand_over(self) -> None:
        """This process goes: another one may take the stream over at once."""
        ...

    def discard(self) -> None:
        """The stream has not come to be: no trace of it stays."""
        ...

    def listen(self, stop: Callable[[], None], lost: Callable[[], None]) -> None:
        """stop: somebody, in any process, wants the generation stopped. lost: another process has taken the stream
        over, so this one must end without another word."""
        ...


@dataclass(frozen=True, slots=True)
class Taken:
    """A stream that this process has taken over. entries: all that the log holds; whole: from the first event on.
    request: what `begin` was given."""

    writer: LogWriter
    entries: tuple[Entry, ...]
    whole: bool
    standing: Standing
    request: bytes


class Store(Protocol):
    @property
    def held(self) -> Held: ...

    @property
    def keeps_requests(self) -> bool:
        """Whether a stream can be taken over at all, so that `begin` wants its request."""
        ...

    def open(self) -> None:
        """Begin to connect, so that the first stream finds the store ready. Never waits, never raises."""
        ...

    async def begin(self, stream_id: str, request: bytes, seconds: float) -> LogWriter | None:
        """A new stream; None where it cannot be resumable: a limit is reached, or the store does not answer within
        `seconds`. request: what a takeover needs, kept as long as the stream runs."""
        ...

    async def find(self, stream_id: str) -> Log | None:
        """None if there is no such stream any more, or never was. Raises StoreAway."""
        ...

    async def may_have_forgotten(self) -> bool:
        """Whether a stream that is not found may be there in a moment."""
        ...

    async def stop(self, stream_id: str) -> None:
        """Tell the generation, in whichever process. Raises StoreAway."""
        ...

    async def read_elsewhere(self, stream_id: str) -> float | None:
        """Seconds since a reader in another process was last seen to follow the stream: 0 if one does, None if none
        has for longer than the grace. Raises StoreAway where that cannot be known."""
        ...

    async def take_over(self, stream_id: str) -> Taken | None:
        """Of a stream whose process is gone: exactly one caller gets it, all others None. Raises StoreAway."""
        ...

    async def close(self) -> None:
        """The process ends: write what is to be written, for about a second, and let go."""
        ...
