"""Streaming answers under Django: headers as received, and a generator that is closed with its answer."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from django.core.signals import request_started
from django.db import close_old_connections, reset_queries
from django.http import HttpResponse, StreamingHttpResponse

from continuation.http.headers import RawHeaders, with_own
from continuation.metrics import noting


class RelayResponse(StreamingHttpResponse):
    """Django closes only its own wrapper around a generator; the generator's own cleanup would wait for the
    garbage collector. Here it runs as soon as the client is gone."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], status: int, headers: RawHeaders) -> None:
        super().__init__(_nothing())
        self.status_code = status  # whatever it is; the constructor would refuse some
        self._pieces = pieces
        self._raw_headers = headers

    def items(self) -> Any:
        """Names may come twice (Set-Cookie), which Django's own mapping cannot hold. That has what middleware added,
        and a Content-Type which is Django's guess."""
        own = {name: value for name, value in self.headers.items() if name.lower() != "content-type"}
        return with_own(self._raw_headers, own)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(self._pieces) as pieces:
            yield b""  # some servers send the headers only with the first piece
            async for piece in pieces:
                yield piece


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


def leave_request_threads_alone() -> None:
    """Django hands these two to a thread of its own at the start of every request, which then lives as long as the
    stream. They have nothing to do here: no connection outlives its request (CONN_MAX_AGE is 0)."""
    request_started.disconnect(close_old_connections)
    request_started.disconnect(reset_queries)


# In the scope of a request, from servers that tell it: its target, bytes, as it stood in the request line.
TARGET = "gateway.target"


def let_none_follow(send: object) -> None:
    """No further request is read from the connection of this answer. Under daphne and `serve`, that is; other servers
    take it from the `Connection: close` of an answer."""
    channel = _channel_of(send)
    if channel is not None:
        channel.persistent = 0


def _channel_of(send: object) -> Any:
    bound = getattr(send, "args", ())
    return getattr(bound[0], "channel", None) if bound else None


def json_error(
    status: int, message: str, kind: str, code: str, headers: Mapping[str, str] | None = None, **more: Any
) -> HttpResponse:
    """An error in the form that OpenAI's clients read; `more` stands beside its message."""
    noting.refused(code)
    body = json.dumps({"error": {"message": message, "type": kind, "code": code, **more}})
    return HttpResponse(body, status=status, content_type="application/json", headers=headers)
