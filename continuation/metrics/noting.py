"""Every figure that `/metrics` tells, declared once; nothing else imports prometheus_client.

Noting something never raises and costs about a microsecond. What stands in a label is a word of the gateway's own,
never one of a client's or an engine's, so that there are only so many.

With PROMETHEUS_MULTIPROC_DIR each process keeps its figures in files there, and any of them tells the sum of all.
Files of processes that are gone stay, for sums must not fall; but what such a process had open is not counted.
"""

from __future__ import annotations

import atexit
import functools
import glob
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import ParamSpec, Protocol

from django.conf import settings

from continuation.plan import PassReason
from continuation.vocabulary import StreamRecord

# prometheus_client looks there when it is imported, and takes an empty name for the current directory.
DIRECTORY: str = settings.PROMETHEUS_MULTIPROC_DIR
if DIRECTORY:
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = DIRECTORY
else:
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)

from prometheus_client import (  # noqa: E402
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    disable_created_metrics,
    exposition,
    generate_latest,
)
from prometheus_client.mmap_dict import MmapedDict  # noqa: E402
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead  # noqa: E402

logger = logging.getLogger(__name__)

P = ParamSpec("P")

# How old the size of the log of another process may be.
REFRESH_SECONDS = 1.0
# A process may take its file away while all are being read.
ATTEMPTS = 3

GUARDED = "guarded"
UNBROKEN = "unbroken"  # the outcome of a guarded stream that needed nothing
RESUMABLE_OUTCOMES = ("resumable", "unavailable")
TAKEOVER_OUTCOMES = ("taken", "another_was_first", "no_place", "unreadable", "failed")
RESUME_OUTCOMES = ("ok", "bad_cursor", "not_found", "expired", "trimmed", "unavailable", "finished")
TOKEN_KINDS = ("header", "checkpoint")

SUB_MILLISECOND = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3)
QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PATIENT = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)

# A second figure beside each, which several processes cannot tell.
disable_created_metrics()  # type: ignore[no-untyped-call]
if DIRECTORY:
    mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]  # of one that had the same number and was killed


def _counter(name: str, about: str, label: str, words: Iterable[str] = ()) -> Callable[[str], Counter]:
    """By its word, which is found without a search from the second time on; `words` are told before they occur."""
    family = Counter(f"continuation_{name}", about, [label])
    bound = functools.cache(family.labels)
    for word in words:
        bound(word)
    return bound


def _gauge(name: str, about: str) -> Gauge:
    return Gauge(f"continuation_{name}", about, multiprocess_mode="livesum")


def _seconds(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"continuation_{name}_seconds", about, buckets=buckets)


# -- the families ----------------------------------------------------------------------------------

_streams = functools.cache(
    Counter(
        "continuation_streams",
        "Guarded streams that have ended; the words are the audit's, and unbroken is a stream that needed nothing.",
        ["outcome", "failure", "reason", "route"],
    ).labels
)
_streams(UNBROKEN, "", "", "")
_planned = _counter(
    "chat_requests",
    "Chat requests: guarded, or the reason for which one is passed through.",
    "plan",
    [GUARDED, *PassReason],
)
_refused = _counter(
    "refused_requests", "Requests that the gateway answered with an error of its own.", "code"
)
_seam_gap = _seconds("seam_gap", "From the last event of leg 1 to the first text of leg 2.", PATIENT)
_first_event = _seconds("first_event", "From a guarded request to the first event of its answer.", PATIENT)
_leg2_first_byte = _seconds("leg2_first_byte", "From asking for leg 2 to its first byte.", PATIENT)
_audit_rows = _counter("audit_rows", "Rows of the audit, written or lost.", "state", ["written", "lost"])

_resumable = _counter(
    "resumable_streams",
    "Streams begun that were to be resumable, and are or are not.",
    "outcome",
    RESUMABLE_OUTCOMES,
)
_resumes = _counter("resumes", "Requests that resume a stream.", "outcome", RESUME_OUTCOMES)
_resume_first_event = _seconds("resume_first_event", "From a resume to the first event sent.", QUICK)
_resume_live = _seconds("resume_live", "From a resume to all being sent that there was.", QUICK)
_tokens_issued = _counter("resume_tokens_issued", "Resume tokens handed out.", "kind", TOKEN_KINDS)
_tokens_used = _counter("resume_tokens_used", "Resume tokens that opened a stream.", "kind", TOKEN_KINDS)
_takeovers = _counter(
    "takeovers", "Streams whose process was gone, and what became of them.", "outcome", TAKEOVER_OUTCOMES
)
_generations = _gauge("generations", "Resumable streams being generated now.")
_detached = _gauge("generations_without_reader", "Of these, those that nobody reads now.")
_log_streams = _gauge("log_streams", "Streams in the resume log now.")
_log_events = _gauge("log_events", "Events in the resume log now.")
_log_bytes = _gauge("log_bytes", "Bytes in the resume log now.")
_events_appended = Counter("continuation_log_events_appended", "Events that the resume log has taken in.")
_bytes_appended = Counter("continuation_log_bytes_appended", "Bytes that the resume log has taken in.")
_append = _seconds("log_append", "From appending to the resume log to being sent.", SUB_MILLISECOND)


# -- noting ----------------------------------------------------------------------------------------

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
    _planned(plan).inc()


@_quietly
def refused(code: str) -> None:
    """An error of the gateway's own, before any answer."""
    _refused(code).inc()


@_quietly
def stream_ended(record: StreamRecord | None) -> None:
    """A guarded stream; None for one that needed nothing."""
    if record is None:
        _streams(UNBROKEN, "", "", "").inc()
        return
    _streams(record.outcome, record.failure, record.reason, record.route).inc()
    if record.seam_gap_seconds is not None:
        _seam_gap.observe(record.seam_gap_seconds)


