"""The audit's way from a stream to the database: a bounded queue, and one thread that writes it in batches.

A stream calls `Writer.record` and goes on. A full queue or a dead database costs rows, which are counted,
never a stream.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db import DataError, Error, IntegrityError, connection

from continuation.audit import retention
from continuation.audit.rows import characters_of, event_of, first_line, without_text
from continuation.metrics import noting
from continuation.models import ContinuationEvent
from continuation.splice.record import StreamRecord
from strategies.models import Strategy

logger = logging.getLogger(__name__)

QUEUE_ROWS = 10_000
QUEUE_CHARACTERS = 32_000_000  # of stored text, over all rows that wait
BATCH_ROWS = 200
GATHER_SECONDS = 0.2
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 30.0
PATIENCE = 3  # failures in a row after which the rows are suspected, no longer the database alone
FLUSH_AT_EXIT_SECONDS = 5.0
PRUNE_FIRST_SECONDS = 300.0
PRUNE_SECONDS = 3600.0
# What a database says about a row rather than about itself; the last three come from its driver.
BAD_ROW = (DataError, IntegrityError, ValueError, TypeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows since the process started. `queued` ones are on their way; `lost` ones will not come."""

    written: int
    lost: int
    queued: int


class AuditWriter:
    """The queue and its thread, which starts with the first record.

    `_changed` guards the fields below it. It is held for moments only, never while the database is asked.
    """

    def __init__(
        self,
        *,
        rows: int = QUEUE_ROWS,
        characters: int = QUEUE_CHARACTERS,
        gather: float = GATHER_SECONDS,
        first_retry: float = FIRST_RETRY_SECONDS,
        prune_first: float = PRUNE_FIRST_SECONDS,
    ) -> None:
        self._rows, self._characters = rows, characters
        self._gather, self._first_retry = gather, first_retry
        self._prune_at = time.monotonic() + prune_first
        self._changed = threading.Condition()
        self._queue: deque[StreamRecord] = deque()
        self._queued_characters = 0
        self._in_hand = 0  # taken from the queue, neither written nor given up yet
        self._written = self._given_up = 0
        self._refused = 0  # found no room
        self._burst = 0  # found no room since the queue last ran empty
        self._flushes = 0  # begun
        self._flushing = 0  # of them, still waiting
        self._stopped = False
        self._thread: threading.Thread | None = None

    def record(self, stream_record: StreamRecord) -> None:
        """Note a stream. Returns at once and never raises; a row that finds no room is counted as lost."""
        try:
            starts_burst = self._put(
                stream_record if settings.AUDIT_STORE_TEXT else without_text(stream_record)
            )
        except Exception:
            with self._changed:
                self._refused += 1
                noting.audit_rows(lost=1)
            logger.exception("an audit row is lost")
            return
        if starts_burst:
            logger.warning("the audit queue is full: rows are being lost")

    def flush(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until all that was recorded so far is written. Blocks its thread.

        False when the time ran out, or when a row had to be given up meanwhile.
        """
        with self._changed:
            given_up = self._given_up
            target = self._settled() + self._in_hand + len(self._queue)
            self._flushes += 1
            self._flushing += 1
            self._changed.notify_all()
            settled = self._changed.wait_for(lambda: self._settled() >= target or self._stopped, timeout)
            self._flushing -= 1
            return settled and not self._stopped and self._given_up == given_up

    def counts(self) -> Counts:
        with self._changed:
            return Counts(
                written=self._written,
                lost=self._refused + self._given_up,
                queued=self._in_hand + len(self._queue),
            )

    def flush_at_exit(self) -> None:
        if self.counts().queued and not self.flush(FLUSH_AT_EXIT_SECONDS):
            logger.warning("the process ends with %d audit rows unwritten", self.counts().queued)

    def stop(self) -> None:
        """End the thread after the statement it is at; what is not written by then is dropped."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self, timeout: float) -> None:
        if self._thread:
            self._thread.join(timeout)

    # -- the queue -------------------------------------------------------------------------------

    def _put(self, row: StreamRecord) -> bool:
        """Queue the row or count it as lost; True for the first one of a burst of losses."""
        weight = characters_of(row)
        with self._changed:
            if len(self._queue) >= self._rows or self._queued_characters + weight > self._characters:
                self._refused += 1
                noting.audit_rows(lost=1)
                self._burst += 1
                return self._burst == 1
            self._start_thread()
            self._queue.append(row)
            self._queued_characters += weight
            self._changed.notify_all()
            return False

    def start(self) -> None:
        """Start the thread now, which also prunes; else it starts with the first row."""
        with self._changed:
            self._start_thread()

    def _start_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="continuation-audit", daemon=True)
            self._thread.start()

    def _settled(self) -> int:
        return self._written + self._given_up

    def _settle(self, written: int = 0, given_up: int = 0) -> None:
        noting.audit_rows(written=written, lost=given_up)
        with self._changed:
            self._written += written
            self._given_up += given_up
            self._in_hand -= written + given_up
            lost = 0 if self._queue else self._burst
            self._burst -= lost
            self._changed.notify_all()
        if lost:
            logger.warning("the audit queue was full: %d rows were lost", lost)

    def _give_up(self, event: ContinuationEvent, trouble: Exception) -> None:
        logger.warning("the audit row of request %s is lost: %s", event.request_id, _brief(trouble))
        self._settle(given_up=1)

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._write(self._next_batch())
                if time.monotonic() >= self._prune_at:
                    self._prune()
            except Exception:
                logger.exception("the audit writer failed: %d rows are lost", self._in_hand)
                self._settle(given_up=self._in_hand)
            finally:
                _close_connection()

    def _next_batch(self) -> list[ContinuationEvent]:
        """Wait for rows, then a moment for more of them; empty when it is time to prune or to stop."""
        with self._changed:
            until_prune = max(0.0, self._prune_at - time.monotonic())
            if not self._changed.wait_for(lambda: self._queue or self._stopped, until_prune):
                return []
            self._changed.wait_for(
                lambda: len(self._queue) >= BATCH_ROWS or self._flushing or self._stopped, self._gather
            )
        return self._take(BATCH_ROWS)

    def _take(self, most: int) -> list[ContinuationEvent]:
        with self._changed:
            rows = [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
            self._queued_characters -= sum(map(characters_of, rows))
            self._in_hand += len(rows)
        return [event_of(row) for row in rows]

    def _write(self, batch: list[ContinuationEvent]) -> None:
        """Until each row is settled, with growing pauses while the database is away."""
        pause, failures = self._first_retry, 0
        strikes: Counter[int] = Counter()
        while batch and not self._stopped:
            flushes = self._flushes
            try:
                if failures >= PATIENCE or not self._write_at_once(batch):
                    self._write_row_by_row(batch, strikes)
            except Error as trouble:
                failures += 1
                if failures == 1:
                    logger.warning("the audit cannot be written now, trying again: %s", _brief(trouble))
                _close_connection()
                pause = self._rest(pause, flushes)
                batch += self._take(BATCH_ROWS - len(batch))
        if failures and not batch:
            logger.info("the audit is written again")

    def _write_at_once(self, batch: list[ContinuationEvent]) -> bool:
        """False if a row of the batch is bad. Raises Error when the database is away."""
        try:
            _insert(batch)
        except BAD_ROW:
            return False
        self._settle(written=len(batch))
        batch.clear()
        return True

    def _write_row_by_row(self, batch: list[ContinuationEvent], strikes: Counter[int]) -> None:
        """Take out what can be written and what is bad. Raises Error when rows are left to be tried again.

        A row that failed PATIENCE times while others could be written is bad, whatever the database calls it.
        Rows to be tried again go to the end, so that they hold up no others.
        """
        failed: list[tuple[ContinuationEvent, Error]] = []
        written = 0
        while batch and len(failed) < PATIENCE and not self._stopped:
            event = batch.pop(0)
            try:
                _insert([event])
            except BAD_ROW as trouble:
                strikes.pop(id(event), None)
                self._give_up(event, trouble)
            except Error as trouble:
                failed.append((event, trouble))
            else:
                written += 1
                self._settle(written=1)
                strikes.pop(id(event), None)
        for event, error in failed:
            strikes[id(event)] += bool(written)
            if strikes[id(event)] >= PATIENCE:
                strikes.pop(id(event))
                self._give_up(event, error)
            else:
                batch.append(event)
        if failed and batch:
            raise failed[-1][1]

    def _rest(self, pause: float, flushes: int) -> float:
        """Wait that long, or until more than `flushes` have been asked for; the length of the next pause."""
        with self._changed:
            hurried = self._changed.wait_for(lambda: self._flushes != flushes or self._stopped, pause)
        return self._first_retry if hurried else min(pause * 2, LAST_RETRY_SECONDS)

    def _prune(self) -> None:
        """One slice; the next comes after the rows that wait, or in an hour if it was the last."""
        try:
            deleted = retention.prune(settings.AUDIT_RETENTION_DAYS, most=retention.PRUNE_ROWS)
        except Error as trouble:
            logger.warning("old audit rows cannot be pruned: %s", _brief(trouble))
            deleted = 0
        if deleted < retention.PRUNE_ROWS:
            self._prune_at = time.monotonic() + PRUNE_SECONDS


def _insert(events: Sequence[ContinuationEvent]) -> None:
    try:
        _create(events)
    except IntegrityError:
        if not _forget_deleted_strategies(events):
            raise
        _create(events)


def _create(events: Sequence[ContinuationEvent]) -> None:
    for event in events:
        event.pk = None  # an attempt that failed at its commit has left one
        event._state.adding = True
    ContinuationEvent.objects.bulk_create(events)


def _forget_deleted_strategies(events: Sequence[ContinuationEvent]) -> bool:
    """True if there were any; the rows keep the name."""
    named = {event.strategy_id for event in events if event.strategy_id is not None}
    deleted = named - set(Strategy.objects.filter(pk__in=named).values_list("pk", flat=True))
    for event in events:
        if event.strategy_id in deleted:
            event.strategy_id = None
    return bool(deleted)


def _close_connection() -> None:
    try:
        connection.close()
    except Exception as trouble:
        logger.warning("the audit's database connection cannot be closed: %s", _brief(trouble))


def _brief(trouble: Exception) -> str:
    """Kind and first line: the others may quote the row."""
    return f"{type(trouble).__name__}: {first_line(str(trouble))[:200]}"
