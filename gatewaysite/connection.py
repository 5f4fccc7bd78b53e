"""A client's connection and the requests on it: daphne's, with an eye on whether the client keeps up.

    Channel     one client's connection, and what it has not taken yet
    Exchange    one request on it, and its answer

Bytes go to Twisted's transport, which buffers without end whatever the socket does not take. It tells its producer,
the channel, to pause when more than 64 KiB wait, and to resume when none do; whoever sends waits in between.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import math
import socket
import struct
import termios
import uuid
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from daphne.http_protocol import HTTPFactory, WebRequest  # type: ignore[import-untyped]
from django.http import HttpResponse
from twisted.web import http

from continuation.http import json_error

logger = logging.getLogger(__name__)

# A request that was refused before its body had come: so long is what still comes of it thrown away. A client that
# is reset in mid-upload may never read the answer.
LINGER_SECONDS = 30.0
RESET_POLL_SECONDS = 0.02
PEER_GRACE_SECONDS = 5.0  # so that it is `watch`, with its line in the log, that notices first where both can
REFUSED = {400: ("invalid_request_error", "bad_request"), 503: ("unavailable_error", "shutting_down")}
BROKEN = ("internal_error", "internal_error")


HTTPChannel: Any = http.HTTPChannel  # Twisted types few of its signatures


class Channel(HTTPChannel):  # type: ignore[misc]
    """`server` is told when it opens and closes. Times are `time.monotonic()`, in seconds."""

    abortTimeout = None  # `watch` decides when a client is given up

    def __init__(self) -> None:
        super().__init__()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False
        self._refusing = False
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

    def connectionMade(self) -> None:
        super().connectionMade()
        self._notice_dead_peers(self.server.stall_limit)
        self.server.channel_opened(self)

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
        milliseconds = int((limit + PEER_GRACE_SECONDS) * 1000)
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
        if self._refusing:
            self.transport.loseWriteConnection()
            self.callLater(LINGER_SECONDS, self.transport.abortConnection)
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
        if self._refusing:
            self.transport.abortConnection()
        elif self.is_idle:
            self.loseConnection()

    # -- bodies that are too large -----------------------------------------------------------------

    def allHeadersReceived(self) -> None:
        if (self.length or 0) > self.server.body_limit:
            self.refuse_body(self.requests[-1])
        else:
            super().allHeadersReceived()

    def refuse_body(self, exchange: Exchange) -> None:
        """Answer now, and throw away the rest of the body."""
        self._refusing = True
        self.persistent = 0
        exchange.clientproto, exchange.method, exchange.uri = self._version, self._command, self._path
        exchange.refuse_body(self.server.body_limit)

    def dataReceived(self, data: bytes) -> None:
        if not self._refusing:
            super().dataReceived(data)

    def rawDataReceived(self, data: bytes) -> None:
        if not self._refusing:
            super().rawDataReceived(data)

    def allContentReceived(self) -> None:
        if not self._refusing:
            super().allContentReceived()


class Exchange(WebRequest):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Nobody here asks Twisted for the fields of a form; it would read uploads into memory to find them.
        self._parsePOSTFormSubmission = False
        self._broken = False
        self._end_itself: Callable[[], None] | None = None

    # -- the answer --------------------------------------------------------------------------------

    def handle_reply(self, message: Any) -> None:
        if self._broken:
            return
        super().handle_reply(message)
        if message["type"] == "http.response.start" and self.server.is_stopping:
            self.channel.persistent = 0
            self.setHeader(b"connection", b"close")

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        """The server's own answer, while there is none yet; else the answer is broken off."""
        if self._response_started:
            self.break_off()
        else:
            self._answer(json_error(status, f"{body.rstrip('.')}.", *REFUSED.get(status, BROKEN)))

    def refuse_body(self, limit: int) -> None:
        message = f"The request body is larger than {limit / 2**20:g} MB."
        given = self.requestHeaders.getRawHeaders(b"x-request-id", [b"(none given)"])[0].decode("latin-1")
        logger.warning("request %s: request_too_large: more than %d bytes", given, limit)
        answer = json_error(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, "invalid_request_error", "request_too_large"
        )
        self._answer(answer, (b"connection", b"close"))

    def _answer(self, answer: HttpResponse, *more: tuple[bytes, bytes]) -> None:
        given = self.requestHeaders.getRawHeaders(b"x-request-id", [uuid.uuid4().hex.encode()])
        headers = [(name.encode(), value.encode("latin-1")) for name, value in answer.items()]
        headers += [(b"X-Request-Id", given[0]), (b"Content-Length", b"%d" % len(answer.content)), *more]
        self.handle_reply({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        self.handle_reply({"type": "http.response.body", "body": answer.content})

    def handleContentChunk(self, data: bytes) -> None:
        """A chunked body tells its size only as it comes."""
        if self.is_over:
            return
        if self.content.tell() + len(data) > self.server.body_limit:
            self.channel.refuse_body(self)
        else:
            super().handleContentChunk(data)

    # -- its end -----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return bool(self.finished or self._disconnected or self._broken)

    def break_off(self) -> None:
        """End the answer so that its client can tell that it is not whole; the application learns that it is over."""
        if self.is_over:
            return
        self._broken = True
        if self.chunked or self.responseHeaders.hasHeader(b"content-length"):
            self.channel.loseConnection()
        else:
            self.channel.reset()  # the end of the connection would be taken for the end of the answer
        if self.application_queue:
            self.send_disconnect()

    def application_ended(self, failed: bool) -> None:
        """Nobody will write to this answer any more."""
        if not self.is_over:
            trouble = "The gateway met an unexpected error" if failed else "The request was given up"
            self.basic_error(500, b"Internal Server Error", trouble)

    def on_shutdown(self, end: Callable[[], None]) -> None:
        """The answer can end in a way that its client understands, and will soon after a call of `end`."""
        self._end_itself = end

    def shut_down(self) -> None:
        """The server waits no longer."""
        if self.is_over:
            return
        if self._end_itself is not None:
            self._end_itself()
        elif self._response_started:
            self.break_off()
        elif self.application_queue is None:  # the request has not come whole
            self.channel.transport.abortConnection()
        else:
            self.basic_error(503, b"Service Unavailable", "The gateway is shutting down")


class Factory(HTTPFactory):  # type: ignore[misc]
    protocol = Channel

    def buildProtocol(self, address: Any) -> Any:
        channel = super().buildProtocol(address)
        channel.requestFactory = Exchange
        return channel

    def log(self, request: Any) -> None:
        """daphne has an access log of its own."""
