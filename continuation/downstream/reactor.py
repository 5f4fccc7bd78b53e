"""Twisted's reactor, where one runs the event loop. daphne has no lifespan events; its reactor says when it stops."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any


def before_it_stops(last: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """The reactor of the running loop awaits `last` before it stops. Without one `last` is never called."""
    loop = asyncio.get_running_loop()
    reactor = sys.modules.get("twisted.internet.reactor")
    if reactor is None or getattr(reactor, "_asyncioEventloop", None) is not loop:
        return
    from twisted.internet.defer import Deferred

    def begin() -> Deferred[None]:
        return Deferred.fromFuture(asyncio.ensure_future(last(), loop=loop))

    reactor.addSystemEventTrigger("before", "shutdown", begin)
