"""httpx over aiohttp's connections: half the CPU per streamed chunk of httpx's own transport.

The published adapter of the two was tried first. It takes a dropped connection for a connect timeout and writes
the path anew, which a proxy must not do, so this one sends the target as it came and maps each error to its kind.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

import aiohttp
import aiohttp.connector
import httpx
from aiohttp.http import HttpProcessingError
from yarl import URL

from continuation.http.headers import FRAMING, field_name

# Below the 5 s after which uvicorn, and so both engines, close an idle connection: a request must not meet that.
KEEPALIVE_SECONDS = 3.0
HEADER_BYTES = 2**16
READ_BUFFER_BYTES = 2**16
# A larger body is written in pieces of this size.
WRITTEN_BYTES = 2**18
# Headers that aiohttp would add where the client sent none.
NOT_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class _ClosedAsUsed(aiohttp.ServerDisconnectedError):
    """A connection that had served an earlier request closed as it was used again, and nothing was answered."""


@contextmanager
def _as_httpx_errors(request: httpx.Request) -> Iterator[None]:
    try:
        yield
    except (_ClosedAsUsed, aiohttp.ClientConnectionResetError) as trouble:
        raise httpx.RemoteProtocolError(str(trouble), request=request) from trouble
    except (aiohttp.ConnectionTimeoutError, aiohttp.ServerTimeoutError) as trouble:
        raise httpx.ConnectTimeout(str(trouble), request=request) from trouble
    except aiohttp.ClientConnectorError as trouble:
        raise httpx.ConnectError(str(trouble), request=request) from trouble
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as trouble:
        raise httpx.UnsupportedProtocol(str(trouble), request=request) from trouble
    except (aiohttp.ClientError, OSError, RuntimeError, asyncio.IncompleteReadError) as trouble:
        # RuntimeError: of a connection that was lost a moment ago, before anybody knew
        raise httpx.ReadError(str(trouble), request=request) from trouble
    except ValueError as trouble:  # something of the request that cannot be written down
        raise httpx.LocalProtocolError(str(trouble), request=request) from trouble


class Body(httpx.AsyncByteStream):
    """The bytes of an answer. `read` may be cancelled without losing any; "" is the clean end."""

    def __init__(self, answer: aiohttp.ClientResponse, request: httpx.Request) -> None:
        self._answer = answer
        self._request = request
        self._protocol = answer.connection.protocol if answer.connection is not None else None
        self._lost = self._closed = self._protocol.closed if self._protocol is not None else None
        if self._lost is not None:
            self._lost.remove_done_callback(_noticed)  # the connection may have served an answer before
            self._lost.add_done_callback(_noticed)
            self._lost.add_done_callback(self._connection_lost)
            answer.content.on_eof(self._forget)

    async def read(self) -> bytes:
        content = self._answer.content
        if content.exception() is not None and (arrived := _arrived(content)):
            return arrived
        with _as_httpx_errors(self._request):
            return await content.readany() or self._clean_end()

    def _clean_end(self) -> bytes:
        """Where only the end of the connection ends an answer, aiohttp takes a reset for one."""
        closed, framing = self._closed, self._answer.headers
        if closed is None or "Content-Length" in framing or "Transfer-Encoding" in framing:
            return b""
        if closed.done() and not closed.cancelled() and (trouble := closed.exception()) is not None:
            raise trouble
        return b""

    def read_nowait(self) -> bytes:
        """What has arrived already; "" if nothing has."""
        with _as_httpx_errors(self._request):
            return self._answer.content.read_nowait()

    @property
    def at_end(self) -> bool:
        return self._answer.content.at_eof()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while read := await self.read():
            yield read

    def close(self) -> None:
        """At once; a connection whose answer was not read to its end is not used again."""
        self._forget()
        self._answer.close()

    def _connection_lost(self, lost: asyncio.Future[None]) -> None:
        """When a chunk cannot be read, aiohttp closes the connection, but does not wake who waits for the body."""
        content, fault = (
            self._answer.content,
            self._protocol.exception() if self._protocol is not None else None,
        )
        if isinstance(fault, HttpProcessingError) and not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the framing of the answer is broken"))

    def _forget(self) -> None:
        """The connection outlives the answer."""
        if self._lost is not None:
            self._lost.remove_done_callback(self._connection_lost)
            self._lost = None

    async def aclose(self) -> None:
        self.close()


def _arrived(content: aiohttp.StreamReader) -> bytes:
    """What came before the connection broke: aiohttp keeps it, but raises before it gives it out."""
    return b"".join(iter(partial(content._read_nowait, -1), b"")) if content._buffer else b""


def _noticed(lost: asyncio.Future[None]) -> None:
    """Else asyncio logs that the exception of a connection that was reset was never retrieved."""
    if not lost.cancelled():
        lost.exception()


class _Answer(aiohttp.ClientResponse):
    """Its error says whether its connection had served another one."""

    served: ClassVar[weakref.WeakSet[asyncio.BaseProtocol]]  # the protocols of connections that have

    async def start(self, connection: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        protocol = connection.protocol
        was_used = protocol is not None and protocol in self.served
        if protocol is not None:
            self.served.add(protocol)
        try:
            return await super().start(connection)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as trouble:
            if not was_used or not _is_without_a_byte(trouble):
                raise
            raise _ClosedAsUsed(str(trouble) or None) from trouble


def _is_without_a_byte(trouble: aiohttp.ClientError) -> bool:
    """A beginning of an answer is in the error's message."""
    return not isinstance(trouble, aiohttp.ServerDisconnectedError) or isinstance(trouble.message, str)


