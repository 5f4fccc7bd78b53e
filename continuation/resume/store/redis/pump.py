"""The loop that moves the ledger: it sends what is new to Redis and performs what the answers say. Streams never wait
for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from continuation.patience import Alarm
from continuation.resume.log import Entry, State, StoreAway
from continuation.resume.store.hot import HotLog
from continuation.resume.store.redis.account import (
    Account,
    Begun,
    Fact,
    HandedOver,
    Lost,
    Presence,
    StopWanted,
    Visible,
)
from continuation.resume.store.redis.ledger import Ledger
from continuation.resume.store.redis.lines import Line, Lines

logger = logging.getLogger(__name__)

# Seconds after which a flush's connection is given up.
FLUSH_SECONDS = 2.0
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.4)
HOUSEKEEPING_SECONDS = 1.0
# The same, while Redis is late.
HURRIED_SECONDS = 0.05
# What Redis says of a key that holds something else. It is one stream's trouble, and no reason to leave all others.
SPOILT = "WRONGTYPE"


def _ignore() -> None:
    pass


@dataclass(slots=True, eq=False)
class LocalStream:
    """A stream of this process: its log, its account, and who is to hear of it."""

    log: HotLog
    account: Account
    has_begun: asyncio.Future[bool] | None = None
    is_stopped: bool = False
    stop: Callable[[], None] = _ignore
    lost: Callable[[], None] = _ignore
    expiry: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        return self.account.runs


class Pump:
    """Runs as three tasks of its owner: `run`, `keep_house`, and `seal`, for large requests.

    on_append: called for each append with the seconds until its readers could have it."""

    def __init__(self, lines: Lines, ledger: Ledger, on_append: Callable[[float], None]) -> None:
        self.streams: dict[str, LocalStream] = {}
        self.is_closing = False
        self._lines, self._ledger, self._on_append = lines, ledger, on_append
        self._to_seal: asyncio.Queue[Account] = asyncio.Queue()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._alarm = Alarm(ledger.patience_left, self._judge)

    def raise_if_away(self) -> None:
        """Raises StoreAway."""
        if self.is_closing or self._ledger.health.is_away:
            raise StoreAway("the process ends" if self.is_closing else "Redis is away")

    def is_shared(self, stream: LocalStream) -> bool:
        """Whether another process could go on with the stream, if this one handed it over now."""
        is_there = stream.account.presence is Presence.THERE
        return stream.runs and is_there and not self._ledger.health.is_late

    # -- what the streams do -----------------------------------------------------------------------

    def add(self, stream: LocalStream) -> None:
        self.streams[stream.account.stream_id] = stream
        self._ledger.add(stream.account)
        self._wake()

    def append(self, stream: LocalStream, entries: Sequence[Entry]) -> None:
        if not entries or stream.log.gone:
            return
        stream.log.append(entries)
        self._perform(self._ledger.note_appended(stream.account, entries))
        self._wake()

    def begin_leg2(self, stream: LocalStream) -> None:
        stream.log.leg2_from = stream.log.last + 1
        self._note_new(stream)

    def end(self, stream: LocalStream, state: State) -> None:
        log = stream.log
        if log.ended_at is None and not log.gone:
            log.end(state)
            self._note_new(stream)
            ttl = self._ledger.terms.limits.ttl
            stream.expiry = asyncio.get_running_loop().call_later(ttl, self.forget, stream)

    def hand_over(self, stream: LocalStream) -> None:
        """Once all of it is written it is nobody's, for another process to take."""
        self._ledger.hand_over(stream.account)
        self._wake()

    def drop(self, stream: LocalStream) -> None:
        """No trace of it stays."""
        self._ledger.drop(stream.account)
        self.forget(stream)
        self._wake()

    def forget(self, stream: LocalStream) -> None:
        """Nothing of it stays in this process."""
        if not self._ledger.forget(stream.account):
            return
        del self.streams[stream.account.stream_id]
        if stream.expiry is not None:
            stream.expiry.cancel()
        stream.log.expire()
        _resolve(stream.has_begun, False)

    def stop(self, stream: LocalStream) -> None:
        if stream.runs and not stream.is_stopped:
            stream.is_stopped = True
            _call(stream.stop)

    def _note_new(self, stream: LocalStream) -> None:
        self._ledger.note_new(stream.account)
        self._wake()

    def _wake(self) -> None:
        """Let `run` see what is new."""
        if self._ledger.has_unwritten:
            self._idle.clear()
        if self._ledger.is_due:
            self._work.set()

    # -- the tasks ---------------------------------------------------------------------------------

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                async with self._lines.line() as line:
                    self._ledger.note_all_new()
                    self._wake()
                    while True:
                        await self._flush(line)
                        failures = 0
            except StoreAway as trouble:
                self._mark_away(str(trouble))
            except Exception as trouble:
                logger.exception("the resume log could not be written")
                self._mark_away(repr(trouble))
            await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
            failures += 1

    async def keep_house(self) -> None:
        """Renew what expires, and ask of each silent stream whether it is still ours and wanted."""
        ask_at = 0.0
        while True:
            self._ledger.note_lease_due()
            now = time.monotonic()
            if now >= ask_at:
                ask_at = now + HOUSEKEEPING_SECONDS * 0.9
                self._ledger.note_silent(HOUSEKEEPING_SECONDS * 0.8)
            self._wake()
            is_late = self._ledger.health.is_late
            await asyncio.sleep(HURRIED_SECONDS if is_late else HOUSEKEEPING_SECONDS)

    async def seal(self) -> None:
        """Encrypt the pieces of large requests, off the event loop and one at a time."""
        seal = self._ledger.terms.seal
        while True:
            account = await self._to_seal.get()
            request = account.request
            index, piece = request.written, request.next_piece()
            request.note_sealed(index, await asyncio.to_thread(seal.close, piece))
            self._ledger.note_new(account)
            self._wake()

    async def settle(self, seconds: float) -> None:
        """Wait until all is written, for `seconds` at most, and not at all for a store that is away."""
        if not self._ledger.health.is_away:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()

    def begin_closing(self) -> None:
        """The process ends: another one may take its streams."""
        self.is_closing = True
        for stream in self.streams.values():
            self.hand_over(stream)

    def close(self) -> None:
        self._alarm.cancel()
        for stream in list(self.streams.values()):
            self.forget(stream)

    # -- one flush ---------------------------------------------------------------------------------

    async def _flush(self, line: Line) -> None:
        await self._work.wait()
        self._work.clear()
        flush = self._ledger.next_flush()
        if flush is None:
            self._idle.set()
            return
        for account in flush.to_seal:
            self._to_seal.put_nowait(account)
        self._alarm.set()
        try:
            answers = await line.ask(flush.commands, FLUSH_SECONDS, answered=SPOILT)
        except BaseException:
            self._ledger.break_off()
            raise
        self._perform(self._ledger.take_answers(flush, answers))
        self._wake()
        if not self._work.is_set():
            self._idle.set()

    def _judge(self) -> None:
        self._perform(self._ledger.judge())
        self._note_away()
        self._alarm.set()

    def _mark_away(self, trouble: str) -> None:
        self._perform(self._ledger.mark_away(trouble))
        self._note_away()

    def _note_away(self) -> None:
        if self._ledger.health.is_away:
            self._idle.set()  # nobody need wait for what may never be written

    # -- facts -------------------------------------------------------------------------------------

    def _perform(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            stream = self.streams.get(fact.stream_id)
            if stream is not None:
                self._perform_one(stream, fact)

    def _perform_one(self, stream: LocalStream, fact: Fact) -> None:
        match fact:
            case Visible():
                stream.log.show(fact.until)
                for seconds in fact.waits:
                    self._on_append(seconds)
            case Begun():
                _resolve(stream.has_begun, fact.is_written)
            case StopWanted():
                self.stop(stream)
            case Lost():
                lost = stream.lost if stream.runs else _ignore
                stream.log.certain = fact.at
                self.forget(stream)
                _call(lost)
            case HandedOver():
                self.forget(stream)


def _resolve(future: asyncio.Future[bool] | None, whether: bool) -> None:
    if future is not None and not future.done():
        future.set_result(whether)


def _call(hook: Callable[[], None]) -> None:
    try:
        hook()
    except Exception:
        logger.exception("the generation did not take it")
