"""HTTP/1.1 on a bare asyncio transport: as little as an engine needs, and full control over how it dies."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import urlsplit

MAX_HEAD_BYTES = 65536
MAX_BODY_BYTES = 128 * 1024 * 1024
_HIGH_WATER = 65536


class ClientGone(Exception):
    """The client has left, or the connection was ended on purpose."""


class BadRequest(Exception):
    """What came is no HTTP/1.x request; 413 where the body is over the limit."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.status = message, status


@dataclass(frozen=True, slots=True)
class Request:
    """Header names are in lower case; repeated ones are joined by commas."""

    method: str
    target: str
    version: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def keeps_alive(self) -> bool:
        wish = self.headers.get("connection", "").lower()
        return "close" not in wish if self.version == "HTTP/1.1" else "keep-alive" in wish


class ServedConnection(asyncio.Protocol):
    """One connection of a client. `serve` runs as its task and owns all writing."""

    transport: asyncio.Transport

    def __init__(
        self,
        serve: Callable[[ServedConnection], Awaitable[None]],
        registry: set[ServedConnection],
        grow: asyncio.AbstractEventLoop,
    ) -> None:
        self._serve, self._registry, self._loop = serve, registry, grow
        self._buffer = bytearray()
        self._arrived, self._gone, self._writable = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._lost = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    # -- called by the transport -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._writable.set()
        self._registry.add(self)
        self.task = self._loop.create_task(self._run(), name="simulator connection")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > MAX_BODY_BYTES + MAX_HEAD_BYTES:
            self.transport.pause_reading()
        self._arrived.set()

    def eof_received(self) -> bool:
        """A client that closes its side is taken for gone, as uvicorn takes it; the transport closes itself."""
        self._leave()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._registry.discard(self)
        self._lost.set()
        self._leave()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _leave(self) -> None:
        for signal in (self._gone, self._arrived, self._writable):
            signal.set()

    async def _run(self) -> None:
        try:
            await self._serve(self)
        except ClientGone:
            pass
        finally:
            self.transport.close()

    # -- reading -----------------------------------------------------------------------------------

    async def read_request(self) -> Request | None:
        """The next request, None where the client has no more. Raises BadRequest, ClientGone."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise BadRequest("Request head too large", 431)
            if self._gone.is_set():
                return None
            await self._more()
        head = bytes(self._buffer[:end]).decode("latin-1")
        del self._buffer[: end + 4]
        request = _read_head(head)
        body = await self._read_body(request)
        return Request(request.method, request.target, request.version, request.headers, body)

    async def _more(self) -> None:
        self._arrived.clear()
        self.transport.resume_reading()
        await self._arrived.wait()

    async def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            if self._gone.is_set():
                raise ClientGone
            await self._more()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def _take_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise BadRequest("Invalid chunk")
            if self._gone.is_set():
                raise ClientGone
            await self._more()
        return (await self._take(end + 2))[:-2]

    async def _read_body(self, request: Request) -> bytes:
        if request.headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in request.headers.get("transfer-encoding", "").lower():
            return await self._read_chunks()
        length = request.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise BadRequest("Invalid Content-Length")
        if len(length) > 12 or int(length) > MAX_BODY_BYTES:
            raise BadRequest("Request body too large", 413)
        return await self._take(int(length))

    async def _read_chunks(self) -> bytes:
        body = bytearray()
        while True:
            size = (await self._take_line()).partition(b";")[0].strip()
            try:
                count = int(size, 16)
            except ValueError:
                raise BadRequest("Invalid chunk") from None
            if count < 0 or len(body) + count > MAX_BODY_BYTES:
                raise BadRequest("Request body too large", 413)
            if not count:
                while await self._take_line():
                    pass
                return bytes(body)
            body += await self._take(count)
            await self._take(2)

    # -- writing -----------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._gone.is_set():
            raise ClientGone
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait while the client does not read. Raises ClientGone."""
        await self._writable.wait()
        if self._gone.is_set():
            raise ClientGone

    async def pause(self, seconds: float | None) -> None:
        """Sleep (None: for ever), unless the client leaves: ClientGone."""
        if seconds == 0:
            await asyncio.sleep(0)
        else:
            try:
                async with asyncio.timeout(seconds):
                    await self._gone.wait()
            except TimeoutError:
                return
        if self._gone.is_set():
            raise ClientGone

    # -- ends --------------------------------------------------------------------------------------

    async def _flushed(self) -> None:
        """Everything written is in the kernel's hands."""
        self.transport.set_write_buffer_limits(high=0)
        if self.transport.get_write_buffer_size():
            await self._writable.wait()

    async def reset(self) -> None:
        """RST after what was written."""
        await self._flushed()
        raw: socket.socket = self.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
        raise ClientGone

    async def disconnect(self) -> None:
        """FIN after what was written, and no more reading."""
        self.transport.close()
        raise ClientGone

    async def half_close(self) -> None:
        """FIN after what was written; the client can go on writing until it leaves."""
        self.transport.write_eof()
        await self.pause(None)

    def abort(self) -> None:
        self.transport.abort()

    async def lost(self) -> None:
        await self._lost.wait()


def _read_head(head: str) -> Request:
    first, *lines = head.lstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest("Invalid HTTP request received.")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip() or not name:
            raise BadRequest("Invalid HTTP request received.")
        key = name.lower()
        headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
    return Request(words[0], words[1], words[2], headers)


def head(status: int, headers: dict[str, str]) -> bytes:
    """A response's head, in uvicorn's manner: names in lower case, date and server first."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    rows = {"date": formatdate(usegmt=True), "server": "uvicorn", **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in rows.items())
    return f"HTTP/1.1 {status} {phrase}\r\n{lines}\r\n".encode("latin-1")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
