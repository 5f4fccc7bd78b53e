"""Streaming answers under Django: headers as received, and a generator that is closed with its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

from django.core.signals import request_started
from django.db import close_old_connections, reset_queries
from django.http import StreamingHttpResponse

from continuation.http.headers import RawHeaders, with_own


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
# In the scope of a request: a function that closes the client's connection once what was sent has left.
CLOSE_CONNECTION = "gateway.close_connection"
CLOSING_SECONDS = 5.0
# In the scope of a request: a function that takes one; the server calls that when it stops and waits no longer.
ON_SHUTDOWN = "gateway.on_shutdown"
OnShutdown = Callable[[Callable[[], None]], None]
on_shutdown: ContextVar[OnShutdown | None] = ContextVar("on_shutdown", default=None)


def ends_itself(end: Callable[[], None]) -> None:
    """The answer to the current request can end well when the server stops: `end` tells it to. Other answers, and
    all under servers that know nothing of this, are broken off."""
    if tell := on_shutdown.get():
        tell(end)


class AnswerBrokenOff(Exception):
    """The rest of an answer is not to be had; servers break the client's connection off when they get this."""


async def break_off(scope: Mapping[str, Any]) -> None:
    """End an answer that has begun so that the client sees it is not whole: no terminating chunk."""
    close = scope.get("extensions", {}).get(CLOSE_CONNECTION)
    if close is None:
        raise AnswerBrokenOff
    close()
    await asyncio.sleep(
        CLOSING_SECONDS
    )  # the disconnect ends this; returning sooner would end the answer properly


def daphne_closer(send: object) -> Callable[[], None] | None:
    """For CLOSE_CONNECTION under daphne, which must not get an exception once an answer has begun: its periodic
    housekeeping would stop. Its `send` is bound to the request whose connection it is; None under other servers."""
    return getattr(_channel_of(send), "loseConnection", None)


def let_none_follow(send: object) -> None:
    """No further request is read from the connection of this answer. Under daphne and `serve`, that is; other servers
    take it from the `Connection: close` of an answer."""
    channel = _channel_of(send)
    if channel is not None:
        channel.persistent = 0


def _channel_of(send: object) -> Any:
    bound = getattr(send, "args", ())
    return getattr(bound[0], "channel", None) if bound else None
