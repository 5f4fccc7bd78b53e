"""Logs in the memory of this process alone: a stream can be resumed as long as the process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from continuation.resume.log import Entry, Held, Limits, State, Taken
from continuation.resume.store.hot import HotLog, HotWriter


class MemoryWriter(HotWriter):
    def __init__(self, log: HotLog, store: MemoryStore) -> None:
        super().__init__(log)
        self.stop: Callable[[], None] | None = None
        self._store = store

    @property
    def is_shared(self) -> bool:
        return False

    def append(self, entries: Sequence[Entry]) -> None:
        self.log.append(entries)

    def leg2_begins(self) -> None:
        self.log.leg2_from = self.log.last + 1

    def end(self, state: State) -> None:
        self.log.end(state)
        self._store.expire_later(self.log)

    def hand_over(self) -> None:
        """There is nobody to take it."""

    def discard(self) -> None:
        self._store.forget(self.stream_id)

    def listen(self, stop: Callable[[], None], lost: Callable[[], None]) -> None:
        self.stop = stop


class MemoryStore:
    """Of this process only."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = Held()
        self._writers: dict[str, MemoryWriter] = {}
        self._expiries: dict[str, asyncio.TimerHandle] = {}

    @property
    def keeps_requests(self) -> bool:
        return False

    def open(self) -> None:
        """There is nothing to be connected to."""

    async def begin(self, stream_id: str, request: bytes, seconds: float) -> MemoryWriter | None:
        if not self.has_place:
            return None
        writer = MemoryWriter(HotLog(stream_id, self.limits, self.held), self)
        self._writers[stream_id] = writer
        return writer

    @property
    def has_place(self) -> bool:
        return self.held.streams < self.limits.streams and self.held.bytes < self.limits.total_bytes

    async def find(self, stream_id: str) -> HotLog | None:
        writer = self._writers.get(stream_id)
        return writer.log if writer and not writer.log.gone else None

    async def may_have_forgotten(self) -> bool:
        return False

    async def stop(self, stream_id: str) -> None:
        writer = self._writers.get(stream_id)
        if writer and writer.stop and writer.log.ended_at is None:
            writer.stop()

    async def read_elsewhere(self, stream_id: str) -> float | None:
        return None

    async def take_over(self, stream_id: str) -> Taken | None:
        return None

    async def close(self) -> None:
        for expiry in self._expiries.values():
            expiry.cancel()
        for stream_id in list(self._writers):
            self.forget(stream_id)

    def expire_later(self, log: HotLog) -> None:
        if log.stream_id in self._writers and log.stream_id not in self._expiries:
            loop = asyncio.get_running_loop()
            self._expiries[log.stream_id] = loop.call_later(self.limits.ttl, self.forget, log.stream_id)

    def forget(self, stream_id: str) -> None:
        self._expiries.pop(stream_id, None)
        writer = self._writers.pop(stream_id, None)
        if writer is not None:
            writer.log.expire()
