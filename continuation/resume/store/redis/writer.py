"""What a generation in this process writes its log with, where that goes to Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from continuation.resume.log import Entry, State
from continuation.resume.store.hot import HotWriter
from continuation.resume.store.redis.pump import LocalStream, Pump


class RedisWriter(HotWriter):
    def __init__(self, stream: LocalStream, pump: Pump) -> None:
        super().__init__(stream.log)
        self._stream, self._pump = stream, pump

    @property
    def is_shared(self) -> bool:
        return self._pump.is_shared(self._stream)

    def append(self, entries: Sequence[Entry]) -> None:
        self._pump.append(self._stream, entries)

    def leg2_begins(self) -> None:
        self._pump.begin_leg2(self._stream)

    def end(self, state: State) -> None:
        self._pump.end(self._stream, state)

    def hand_over(self) -> None:
        self._pump.hand_over(self._stream)

    def discard(self) -> None:
        self._pump.drop(self._stream)

    def listen(self, stop: Callable[[], None], lost: Callable[[], None]) -> None:
        stream = self._stream
        stream.stop, stream.lost = stop, lost
        if stream.log.gone:
            lost()
        elif stream.is_stopped:
            stop()
