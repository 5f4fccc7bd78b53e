"""Streaming answers under Django: headers as received, and a generator that is closed with its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from django.core.signals import request_started
from django.db import close_old_connections, reset_queries
from django.http import StreamingHttpResponse

from continuation.http import RawHeaders


class RelayResponse(StreamingHttpResponse):
    """Django closes only its own wrapper around a generator; the generator's own cleanup would wait for the
    garbage collector. Here it runs as soon as the client is gone."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], status: int, headers: RawHeaders) -> None:
        super().__init__(_nothing(), status=status)
        self._pieces = pieces
        self._raw_headers = headers

    def items(self) -> Any:
        """Names may come twice (Set-Cookie), which Django's own mapping cannot hold."""
        return list(self._raw_headers)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(self._pieces) as pieces:
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
