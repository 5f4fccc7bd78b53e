"""Why httpx is carried by aiohttp: CPU time per streamed chunk that only reading it takes, for both transports.

usage: transports.py [--streams 20] [--chunks 200] [--gap 0.02] [--rounds 3]
needs uvloop: pip install -e '.[bench]'
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.relays import HERE, free_port, process
from continuation.downstream.transport import AiohttpTransport

TRANSPORTS: dict[str, Callable[[], httpx.AsyncBaseTransport]] = {
    "httpx": lambda: httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None)),
    "aiohttp": lambda: AiohttpTransport(limit=0, connect_timeout=30),
}
BODY = {"model": "m", "stream": True, "messages": []}
CONTENT = b'"content":" token"'


async def read_one(client: httpx.AsyncClient, url: str) -> int:
    """Chunks of one answer, read as the gateway reads: raw."""
    received = bytearray()
    async with client.stream("POST", f"{url}/v1/chat/completions", json=BODY) as answer:
        body = answer.extensions.get("body")
        if body is None:
            async for read in answer.aiter_raw():
                received += read
        else:
            while read := await body.read():
                received += read
    return received.count(CONTENT)


async def measured(name: str, url: str, streams: int, chunks: int) -> float:
    """Microseconds of this process's CPU time per chunk, on the standard event loop."""
    async with httpx.AsyncClient(transport=TRANSPORTS[name](), trust_env=False, timeout=None) as client:
        await read_one(client, url)
        before = time.process_time()
        found = sum(await asyncio.gather(*(read_one(client, url) for _ in range(streams))))
        spent = time.process_time() - before
    if found != streams * chunks:
        sys.exit(f"{name}: {found} chunks of {streams * chunks} arrived")
    return round(spent * 1e6 / found, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=20, help="at the same time (20)")
    parser.add_argument("--chunks", type=int, default=200, help="per stream (200)")
    parser.add_argument(
        "--gap", type=float, default=0.02, help="seconds between the chunks of a stream (0.02)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="the median counts (3)")
    options = parser.parse_args()
    port = free_port()
    engine = [sys.executable, HERE / "engine.py", str(port), str(options.chunks), str(options.gap)]
    print(
        f"{options.streams} streams of {options.chunks} chunks, one each {options.gap * 1000:g} ms, only read"
    )
    with process(engine, port):
        url = f"http://127.0.0.1:{port}"
        rounds = [
            {name: asyncio.run(measured(name, url, options.streams, options.chunks)) for name in TRANSPORTS}
            for _ in range(options.rounds)
        ]
    for name in TRANSPORTS:
        values = [figures[name] for figures in rounds]
        print(f"{name:8}  {median(values):6.1f} us of CPU per chunk   ({', '.join(map(str, values))})")


if __name__ == "__main__":
    main()
