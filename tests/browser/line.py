"""A line between a browser and a gateway, which a test can cut: bytes pass both ways, unread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading

PIECE = 65536
RESET = struct.pack("ii", 1, 0)


class Line:
    """Listens on a free port of 127.0.0.1, in a thread of its own."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._is_down = False
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._accepted, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.accepted = 0
        self._thread = threading.Thread(target=self._loop.run_forever, name="line")
        self._thread.start()

    def cut(self) -> int:
        """Reset what is open now; how many connections that were."""
        return asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    def go_down(self) -> int:
        """The same, and whoever connects from now on is reset too."""
        self._is_down = True
        return self.cut()

    def come_up(self) -> None:
        self._is_down = False

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stopped(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _stopped(self) -> None:
        self._server.close()
        await self._cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cut(self) -> int:
        cut = [writer for writer in self._open if not writer.transport.is_closing()]
        for writer in cut:
            _reset(writer)
        return len(cut)

    async def _accepted(self, browser: asyncio.StreamReader, to_browser: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        self._open.add(to_browser)
        self.accepted += 1
        try:
            if self._is_down:
                _reset(to_browser)
            else:
                await self._carry(browser, to_browser)
        finally:
            self._open.discard(to_browser)
            self._tasks.discard(task)
            to_browser.close()

    async def _carry(self, browser: asyncio.StreamReader, to_browser: asyncio.StreamWriter) -> None:
        gateway, to_gateway = await asyncio.open_connection("127.0.0.1", self._to_port)
        ways = [
            asyncio.create_task(_pump(browser, to_gateway)),
            asyncio.create_task(_pump(gateway, to_browser)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        to_gateway.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
