"""A client's connection: daphne's, with an eye on whether the client keeps up with its answer and with its request.

Bytes go to Twisted's transport, which buffers without end whatever the socket does not take. It tells its producer,
the channel, to pause when more than 64 KiB wait, and to resume when none do; the sender waits in between.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import math
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from daphne.http_protocol import HTTPFactory  # type: ignore[import-untyped]
from twisted.web import http

from gatewaysite.server.exchange import Exchange
from gatewaysite.server.pace import Pace, Part, Slowest

logger = logging.getLogger(__name__)

# Seconds after the answer in which what a client still sends is read and thrown away. A client that is reset in
# mid-upload may never read the answer.
LINGER_SECONDS = 30.0
# A client that is too slow has little on its way.
SLOW_LINGER_SECONDS = 1.0
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
# What may wait behind the request that is being answered. A server that stops reading does not see the client leave.
PIPELINED_BYTES = 2**16
LENGTH_DIGITS = 18
# Seconds that a request gets, after the signal to stop, to come whole; a body that is on its way gets more.
GRACE_SECONDS = 10.0
BODY_GRACE_SECONDS = 30.0
BODY_BYTES_PER_SECOND = 1024
LONGEST_USER_TIMEOUT = 2**31 - 1  # milliseconds; a C int
RESET_POLL_SECONDS = 0.02
PEER_GRACE_SECONDS = 5.0  # so that it is `watch`, with its line in the log, that notices first where both can


HTTPChannel: Any = http.HTTPChannel  # Twisted types few of its signatures


class Channel(HTTPChannel):  # type: ignore[misc]
    """`server` is called when it opens and closes. Times are `time.monotonic()`, in seconds."""

    abortTimeout = None  # `watch` decides when a client is given up

    def __init__(self) -> None:
        super().__init__()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False
        self._discarding = False  # whatever still comes
        self._linger = LINGER_SECONDS
        self._pipelined = 0  # bytes that wait behind the request under way
        self._received = 0  # bytes of bodies
        self._heads = 0  # that have arrived whole
        self._pace = Pace()
        self._hurried_at: float | None = None
        self._received_then = 0
        self._left: float = 0
        self._taken_at = 0.0
        self._emptied = True  # since the last watch, all that waited was taken

    @property
    def server(self) -> Any:
        return self.factory.server

    @property
    def is_idle(self) -> bool:
        """Between requests, or before the first one."""
        return not self.requests

    @property
    def is_receiving(self) -> bool:
        """A request has begun to come, and is not whole."""
        return bool(self.requests) and not (self._handlingRequest or self._discarding)

    def connectionMade(self) -> None:
        self.server.channel_opened(self)
        super().connectionMade()
        self._notice_dead_peers(self.server.limits.stall)

    def connectionLost(self, reason: Any) -> None:
        self._room.set()
        super().connectionLost(reason)
        self.server.channel_closed(self)

    # -- writing -----------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.transport.write(self._written_at_once(data))

    def writeSequence(self, parts: Any) -> None:
        self.transport.write(self._written_at_once(b"".join(parts)))

    def _written_at_once(self, data: bytes) -> bytes:
        """What is left of it after the socket has taken what it could. Twisted would first ask the event loop whether
        the socket takes anything, which costs more than the sending."""
        transport = self.transport
        if (
            transport.dataBuffer
            or transport._tempDataLen
            or not transport.connected
            or transport.disconnecting
        ):
            return data
        sent = transport.writeSomeData(data)
        return data if isinstance(sent, Exception) else data[sent:]

    # -- what the client takes ---------------------------------------------------------------------

    def _notice_dead_peers(self, limit: float) -> None:
        """Where there is room `watch` does not look, but the kernel knows that nothing is acknowledged any more."""
        milliseconds = int(min(LONGEST_USER_TIMEOUT, (limit + PEER_GRACE_SECONDS) * 1000))
        with suppress(AttributeError, OSError):  # not on every system, not on every kind of socket
            option = socket.TCP_USER_TIMEOUT
            self.transport.getHandle().setsockopt(socket.IPPROTO_TCP, option, milliseconds)

    @property
    def is_full(self) -> bool:
        """More waits for the client than is good."""
        return not self._room.is_set()

    async def room(self) -> None:
        """Wait until there is room again, or the connection is gone."""
        await self._room.wait()

    def pauseProducing(self) -> None:
        super().pauseProducing()
        self._room.clear()

    def resumeProducing(self) -> None:
        super().resumeProducing()
        self._room.set()
        self._emptied = True

    def watch(self, now: float, limit: float) -> None:
        """Give the client up when it has taken nothing for `limit` seconds of what waits for it.

        As long as there is room more may be written at any time, so what is left tells nothing then.
        """
        if not (self.is_full or self._closing or self.is_idle):
            self._left = math.inf
            return
        left = self._unsent()
        if not left or left < self._left or self._emptied:
            self._taken_at = now
        self._left, self._emptied = left, False
        if now - self._taken_at >= limit:
            logger.warning("request %s: dropped, its client took nothing for %g s", self._request_id(), limit)
            self.transport.abortConnection()

    def _unsent(self) -> int:
        """Bytes that the client has not acknowledged: those in Twisted's hands, and those in the kernel's."""
        transport = self.transport
        held: int = len(transport.dataBuffer) - transport.offset + transport._tempDataLen
        with suppress(OSError, ValueError):
            (queued,) = struct.unpack("i", fcntl.ioctl(transport.fileno(), termios.TIOCOUTQ, bytes(4)))
            held += queued
        return held

    def _request_id(self) -> str:
        told = self.requests[0].responseHeaders.getRawHeaders(b"x-request-id") if self.requests else None
        return told[0].decode("latin-1") if told else "(unknown)"

    # -- the end -----------------------------------------------------------------------------------

    def loseConnection(self) -> None:
        """Once all that was written is sent."""
        self._closing = True
        if self._discarding:
            self.transport.loseWriteConnection()
            self.callLater(self._linger, self.transport.abortConnection)
        else:
            super().loseConnection()

    def reset(self) -> None:
        """As `loseConnection`, but so that the client takes the end for an error."""
        self._closing = True
        if not self.transport.connected:
            return
        if self._unsent():
            self.callLater(RESET_POLL_SECONDS, self.reset)
        else:
            self.transport.abortConnection()

    def close_if_idle(self) -> None:
        if not self.is_idle:
            return
        if self._discarding:
            self.transport.abortConnection()
        else:
            self.loseConnection()

    def hurry(self, now: float) -> None:
        """The server stops: give a request up that does not come whole. `now` runs from the first call on."""
        if not self.is_receiving:
            return
        if self._hurried_at is None:
            self._hurried_at, self._received_then = now, self._received
        waited = now - self._hurried_at
        is_moving = self._received - self._received_then >= waited * BODY_BYTES_PER_SECOND
        if waited >= (BODY_GRACE_SECONDS if is_moving else GRACE_SECONDS):
            logger.warning("a request had not come whole %.0f s after the stop began, and is dropped", waited)
            self.transport.abortConnection()

    # -- what the client sends ---------------------------------------------------------------------

    def headerReceived(self, line: bytes) -> bool:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and len(value.strip()) > LENGTH_DIGITS:
            self._respondToBadRequestAndDisconnect()
            return False
        return bool(super().headerReceived(line))

    def checkPersistence(self, request: Any, version: bytes) -> bool:
        """Twisted looks for blanks between the options, where commas are."""
        given = request.requestHeaders.getRawHeaders(b"connection", [])
        is_last = b"close" in {option.strip().lower() for line in given for option in line.split(b",")}
        if is_last:
            request.responseHeaders.setRawHeaders(b"connection", [b"close"])
        return version == b"HTTP/1.1" and not is_last

    def allHeadersReceived(self) -> None:
        self._heads += 1
        if (self.length or 0) > self.server.limits.body:
            self.refuse(self.requests[-1], Exchange.refuse_size)
        else:
            super().allHeadersReceived()

    def refuse(
        self, exchange: Exchange, answer: Callable[[Exchange], None], linger: float = LINGER_SECONDS
    ) -> None:
        """Answer now, and throw away the rest of the body, for up to `linger` seconds after the answer."""
        self._discarding = True
        self._linger = linger
        self.persistent = 0
        exchange.clientproto, exchange.method, exchange.uri = self._version, self._command, self._path
        answer(exchange)

    @property
    def _part(self) -> Part:
        """What the client is sending, and is free to send."""
        if self._handlingRequest or self._discarding or self._closing or self.is_full:
            return Part.NONE
        if not self.line_mode:
            return Part.BODY
        return Part.HEAD if self.requests or self._buffer else Part.NONE

    def watch_pace(self, now: float, slowest: Slowest) -> None:
        """Give a client up that sends its request too slowly."""
        part = self._part
        self._pace.look(now, part, self._heads, self._received)
        if not self._pace.is_too_slow(now, self._received, slowest):
            return
        if part is Part.BODY:
            self.refuse(self.requests[-1], Exchange.refuse_pace, SLOW_LINGER_SECONDS)
            return
        logger.warning("a client had not sent the head of a request after %g s, and is dropped", slowest.head)
        self.transport.write(TOO_SLOW)
        self.loseConnection()

    def idle_seconds(self, now: float) -> float:
        """Since when the connection has waited for a request, to within the time between two looks."""
        return self._pace.idle_seconds(now) if self.is_idle else 0.0

    def timeoutConnection(self) -> None:
        """Twisted's limit is for idle connections. A request on its way has limits of its own."""
        if self._part is Part.NONE:
            super().timeoutConnection()
        else:
            self.setTimeout(self.timeOut)

    def dataReceived(self, data: bytes) -> None:
        if not self._discarding:
            super().dataReceived(data)

    def rawDataReceived(self, data: bytes) -> None:
        if self._discarding:
            return
        if self._handlingRequest:
            self._keep_for_later(data)
        else:
            self._received += len(data)
            super().rawDataReceived(data)

    def _keep_for_later(self, data: bytes) -> None:
        """What comes behind the request that is being answered: its client may repeat what is not."""
        self._pipelined += len(data)
        if self._pipelined <= PIPELINED_BYTES:
            self._dataBuffer.append(data)
            return
        logger.info("request %s: more than %d bytes came behind it", self._request_id(), PIPELINED_BYTES)
        self._discarding = True
        self.persistent = 0
        self._dataBuffer.clear()

    def requestDone(self, request: Any) -> None:
        self._pipelined = 0
        super().requestDone(request)

    def allContentReceived(self) -> None:
        if not self._discarding:
            super().allContentReceived()


class Factory(HTTPFactory):  # type: ignore[misc]
    protocol = Channel

    def buildProtocol(self, address: Any) -> Any:
        channel = super().buildProtocol(address)
        channel.requestFactory = Exchange
        return channel

    def log(self, request: Any) -> None:
        """daphne has an access log of its own."""
