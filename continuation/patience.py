"""Deadlines that forgive an event loop which was held up itself.

A loop that was held up finds the deadline gone by, and what came in the meantime still unread. So each wait here lets
the loop turn a few times more before it believes that nothing has come.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

# Turns of the event loop that an answer needs to reach the coroutine that waits for it.
TURNS = 6
# How often in its time `Patience` looks whether the loop is held up, and by how many seconds its look is late if so.
LOOKS = 4
LATE_SECONDS = 0.02


def _never() -> bool:
    return False


async def catch_up(has_come: Callable[[], bool] = _never, turns: int = TURNS) -> bool:
    """Let the loop turn until it has read what is there; whether that is what is waited for."""
    for _ in range(turns):
        if has_come():
            return True
        await asyncio.sleep(0)
    return has_come()


async def is_done_within(future: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for a future or task, which is not cancelled however that ends."""
    await asyncio.wait({future}, timeout=seconds)
    return await catch_up(future.done)


class Alarm:
    """Goes off, once for each `set`, when no time is left and the loop has caught up since.

    left: seconds until then, asked for again at each look; None for never, for now. look_seconds: the longest time
    between two looks."""

    def __init__(
        self, left: Callable[[], float | None], go_off: Callable[[], None], look_seconds: float = math.inf
    ) -> None:
        self.held_up = 0.0  # seconds that its looks were late by
        self._left, self._go_off, self._look_seconds = left, go_off, look_seconds
        self._timer: asyncio.TimerHandle | None = None

    def set(self) -> None:
        """One that is set already stays as it is."""
        if self._timer is None and (left := self._left()) is not None:
            self._look_in(left, TURNS)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float, turns: int) -> None:
        loop = asyncio.get_running_loop()
        delay = max(0.0, min(seconds, self._look_seconds))
        self._timer = loop.call_at(loop.time() + delay, self._look, turns)

    def _look(self, turns: int) -> None:
        timer, self._timer = self._timer, None
        assert timer is not None
        if (late := asyncio.get_running_loop().time() - timer.when()) > LATE_SECONDS:
            self.held_up += late
        left = self._left()
        if left is None:
            return
        if left > 0:
            self._look_in(left, TURNS)
        elif turns:
            self._look_in(0.0, turns - 1)
        else:
            self._go_off()


class Patience:
    """A block that must end within `seconds` of the last sign of life, which is the block's beginning unless `heard`
    gives a later time, and within `most` seconds in all. Else TimeoutError.

    Time for which the event loop was held up does not count."""

    def __init__(
        self, seconds: float, heard: Callable[[], float] = lambda: 0.0, most: float = math.inf
    ) -> None:
        self._seconds, self._heard, self._most = seconds, heard, most
        self._limit = asyncio.timeout(None)
        self._alarm = Alarm(self._left, self._expire, seconds / LOOKS)

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        await self._limit.__aenter__()
        self._alarm.set()

    async def __aexit__(self, *raised: Any) -> None:
        self._alarm.cancel()
        await self._limit.__aexit__(*raised)

    def _left(self) -> float:
        until = min(max(self._began, self._heard()) + self._seconds, self._began + self._most)
        return until + self._alarm.held_up - self._loop.time()

    def _expire(self) -> None:
        self._limit.reschedule(self._loop.time())
