"""The HTTP edge: a chat request is planned and guarded; everything else is passed through."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime

import httpx
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from continuation.client import Upstream, open_upstream
from continuation.failures import describe, status_for
from continuation.http import RawHeaders, end_to_end, json_error, with_headers
from continuation.plan import Choice, Guarded, PassReason, Passthrough, plan
from continuation.relay import Relay, keep
from continuation.render_generate import open_tokens
from continuation.splice import OpenLeg, OpenTokens, Options, Splice
from continuation.streams import RelayResponse, break_off
from continuation.usage import Estimator
from strategies import cache

logger = logging.getLogger(__name__)

MB = 2**20
PIECE_BYTES = 2**16
# A body above this is read and rewritten in a thread: it would hold up the other streams.
PARSE_INLINE_BYTES = 2**18
# type, code and message by status
UNDELIVERED = {
    400: ("invalid_request_error", "invalid_header", "A header of the request holds a control character."),
    502: (
        "upstream_error",
        "downstream_unreachable",
        "The downstream server could not be reached, or closed the connection before it answered.",
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
    size = _body_size(request)
    if size > settings.MAX_REQUEST_BODY_MB * MB:
        return _too_large(request)
    choice = Choice(
        settings.CONTINUATION_MODEL, settings.CONTINUATION_ENGINE, int(settings.MAX_CONTINUATION_BODY_MB * MB)
    )
    if size > choice.largest_body:
        return await _pass_through(request, Passthrough(PassReason.BODY_TOO_LARGE))
    body = request.read()
    opted_out = request.headers.get("X-Continuation", "").strip().lower() == "off"
    arguments = (body, opted_out, cache.current(), choice)
    planned = await asyncio.to_thread(plan, *arguments) if size > PARSE_INLINE_BYTES else plan(*arguments)
    if isinstance(planned, Passthrough):
        return await _pass_through(request, planned, body)
    return await _guard(request, planned)


async def proxy(request: HttpRequest) -> HttpResponseBase:
    """Any other path or method."""
    if not _is_passed_through(request.path) or not _target(request).startswith(b"/"):
        return not_found(request)
    if request.method == "CONNECT":
        headers = {"X-Request-Id": request_id(request)}
        return json_error(405, "This is no tunnel.", "invalid_request_error", "method_not_allowed", headers)
    if _body_size(request) > settings.MAX_REQUEST_BODY_MB * MB:
        return _too_large(request)
    return await _pass_through(request)


def not_found(request: HttpRequest) -> HttpResponse:
    message = f"There is nothing at {request.method} {request.path}."
    return json_error(
        404, message, "invalid_request_error", "not_found", {"X-Request-Id": request_id(request)}
    )


def request_id(request: HttpRequest) -> str:
    """The client's X-Request-Id, or a new one that stays with the request."""
    found: str = request.META.get("HTTP_X_REQUEST_ID") or uuid.uuid4().hex
    request.META["HTTP_X_REQUEST_ID"] = found
    return found


def _is_passed_through(path: str) -> bool:
    if settings.GATEWAY_ROLE == "admin":
        return False
    if "*" in settings.PASSTHROUGH_PATHS:
        return True
    leads_out = {".", ".."} & set(path.split("/"))  # servers behind may resolve these
    return not leads_out and path.startswith(tuple(settings.PASSTHROUGH_PATHS))


async def _guard(request: HttpRequest, planned: Guarded) -> HttpResponseBase:
    splice = Splice(planned, _options(), request_id(request), datetime.now(UTC), time.monotonic())
    rewritten = (b"content-length",) if planned.carries_ids else ()
    headers = with_headers(_request_headers(request, *rewritten), {b"accept-encoding": b"identity"})
    try:
        body = await _leg1_body(planned)
        upstream = await open_upstream(settings.DOWNSTREAM_URL, "POST", _target(request), headers, body)
    except httpx.HTTPError as trouble:
        return _undelivered(request, trouble, "guarded")
    except asyncio.CancelledError:
        splice.client_gone(time.monotonic())
        keep(splice.record())
        raise
    if upstream.status != 200 or not upstream.is_event_stream:
        return _as_it_is(request, upstream, "guarded")
    if upstream.is_encoded:
        return _as_it_is(request, upstream, _passed(PassReason.CONTENT_ENCODED))

    async def post(path: str, body: bytes) -> Upstream:
        continued = _continuation_headers(request)
        return await open_upstream(settings.CONTINUATION_URL, "POST", path.encode(), continued, body)

    async def open_continuation(action: OpenLeg | OpenTokens) -> Upstream:
        if isinstance(action, OpenTokens):
            return await open_tokens(action, settings.CONTINUATION_URL, post, settings.DERENDER_BATCH_CHUNKS)
        return await post(_target(request).decode("latin-1"), action.body)

    relay = Relay(
        splice,
        upstream,
        open_continuation,
        keepalive=settings.KEEPALIVE_SECONDS,
        silence=settings.STALL_IDLE_TIMEOUT_SECONDS,
    )
    stream_headers = with_headers(
        _answer_headers(request, upstream, "guarded", b"content-length"),
        {b"cache-control": b"no-cache", b"x-accel-buffering": b"no"},
    )
    return RelayResponse(relay.pieces(), upstream.status, stream_headers)