class _AnswerApart(_Answer):
    """Its connection is not kept, even if it has come to its end before anybody looks at it."""

    async def start(self, connection: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        if connection.protocol is not None:
            connection.protocol.force_close()
        return await super().start(connection)


@dataclass(frozen=True, slots=True)
class _Kinds:
    usual: type[_Answer]
    apart: type[_Answer]


def _kinds_of_answers() -> _Kinds:
    """Of one transport. aiohttp makes the answers, and gives them nothing of the transport but their class."""
    kinds = _Kinds(type("_Answer", (_Answer,), {}), type("_AnswerApart", (_AnswerApart,), {}))
    kinds.usual.served = kinds.apart.served = weakref.WeakSet()
    return kinds


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Two that share their connections, and so the limit of these. tls: the context of both."""

    usual: aiohttp.ClientSession
    apart: aiohttp.ClientSession
    tls: ssl.SSLContext


class AiohttpTransport(httpx.AsyncBaseTransport):
    """limit is the most connections open at a time, 0 for no limit; connect_timeout is in seconds.

    keepalive: seconds for which an idle connection is kept; 0: each serves one request.
    """

    def __init__(self, *, limit: int, connect_timeout: float, keepalive: float = KEEPALIVE_SECONDS) -> None:
        self._limit = limit
        self._keepalive = keepalive
        self._timeout = aiohttp.ClientTimeout(sock_connect=connect_timeout)
        self._sessions: _Sessions | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The extension "target", bytes, is sent as the request target in place of the URL's own, and "size" is how
        many bytes the pieces of the body are together; without it they are sent in chunks.

        With the extension "apart" the request has a connection to itself, which has served no other and serves no
        other: an engine that fails in good order ends its answers cleanly, and their connections just after.
        """
        with _as_httpx_errors(request):
            answer = await self._send(request)
        body = Body(answer, request)
        return httpx.Response(
            answer.status, headers=answer.raw_headers, stream=body, extensions={"body": body}
        )

    async def _send(self, request: httpx.Request) -> aiohttp.ClientResponse:
        """A kept connection may close just as it is taken: nothing was answered then, and a new one is tried."""
        data = _data(request)
        try:
            return await self._send_once(request, data)
        except aiohttp.ClientConnectionResetError:
            if not isinstance(data, bytes | None):
                raise
        return await self._send_once(request, data)

    async def _send_once(
        self, request: httpx.Request, data: bytes | AsyncIterator[bytes] | None
    ) -> aiohttp.ClientResponse:
        sessions = self._open_sessions()
        apart = bool(request.extensions.get("apart"))
        session = sessions.apart if apart else sessions.usual
        return await session.request(
            request.method,
            _url(request),
            headers=[(name.decode("ascii"), _text(value)) for name, value in _framed(request, data)],
            data=_in_pieces(data) if isinstance(data, bytes) and len(data) > WRITTEN_BYTES else data,
            allow_redirects=False,
            ssl=sessions.tls if apart else True,  # connections are kept by what is named here
        )

    async def __aenter__(self) -> Self:
        self._open_sessions()
        return self

    async def aclose(self) -> None:
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            await sessions.apart.close()
            await sessions.usual.close()

    def _open_sessions(self) -> _Sessions:
        if self._sessions is None:
            tls = ssl.create_default_context()
            connector = aiohttp.TCPConnector(
                limit=self._limit,
                keepalive_timeout=self._keepalive or None,
                force_close=not self._keepalive,
                ssl=tls,
            )
            session = partial(
                aiohttp.ClientSession,
                connector=connector,
                timeout=self._timeout,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),  # one client's cookies are not another's
                skip_auto_headers=NOT_ADDED,
                read_bufsize=READ_BUFFER_BYTES,
                max_line_size=HEADER_BYTES,
                max_field_size=HEADER_BYTES,
            )
            kinds = _kinds_of_answers()
            apart = session(response_class=kinds.apart, connector_owner=False)
            self._sessions = _Sessions(session(response_class=kinds.usual), apart, tls)
        return self._sessions


