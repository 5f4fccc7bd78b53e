"""A client's connection and the requests on it: daphne's, with an eye on whether the client keeps up.

    Channel     one client's connection, and what it has not taken yet
    Exchange    one request on it, and its answer
    WebSocket   what a connection becomes that asks for it

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
from functools import cached_property
from http import HTTPStatus
from typing import Any

from autobahn.websocket.types import ConnectionDeny
from daphne.http_protocol import HTTPFactory, WebRequest  # type: ignore[import-untyped]
from daphne.utils import INVALID_HEADER_VALUE_BYTES  # type: ignore[import-untyped]
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol  # type: ignore[import-untyped]
from django.http import HttpResponse
from twisted.web import http

from continuation.http import json_error
from continuation.requests import quoted_id
from continuation.streams import CLOSE_CONNECTION, ON_SHUTDOWN, TARGET

logger = logging.getLogger(__name__)

# Where a client sends what nobody reads, so long is it still thrown away after the answer. A client that is reset in
# mid-upload may never read the answer.
LINGER_SECONDS = 30.0
# What may wait behind the request that is being answered. Whoever stops reading does not see the client leave.
PIPELINED_BYTES = 2**16
LENGTH_DIGITS = 18
# After the signal to stop, a request gets so long to come whole; a body that is really on its way gets more.
GRACE_SECONDS = 10.0
BODY_GRACE_SECONDS = 30.0
BODY_BYTES_PER_SECOND = 1024
LONGEST_USER_TIMEOUT = 2**31 - 1  # milliseconds; a C int
ROOT_PATH = b"daphne-root-path"
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
        self._discarding = False  # whatever still comes
        self._pipelined = 0  # bytes that wait behind the request under way
        self._received = 0  # bytes of bodies
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
        self._notice_dead_peers(self.server.stall_limit)

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
        if (self.length or 0) > self.server.body_limit:
            self.refuse_body(self.requests[-1])
        else:
            super().allHeadersReceived()

    def refuse_body(self, exchange: Exchange) -> None:
        """Answer now, and throw away the rest of the body."""
        self._discarding = True
        self.persistent = 0
        exchange.clientproto, exchange.method, exchange.uri = self._version, self._command, self._path
        exchange.refuse_body(self.server.body_limit)

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


class Exchange(WebRequest):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Nobody here asks Twisted for the fields of a form; it would read uploads into memory to find them.
        self._parsePOSTFormSubmission = False
        self._broken = False
        self._set_aside: list[tuple[bytes, bytes]] = []
        self._end_itself: Callable[[], None] | None = None

    # -- the request -------------------------------------------------------------------------------

    def process(self) -> Any:
        """daphne takes the root path from a header of the client's. Here it is a header as any other."""
        given = self.requestHeaders.getRawHeaders(ROOT_PATH, [])
        if not any(INVALID_HEADER_VALUE_BYTES.intersection(value) for value in given):
            self._set_aside = [(ROOT_PATH, value) for value in given]
            self.requestHeaders.removeHeader(ROOT_PATH)
        return super().process()

    def complete(self, scope: dict[str, Any]) -> None:
        """Add to what the application is told."""
        scope["headers"] += self._set_aside
        scope["extensions"] = {
            CLOSE_CONNECTION: self.break_off,
            ON_SHUTDOWN: self.on_shutdown,
            TARGET: self.uri,
        }

    # -- the answer --------------------------------------------------------------------------------

    def handle_reply(self, message: Any) -> None:
        if self._broken:
            return
        super().handle_reply(message)
        if message["type"] != "http.response.start" or self.channel is None:
            return
        if self.server.is_stopping or not self.channel.persistent:
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
        known = self._request_id.decode("latin-1")
        logger.warning("request %s: request_too_large: more than %d bytes", known, limit)
        answer = json_error(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, "invalid_request_error", "request_too_large"
        )
        self._answer(answer, (b"connection", b"close"))

    def _answer(self, answer: HttpResponse, *more: tuple[bytes, bytes]) -> None:
        headers = [(name.encode(), value.encode("latin-1")) for name, value in answer.items()]
        headers += [
            (b"X-Request-Id", self._request_id),
            (b"Content-Length", b"%d" % len(answer.content)),
            *more,
        ]
        self.handle_reply({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        self.handle_reply({"type": "http.response.body", "body": answer.content})

    @cached_property
    def _request_id(self) -> bytes:
        """The client's, quoted, or a new one; for the log and for an answer of the server's own."""
        given = self.requestHeaders.getRawHeaders(b"x-request-id", [b""])
        return (quoted_id(given[0].decode("latin-1")) or uuid.uuid4().hex).encode()

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


class WebSocket(WebSocketProtocol):  # type: ignore[misc]
    """`request` is set once its handshake has been read."""

    request = None

    def onConnect(self, request: Any) -> Any:
        if not request.headers.get("sec-websocket-protocol", "").isascii():
            raise ConnectionDeny(400, "Invalid header value")  # type: ignore[no-untyped-call]
        return super().onConnect(request)

    def onClose(self, *how: Any) -> None:
        """A handshake that is none comes here too; of it the server knows nothing."""
        if self.request is not None:
            super().onClose(*how)


class WebSockets(WebSocketFactory):  # type: ignore[misc]
    protocol = WebSocket
