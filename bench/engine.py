"""An engine that does nothing but stream: CHUNKS content events, one each GAP seconds, a finish and [DONE].

usage: engine.py PORT CHUNKS GAP        (needs uvloop)
"""

from __future__ import annotations

import asyncio
import re
import sys

import uvloop

PORT, CHUNKS, GAP = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(delta: str, finish: str) -> bytes:
    return framed(
        b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk",'
        b'"created":1700000000,"model":"m","choices":[{"index":0,"delta":%s,"logprobs":null,'
        b'"finish_reason":%s}]}\n\n' % (delta.encode(), finish.encode())
    )


CONTENT = event('{"content":" token"}', "null")
ENDING = event("{}", '"stop"') + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """Answers each request once its body has arrived; requests announce their length, or end with a last chunk."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport, self.received = transport, b""
        self.answering: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, blank, body = self.received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        whole = len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")
        if blank and whole:
            self.received = b""
            self.answering = asyncio.ensure_future(self.answer())

    async def answer(self) -> None:
        loop = asyncio.get_running_loop()
        self.transport.write(HEAD)
        due = loop.time()
        for _ in range(CHUNKS):
            self.transport.write(CONTENT)
            due += GAP
            await asyncio.sleep(due - loop.time())
        self.transport.write(ENDING)

    def connection_lost(self, error: Exception | None) -> None:
        if self.answering is not None:
            self.answering.cancel()


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", PORT, backlog=1024)
    await server.serve_forever()


uvloop.run(main())
