"""The endpoints of those who come back: the rest of a stream, where it stands, and its end."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.crypto import constant_time_compare

from continuation import lifecycle
from continuation.http.incoming import request_id
from continuation.http.response import RelayResponse, json_error
from continuation.metrics import noting as metrics
from continuation.resume import token as tokens
from continuation.resume.log import Log, Standing, State, StoreAway, after
from continuation.resume.readers import authorization, names, reading_for
from continuation.resume.token import ResumeToken

logger = logging.getLogger(__name__)

_CURSOR = re.compile(r"0|[1-9][0-9]{0,14}")
ANSWER_HEADERS = {
    b"content-type": b"text/event-stream; charset=utf-8",
    b"x-accel-buffering": b"no",
}
# status and message by code; where the message is empty the refusal brings its own
ERRORS = {
    "bad_cursor": (400, ""),
    "not_found": (404, "There is no such stream, or it is not this caller's."),
    "method_not_allowed": (405, ""),
    "expired": (410, "The stream has ended, and its events are not kept any more; or the token is too old."),
    "trimmed": (410, ""),
    "resume_unavailable": (503, "The log of the streams does not answer; try again."),
}
# what the metrics call these
OUTCOMES = {"resume_unavailable": "unavailable"}
RETRY_SECONDS = 1
# Seconds that a DELETE waits to see the end.
STOPPING_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Found:
    stream_id: str
    token: ResumeToken
    log: Log
    standing: Standing


class ResumeRefused(Exception):
    """A code of ERRORS, and what else its answer says."""

    def __init__(self, code: str, message: str = "", **more: Any) -> None:
        super().__init__(code)
        self.code, self.message, self.more = code, message, more


# -- the endpoints ---------------------------------------------------------------------------------


async def stream(request: HttpRequest, stream_id: str) -> HttpResponseBase:
    """GET: the events behind a cursor, then what comes. DELETE: the generation is stopped."""
    if not _is_served():
        return _refusal(request, ResumeRefused("not_found"))
    match request.method:
        case "GET":
            return await resume(request, stream_id)
        case "DELETE":
            return await _answered(request, _stopped(request, stream_id))
        case _:
            return _refusal(request, _only("GET, DELETE"))


async def status(request: HttpRequest, stream_id: str) -> HttpResponseBase:
    if not _is_served():
        return _refusal(request, ResumeRefused("not_found"))
    if request.method not in ("GET", "HEAD"):
        return _refusal(request, _only("GET, HEAD"))
    return await _answered(request, _status(request, stream_id))


async def nothing(request: HttpRequest, *args: str) -> HttpResponse:
    return _refusal(request, ResumeRefused("not_found"))


async def resume(request: HttpRequest, stream_id: str | None = None) -> HttpResponseBase:
    """stream_id: of the path; where the path has none the token alone says which stream."""
    began = time.monotonic()
    try:
        found = await _found(request, stream_id)
        cursor = _cursor(request, found)
    except (ResumeRefused, StoreAway) as trouble:
        refused = _as_refused(request, trouble)
        metrics.resumed(OUTCOMES.get(refused.code, refused.code))
        return _refusal(request, refused)
    metrics.token_used(found.token.kind)
    is_over = found.standing.ended and cursor == found.standing.last
    metrics.resumed("finished" if is_over else "ok")
    if is_over and _is_event_source(request):
        return HttpResponse(status=204, headers=_own_headers(request))
    return _events(request, found, cursor, began)


def _events(request: HttpRequest, found: Found, cursor: int, began: float) -> HttpResponseBase:
    reading = reading_for(request, found.stream_id, found.log, after(cursor))
    reading.on_event = _once(lambda: metrics.resume_first_event(time.monotonic() - began))
    reading.on_live = _once(lambda: metrics.resume_live(time.monotonic() - began))
    said = {
        b"x-last-event-id": str(found.standing.last).encode(),
        b"x-request-id": request_id(request).encode(),
    }
    headers = ANSWER_HEADERS | names(request, found.stream_id) | said
    return RelayResponse(reading.pieces(), 200, list(headers.items()))


def _is_event_source(request: HttpRequest) -> bool:
    """It connects again when an answer ends, until status 204 says that nothing is left."""
    return request.method == "GET" and "text/event-stream" in request.headers.get("Accept", "")


async def _stopped(request: HttpRequest, stream_id: str) -> HttpResponse:
    found = await _found(request, stream_id)
    is_orphan = found.standing.state is State.INTERRUPTED
    process = lifecycle.current()
    if not found.standing.ended and not (
        is_orphan and await process.takeovers.stop_orphan(process.store(), stream_id)
    ):
        await process.store().stop(stream_id)
        await _end_of(found.log)
    return await _status(request, stream_id)


async def _end_of(log: Log) -> None:
    """Wait a while until a stream that was asked to end has ended."""
    until = time.monotonic() + STOPPING_SECONDS
    while time.monotonic() < until:
        standing = await log.standing()
        if standing is None or standing.ended:
            return
        await asyncio.sleep(STOPPING_SECONDS / 100)


async def _status(request: HttpRequest, stream_id: str) -> HttpResponse:
    found = await _found(request, stream_id)
    standing = found.standing
    expires_in = None
    if standing.ended_at is not None:
        expires_in = max(0.0, round(standing.ended_at + settings.RESUME_TTL_SECONDS - time.time(), 1))
    said = {
        "stream_id": stream_id,
        "state": standing.state,
        "available": _available(standing),
        "last_event_id": standing.last,
        "leg2_from": standing.leg2_from or None,
        "readers": lifecycle.current().generations.readers(stream_id),
        "started_at": _clock(standing.started_at),
        "ended_at": _clock(standing.ended_at),
        "expires_in": expires_in,
    }
    return JsonResponse(said, headers=_own_headers(request))


# -- who asks, and for what ------------------------------------------------------------------------


async def _found(request: HttpRequest, stream_id: str | None) -> Found:
    """Raises Refused, and StoreAway."""
    text = request.headers.get("X-Resume-Token") or request.GET.get("token", "")
    token = tokens.read(text, authorization(request)) if text else None
    if token is None or not constant_time_compare(token.stream_id, stream_id or token.stream_id):
        raise ResumeRefused("not_found")
    if token.expired:
        raise ResumeRefused("expired", available=None)
    store = lifecycle.current().store()
    log = await store.find(token.stream_id)
    standing = await log.standing() if log else None
    if log is None or standing is None:
        forgotten = await store.may_have_forgotten()
        raise ResumeRefused("resume_unavailable") if forgotten else ResumeRefused("expired", available=None)
    return Found(token.stream_id, token, log, standing)


def _cursor(request: HttpRequest, found: Found) -> int:
    """The number of the event after which to go on. Raises Refused.

    The header wins over the query: an EventSource that comes back has its old URL, and a new header. An empty one is
    none: so says a client that has seen no id yet.
    """
    standing = found.standing
    given = request.headers.get("Last-Event-ID") or request.GET.get("last_event_id")
    if not given:
        cursor = found.token.position or 0
    elif _CURSOR.fullmatch(given):
        cursor = int(given)
    else:
        raise _bad_cursor(standing)
    if cursor > standing.last:
        raise _bad_cursor(standing)
    if cursor < standing.first - 1:
        message = (
            f"Events {cursor + 1} to {standing.first - 1} are not kept any more; "
            f"what can be had is behind Last-Event-ID {standing.first - 1}."
        )
        raise ResumeRefused("trimmed", message, available=_available(standing))
    return cursor


def _bad_cursor(standing: Standing) -> ResumeRefused:
    allowed = f"a whole number from {standing.first - 1} to {standing.last}"
    return ResumeRefused("bad_cursor", f"Last-Event-ID must be the id of an event of this stream: {allowed}.")


def _available(standing: Standing) -> dict[str, int] | None:
    return {"first": standing.first, "last": standing.last} if standing.first <= standing.last else None


# -- answers ---------------------------------------------------------------------------------------


def _is_served() -> bool:
    return settings.RESUME_MODE != "off" and settings.GATEWAY_ROLE != "admin"


async def _answered(request: HttpRequest, answer: Awaitable[HttpResponse]) -> HttpResponse:
    try:
        return await answer
    except (ResumeRefused, StoreAway) as trouble:
        return _refusal(request, _as_refused(request, trouble))


def _as_refused(request: HttpRequest, trouble: ResumeRefused | StoreAway) -> ResumeRefused:
    if isinstance(trouble, ResumeRefused):
        return trouble
    logger.warning("request %s: the resume log is away: %s", request_id(request), trouble)
    return ResumeRefused("resume_unavailable")


def _refusal(request: HttpRequest, refused: ResumeRefused) -> HttpResponse:
    status, message = ERRORS[refused.code]
    kind = "upstream_error" if status >= 500 else "invalid_request_error"
    headers = _own_headers(request)
    if status == 503:
        headers["Retry-After"] = str(RETRY_SECONDS)
    if "allow" in refused.more:
        headers["Allow"] = refused.more["allow"]
    more = {"available": refused.more["available"]} if "available" in refused.more else {}
    return json_error(status, refused.message or message, kind, refused.code, headers, **more)


def _own_headers(request: HttpRequest) -> dict[str, str]:
    return {"X-Request-Id": request_id(request), "Cache-Control": "no-store"}


def _only(methods: str) -> ResumeRefused:
    return ResumeRefused("method_not_allowed", f"Only {methods} here.", allow=methods)


def _once(note: Callable[[], None]) -> Callable[[], None]:
    noted = False

    def noting() -> None:
        nonlocal noted
        if not noted:
            noted = True
            note()

    return noting


def _clock(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
