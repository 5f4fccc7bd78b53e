"""The floor: bytes copied from one connection to another, nothing read or understood.

usage: copying.py PORT ENGINE_PORT      (needs uvloop)
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

PORT, ENGINE_PORT = int(sys.argv[1]), int(sys.argv[2])


class Side(asyncio.Protocol):
    """One of two connections; what it receives goes to the other, once there is another."""

    def __init__(self, other: Side | None = None) -> None:
        self.other, self.transport, self.waiting = other, None, b""

    transport: asyncio.Transport | None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        if self.other is None:
            self.connecting = asyncio.ensure_future(self.connect())
        else:
            transport.write(self.other.waiting)

    async def connect(self) -> None:
        engine = self.other = Side(self)
        await asyncio.get_running_loop().create_connection(lambda: engine, "127.0.0.1", ENGINE_PORT)

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self.waiting += data
        else:
            self.other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Side, "127.0.0.1", PORT, backlog=1024)
    await server.serve_forever()


uvloop.run(main())
