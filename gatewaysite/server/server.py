"""The gateway's own server: daphne's, with what a proxy of long streams needs besides.

daphne speaks HTTP and runs the application. What is added: sending waits for a client that does not keep up, and one
that takes nothing is dropped; an application that fails harms its own request only; and a stop lets open requests run
to their end.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from daphne.server import Server as DaphneServer  # type: ignore[import-untyped]
from twisted.internet import reactor as _reactor
from twisted.logger import (
    FilteringLogObserver,
    LogLevel,
    LogLevelFilterPredicate,
    STDLibLogObserver,
    globalLogBeginner,
)

from continuation import lifecycle
from continuation.downstream.shortage import Notice
from gatewaysite.server import descriptors
from gatewaysite.server.channel import Channel, Factory
from gatewaysite.server.exchange import Exchange
from gatewaysite.server.handshake import WebSockets
from gatewaysite.server.lifespan import FLUSH_SECONDS
from gatewaysite.server.listener import Door, Listener
from gatewaysite.server.pace import Slowest

logger = logging.getLogger(__name__)
reactor: Any = _reactor

REQUEST_PIECE_BYTES = 2**16
WATCH_SECONDS = 1.0
REPORT_SECONDS = 5.0
# Seconds that an idle connection stays after a signal: a request may be on its way.
IDLE_SECONDS = 0.25
# Seconds after which a connection without a request is closed while others wait to be let in.
IDLE_SECONDS_WHEN_FULL = 5.0
# Seconds that an answer gets to end itself; then it is cut off.
ENDING_SECONDS = 5.0
HURRIED_SECONDS = 1.0
# A thread that hangs (in a database, say) keeps no process alive for longer.
EXIT_SECONDS = 5.0
GOING_AWAY = 1001  # the WebSocket status


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """body: bytes of a request. patience: seconds that a stop waits for open requests, None for as long as it takes.
    stall: seconds after which a client that takes nothing is dropped. slowest: of clients that send a request."""

    body: int
    patience: float | None
    stall: float
    slowest: Slowest


class Server(DaphneServer):  # type: ignore[misc]
    """`run` serves until a signal and gives the exit status."""

    def __init__(
        self,
        application: Any,
        listener: Listener,
        limits: ServerLimits,
        access_log: Callable[..., None] | None = None,
    ) -> None:
        super().__init__(
            application,
            endpoints=[listener.name],
            signal_handlers=False,
            action_logger=access_log,
            request_buffer_size=REQUEST_PIECE_BYTES,
        )
        self._process = lifecycle.current()
        self._listener = listener
        self.limits = limits
        self._most_clients = 0
        self._door: Door | None = None
        self._full = Notice()
        self._loop: asyncio.AbstractEventLoop = reactor._asyncioEventloop
        self._tasks: set[asyncio.Task[None]] = set()
        self._status = 0
        self._hurried = False
        self._settled = asyncio.Event()  # while it stops: nothing is open any more, or it is to be quick
        self.connections: dict[Any, dict[str, Any]] = {}
        self.channels: set[Channel] = set()
        self.is_stopping = False
        self.trouble: Exception | None = None  # why it could not start,
        self.at_the_door = False  # and whether all was ready but the listening

    # -- start -------------------------------------------------------------------------------------

    def run(self) -> int:
        self.http_factory = Factory(self)
        self.ws_factory = WebSockets(self, server=self.server_name)
        self.ws_factory.setProtocolOptions(
            autoPingTimeout=self.ping_timeout,
            allowNullOrigin=True,
            openHandshakeTimeout=self.websocket_handshake_timeout,
            maxMessagePayloadSize=self.websocket_max_message_size,
            maxFramePayloadSize=self.websocket_max_frame_size,
        )
        _log_errors_of_twisted()
        asyncio.set_event_loop(self._loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled, number)
        self._begin(self._start(), "start")
        reactor.run(installSignalHandlers=False)
        return self._status

    def _begin(self, coroutine: Any, name: str) -> None:
        task = self._loop.create_task(coroutine, name=f"server: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self) -> None:
        try:
            await self._process.open()
            self.at_the_door = True
            self._let_in(self._listener.open(self.http_factory))
        except Exception as trouble:
            self.trouble, self._status = trouble, 1
            reactor.stop()
            return
        finally:
            name = self._listener.name
            self._listener.close()
        self._process.generations.on_end.append(self._note_end)
        self._begin(self._keep_house(), "housekeeping")
        logger.info("serving on %s", name)

    # -- connections -------------------------------------------------------------------------------

    def _let_in(self, port: Any) -> None:
        """As many clients as have their share of the descriptors, downstream's among them."""
        limit = descriptors.raise_limit()
        self._most_clients = descriptors.clients_for(limit)
        logger.info("%d descriptors are enough for %d clients at a time", limit, self._most_clients)
        self._door = Door(port, self._room, self._note_full)

    def _room(self) -> int:
        return (
            self._most_clients
            - len(self.channels)
            - len(self._websockets)
            - self._process.generations.detached
        )

    def _note_full(self) -> None:
        self._full.say(
            f"{self._most_clients} clients are connected, for as many there are descriptors: others wait"
        )

    def channel_opened(self, channel: Channel) -> None:
        self.channels.add(channel)

    def channel_closed(self, channel: Channel) -> None:
        self.channels.discard(channel)
        if self._door is not None:
            self._door.open_if_room()
        self._note_end()

    def protocol_disconnected(self, protocol: Any) -> None:
        details = self.connections.get(protocol)
        if details is None:
            return
        details.setdefault("disconnected", time.time())
        if isinstance(protocol, Exchange) and protocol.transport is None:
            self.channels.discard(protocol.channel)  # its connection is a WebSocket's now
        self._forget_if_over(protocol)

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        if isinstance(protocol, Exchange):
            protocol.complete(scope)
        queue = super().create_application(protocol, scope)
        if queue is not None:
            application = self.connections[protocol]["application_instance"]
            application.add_done_callback(partial(self._application_ended, protocol))
        return queue

    def _application_ended(self, protocol: Any, application: asyncio.Future[None]) -> None:
        failure = None if application.cancelled() else application.exception()
        if failure is not None:
            logger.error("the application failed: %s", failure, exc_info=failure)
        details = self.connections[protocol]
        del details["application_instance"]
        if "disconnected" in details:
            self._forget_if_over(protocol)
        elif isinstance(protocol, Exchange):
            protocol.application_ended(failed=failure is not None)
        elif failure is not None:
            protocol.handle_exception(failure)

    def _forget_if_over(self, protocol: Any) -> None:
        details = self.connections[protocol]
        if "disconnected" in details and "application_instance" not in details:
            del self.connections[protocol]
            self._note_end()

    @property
    def _websockets(self) -> list[Any]:
        return [protocol for protocol in self.connections if not isinstance(protocol, Exchange)]

    async def handle_reply(self, protocol: Any, message: Any) -> None:
        """Send, and wait while the client has more to take than is good."""
        channel = protocol.channel if isinstance(protocol, Exchange) and not protocol.is_over else None
        await super().handle_reply(protocol, message)
        if channel is not None and channel.is_full and not protocol.is_over:
            await channel.room()

    # -- housekeeping ------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(min(WATCH_SECONDS, self.limits.stall / 4, self.limits.slowest.shortest / 4))
            if self._door is not None:
                self._door.open_if_room()
            for channel in list(self.channels):
                _safely(self._look_after, channel)
            for protocol in list(self.connections):
                _safely(self._kill_if_deaf, protocol)
            for protocol in self._websockets:
                _safely(protocol.check_timeouts)

    def _look_after(self, channel: Channel) -> None:
        now = time.monotonic()
        channel.watch(now, self.limits.stall)
        channel.watch_pace(now, self.limits.slowest)
        if (
            self._door is not None
            and self._door.is_shut
            and channel.idle_seconds(now) > IDLE_SECONDS_WHEN_FULL
        ):
            channel.close_if_idle()
        if self.is_stopping:
            channel.close_if_idle()
            channel.hurry(now)

    def _kill_if_deaf(self, protocol: Any) -> None:
        """An application that does not end although its client has gone."""
        details = self.connections[protocol]
        application = details.get("application_instance")
        gone_at = details.get("disconnected", math.inf)
        if application is None or "cancelled" in details:
            return
        if time.time() - gone_at > self.application_close_timeout:
            details["cancelled"] = True
            logger.warning("the application of %r did not end and is cancelled", protocol)
            application.cancel()

    # -- stop --------------------------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        if not self.is_stopping:
            self.is_stopping = True
            self._begin(self._stop(), "stop")
        elif not self._hurried:
            self._hurried, self._status = True, 128 + number
            self._settled.set()

    async def _stop(self) -> None:
        try:
            await self._close_doors()
            if not await self._drained():
                await self._end_what_is_open()
            await self._process.end(HURRIED_SECONDS if self._hurried else FLUSH_SECONDS)
            await self._end_own_tasks()
        except Exception:
            logger.exception("the stop failed")
            self._status = self._status or 1
        logger.info("stopped")
        _exit_within(EXIT_SECONDS, self._status)
        reactor.stop()

    async def _close_doors(self) -> None:
        """Nobody is let in any more; who waits at the door has been."""
        self._process.begin_stopping()
        if self._door is not None:
            self._door.close()
        for channel in self.channels:
            if not channel.is_idle:  # one that is may have a last request on its way
                channel.persistent = 0
        for protocol in self._websockets:
            _safely(_send_away, protocol)
        if self.channels:
            await asyncio.sleep(IDLE_SECONDS)
        for channel in list(self.channels):
            channel.close_if_idle()
        await self._settle(IDLE_SECONDS)

    async def _drained(self) -> bool:
        """Wait until nothing is open, until patience is over, or for a second signal; whether nothing is."""
        patience = self.limits.patience
        until = math.inf if patience is None else time.monotonic() + patience
        self._note_end()
        while not self._settled.is_set() and (left := until - time.monotonic()) > 0:
            logger.info("stopping: %s waited for", self._what_is_open)
            await self._settle(min(REPORT_SECONDS, left))
        return self._is_quiet

    async def _end_what_is_open(self) -> None:
        logger.warning("stopping: %s ended", self._what_is_open)
        self._settled.clear()
        for protocol in list(self.connections):
            if isinstance(protocol, Exchange):
                _safely(protocol.shut_down)
        self._process.generations.shut_down_all()
        await self._settle(HURRIED_SECONDS if self._hurried else ENDING_SECONDS)
        for channel in [*self.channels, *self._websockets]:
            channel.transport.abortConnection()
        await self._settle(HURRIED_SECONDS)
        left = [d["application_instance"] for d in self.connections.values() if "application_instance" in d]
        for application in left:
            application.cancel()
        if left:
            await asyncio.wait(left, timeout=HURRIED_SECONDS)

    async def _end_own_tasks(self) -> None:
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    @property
    def _what_is_open(self) -> str:
        """Connections, and applications that have lost theirs, with a verb."""
        unread = sum(channel.is_receiving for channel in self.channels)
        others = [
            protocol
            for protocol, details in self.connections.items()
            if "disconnected" in details or not isinstance(protocol, Exchange)
        ]
        streams = len(self.channels) - unread + len(others) + self._process.generations.detached
        said = [_counted(streams, "open stream")] if streams or not unread else []
        said += [_counted(unread, "unfinished request")] if unread else []
        return f"{' and '.join(said)} {'is' if streams + unread == 1 else 'are'}"

    @property
    def _is_quiet(self) -> bool:
        return not (self.channels or self.connections or self._process.generations.running)

    def _note_end(self) -> None:
        if self.is_stopping and self._is_quiet:
            self._settled.set()

    async def _settle(self, seconds: float) -> None:
        self._note_end()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _send_away(websocket: Any) -> None:
    if websocket.state == websocket.STATE_CONNECTING:
        websocket.serverReject()
    else:
        websocket.sendCloseFrame(code=GOING_AWAY)


def _safely(step: Callable[..., None], *arguments: Any) -> None:
    """What fails for one connection is not the end of what all others need."""
    try:
        step(*arguments)
    except Exception:
        logger.exception("a connection could not be looked after")


def _log_errors_of_twisted() -> None:
    errors: Any = LogLevelFilterPredicate(LogLevel.error)
    logged: Any = STDLibLogObserver("twisted")
    chosen: Any = FilteringLogObserver(logged, [errors])
    globalLogBeginner.beginLoggingTo([chosen], redirectStandardIO=False, discardBuffer=True)


def _exit_within(seconds: float, status: int) -> None:
    def watch() -> None:
        time.sleep(seconds)
        os._exit(status)

    threading.Thread(target=watch, name="exit", daemon=True).start()
