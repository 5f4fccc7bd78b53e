"""A request for a stream's events, be it the one that began the stream or one that comes back."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest

from continuation import lifecycle
from continuation.http.ending import ends_itself
from continuation.http.incoming import headers_of, request_id, scope_of
from continuation.metrics import noting
from continuation.resume import token as tokens
from continuation.resume.log import Cursor, Log
from continuation.resume.reading import Asked, Reading
from continuation.resume.token import TokenKind

TRUE = ("1", "true", "yes", "on")


def says(request: HttpRequest, header: str) -> bool:
    return request.headers.get(header, "").strip().lower() in TRUE


def authorization(request: HttpRequest) -> str:
    return request.headers.get("Authorization", "")


def _issued(stream_id: str, caller: str, position: int | None = None) -> str:
    noting.token_issued(TokenKind.HEADER if position is None else TokenKind.CHECKPOINT)
    return tokens.issue(stream_id, caller, position)


def names(request: HttpRequest, stream_id: str) -> dict[bytes, bytes]:
    """The headers with which the stream can be found again; no cache may store an answer that carries them."""
    token = _issued(stream_id, authorization(request))
    return {
        b"x-stream-id": stream_id.encode(),
        b"x-resume-token": token.encode(),
        b"cache-control": b"no-store",
    }


def reading_for(request: HttpRequest, stream_id: str, log: Log, cursor: Cursor) -> Reading:
    """A reader, which is ended when the server waits no longer."""
    process = lifecycle.current()
    caller, headers, store = authorization(request), headers_of(request), process.store()
    asked = Asked(
        request_id=request_id(request),
        cursor=cursor,
        token=lambda position: _issued(stream_id, caller, position),
        keepalive=settings.KEEPALIVE_SECONDS,
        checkpoints=settings.RESUME_CHECKPOINT_SECONDS if says(request, "X-Resume-Events") else 0.0,
        scope=scope_of(request),
    )
    reading = Reading(
        log,
        asked,
        lambda: store.find(stream_id),
        lambda: process.takeovers.take_over(store, stream_id, headers),
    )

    def shut_down() -> None:
        if not process.generations.shut_down(stream_id):
            reading.leave()

    ends_itself(asked.scope, shut_down)
    return reading
