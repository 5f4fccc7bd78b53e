"""How the logs of this process's streams get into Redis: behind the streams, never in their way.

A log in memory is the source, and `Kept.at` says up to where Redis has it. One flush at a time is under way, with what
is new of all streams in one go; whatever fails is simply still new. Readers see an entry once Redis has it, unless
Redis is late: then all is shown at once, until a flush has been acknowledged in time again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from typing import Any

from continuation.patience import Alarm
from continuation.resume.log import Cursor, Entry, Held, Limits, State, StoreAway
from continuation.resume.store.hot import HotLog
from continuation.resume.store.redis.health import Health
from continuation.resume.store.redis.lines import Command, Line, Lines, Value, call
from continuation.resume.store.redis.scripts import (
    APPEND,
    CREATE,
    DROP,
    END_PART,
    REQUEST,
    Keys,
    cursor_of,
    id_of,
    keys_of,
    lease_of,
)
from continuation.resume.store.redis.sealing import Seal

logger = logging.getLogger(__name__)

# A flush that takes longer makes the store late; a late one for so long is away, and then its connection is given up.
PATIENCE = 0.1
LATE_SECONDS = 0.5
FLUSH_SECONDS = 2.0
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.4)
# Of one flush: bytes of one stream, of all, streams.
STREAM_BYTES = 2**16
FLUSH_BYTES = 2**18
FLUSH_STREAMS = 200
# How a request is cut. One larger than the last of these is not waited for.
REQUEST_BYTES = 2**16
AWAITED_BYTES = 2**18

LEASE_SECONDS = 5.0
HOUSEKEEPING_SECONDS = 1.0
HURRIED_SECONDS = 0.05
# How often the expiry of what runs is put off; how long a new one lasts until that has been done once.
RENEWAL_SECONDS = 5.0
CREATED_SECONDS = 15.0
# What Redis says of a key that holds something else. It is one stream's trouble, and no reason to leave all others.
SPOILT = "WRONGTYPE"

_ZERO: Cursor = (0, 0)


def _ignore() -> None:
    pass


@dataclass(slots=True, eq=False)
class Kept:
    """One stream of this process. at: up to where Redis has it; told: what else it has been told of it."""

    log: HotLog
    request: bytes
    epoch: int = 1
    at: Cursor = _ZERO
    is_created: bool = False
    told: tuple[State, int, str] | None = None
    trimmed: Cursor = _ZERO
    renewed_at: float = 0.0
    answered_at: float = 0.0
    pieces_written: int = 0
    sealed_piece: bytes | None = None
    is_sealing: bool = False
    is_handed: bool = False
    is_stopped: bool = False
    is_behind: bool = False  # its readers do not wait for Redis, until that has it all again
    is_spoilt: bool = False  # its keys hold something else
    has_begun: asyncio.Future[bool] | None = None
    stop: Callable[[], None] = _ignore
    lost: Callable[[], None] = _ignore
    unseen: deque[tuple[Cursor, float]] = field(default_factory=deque)
    sealed: dict[Cursor, bytes] = field(default_factory=dict)
    keys: Keys = field(init=False)

    def __post_init__(self) -> None:
        self.keys = keys_of(self.log.stream_id)

    @property
    def runs(self) -> bool:
        return self.log.ended_at is None and not self.log.gone and not self.is_handed

    @property
    def pieces(self) -> int:
        return -(-len(self.request) // REQUEST_BYTES)

    def piece(self) -> bytes:
        start = self.pieces_written * REQUEST_BYTES
        return self.request[start : start + REQUEST_BYTES]

    @property
    def is_awaited(self) -> bool:
        """Whether something of the beginning has not been written yet."""
        late_request = len(self.request) <= AWAITED_BYTES and self.pieces_written < self.pieces
        return not self.is_created or late_request

    def is_missing(self) -> None:
        """Redis has nothing of it, and will not have it all in a moment."""
        self.is_behind = True
        self.is_created, self.at, self.told, self.trimmed = False, _ZERO, None, _ZERO
        self.renewed_at, self.pieces_written, self.sealed_piece = 0.0, 0, None


@dataclass(slots=True)
class Sent:
    """One stream's part of a flush: its commands, and what Redis has if they are answered with ok."""

    kept: Kept
    commands: list[Command]
    clears: bool = False
    creates: bool = False
    piece: bytes | None = None
    until: Cursor = _ZERO
    told: tuple[State, int, str] | None = None
    trimmed: Cursor = _ZERO
    renews: bool = False


