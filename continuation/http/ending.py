"""How an answer that has begun ends before its time: by itself at a shutdown, or broken off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from continuation.http.response import _channel_of

# In the scope of a request: a function that closes the client's connection once what was sent has left.
CLOSE_CONNECTION = "gateway.close_connection"
CLOSING_SECONDS = 5.0
# In the scope of a request: a function that takes one; the server calls that when it stops and waits no longer.
ON_SHUTDOWN = "gateway.on_shutdown"


OnShutdown = Callable[[Callable[[], None]], None]


def ends_itself(scope: Mapping[str, Any], end: Callable[[], None]) -> None:
    """The answer to the request of this scope can end well when the server stops, which calls `end`. Other answers,
    and all under servers that know nothing of this, are broken off."""
    tell: OnShutdown | None = (scope.get("extensions") or {}).get(ON_SHUTDOWN)
    if tell is not None:
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
