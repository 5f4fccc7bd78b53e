"""Streams read through a relay, and what the relay's process spent on them.

usage: load.py PORT STREAMS PID         (needs uvloop; Linux, for /proc)

Prints one JSON line: chunks that arrived, streams without their [DONE], and microseconds of the relay's CPU time
per chunk. CPU time is what can be compared: it hardly moves while the machine is busy, and delays do.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import uvloop

PORT, STREAMS, PID = map(int, sys.argv[1:4])
STAGGER_SECONDS = 0.005
PATIENCE_SECONDS = 120
BODY = json.dumps(
    {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello " * 100}]}
).encode()
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
CONTENT = b'"content":" token"'


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def read_one(number: int) -> tuple[int, bool]:
    await asyncio.sleep(number * STAGGER_SECONDS)
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    writer.write(REQUEST)
    received = bytearray()
    while b"[DONE]" not in received[-200:] and (read := await reader.read(65536)):
        received += read
    writer.close()
    return received.count(CONTENT), b"[DONE]" in received


async def main() -> None:
    before = cpu_seconds(PID)
    async with asyncio.timeout(PATIENCE_SECONDS):
        streams = await asyncio.gather(*map(read_one, range(STREAMS)))
    spent = cpu_seconds(PID) - before
    chunks = sum(count for count, _ in streams)
    broken = sum(not done for _, done in streams)
    micros = round(spent * 1e6 / max(chunks, 1), 1)
    print(json.dumps({"chunks": chunks, "broken": broken, "cpu_us_per_chunk": micros}))


uvloop.run(main())