async def _leg1_body(planned: Guarded) -> bytes:
    if planned.carries_ids and len(planned.body) > PARSE_INLINE_BYTES:
        return await asyncio.to_thread(lambda: planned.leg1_body)
    return planned.leg1_body


async def _pass_through(
    request: HttpRequest, planned: Passthrough | None = None, body: bytes | None = None
) -> HttpResponseBase:
    note = _passed(planned.reason) if planned else ""
    headers = _request_headers(request)
    has_body = any(name.lower() == b"content-length" for name, _ in headers) or _body_size(request)
    content = (body if body is not None else _body_pieces(request)) if has_body else None
    try:
        upstream = await open_upstream(
            settings.DOWNSTREAM_URL, request.method or "GET", _target(request), headers, content
        )
    except httpx.HTTPError as trouble:
        return _undelivered(request, trouble, note)
    return _as_it_is(request, upstream, note)


def _as_it_is(request: HttpRequest, upstream: Upstream, note: str) -> HttpResponseBase:
    headers = _answer_headers(request, upstream, note)
    return RelayResponse(_untouched(request, upstream), upstream.status, headers)


async def _untouched(request: HttpRequest, upstream: Upstream) -> AsyncGenerator[bytes, None]:
    try:
        while read := await upstream.body.read():
            yield read
    except httpx.HTTPError as trouble:
        logger.warning(
            "request %s: a passed-through answer broke off: %s", request_id(request), describe(trouble)
        )
        await break_off(getattr(request, "scope", {}))
    finally:
        upstream.body.close()


def _undelivered(request: HttpRequest, trouble: httpx.HTTPError, note: str) -> HttpResponse:
    status = status_for(trouble)
    kind, code, message = UNDELIVERED[status]
    logger.warning("request %s: %s: %s", request_id(request), code, describe(trouble))
    headers = {"X-Request-Id": request_id(request)} | ({"X-Continuation": note} if note else {})
    return json_error(status, message, kind, code, headers)


def _too_large(request: HttpRequest) -> HttpResponse:
    message = f"The request body is larger than {settings.MAX_REQUEST_BODY_MB:g} MB."
    logger.warning("request %s: request_too_large: %d bytes", request_id(request), _body_size(request))
    headers = {"X-Request-Id": request_id(request)}
    return json_error(413, message, "invalid_request_error", "request_too_large", headers)


def _passed(reason: PassReason) -> str:
    return f"passthrough; reason={reason}"


def _options() -> Options:
    return Options(
        enabled=settings.CONTINUATION_ENABLED,
        idle_timeout=settings.STALL_IDLE_TIMEOUT_SECONDS,
        estimator=Estimator(settings.CJK_CHARS_PER_TOKEN, settings.OTHER_CHARS_PER_TOKEN),
        partial_limit=max(1, int(settings.MAX_CONTINUATION_BODY_MB * MB)),
        store_text=settings.AUDIT_STORE_TEXT,
        buffer_tool_calls=settings.BUFFER_TOOL_CALLS,
        buffer_limit=settings.BUFFER_TOOL_CALLS_MAX_BYTES,
    )


def _target(request: HttpRequest) -> bytes:
    """Path and query exactly as the client sent them."""
    scope = getattr(request, "scope", {})
    path: bytes = scope.get("raw_path") or request.path.encode()
    query: bytes = scope.get("query_string", b"")
    return path + (b"?" + query if query else b"")


def _request_headers(request: HttpRequest, *dropped: bytes) -> RawHeaders:
    """As the client sent them. Host is downstream's own; the server has already answered any Expect."""
    return end_to_end(getattr(request, "scope", {}).get("headers", []), b"host", b"expect", *dropped)


def _continuation_headers(request: HttpRequest) -> RawHeaders:
    """The engine may still hold leg 1 under the client's request id, so leg 2 has one of its own."""
    new = {
        b"accept-encoding": b"identity",
        b"content-type": b"application/json",
        b"x-request-id": f"{request_id(request)}-leg2".encode("latin-1", "replace"),
    }
    if settings.CONTINUATION_API_KEY:
        new[b"authorization"] = b"Bearer " + settings.CONTINUATION_API_KEY.encode()
    return with_headers(_request_headers(request, b"content-length"), new)


def _answer_headers(request: HttpRequest, upstream: Upstream, note: str, *dropped: bytes) -> RawHeaders:
    ours = {b"x-request-id": request_id(request).encode("latin-1", "replace")}
    if note:
        ours[b"x-continuation"] = note.encode()
    return with_headers(end_to_end(upstream.headers, *dropped), ours)


def _body_size(request: HttpRequest) -> int:
    """Bytes of the body, which the server has received whole; Django keeps a large one on disk."""
    stream = request._stream
    if not hasattr(stream, "seek"):
        return int(request.META.get("CONTENT_LENGTH") or 0)
    at = stream.tell()
    size: int = stream.seek(0, os.SEEK_END)
    stream.seek(at)
    return size


async def _body_pieces(request: HttpRequest) -> AsyncIterator[bytes]:
    while piece := request.read(PIECE_BYTES):
        yield piece
