"""What the resume log adds to each event: from its append until a reader has it, by store, and the events per second
of one stream that nothing else slows down.

The stores take turns in one run, against a redis-server of its own on this machine.

usage: resume.py [--streams 50] [--rate 40] [--seconds 5] [--rounds 5]
needs redis-server, and pip install -e '.[redis]'
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cryptography.fernet import Fernet

from continuation.resume.log import START, Entry, Limits, Log, State, Store
from continuation.resume.store.memory import MemoryStore
from continuation.resume.store.redis.sealing import Seal
from continuation.resume.store.redis.store import RedisStore

EVENT_BYTES = 250
FLAT_OUT_EVENTS = 20_000
START_SECONDS = 30.0


@contextmanager
def redis_server() -> Iterator[str]:
    """Its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as directory:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", directory]
        command += ["--save", "", "--appendonly", "no"]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            until = time.monotonic() + START_SECONDS
            while not listens(port):
                if running.poll() is not None or time.monotonic() > until:
                    sys.exit("redis-server does not listen")
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}"
        finally:
            running.terminate()
            running.wait()


def listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def event(number: int) -> Entry:
    return Entry(number, 0, f"id: {number}\ndata: ".encode().ljust(EVENT_BYTES - 2, b"x") + b"\n\n")


async def read(log: Log, seen: Callable[[int], None]) -> None:
    reader = log.reader(START)
    while True:
        piece = await reader.read()
        for entry in piece.entries:
            seen(entry.number)
        if piece.ended or piece.lost:
            break
        if not piece.entries:
            await reader.changed(10.0)
    await reader.aclose()


async def paced(store: Store, name: int, rate: float, seconds: float) -> list[float]:
    """The delays of one stream's events."""
    writer = await store.begin(f"{name:032x}", b"", 5.0)
    assert writer is not None
    appended = [0.0]
    delays: list[float] = []
    reading = asyncio.create_task(
        read(writer.log, lambda number: delays.append(time.perf_counter() - appended[number]))
    )
    at = time.perf_counter() + random.random() / rate
    for number in range(1, int(rate * seconds) + 1):
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        appended.append(time.perf_counter())
        writer.append([event(number)])
        at += 1 / rate
    writer.end(State.FINISHED)
    await reading
    writer.discard()
    return delays


async def flat_out(store: Store) -> float:
    """Events per second."""
    writer = await store.begin(f"{2**100:032x}", b"", 5.0)
    assert writer is not None
    reading = asyncio.create_task(read(writer.log, lambda _: None))
    began = time.perf_counter()
    for number in range(1, FLAT_OUT_EVENTS + 1):
        writer.append([event(number)])
        await writer.room(EVENT_BYTES)
        if number % 16 == 0:
            await asyncio.sleep(0)
    writer.end(State.FINISHED)
    await reading
    taken = time.perf_counter() - began
    writer.discard()
    return FLAT_OUT_EVENTS / taken


async def measured(
    store: Store, streams: int, rate: float, seconds: float
) -> tuple[float, float, float, float]:
    """Milliseconds in the middle, of all but one of a hundred, at most; and events per second flat out."""
    try:
        await paced(store, 10_000, 100.0, 0.2)  # to warm up
        delays = await asyncio.gather(*(paced(store, name, rate, seconds) for name in range(streams)))
        sorted_ = sorted(delay * 1000 for each in delays for delay in each)
        return (
            sorted_[len(sorted_) // 2],
            sorted_[int(len(sorted_) * 0.99)],
            sorted_[-1],
            await flat_out(store),
        )
    finally:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=50, help="at the same time (50)")
    parser.add_argument("--rate", type=float, default=40.0, help="events per second of each (40)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round (5)")
    parser.add_argument("--rounds", type=int, default=5, help="the median counts (5)")
    options = parser.parse_args()
    limits = Limits(bytes=2**26, total_bytes=2**30)
    with redis_server() as url:
        stores: dict[str, Callable[[], Store]] = {
            "memory": lambda: MemoryStore(limits),
            "redis": lambda: RedisStore(url, limits),
            "redis, encrypted": lambda: RedisStore(url, limits, Seal([Fernet.generate_key().decode()])),
        }
        rounds = [
            {
                name: asyncio.run(measured(opened(), options.streams, options.rate, options.seconds))
                for name, opened in stores.items()
            }
            for _ in range(options.rounds)
        ]
    print(f"{options.streams} streams, {options.rate:g} events/s each; milliseconds from append to reader")
    print(f"{'store':18} {'p50':>8} {'p99':>8} {'max':>8}   one stream, events/s")
    for name in stores:
        p50, p99, most, flat = (median(each[name][figure] for each in rounds) for figure in range(4))
        print(f"{name:18} {p50:8.3f} {p99:8.3f} {most:8.3f} {flat:12.0f}")


main()
