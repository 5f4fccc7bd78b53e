"""HTTP/1.1 on asyncio's streams: as little as a drill needs, so that nothing stands between it and the bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

LARGEST = 2**24
READ_BYTES = 2**16
_POLL_SECONDS = 0.005
LAST_CHUNK = b"0\r\n\r\n"
# What reading from a connection that breaks can raise.
BROKEN = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine or a gateway listens; prefix is what every path begins with."""

    host: str
    port: int
    prefix: str = ""
    tls: bool = False

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises ValueError for what is no http or https URL of a server."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is no URL of a server, such as http://127.0.0.1:8000")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return cls(parts.hostname, port, parts.path.rstrip("/"), parts.scheme == "https")

    async def connect(self, receive_buffer: int = 0) -> Connection:
        """receive_buffer, in bytes, keeps the kernel from reading ahead of a slow client. Raises OSError."""
        context = ssl.create_default_context() if self.tls else None
        if not receive_buffer:
            return Connection(
                *await asyncio.open_connection(self.host, self.port, limit=LARGEST, ssl=context)
            )
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(raw, (self.host, self.port))
        except BaseException:
            raw.close()
            raise
        return Connection(*await asyncio.open_connection(sock=raw, limit=READ_BYTES))


@dataclass(frozen=True, slots=True)
class Head:
    """A request line or a status line, and fields with names in lower case."""

    line: str
    fields: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        return next((value for known, value in self.fields if known == name), "")

    @property
    def status(self) -> int:
        return int(self.line.split(" ", 2)[1])

    @property
    def method(self) -> str:
        return self.line.split(" ", 1)[0]

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.get("transfer-encoding").lower()

    @property
    def closes(self) -> bool:
        return "close" in self.get("connection").lower()

    @property
    def is_event_stream(self) -> bool:
        return self.get("content-type").startswith("text/event-stream")


class Connection:
    """A reader and a writer, and the ways to end them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def left(self) -> bool:
        """Whether the other side is known to have closed."""
        return self.reader.at_eof() or self.writer.transport.is_closing()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """RST: what the other side has not read yet is lost."""
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            raw = self.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    async def wait_until_left(self, seconds: float) -> bool:
        """Whether the other side closes within that time. Only while it has nothing to send."""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(seconds):
                while await self.reader.read(READ_BYTES):
                    pass
        return self.left

    async def read_head(self) -> Head:
        """Raises one of BROKEN; IncompleteReadError without `partial` if the other side has nothing more."""
        raw = await self.reader.readuntil(b"\r\n\r\n")
        line, *rest = raw[:-4].decode("latin-1").split("\r\n")
        parts = (field.partition(":") for field in rest)
        return Head(line, tuple((name.strip().lower(), value.strip()) for name, _, value in parts))

    async def pieces(self, head: Head, *, bodiless: bool = False) -> AsyncIterator[bytes]:
        """The body as it comes. Ends without an exception only if it is whole; else raises one of BROKEN."""
        if bodiless or (head.line.startswith("HTTP") and head.status in (204, 304)):
            return
        if head.is_chunked:
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                yield await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readuntil(b"\r\n")
        elif head.get("content-length") or not head.line.startswith("HTTP"):
            if size := int(head.get("content-length") or 0):
                yield await self.reader.readexactly(size)
        else:
            while piece := await self.reader.read(READ_BYTES):
                yield piece

    async def body(self, head: Head) -> bytes:
        return b"".join([piece async for piece in self.pieces(head)])


async def until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether it holds within that time. Raises nothing."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def head_bytes(line: str, fields: Iterable[tuple[str, str]]) -> bytes:
    lines = [line, *(f"{name}: {value}" for name, value in fields)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def request_bytes(method: str, target: str, fields: Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
    length = [("content-length", str(len(body)))] if body or method == "POST" else []
    return head_bytes(f"{method} {target} HTTP/1.1", [*fields, *length]) + body
