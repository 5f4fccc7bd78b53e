"""A guarded request with all that its relay needs, be it the client's own or rebuilt by another process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from django.conf import settings

from continuation.downstream.client import Downstream, Upstream
from continuation.http.headers import RawHeaders, with_headers
from continuation.http.threads import worked_out
from continuation.plan import Choice, Guarded
from continuation.relay import Audit, Relay
from continuation.shapes.chat.usage import Estimator
from continuation.splice.actions import OpenLeg, OpenTokens
from continuation.splice.machine import Splice
from continuation.splice.options import Options
from continuation.token_route.route import DERENDER, Endpoints, open_tokens

MB = 2**20


@dataclass(frozen=True, slots=True)
class Origin:
    """The client's request but for its body. target: path and query; headers: end to end, as the client sent them."""

    request_id: str
    target: bytes
    headers: RawHeaders

    @property
    def leg1_headers(self) -> RawHeaders:
        return with_headers(self.headers, {b"accept-encoding": b"identity"})

    @property
    def leg2_headers(self) -> RawHeaders:
        """The engine may still hold leg 1 under the client's request id, so leg 2 has one of its own."""
        new = {
            b"accept-encoding": b"identity",
            b"content-type": b"application/json",
            b"x-request-id": f"{self.request_id}-leg2".encode("latin-1", "replace"),
        }
        if settings.CONTINUATION_API_KEY:
            new[b"authorization"] = b"Bearer " + settings.CONTINUATION_API_KEY.encode()
        kept = [(name, value) for name, value in self.headers if name.lower() != b"content-length"]
        return with_headers(kept, new)


def choice() -> Choice:
    largest = int(settings.MAX_CONTINUATION_BODY_MB * MB)
    return Choice(settings.CONTINUATION_MODEL, settings.CONTINUATION_ENGINE, largest, estimator())


def estimator() -> Estimator:
    return Estimator(settings.CJK_CHARS_PER_TOKEN, settings.OTHER_CHARS_PER_TOKEN)


def options() -> Options:
    return Options(
        enabled=settings.CONTINUATION_ENABLED,
        idle_timeout=settings.STALL_IDLE_TIMEOUT_SECONDS,
        failed_finishes=frozenset(settings.FAILED_FINISH_REASONS),
        estimator=estimator(),
        partial_limit=max(1, int(settings.MAX_CONTINUATION_BODY_MB * MB)),
        store_text=settings.AUDIT_STORE_TEXT,
        buffer_tool_calls=settings.BUFFER_TOOL_CALLS,
        buffer_limit=settings.BUFFER_TOOL_CALLS_MAX_BYTES,
    )


def splice_for(planned: Guarded, request_id: str) -> Splice:
    return Splice(planned, options(), request_id, datetime.now(UTC), time.monotonic())


@dataclass(frozen=True, slots=True)
class Parts:
    """What the process has for each of its relays."""

    downstream: Downstream
    endpoints: Endpoints
    audit: Audit


def relay_for(
    parts: Parts, splice: Splice, origin: Origin, upstream: Upstream | None, keepalive: float
) -> Relay:
    """upstream: leg 1's answer; None where there is only leg 2 to come. keepalive: see Relay."""

    async def post(path: str, body: bytes) -> Upstream:
        url = settings.CONTINUATION_URL
        apart = path != DERENDER  # which is asked over and over, while the generation runs
        return await parts.downstream.send(url, "POST", path.encode(), origin.leg2_headers, body, apart)

    async def open_continuation(action: OpenLeg | OpenTokens) -> Upstream:
        if isinstance(action, OpenTokens):
            batch_chunks = settings.DERENDER_BATCH_CHUNKS
            return await open_tokens(action, parts.endpoints, settings.CONTINUATION_URL, post, batch_chunks)
        body = await worked_out(action.size, lambda: action.body)
        return await post(origin.target.decode("latin-1"), body)

    silence = settings.STALL_IDLE_TIMEOUT_SECONDS
    return Relay(splice, upstream, open_continuation, keepalive=keepalive, silence=silence, audit=parts.audit)
