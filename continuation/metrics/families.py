"""Every figure that `/metrics` shows, declared once; only this room imports prometheus_client.

What stands in a label is a word of the gateway's own, never one of a client's or an engine's, so that there are only
so many.

With PROMETHEUS_MULTIPROC_DIR each process keeps its figures in files there.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable, Iterable
from contextlib import suppress

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import mark_process_dead

from continuation.metrics import DIRECTORY
from continuation.vocabulary import PassReason

GUARDED = "guarded"
UNBROKEN = "unbroken"  # the outcome of a guarded stream that needed nothing
RESUMABLE_OUTCOMES = ("resumable", "unavailable")
TAKEOVER_OUTCOMES = ("taken", "another_was_first", "no_place", "unreadable", "failed")
RESUME_OUTCOMES = ("ok", "bad_cursor", "not_found", "expired", "trimmed", "unavailable", "finished")
TOKEN_KINDS = ("header", "checkpoint")

SUB_MILLISECOND = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3)
QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PATIENT = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)


if DIRECTORY:
    mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]  # of one that had the same number and was killed


# A second figure beside each, which several processes cannot tell.
disable_created_metrics()  # type: ignore[no-untyped-call]


def _counter(name: str, about: str, label: str, words: Iterable[str] = ()) -> Callable[[str], Counter]:
    """By its word, which is found without a search from the second time on; `words` are shown before they occur."""
    family = Counter(f"continuation_{name}", about, [label])
    bound = functools.cache(family.labels)
    for word in words:
        bound(word)
    return bound


def _gauge(name: str, about: str) -> Gauge:
    return Gauge(f"continuation_{name}", about, multiprocess_mode="livesum")


def _seconds(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"continuation_{name}_seconds", about, buckets=buckets)


STREAMS = functools.cache(
    Counter(
        "continuation_streams",
        "Guarded streams that have ended; the words are the audit's, and unbroken is a stream that needed nothing.",
        ["outcome", "failure", "reason", "route"],
    ).labels
)


STREAMS(UNBROKEN, "", "", "")

PLANNED = _counter(
    "chat_requests",
    "Chat requests: guarded, or the reason for which one is passed through.",
    "plan",
    [GUARDED, *PassReason],
)

REFUSED = _counter("refused_requests", "Requests that the gateway answered with an error of its own.", "code")

SEAM_GAP = _seconds("seam_gap", "From the last event of leg 1 to the first text of leg 2.", PATIENT)

FIRST_EVENT = _seconds("first_event", "From a guarded request to the first event of its answer.", PATIENT)
LEG2_FIRST_BYTE = _seconds("leg2_first_byte", "From asking for leg 2 to its first byte.", PATIENT)

AUDIT_ROWS = _counter("audit_rows", "Rows of the audit, written or lost.", "state", ["written", "lost"])

RESUMABLE = _counter(
    "resumable_streams",
    "Streams begun that were to be resumable, and are or are not.",
    "outcome",
    RESUMABLE_OUTCOMES,
)

RESUMES = _counter("resumes", "Requests that resume a stream.", "outcome", RESUME_OUTCOMES)

RESUME_FIRST_EVENT = _seconds("resume_first_event", "From a resume to the first event sent.", QUICK)

RESUME_LIVE = _seconds("resume_live", "From a resume to all being sent that there was.", QUICK)

TOKENS_ISSUED = _counter("resume_tokens_issued", "Resume tokens handed out.", "kind", TOKEN_KINDS)

TOKENS_USED = _counter("resume_tokens_used", "Resume tokens that opened a stream.", "kind", TOKEN_KINDS)

TAKEOVERS = _counter(
    "takeovers", "Streams whose process was gone, and what became of them.", "outcome", TAKEOVER_OUTCOMES
)

GENERATIONS = _gauge("generations", "Resumable streams being generated now.")

DETACHED = _gauge("generations_without_reader", "Of these, those that nobody reads now.")

LOG_STREAMS = _gauge("log_streams", "Streams in the resume log now.")

LOG_EVENTS = _gauge("log_events", "Events in the resume log now.")

LOG_BYTES = _gauge("log_bytes", "Bytes in the resume log now.")

EVENTS_APPENDED = Counter("continuation_log_events_appended", "Events that the resume log has taken in.")

BYTES_APPENDED = Counter("continuation_log_bytes_appended", "Bytes that the resume log has taken in.")

APPEND = _seconds("log_append", "From appending to the resume log to being sent.", SUB_MILLISECOND)


def _leave() -> None:
    """This process ends: nothing of it is open any more; and if it has counted nothing, as commands do, no file of it
    has to be kept."""
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
