"""What the tests of logs have in common: streams to write, and readers that read to the end."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

from continuation.resume.log import START, Cursor, Entry, Log, LogSlice, LogWriter, Reader, Store

# Seconds: for a condition to come about on a machine that others use too, and for a begin to be answered.
DEADLINE = 30.0
BEGIN = 10.0


def new_id() -> str:
    return secrets.token_hex(16)


def event(number: int, size: int = 0) -> Entry:
    text = f"id: {number}\ndata: the event {number}".encode()
    return Entry(number, 0, text.ljust(size, b".") + b"\n\n")


def events(first: int, last: int, size: int = 0) -> list[Entry]:
    return [event(number, size) for number in range(first, last + 1)]


def parts(number: int, count: int, size: int = 10) -> list[Entry]:
    """One event in pieces."""
    return [Entry(number, part, bytes([65 + part]) * size, open=part + 1 < count) for part in range(count)]


async def begun(store: Store, stream_id: str | None = None, request: bytes = b"the request") -> LogWriter:
    writer = await store.begin(stream_id or new_id(), request, BEGIN)
    assert writer is not None
    return writer


async def found(store: Store, stream_id: str) -> Log:
    log = await store.find(stream_id)
    assert log is not None
    return log


async def told(reader: Reader) -> LogSlice:
    """The next piece that says anything."""
    until = time.monotonic() + DEADLINE
    while True:
        piece = await reader.read()
        if piece.entries or piece.lost or piece.ended:
            return piece
        assert time.monotonic() < until, "the reader was told nothing"
        await reader.changed(1.0)


async def taken(reader: Reader, last: int) -> list[Entry]:
    """What comes up to the event of that number, or to the end."""
    entries: list[Entry] = []
    while not entries or entries[-1].number < last:
        piece = await told(reader)
        entries += piece.entries
        assert not piece.lost, entries[-1:]
        if piece.ended:
            break
    return entries


async def read_to_end(log: Log, cursor: Cursor = START) -> list[Entry]:
    reader = log.reader(cursor)
    try:
        entries: list[Entry] = []
        while True:
            piece = await told(reader)
            assert not piece.lost, entries[-1:]
            entries += piece.entries
            if piece.ended:
                return entries
    finally:
        await reader.aclose()


async def until(
    condition: Callable[[], object] | Callable[[], Awaitable[object]], seconds: float = DEADLINE
) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while True:
        holds = condition()
        if isinstance(holds, Awaitable):
            holds = await holds
        if holds:
            return
        assert time.monotonic() < end, "it has not come about"
        await asyncio.sleep(0.01)


def numbers(entries: Sequence[Entry]) -> list[int]:
    return [entry.number for entry in entries]
