"""Requests that end cleanly when the server stops.

A server that stops cancels its applications. Django does not pass that on to the task that runs the view, so a stream
would be left hanging: its downstream connection open, its audit row unwritten, its generator to the garbage
collector. Here a cancelled request is told that its client has gone, which Django does handle.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from continuation.downstream import reactor

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Application = Callable[[Any, Receive, Any], Awaitable[None]]

LEAVING_SECONDS = 5.0
CANCELLED_SECONDS = 1.0  # for who did not leave by himself
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


class Attendance:
    """Who is still here. daphne stops as soon as the first application that it cancels has ended, others under way
    or not; its reactor, which runs on the same loop, also waits for whom it is told to wait for."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[None]] = set()
        self._told: asyncio.AbstractEventLoop | None = None

    def note(self, task: asyncio.Future[None]) -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        loop = asyncio.get_running_loop()
        if self._told is not loop:
            self._told = loop
            reactor.before_it_stops(self.until_all_have_left)

    async def until_all_have_left(self) -> None:
        if self._running:
            await asyncio.wait({*self._running}, timeout=LEAVING_SECONDS + CANCELLED_SECONDS)


def leaving_cleanly(application: Application) -> Application:
    attendance = Attendance()

    async def run(scope: Any, receive: Receive, send: Any) -> None:
        departure = Departure(receive)
        task = asyncio.ensure_future(application(scope, departure.receive, send))
        attendance.note(task)
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
