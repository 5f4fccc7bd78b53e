"""The HTTP edge: a chat request is planned and guarded; everything else is passed through."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import MappingProxyType

import httpx
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from continuation import metrics
from continuation.client import Upstream, open_upstream
from continuation.failures import describe, status_for
from continuation.guard import MB, Origin, choice, relay_for, splice_for
from continuation.http import RawHeaders, end_to_end, json_error, with_headers
from continuation.plan import INLINE_BYTES, Guarded, PassReason, Passthrough, plan
from continuation.relay import keep
from continuation.requests import body_size, headers_of, request_id, scope_of, target_of
from continuation.resume.beginning import UNAVAILABLE, Beginning, is_asked_for
from continuation.resume.views import resume
from continuation.shortage import RETRY_SECONDS, refusals
from continuation.splice import Splice
from continuation.streams import RelayResponse, break_off, ends_itself
from strategies import cache

logger = logging.getLogger(__name__)

PIECE_BYTES = 2**16
NO_HEADERS: Mapping[bytes, bytes] = MappingProxyType({})
# type, code and message by status
UNDELIVERED = {
    400: ("invalid_request_error", "invalid_header", "A header of the request holds a control character."),
    502: (
        "upstream_error",
        "downstream_unreachable",
        "The downstream server could not be reached, or closed the connection before it answered.",
    ),
    503: (
        "unavailable_error",
        "overloaded",
        "The gateway has no room for another connection now; try again.",
    ),
    504: (
        "upstream_error",
        "downstream_timeout",
        "The downstream server did not accept the connection in time.",
    ),
}


async def chat_completions(request: HttpRequest) -> HttpResponseBase:
    if request.method != "POST" or settings.GATEWAY_ROLE == "admin":
        return await proxy(request)
    if settings.RESUME_MODE != "off" and "X-Resume-Token" in request.headers:
        return await resume(request)
    size = body_size(request)
    if size > settings.MAX_REQUEST_BODY_MB * MB:
        return _too_large(request)
    configured = choice()
    if size > configured.largest_body:
        metrics.planned(PassReason.BODY_TOO_LARGE)
        return await _pass_through(request, Passthrough(PassReason.BODY_TOO_LARGE))
    body = request.read()
    opted_out = request.headers.get("X-Continuation", "").strip().lower() == "off"
    arguments = (body, opted_out, cache.current(), configured)
    planned = await asyncio.to_thread(plan, *arguments) if size > INLINE_BYTES else plan(*arguments)
    if isinstance(planned, Passthrough):
        metrics.planned(planned.reason)
        return await _pass_through(request, planned, body)
    return await _guard(request, planned)


async def proxy(request: HttpRequest) -> HttpResponseBase:
    """Any other path or method."""
    if not _is_passed_through(request.path) or not target_of(request).startswith(b"/"):
        return not_found(request)
    if request.method == "CONNECT":
        headers = {"X-Request-Id": request_id(request)}
        return json_error(405, "This is no tunnel.", "invalid_request_error", "method_not_allowed", headers)
    if body_size(request) > settings.MAX_REQUEST_BODY_MB * MB:
        return _too_large(request)
    return await _pass_through(request)


def not_found(request: HttpRequest) -> HttpResponse:
    message = f"There is nothing at {request.method} {request.path}."
    return json_error(
        404, message, "invalid_request_error", "not_found", {"X-Request-Id": request_id(request)}
    )


def _is_passed_through(path: str) -> bool:
    if settings.GATEWAY_ROLE == "admin":
        return False
    if "*" in settings.PASSTHROUGH_PATHS:
        return True
    leads_out = {".", ".."} & set(path.split("/"))  # servers behind may resolve these
    return not leads_out and path.startswith(tuple(settings.PASSTHROUGH_PATHS))


async def _guard(request: HttpRequest, planned: Guarded) -> HttpResponseBase:
    origin = Origin(request_id(request), target_of(request), headers_of(request))
    splice = splice_for(planned, origin.request_id)
    beginning = Beginning.of(request, origin, planned)
    try:
        return await _guarded(request, planned, splice, beginning)
    except asyncio.CancelledError:
        beginning.give_up()
        splice.client_gone(time.monotonic())
        keep(splice.record())
        raise


async def _guarded(
    request: HttpRequest, planned: Guarded, splice: Splice, beginning: Beginning
) -> HttpResponseBase:
    try:
        upstream = await _open_leg1(planned, beginning.origin)
    except httpx.HTTPError as trouble:
        beginning.give_up()
        metrics.planned(metrics.GUARDED)
        return _undelivered(request, trouble, "guarded")
    is_stream = upstream.status == 200 and upstream.is_event_stream
    is_unreadable = is_stream and upstream.is_encoded
    metrics.planned(PassReason.CONTENT_ENCODED if is_unreadable else metrics.GUARDED)
    if is_unreadable or not is_stream:
        beginning.give_up()
        note = _passed(PassReason.CONTENT_ENCODED) if is_unreadable else "guarded"
        return _as_it_is(request, upstream, note)
    stream_headers = with_headers(
        _answer_headers(request, upstream, "guarded", b"content-length"),
        {b"cache-control": b"no-cache", b"x-accel-buffering": b"no"},
    )
    try:
        started = await beginning.start(splice, upstream)
    except BaseException:
        upstream.body.close()
        raise
    if started is not None:
        return RelayResponse(started.pieces, upstream.status, with_headers(stream_headers, started.headers))
    relay = relay_for(splice, beginning.origin, upstream, settings.KEEPALIVE_SECONDS)
    ends_itself(relay.shut_down)
    return RelayResponse(relay.pieces(), upstream.status, with_headers(stream_headers, beginning.refusal))


async def _open_leg1(planned: Guarded, origin: Origin) -> Upstream:
    headers = origin.leg1_headers
    if planned.carries_ids:  # the body is another one
        headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    body = await _leg1_body(planned)
    return await open_upstream(settings.DOWNSTREAM_URL, "POST", origin.target, headers, body)


async def _leg1_body(planned: Guarded) -> bytes:
    if planned.carries_ids and len(planned.body) > INLINE_BYTES:
        return await asyncio.to_thread(lambda: planned.leg1_body)
    return planned.leg1_body


async def _pass_through(
    request: HttpRequest, planned: Passthrough | None = None, body: bytes | None = None
) -> HttpResponseBase:
    note = _passed(planned.reason) if planned else ""
    headers = headers_of(request)
    has_body = any(name.lower() == b"content-length" for name, _ in headers) or body_size(request)
    content = (body if body is not None else _body_pieces(request)) if has_body else None
    try:
        upstream = await open_upstream(
            settings.DOWNSTREAM_URL, request.method or "GET", target_of(request), headers, content
        )
    except httpx.HTTPError as trouble:
        return _undelivered(request, trouble, note)
    refusal = UNAVAILABLE if planned and is_asked_for(request) else {}
    return _as_it_is(request, upstream, note, refusal)


def _as_it_is(
    request: HttpRequest, upstream: Upstream, note: str, more: Mapping[bytes, bytes] = NO_HEADERS
) -> HttpResponseBase:
    headers = with_headers(_answer_headers(request, upstream, note), more)
    return RelayResponse(_untouched(request, upstream), upstream.status, headers)


async def _untouched(request: HttpRequest, upstream: Upstream) -> AsyncGenerator[bytes, None]:
    try:
        while read := await upstream.body.read():
            yield read
    except httpx.HTTPError as trouble:
        logger.warning(
            "request %s: a passed-through answer broke off: %s", request_id(request), describe(trouble)
        )
        await break_off(scope_of(request))
    finally:
        upstream.body.close()


def _undelivered(request: HttpRequest, trouble: httpx.HTTPError, note: str) -> HttpResponse:
    status = status_for(trouble)
    kind, code, message = UNDELIVERED[status]
    headers = {"X-Request-Id": request_id(request)} | ({"X-Continuation": note} if note else {})
    if status == 503:
        headers["Retry-After"] = str(RETRY_SECONDS)
        refusals.say(f"{code}: a request could not be sent downstream: {describe(trouble)}")
    else:
        logger.warning("request %s: %s: %s", request_id(request), code, describe(trouble))
    return json_error(status, message, kind, code, headers)


def _too_large(request: HttpRequest) -> HttpResponse:
    message = f"The request body is larger than {settings.MAX_REQUEST_BODY_MB:g} MB."
    logger.warning("request %s: request_too_large: %d bytes", request_id(request), body_size(request))
    headers = {"X-Request-Id": request_id(request)}
    return json_error(413, message, "invalid_request_error", "request_too_large", headers)


def _passed(reason: PassReason) -> str:
    return f"passthrough; reason={reason}"


def _answer_headers(request: HttpRequest, upstream: Upstream, note: str, *dropped: bytes) -> RawHeaders:
    ours = {b"x-request-id": request_id(request).encode()}
    if note:
        ours[b"x-continuation"] = note.encode()
    return with_headers(end_to_end(upstream.headers, *dropped), ours)


async def _body_pieces(request: HttpRequest) -> AsyncIterator[bytes]:
    while piece := request.read(PIECE_BYTES):
        yield piece