def _url(request: httpx.Request) -> URL:
    """The target as it came; host and port are never read from it."""
    target: bytes = request.extensions.get("target") or request.url.raw_path
    path, mark, query = target.decode("latin-1").partition("?")
    return URL.build(
        scheme=request.url.scheme,
        authority=request.url.netloc.decode("ascii"),  # an IPv6 address in its brackets
        path=path if query else path + mark,  # yarl would leave the mark of an empty query out
        query_string=query,
        encoded=True,
    )


def _data(request: httpx.Request) -> bytes | AsyncIterator[bytes] | None:
    try:
        return request.content or None
    except httpx.RequestNotRead:
        return _pieces(request)


def _framed(request: httpx.Request, data: bytes | AsyncIterator[bytes] | None) -> list[tuple[bytes, bytes]]:
    """The headers with one length, that of the bytes that are sent, whatever they said before.

    With another one, the rest of the connection is read by downstream as something it is not.
    """
    headers = [(name, value) for name, value in request.headers.raw if field_name(name) not in FRAMING]
    if data is None:
        size = 0 if "content-length" in request.headers else None
    else:
        size = len(data) if isinstance(data, bytes) else request.extensions.get("size")
    return headers if size is None else [*headers, (b"Content-Length", b"%d" % size)]


def _text(value: bytes) -> str:
    """aiohttp writes header values as UTF-8, so bytes that are UTF-8 arrive as they were."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


async def _in_pieces(data: bytes) -> AsyncIterator[bytes]:
    """What the socket does not take at once is copied, which would hold up other requests if it were all."""
    for at in range(0, len(data), WRITTEN_BYTES):
        yield data[at : at + WRITTEN_BYTES]


async def _pieces(request: httpx.Request) -> AsyncIterator[bytes]:
    assert isinstance(request.stream, httpx.AsyncByteStream)
    left = size = request.extensions.get("size")
    async for piece in request.stream:
        if left is not None:
            left -= len(piece)
            if left < 0:
                break
        yield piece
    if left:  # aiohttp would take the connection for one that can be used again
        raise ValueError(f"the body is not of the {size} bytes that were announced")
