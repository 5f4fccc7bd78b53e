"""Stands between the gateway and an engine, records what passes, and breaks event streams where it is told to.

What is to happen to an answer is said in the headers of its request, which the gateway hands on, so that
many requests can be treated differently at the same time:

    x-cut-after: N   N whole events are handed on, then the connection is broken
    x-cut-how: HOW   reset    with RST
                     eof      with FIN, before the closing chunk
                     clean    with the closing chunk, though no finish_reason was sent
                     done     with [DONE] and the closing chunk
                     partial  FIN in the middle of event N + 1
                     split    RST in the middle of event N + 1, inside a character where it has one of several bytes
    x-replay: NAME   the engine is not asked: `recorded[NAME]`, as it once answered, is sent. A busy engine puts several
                     tokens into one event, and every cut point is to be reached.

Only a forwarder that is `cutting` heeds these headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass, field

LARGEST = 2**24
STREAMED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
# Between the last byte and a RST, which discards what has not been read yet.
BEFORE_RESET = 0.02
WAYS = ("reset", "eof", "clean", "done", "partial", "split")


@dataclass
class Exchange:
    """One request to the engine; `events` are those of its answer that were handed on whole."""

    path: str
    body: bytes
    status: int = 0
    events: list[bytes] = field(default_factory=list)
    was_cut: bool = False


class Forwarder:
    """Listens on a free port of 127.0.0.1 in a thread of its own. `exchanges` are kept by x-request-id."""

    def __init__(self, engine_port: int, *, cutting: bool) -> None:
        self._engine_port = engine_port
        self._cutting = cutting
        self.exchanges: dict[str, list[Exchange]] = {}
        self.recorded: dict[str, list[bytes]] = {}
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._accepted, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever, name="forwarder", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stopped(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stopped(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can be used again."""
        head = await reader.readuntil(b"\r\n\r\n")
        names = _headers(head)
        body = await reader.readexactly(int(names.get("content-length", 0)))
        seen = Exchange(head.split(b" ", 2)[1].decode(), body)
        self.exchanges.setdefault(names.get("x-request-id", ""), []).append(seen)
        if not self._cutting:
            names = {}
        if "x-replay" in names:
            seen.status = 200
            writer.write(STREAMED)
            return await _events(names, seen, _replayed(self.recorded[names["x-replay"]]), writer)
        return await self._asked(names, seen, head + body, writer)

    async def _asked(
        self, names: dict[str, str], seen: Exchange, request: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        engine, to_engine = await asyncio.open_connection("127.0.0.1", self._engine_port, limit=LARGEST)
        try:
            to_engine.write(request)
            head = await engine.readuntil(b"\r\n\r\n")
            told = _headers(head)
            seen.status = int(head.split(b" ", 2)[1])
            writer.write(head)
            if "chunked" in told.get("transfer-encoding", ""):
                return await _events(names, seen, engine, writer)
            writer.write(await engine.readexactly(int(told.get("content-length", 0))))
            await writer.drain()
            return True
        finally:
            to_engine.close()


def _replayed(events: list[bytes]) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LARGEST)
    reader.feed_data(b"".join(map(_chunk, events)) + b"0\r\n\r\n")
    reader.feed_eof()
    return reader


async def _events(
    names: dict[str, str], seen: Exchange, engine: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    after = int(names.get("x-cut-after", 2**62))
    how = names.get("x-cut-how", "eof")
    pending = b""
    while True:
        if len(seen.events) >= after and how not in ("partial", "split"):
            seen.was_cut = True
            return await _cut(how, b"", writer)
        while b"\n\n" not in pending:
            try:
                piece = await _read_chunk(engine)
            except (asyncio.IncompleteReadError, OSError):  # the engine has died: so it is for the gateway
                return await _cut("eof", b"", writer)
            if not piece:
                writer.write((_chunk(pending) if pending else b"") + b"0\r\n\r\n")
                await writer.drain()
                return True
            pending += piece
        event, mark, pending = pending.partition(b"\n\n")
        if len(seen.events) >= after:
            seen.was_cut = True
            return await _cut(how, event, writer)
        writer.write(_chunk(event + mark))
        await writer.drain()
        seen.events.append(event + mark)


async def _cut(how: str, event: bytes, writer: asyncio.StreamWriter) -> bool:
    if how == "done":
        writer.write(_chunk(b"data: [DONE]\n\n"))
    if how in ("done", "clean"):
        writer.write(b"0\r\n\r\n")
    if event:
        inside = next((at + 1 for at, byte in enumerate(event) if byte >= 0xC0), len(event) // 2)
        writer.write(_chunk(event[:inside]))
    with contextlib.suppress(OSError):
        await writer.drain()
    if how in ("reset", "split"):
        await asyncio.sleep(BEFORE_RESET)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
    return how in ("done", "clean")


def _headers(head: bytes) -> dict[str, str]:
    lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
    return {name.lower(): value.strip() for name, _colon, value in lines if name}


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _read_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readuntil(b"\r\n"), 16)
    data = await reader.readexactly(size)
    await reader.readexactly(2)
    return data
