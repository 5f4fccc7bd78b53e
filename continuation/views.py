"""The HTTP edge: a chat request is planned and guarded; everything else is passed through."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from http import HTTPStatus
from types import MappingProxyType

import httpx
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from continuation import lifecycle
from continuation.downstream.client import Upload, Upstream
from continuation.downstream.shortage import RETRY_SECONDS
from continuation.downstream.troubles import describe, status_for
from continuation.http.ending import break_off, ends_itself
from continuation.http.headers import RawHeaders, end_to_end, with_headers
from continuation.http.incoming import (
    body_size,
    headers_of,
    leads_out,
    request_id,
    scope_of,
    target_of,
    unsendable_header,
    unsendable_line,
)
from continuation.http.response import RelayResponse, json_error
from continuation.http.threads import worked_out
from continuation.metrics import families, noting
from continuation.plan import Guarded, Passthrough, plan
from continuation.relay import keep
from continuation.resume.beginning import UNAVAILABLE, Beginning, is_asked_for
from continuation.resume.views import resume
from continuation.splice.machine import Splice
from continuation.vocabulary import PassReason
from continuation.wiring import MB, Origin, choice, relay_for, splice_for
from strategies import cache

logger = logging.getLogger(__name__)

PIECE_BYTES = 2**16
CLOSED_AS_USED = (
    "The downstream server closed a connection that had served an earlier request just as this request was sent on "
    "it, and answered nothing. Such connections are used for DOWNSTREAM_KEEPALIVE_SECONDS."
)
NO_HEADERS: Mapping[bytes, bytes] = MappingProxyType({})
# type, code and message by status
UNDELIVERED = {
    500: (
        "internal_error",
        "internal_error",
        "The gateway could not write this request down for the downstream server.",
    ),
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
    if refused := _unsendable(request):
        return refused
    size = body_size(request)
    if size > settings.MAX_REQUEST_BODY_MB * MB:
        return _too_large(request)
    configured = choice()
    if size > configured.largest_body:
        noting.planned(PassReason.BODY_TOO_LARGE)
        return await _pass_through(request, Passthrough(PassReason.BODY_TOO_LARGE))
    body = await worked_out(size, request.read)
    opted_out = request.headers.get("X-Continuation", "").strip().lower() == "off"
    book = cache.current()
    planned = await worked_out(size, lambda: plan(body, opted_out, book, configured))
    if isinstance(planned, Passthrough):
        noting.planned(planned.reason)
        return await _pass_through(request, planned, body)
    return await _guard(request, planned)


async def proxy(request: HttpRequest) -> HttpResponseBase:
    """Any other path or method."""
    if not _is_passed_through(request.path, target_of(request)):
        return not_found(request)
    if refused := _unsendable(request):
        return refused
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


def _is_passed_through(path: str, target: bytes) -> bool:
    if settings.GATEWAY_ROLE == "admin" or not target.startswith(b"/"):
        return False
    if "*" in settings.PASSTHROUGH_PATHS:
        return True
    return path.startswith(tuple(settings.PASSTHROUGH_PATHS)) and not leads_out(target)


async def _guard(request: HttpRequest, planned: Guarded) -> HttpResponseBase:
    origin = Origin(request_id(request), target_of(request), headers_of(request))
    splice = splice_for(planned, origin.request_id)
    beginning = Beginning.of(request, origin, planned)
    try:
        return await _guarded(request, planned, splice, beginning)
    except asyncio.CancelledError:
        beginning.give_up()
        splice.client_gone(time.monotonic())
        keep(splice.record(), lifecycle.current().audit)
        raise


async def _guarded(
    request: HttpRequest, planned: Guarded, splice: Splice, beginning: Beginning
) -> HttpResponseBase:
    try:
        upstream = await _open_leg1(planned, beginning.origin)
    except httpx.HTTPError as trouble:
        beginning.give_up()
        noting.planned(families.GUARDED)
        return _undelivered(request, trouble, "guarded")
    is_stream = upstream.status == 200 and upstream.is_event_stream
    is_unreadable = is_stream and upstream.is_encoded
    noting.planned(PassReason.CONTENT_ENCODED if is_unreadable else families.GUARDED)
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
    parts = lifecycle.current().parts
    relay = relay_for(parts, splice, beginning.origin, upstream, settings.KEEPALIVE_SECONDS)
    ends_itself(scope_of(request), relay.shut_down)
    return RelayResponse(relay.pieces(), upstream.status, with_headers(stream_headers, beginning.refusal))


async def _open_leg1(planned: Guarded, origin: Origin) -> Upstream:
    body = await worked_out(len(planned.body) if planned.carries_ids else 0, lambda: planned.leg1_body)
    send = lifecycle.current().downstream.send
    return await send(settings.DOWNSTREAM_URL, "POST", origin.target, origin.leg1_headers, body)


async def _pass_through(
    request: HttpRequest, planned: Passthrough | None = None, body: bytes | None = None
) -> HttpResponseBase:
    note = _passed(planned.reason) if planned else ""
    headers = headers_of(request)
    size = body_size(request)
    content = body if body is not None or not size else Upload(size, _body_pieces(request))
    try:
        upstream = await lifecycle.current().downstream.send(
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
    if isinstance(trouble, httpx.RemoteProtocolError):
        message = CLOSED_AS_USED
    headers = {"X-Request-Id": request_id(request)} | ({"X-Continuation": note} if note else {})
    if status == 503:
        headers["Retry-After"] = str(RETRY_SECONDS)
        lifecycle.current().shortage.say(
            f"{code}: a request could not be sent downstream: {describe(trouble)}"
        )
    else:
        level = logging.ERROR if status == HTTPStatus.INTERNAL_SERVER_ERROR else logging.WARNING
        logger.log(level, "request %s: %s: %s", request_id(request), code, describe(trouble))
    return json_error(status, message, kind, code, headers)


def _unsendable(request: HttpRequest) -> HttpResponse | None:
    """The answer to what its client has written so that it cannot be sent on; None where it can be."""
    headers = {"X-Request-Id": request_id(request)}
    if message := unsendable_line(request):
        logger.warning("request %s: bad_request: %s", request_id(request), message)
        return json_error(400, message, "invalid_request_error", "bad_request", headers)
    if message := unsendable_header(request):
        logger.warning("request %s: invalid_header: %s", request_id(request), message)
        return json_error(400, message, "invalid_request_error", "invalid_header", headers)
    return None


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