@dataclass(slots=True)
class Flush:
    """whole: nothing that was new is left out."""

    lease: bool = False
    sent: list[Sent] = field(default_factory=list)
    dropped: list[Kept] = field(default_factory=list)
    whole: bool = True


class Mirror:
    """Runs as two tasks of its owner: `run` and `keep_house`, and a third one, `seal`, for large requests."""

    def __init__(
        self, lines: Lines, owner: str, limits: Limits, seal: Seal, on_append: Callable[[float], None]
    ) -> None:
        self.kept: dict[str, Kept] = {}
        self.handed: set[str] = set()  # this process does not take them back
        self.health = Health()
        self.held = Held()
        self._lines, self._owner, self._limits, self._seal = lines, owner, limits, seal
        self._on_append = on_append
        self._new: dict[str, Kept] = {}
        self._dropped: dict[str, Kept] = {}
        self._to_seal: deque[Kept] = deque()
        self._sealing = asyncio.Event()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._lease_due = True
        self._under_way: Flush | None = None
        self._sent_at = 0.0
        self._judge_at: float | None = None
        self._alarm = Alarm(self._patience_left, self._judge)
        self._expiries: dict[str, asyncio.TimerHandle] = {}

    # -- what the streams do -----------------------------------------------------------------------

    def add(self, kept: Kept) -> None:
        self.kept[kept.log.stream_id] = kept
        self.held.bytes += len(kept.request)
        self.note(kept)

    def note(self, kept: Kept) -> None:
        """Something of it is new."""
        if self.kept.get(kept.log.stream_id) is kept:
            self._new[kept.log.stream_id] = kept
            self._idle.clear()
            self._work.set()

    def append(self, kept: Kept, entries: Sequence[Entry]) -> None:
        if not entries or kept.log.gone:
            return
        kept.log.append(entries)
        if self.health.is_late or kept.is_behind:
            kept.log.show_all()
            self._on_append(0.0)
        else:
            kept.unseen.append((kept.log.appended, time.monotonic()))
            if self._under_way is not None and self._seal.encrypts:  # there is time
                kept.sealed |= {entry.cursor: self._seal.close(entry.data) for entry in entries}
        self.note(kept)

    def end(self, kept: Kept, state: State) -> None:
        log = kept.log
        if log.ended_at is None and not log.gone:
            log.end(state)
            self.note(kept)
            loop = asyncio.get_running_loop()
            self._expiries[log.stream_id] = loop.call_later(self._limits.ttl, self.forget, kept)

    def hand_over(self, kept: Kept) -> None:
        """Once all of it is written it is nobody's, for another process to take."""
        if kept.runs:
            kept.is_handed = True
            self.handed.add(kept.log.stream_id)
            self.note(kept)

    def drop(self, kept: Kept) -> None:
        """No trace of it stays."""
        if self.forget(kept):
            self._dropped[kept.log.stream_id] = kept
            self._idle.clear()
            self._work.set()

    def forget(self, kept: Kept) -> bool:
        """Whether it was there."""
        stream_id = kept.log.stream_id
        if self.kept.get(stream_id) is not kept:
            return False
        del self.kept[stream_id]
        self._new.pop(stream_id, None)
        expiry = self._expiries.pop(stream_id, None)
        if expiry is not None:
            expiry.cancel()
        kept.unseen.clear()
        kept.sealed.clear()
        self._drop_request(kept)
        kept.log.expire()
        _begun(kept, False)
        return True

    def _drop_request(self, kept: Kept) -> None:
        self.held.bytes -= len(kept.request)
        kept.request, kept.sealed_piece = b"", None

    def stop(self, kept: Kept) -> None:
        if kept.runs and not kept.is_stopped:
            kept.is_stopped = True
            _tell(kept.stop)

    # -- the tasks ---------------------------------------------------------------------------------

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                async with self._lines.line() as line:
                    for kept in self.kept.values():
                        self.note(kept)  # Redis may have forgotten it
                    self._lease_due = True
                    self._work.set()
                    while True:
                        await self._flush(line)
                        failures = 0
            except StoreAway as trouble:
                self._is_away(str(trouble))
            except Exception as trouble:
                logger.exception("the resume log could not be written")
                self._is_away(repr(trouble))
            await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
            failures += 1

    async def keep_house(self) -> None:
        """Renew what expires, and ask of each silent stream whether it is still ours and wanted."""
        ask_at = 0.0
        while True:
            self._lease_due = True
            self._work.set()
            now = time.monotonic()
            if now >= ask_at:
                ask_at = now + HOUSEKEEPING_SECONDS * 0.9
                for kept in self.kept.values():
                    if kept.runs and kept.answered_at < now - HOUSEKEEPING_SECONDS * 0.8:
                        self.note(kept)
            await asyncio.sleep(HURRIED_SECONDS if self.health.is_late else HOUSEKEEPING_SECONDS)

    async def seal(self) -> None:
        """Encrypt the pieces of large requests, off the event loop and one at a time."""
        while True:
            await self._sealing.wait()
            while self._to_seal:
                kept = self._to_seal.popleft()
                index, piece = kept.pieces_written, kept.piece()
                sealed = await asyncio.to_thread(self._seal.close, piece)
                kept.is_sealing = False
                if kept.pieces_written == index:
                    kept.sealed_piece = sealed
                self.note(kept)
            self._sealing.clear()

    async def settle(self, seconds: float) -> None:
        """Wait until all is written, for so long at most, and not at all for a store that is away."""
        if not self.health.is_away:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()

    def close(self) -> None:
        self._alarm.cancel()
        for kept in list(self.kept.values()):
            self.forget(kept)

    # -- one flush ---------------------------------------------------------------------------------

    async def _flush(self, line: Line) -> None:
        await self._work.wait()
        self._work.clear()
        flush, commands = self._next()
        if not commands:
            self._idle.set()
            return
        was_late, self._sent_at, self._under_way = self.health.is_late, time.monotonic(), flush
        self._judge_at = self._sent_at + PATIENCE
        self._alarm.set()
        try:
            answers = await line.ask(commands, FLUSH_SECONDS, answered=SPOILT)
        finally:
            self._under_way = self._judge_at = None
        now = time.monotonic()
        self._is_answered(flush, answers, now)
        if was_late and flush.whole and now - self._sent_at < PATIENCE:
            self.health.mark_well(now)
        elif self.health.is_away:  # it has answered: ask at once how fast it is now
            self._lease_due = True
            self._work.set()
        if self._new or self._dropped:
            self._work.set()
        elif not self._work.is_set():
            self._idle.set()

    def _next(self) -> tuple[Flush, list[Command]]:
        flush, room = Flush(), FLUSH_BYTES
        commands: list[Command] = []
        if self._lease_due:
            self._lease_due, flush.lease = False, True
            commands.append(("SET", lease_of(self._owner), "1", "PX", int(LEASE_SECONDS * 1000)))
        for kept in list(self._dropped.values())[:FLUSH_STREAMS]:
            flush.dropped.append(kept)
            commands.append(self._drop_of(kept))
        while self._new:
            if room <= 0 or len(flush.sent) >= FLUSH_STREAMS:
                flush.whole = False
                break
            kept = self._new.pop(next(iter(self._new)))
            sent, size = self._part_of(kept)
            room -= size
            flush.sent.append(sent)
            commands += sent.commands
            flush.whole &= sent.until >= kept.log.appended
        return flush, commands

    def _drop_of(self, kept: Kept) -> Command:
        keys = kept.keys
        return call(DROP, (keys.meta, keys.log, keys.request, keys.reader), self._owner, kept.epoch)

    def _part_of(self, kept: Kept) -> tuple[Sent, int]:
        log = kept.log
        entries = log.since(kept.at, STREAM_BYTES)
        until = entries[-1].cursor if entries else kept.at
        sent = Sent(kept, [], until=until, trimmed=log.trimmed)
        if kept.is_spoilt:
            sent.clears = True
            sent.commands.append(("DEL", *astuple(kept.keys)))
        if not kept.is_created:
            sent.creates = True
            sent.commands.append(self._create_of(kept))
        sent.commands.append(self._append_of(kept, sent, entries))
        self._add_request(kept, sent)
        return sent, sum(len(entry.data) for entry in entries) + len(sent.piece or b"")

    def _create_of(self, kept: Kept) -> Command:
        log, keys = kept.log, kept.keys
        values = (self._owner, kept.epoch, self._first_ttl, log.first, log.leg2_from, repr(log.started_at))
        return call(CREATE, (keys.meta, keys.log, keys.request), *values)

    def _append_of(self, kept: Kept, sent: Sent, entries: Sequence[Entry]) -> Command:
        log, keys = kept.log, kept.keys
        # The end is told with the last entries; until then the stream runs, for whoever reads it in Redis.
        complete = sent.until >= log.appended
        owner = "" if complete and kept.is_handed else self._owner
        sent.told = (log.state if complete else State.RUNNING, log.leg2_from, owner)
        told: tuple[Value, ...] = ("", "", "", "")
        if sent.told != kept.told:
            told = (sent.told[0].value, log.leg2_from, repr(log.ended_at) if log.ended_at else "", owner)
        oldest = id_of(log.oldest) if sent.trimmed != kept.trimmed else ""
        values = [
            *(self._owner, kept.epoch, id_of(kept.at), id_of(sent.until), self._ttl(kept, sent)),
            *(log.first, oldest, *told, f"{sent.until[0]}-{END_PART}"),
        ]
        for entry in entries:
            sealed = kept.sealed.pop(entry.cursor, None) or self._seal.close(entry.data)
            values += (id_of(entry.cursor), "o" if entry.open else "d", sealed)
        return call(APPEND, (keys.meta, keys.log, keys.request), *values)

    @property
    def _first_ttl(self) -> int:
        """Of a log whose stream may not come to be."""
        return int(min(CREATED_SECONDS, self._limits.ttl + self._limits.grace) * 1000)

    def _ttl(self, kept: Kept, sent: Sent) -> Value:
        """Milliseconds, empty for as before."""
        now = time.monotonic()
        if sent.told == kept.told and now - kept.renewed_at < RENEWAL_SECONDS and kept.at != _ZERO:
            return ""
        seconds = self._limits.ttl
        if kept.has_begun is not None and not kept.has_begun.done():
            return self._first_ttl
        sent.renews = True
        if kept.log.ended_at is None:
            seconds += self._limits.grace
        else:
            seconds -= time.time() - kept.log.ended_at
        return max(1, int(seconds * 1000))

    def _add_request(self, kept: Kept, sent: Sent) -> None:
        if not kept.runs or kept.pieces_written >= kept.pieces or kept.is_sealing:
            return
        piece = kept.sealed_piece
        if piece is None and self._seal.encrypts and len(kept.request) > REQUEST_BYTES:
            kept.is_sealing = True
            self._to_seal.append(kept)
            self._sealing.set()
            return
        sent.piece = self._seal.close(kept.piece()) if piece is None else piece
        keys = (kept.keys.meta, kept.keys.request)
        values = (self._owner, kept.epoch, kept.pieces_written, kept.pieces, sent.piece)
        sent.commands.append(call(REQUEST, keys, *values))

    # -- its answer --------------------------------------------------------------------------------

    def _is_answered(self, flush: Flush, answers: list[Any], now: float) -> None:
        left = iter(answers)
        if flush.lease:
            next(left)
        for kept in flush.dropped:
            next(left)
            if self._dropped.get(kept.log.stream_id) is kept:
                del self._dropped[kept.log.stream_id]
        for sent in flush.sent:
            told = [next(left) for _ in sent.commands]
            if not sent.kept.log.gone:
                self._part_is_answered(sent, told, now)

    def _part_is_answered(self, sent: Sent, told: list[bytes], now: float) -> None:
        kept, left = sent.kept, iter(told)
        kept.answered_at = now
        if b"lost" in told:
            self._lose(kept)
            return
        if any(isinstance(answer, Exception) for answer in told):
            self._is_spoilt(sent)
            return
        if sent.clears:
            next(left)
            kept.is_spoilt = False
        if sent.creates:
            next(left)
            kept.is_created = True
        self._append_is_answered(sent, next(left), now)
        if sent.piece is not None:
            self._piece_is_answered(kept, next(left))
        if kept.has_begun is not None and not kept.is_awaited:
            _begun(kept, True)

    def _is_spoilt(self, sent: Sent) -> None:
        """Its keys are cleared, and it is written again: now, or if that has not helped, with what comes next."""
        kept = sent.kept
        if not kept.is_spoilt:
            logger.warning("stream %s: its keys in Redis hold something else", kept.log.stream_id)
        kept.is_missing()
        kept.is_spoilt = True
        self._show_all(kept, time.monotonic())
        if not sent.clears:
            self.note(kept)

    def _append_is_answered(self, sent: Sent, answer: bytes, now: float) -> None:
        kept = sent.kept
        if answer == b"missing":
            kept.is_missing()
            self._show_all(kept, now)
            self.note(kept)
        elif answer in (b"ok", b"stop"):
            self._is_written(sent, now)
            if answer == b"stop":
                self.stop(kept)
        else:
            kept.at, kept.told, kept.trimmed = cursor_of(answer), None, _ZERO
            self.note(kept)

    def _is_written(self, sent: Sent, now: float) -> None:
        kept = sent.kept
        kept.at, kept.told, kept.trimmed = sent.until, sent.told, sent.trimmed
        if sent.renews:
            kept.renewed_at = now
        kept.log.show(min(kept.at, kept.log.appended))
        self._tell_times(kept, kept.at, now)
        is_done = kept.at >= kept.log.appended
        if kept.unseen and now - kept.unseen[0][1] > PATIENCE:  # Redis is in time, and not with this stream
            kept.is_behind = True
            self._show_all(kept, now)
        kept.is_behind = kept.is_behind and not is_done
        if is_done:
            kept.sealed.clear()  # also what was trimmed before it was sent
        if kept.is_handed and is_done and sent.told and sent.told[2] == "":
            self.forget(kept)
        elif not is_done or self._has_news(kept):
            self.note(kept)
        if sent.told and sent.told[0] is not State.RUNNING:
            self._drop_request(kept)

    def _has_news(self, kept: Kept) -> bool:
        owner = "" if kept.is_handed else self._owner
        return kept.told != (kept.log.state, kept.log.leg2_from, owner) or kept.trimmed != kept.log.trimmed

    def _piece_is_answered(self, kept: Kept, answer: bytes) -> None:
        kept.sealed_piece = None
        if answer == b"ok":
            kept.pieces_written += 1
        elif answer == b"missing":
            kept.pieces_written = 0
        else:
            kept.pieces_written = int(answer)
        if kept.pieces_written < kept.pieces:
            self.note(kept)

    def _lose(self, kept: Kept) -> None:
        """Another process has taken it over."""
        logger.warning("stream %s is another process's now", kept.log.stream_id)
        lost = kept.lost if kept.runs else _ignore
        kept.log.certain = kept.at
        self.forget(kept)
        _tell(lost)

    def _tell_times(self, kept: Kept, until: Cursor, now: float) -> None:
        while kept.unseen and kept.unseen[0][0] <= until:
            self._on_append(now - kept.unseen.popleft()[1])

    # -- whether it is late ------------------------------------------------------------------------

    def _patience_left(self) -> float | None:
        return None if self._judge_at is None else self._judge_at - time.monotonic()

    def _judge(self) -> None:
        """A flush is under way for too long."""
        if time.monotonic() - self._sent_at < LATE_SECONDS:
            self._is_late()
            self._judge_at = self._sent_at + LATE_SECONDS
            self._alarm.set()
        else:
            self._is_away("it does not answer")
            self._judge_at = None

    def _is_late(self) -> None:
        now = time.monotonic()
        self.health.mark_late(now)
        for kept in self.kept.values():
            kept.sealed.clear()
            self._show_all(kept, now)

    def _show_all(self, kept: Kept, now: float) -> None:
        kept.log.show_all()
        self._tell_times(kept, kept.log.appended, now)

    def _is_away(self, trouble: str) -> None:
        self.health.mark_away(time.monotonic(), trouble)
        self._is_late()
        for kept in self.kept.values():
            _begun(kept, False)
        self._idle.set()  # nobody need wait for what may never be written


def _begun(kept: Kept, whether: bool) -> None:
    if kept.has_begun is not None and not kept.has_begun.done():
        kept.has_begun.set_result(whether)


def _tell(told: Callable[[], None]) -> None:
    try:
        told()
    except Exception:
        logger.exception("the generation did not take it")
