"""How much later a stream's events come while the gateway is busy with another request: a process of its own.

It is the engine, and both clients. It writes the engine's port; then reads lines of a gateway's port and a file that
holds a request's body, and writes JSON for each: `delays`, how late the latest event of the other stream came, in
seconds, for each of TRIES requests with this body; `ended`, how many of these ended with [DONE]; `notes`, their
X-Continuation. Each of them is broken in mid-answer by the engine, and continued.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

TRIES = 4
BEAT_SECONDS = 0.005
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
BESIDE = b'{"model":"beside","stream":true,"messages":[{"role":"user","content":"a"}]}'


def chunk(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    value = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        beginning = await reader.readexactly(min(size, 64))
        left = size - len(beginning)
        while left:
            left -= len(await reader.read(min(left, 2**16)))
        writer.write(HEAD)
        if b'"beside"' in beginning:
            while not writer.is_closing():
                writer.write(chunk(repr(time.monotonic())))
                await writer.drain()
                await asyncio.sleep(BEAT_SECONDS)
        writer.write(chunk("one "))
        if b"-leg2\r\n" in head:
            writer.write(chunk("two") + chunk("", "stop") + b"data: [DONE]\n\n")
        await writer.drain()
    writer.close()


async def asked(port: int, body: bytes) -> AsyncIterator[bytes]:
    """The lines of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        async for line in reader:
            yield line
    finally:
        writer.close()


class Beside:
    """The other stream."""

    def __init__(self) -> None:
        self.latest = 0.0
        self.beats = asyncio.Semaphore(0)

    async def read(self, port: int) -> None:
        async for line in asked(port, BESIDE):
            if line.startswith(b"data: {"):
                sent = float(json.loads(line[6:])["choices"][0]["delta"]["content"])
                self.latest = max(self.latest, time.monotonic() - sent)
                self.beats.release()

    async def wait(self, beats: int) -> None:
        """Until so many more have come."""
        while not self.beats.locked():
            await self.beats.acquire()
        for _ in range(beats):
            await self.beats.acquire()


async def measured(port: int, body: bytes) -> dict[str, Any]:
    beside = Beside()
    reading = asyncio.create_task(beside.read(port))
    await beside.wait(20)
    delays, notes, ended = [], [], 0
    for _ in range(TRIES):
        beside.latest = 0.0
        async for line in asked(port, body):
            notes += [line[16:].strip().decode()] if line.lower().startswith(b"x-continuation:") else []
            ended += line.startswith(b"data: [DONE]")
        await beside.wait(5)
        delays.append(beside.latest)
    reading.cancel()
    return {"delays": delays, "notes": notes, "ended": ended}


async def main() -> None:
    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        port, path = line.split()
        found = await measured(int(port), await asyncio.to_thread(Path(path).read_bytes))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
