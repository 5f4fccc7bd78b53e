"""Requests that end cleanly when the server stops.

A server that stops cancels its applications. Django does not pass that on to the task that runs the view, so a stream
would be left hanging: its downstream connection open, its audit row unwritten, its generator to the garbage
collector. Here a cancelled request is told that its client has gone, which Django does handle.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Application = Callable[[Any, Receive, Any], Awaitable[None]]

LEAVING_SECONDS = 5.0
GONE: Message = {"type": "http.disconnect"}


class Departure:
    """A `receive` that also reports the disconnect once `leave` has been called."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = asyncio.Event()
        self._body_ended = False

    async def receive(self) -> Message:
        if not self._body_ended:
            message = await self._receive()
            self._body_ended = not message.get("more_body", False)
            return message
        return await self._receive_or_gone()

    def leave(self) -> None:
        self._left.set()

    async def _receive_or_gone(self) -> Message:
        received = asyncio.ensure_future(self._receive())
        left = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({received, left}, return_when=asyncio.FIRST_COMPLETED)
            return received.result() if received.done() else GONE
        finally:
            received.cancel()
            left.cancel()


def leaving_cleanly(application: Application) -> Application:
    async def run(scope: Any, receive: Receive, send: Any) -> None:
        departure = Departure(receive)
        task = asyncio.ensure_future(application(scope, departure.receive, send))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            departure.leave()
            try:
                await asyncio.wait({task}, timeout=LEAVING_SECONDS)
            finally:  # a second cancellation ends the wait
                if not task.done():
                    task.cancel()
                elif not task.cancelled():
                    task.exception()  # the server asks for no answer any more
            raise

    return run
