"""Notes what happens in the figures of `/metrics`.

Noting something never raises and costs about a microsecond.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import ParamSpec, Protocol

from continuation.metrics import DIRECTORY, families
from continuation.metrics.families import UNBROKEN
from continuation.splice.record import StreamRecord

logger = logging.getLogger(__name__)

P = ParamSpec("P")
# How old the size of the log of another process may be.
REFRESH_SECONDS = 1.0


_complained = False


def _quietly(note: Callable[P, None]) -> Callable[P, None]:
    """A figure that cannot be kept, on a full disk for instance, breaks no stream. Said once."""

    @functools.wraps(note)
    def noting(*args: P.args, **kwargs: P.kwargs) -> None:
        global _complained
        try:
            note(*args, **kwargs)
        except Exception:
            if not _complained:
                _complained = True
                logger.exception("the metrics are not whole any more")

    return noting


@_quietly
def planned(plan: str) -> None:
    """A chat request: GUARDED, or the reason for which it is passed through."""
    families.PLANNED(plan).inc()


@_quietly
def refused(code: str) -> None:
    """An error of the gateway's own, before any answer."""
    families.REFUSED(code).inc()


@_quietly
def stream_ended(record: StreamRecord | None) -> None:
    """A guarded stream; None for one that needed nothing."""
    if record is None:
        families.STREAMS(UNBROKEN, "", "", "").inc()
        return
    families.STREAMS(record.outcome, record.failure, record.reason, record.route).inc()
    if record.seam_gap_seconds is not None:
        families.SEAM_GAP.observe(record.seam_gap_seconds)


@_quietly
def first_event(seconds: float) -> None:
    """Of a guarded stream, since its request."""
    families.FIRST_EVENT.observe(seconds)


@_quietly
def leg2_first_byte(seconds: float) -> None:
    """Since leg 2 was asked for."""
    families.LEG2_FIRST_BYTE.observe(seconds)


@_quietly
def audit_rows(*, written: int = 0, lost: int = 0) -> None:
    families.AUDIT_ROWS("written").inc(written)
    families.AUDIT_ROWS("lost").inc(lost)


@_quietly
def resumable(outcome: str) -> None:
    """A stream begins that was to be resumable: one of RESUMABLE_OUTCOMES."""
    families.RESUMABLE(outcome).inc()


@_quietly
def resumed(outcome: str) -> None:
    """A request that wants to resume, once: one of RESUME_OUTCOMES."""
    families.RESUMES(outcome).inc()


@_quietly
def resume_first_event(seconds: float) -> None:
    """Since the request that resumes."""
    families.RESUME_FIRST_EVENT.observe(seconds)


@_quietly
def resume_live(seconds: float) -> None:
    """Since the request that resumes, once all is sent that was there."""
    families.RESUME_LIVE.observe(seconds)


@_quietly
def token_issued(kind: str) -> None:
    """One of TOKEN_KINDS."""
    families.TOKENS_ISSUED(kind).inc()


@_quietly
def token_used(kind: str) -> None:
    """One of TOKEN_KINDS; only of tokens that are good."""
    families.TOKENS_USED(kind).inc()


@_quietly
def takeover(outcome: str) -> None:
    """A stream whose process is gone: one of TAKEOVER_OUTCOMES."""
    families.TAKEOVERS(outcome).inc()


@_quietly
def generations(running: int, detached: int) -> None:
    """How many there are in this process now, and how many of them have no reader."""
    families.GENERATIONS.set(running)
    families.DETACHED.set(detached)


@_quietly
def appended(seconds: float) -> None:
    """From the append to the moment at which readers may have it."""
    families.APPEND.observe(seconds)


class LogSize(Protocol):
    """What a store of logs holds now, and has taken in since the start."""

    streams: int
    events: int
    bytes: int
    events_appended: int
    bytes_appended: int


class Watch:
    """Brings the figures up to what the log of the process holds. In a process whose figures others tell as well it
    does so by itself."""

    def __init__(self) -> None:
        self._read: Callable[[], LogSize] | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._events = self._bytes = 0

    def look_at(self, read: Callable[[], LogSize]) -> None:
        """From now on the size is read here, of a new log. `read` is called in any thread, and must only look."""
        with self._lock:
            is_first, self._read = self._read is None, read
            self._events = self._bytes = 0
        if DIRECTORY and is_first:
            threading.Thread(target=self._keep_noting, name="metrics", daemon=True).start()

    def _keep_noting(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS):
            self.note()

    def stop(self) -> None:
        """Note the last figures of this process."""
        self._ended.set()
        self.note()

    @_quietly
    def note(self) -> None:
        with self._lock:
            if self._read is None:
                return
            size = self._read()
            families.LOG_STREAMS.set(size.streams)
            families.LOG_EVENTS.set(size.events)
            families.LOG_BYTES.set(size.bytes)
            families.EVENTS_APPENDED.inc(max(0, size.events_appended - self._events))
            families.BYTES_APPENDED.inc(max(0, size.bytes_appended - self._bytes))
            self._events, self._bytes = size.events_appended, size.bytes_appended