@_quietly
def first_event(seconds: float) -> None:
    """Of a guarded stream, since its request."""
    _first_event.observe(seconds)


@_quietly
def leg2_first_byte(seconds: float) -> None:
    """Since leg 2 was asked for."""
    _leg2_first_byte.observe(seconds)


@_quietly
def audit_rows(*, written: int = 0, lost: int = 0) -> None:
    _audit_rows("written").inc(written)
    _audit_rows("lost").inc(lost)


@_quietly
def resumable(outcome: str) -> None:
    """A stream begins that was to be resumable: one of RESUMABLE_OUTCOMES."""
    _resumable(outcome).inc()


@_quietly
def resumed(outcome: str) -> None:
    """A request that wants to resume, once: one of RESUME_OUTCOMES."""
    _resumes(outcome).inc()


@_quietly
def resume_first_event(seconds: float) -> None:
    """Since the request that resumes."""
    _resume_first_event.observe(seconds)


@_quietly
def resume_live(seconds: float) -> None:
    """Since the request that resumes, once all is sent that was there."""
    _resume_live.observe(seconds)


@_quietly
def token_issued(kind: str) -> None:
    """One of TOKEN_KINDS."""
    _tokens_issued(kind).inc()


@_quietly
def token_used(kind: str) -> None:
    """One of TOKEN_KINDS; only of tokens that are good."""
    _tokens_used(kind).inc()


@_quietly
def takeover(outcome: str) -> None:
    """A stream whose process is gone: one of TAKEOVER_OUTCOMES."""
    _takeovers(outcome).inc()


@_quietly
def generations(running: int, detached: int) -> None:
    """How many there are in this process now, and how many of them have no reader."""
    _generations.set(running)
    _detached.set(detached)


@_quietly
def appended(seconds: float) -> None:
    """From the append to the moment at which readers may have it."""
    _append.observe(seconds)


class LogSize(Protocol):
    """What a store of logs holds now, and has taken in since the start."""

    streams: int
    events: int
    bytes: int
    events_appended: int
    bytes_appended: int


class Watch:
    """Brings the figures up to what the log holds."""

    def __init__(self, read: Callable[[], LogSize]) -> None:
        self.read = read
        self._lock = threading.Lock()
        self._events = self._bytes = 0

    def note(self) -> None:
        with self._lock:
            size = self.read()
            _log_streams.set(size.streams)
            _log_events.set(size.events)
            _log_bytes.set(size.bytes)
            _events_appended.inc(max(0, size.events_appended - self._events))
            _bytes_appended.inc(max(0, size.bytes_appended - self._bytes))
            self._events, self._bytes = size.events_appended, size.bytes_appended


_watch: Watch | None = None
_ended = threading.Event()


def watch_log(read: Callable[[], LogSize]) -> None:
    """Where the size of the log is read from now on. `read` is called in any thread, and must only look."""
    global _watch
    first, _watch = _watch is None, Watch(read)
    if DIRECTORY and first:
        threading.Thread(target=_keep_noting, name="metrics", daemon=True).start()


def _keep_noting() -> None:
    while not _ended.wait(REFRESH_SECONDS):
        _note_log()


@_quietly
def _note_log() -> None:
    if _watch is not None:
        _watch.note()


# -- telling ---------------------------------------------------------------------------------------


def told(accept: str) -> tuple[bytes, str]:
    """All figures, in a form that this Accept header allows, and their content type. Reads files: for a thread."""
    _note_log()
    try:
        encode, content_type = exposition.choose_encoder(accept)
    except (ValueError, TypeError):  # a version that is none
        encode, content_type = generate_latest, exposition.CONTENT_TYPE_PLAIN_0_0_4
    if not DIRECTORY:
        return encode(REGISTRY), content_type
    for _ in range(ATTEMPTS - 1):
        with suppress(FileNotFoundError):
            return encode(OfAllProcesses()), content_type
    return encode(OfAllProcesses()), content_type


class OfAllProcesses(CollectorRegistry):
    """The sums, read anew for each who asks."""

    def collect(self) -> Iterator[Metric]:
        _leave_out_the_dead()
        files = _files("*.db")
        begun = [path for path in files if os.path.getsize(path)]
        yield from MultiProcessCollector.merge(begun)  # type: ignore[no-untyped-call]


def _files(pattern: str) -> list[str]:
    return glob.glob(os.path.join(glob.escape(DIRECTORY), pattern))


def _leave_out_the_dead() -> None:
    """What those had open who could not clean up."""
    for path in _files("gauge_live*_*.db"):
        pid = path.removesuffix(".db").rpartition("_")[2]
        if pid.isdecimal() and not _lives(int(pid)):
            with suppress(FileNotFoundError):  # somebody else was quicker
                mark_process_dead(pid, DIRECTORY)  # type: ignore[no-untyped-call]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _leave() -> None:
    """This process ends: nothing of it is open any more; and if it has counted nothing, as commands do, no file of it
    has to be kept."""
    _ended.set()
    _note_log()
    with suppress(OSError):
        mark_process_dead(os.getpid(), DIRECTORY)  # type: ignore[no-untyped-call]
        for kind in ("counter", "histogram"):
            path = os.path.join(DIRECTORY, f"{kind}_{os.getpid()}.db")
            if os.path.exists(path) and _counts_nothing(path):
                os.remove(path)


def _counts_nothing(path: str) -> bool:
    read = MmapedDict.read_all_values_from_file(path)  # type: ignore[no-untyped-call]
    return not any(value for _key, value, _timestamp, _place in read)


if DIRECTORY:
    atexit.register(_leave)
