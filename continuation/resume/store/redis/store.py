"""Logs in Redis: every process can serve a resume, and go on with a stream whose process is gone."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

from continuation.patience import is_done_within
from continuation.resume.log import Held, Limits, Log, StoreAway, Taken
from continuation.resume.store.hot import HotLog
from continuation.resume.store.redis.account import Account, RequestPieces, Terms
from continuation.resume.store.redis.claims import Claims
from continuation.resume.store.redis.following import MARKED_SECONDS, Following, RemoteLog, last_mark
from continuation.resume.store.redis.ledger import Ledger
from continuation.resume.store.redis.lines import Lines
from continuation.resume.store.redis.pump import HOUSEKEEPING_SECONDS, LocalStream, Pump
from continuation.resume.store.redis.scripts import STOP, call, channel_of, keys_of, lease_of
from continuation.resume.store.redis.sealing import Seal
from continuation.resume.store.redis.writer import RedisWriter

CLOSE_SECONDS = 1.0
RETRY_SECONDS = 0.5
YOUNG_SECONDS = 5
# Seconds after its last sign that a reader counts as there. When Redis is back, all have given one by then.
SEEN_SECONDS = MARKED_SECONDS + 2 * HOUSEKEEPING_SECONDS
MARKS_BACK_SECONDS = SEEN_SECONDS + 1.0


class RedisStore:
    """url: redis://, rediss:// or unix://, with what redis-py reads from it. on_append: called for each append with the
    seconds until its readers could have it. on_missed: called with why a stream without a process could not be taken
    over: another_was_first, no_place or unreadable. Raises ValueError for what is not such a URL.

    Its tasks start with the first call, in the event loop of that one, which must be the loop of all others."""

    def __init__(
        self,
        url: str,
        limits: Limits,
        seal: Seal | None = None,
        *,
        on_append: Callable[[float], None] = lambda _: None,
        on_missed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.limits = limits
        self.owner = secrets.token_hex(8)
        self._lines = Lines(url)
        self._terms = Terms(self.owner, limits, seal or Seal(), time.monotonic, time.time)
        self._ledger = Ledger(self._terms)
        self._pump = Pump(self._lines, self._ledger, on_append)
        self._following = Following(self._lines, self._terms.seal, limits.grace)
        self._claims = Claims(self._lines, self._ledger, self._pump, self._following, on_missed)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def keeps_requests(self) -> bool:
        return True

    def open(self) -> None:
        self._start()

    @property
    def held(self) -> Held:
        return self._ledger.held

    @property
    def is_away(self) -> bool:
        return self._ledger.health.is_away

    # -- streams of this process -------------------------------------------------------------------

    async def begin(self, stream_id: str, request: bytes, seconds: float) -> RedisWriter | None:
        self._start()
        if self._pump.is_closing or self.is_away or not self._ledger.has_place:
            return None
        log = HotLog(stream_id, self.limits, self.held, gated=True)
        account = Account(self._terms, log, RequestPieces(request), is_beginning=True)
        has_begun = asyncio.get_running_loop().create_future()
        stream = LocalStream(log, account, has_begun)
        self._pump.add(stream)
        try:
            is_there = await is_done_within(has_begun, seconds) and has_begun.result()
        except BaseException:
            self._pump.drop(stream)
            raise
        if not is_there:
            self._pump.drop(stream)
            return None
        return RedisWriter(stream, self._pump)

    async def find(self, stream_id: str) -> Log | None:
        self._start()
        stream = self._pump.streams.get(stream_id)
        if stream is not None and not stream.account.is_handed:
            return stream.log
        self._pump.raise_if_away()
        if await self._following.meta(stream_id) is None:
            return None
        return RemoteLog(stream_id, self._following, self._claims.is_orphaned)

    async def may_have_forgotten(self) -> bool:
        """What a Redis has lost when it was started anew is written again by the processes that run the streams."""
        with suppress(StoreAway, ValueError, IndexError):
            (info,) = await self._lines.ask(("INFO", "server"))
            _, _, up = info.partition(b"uptime_in_seconds:")
            return int(up.split()[0]) < YOUNG_SECONDS
        return False

    async def stop(self, stream_id: str) -> None:
        self._start()
        stream = self._pump.streams.get(stream_id)
        if stream is not None:
            self._pump.stop(stream)
            return
        self._pump.raise_if_away()
        (owner,) = await self._lines.ask(call(STOP, (keys_of(stream_id).meta,)))
        if owner:
            with suppress(StoreAway):  # who misses it reads it in `meta`
                await self._lines.ask(("PUBLISH", channel_of(owner.decode()), stream_id))

    async def read_elsewhere(self, stream_id: str) -> float | None:
        if self._pump.is_closing:
            return None
        self._start()
        self._pump.raise_if_away()
        marked, left = await self._lines.ask(*last_mark(stream_id))
        if marked is None:
            if not self._ledger.health.has_been_well(self._terms.now(), MARKS_BACK_SECONDS):
                raise StoreAway("Redis may have lost the marks of readers")
            return None
        age = (int(marked) - max(left, 0)) / 1000
        return 0.0 if age < SEEN_SECONDS else age

    async def take_over(self, stream_id: str) -> Taken | None:
        self._start()
        return await self._claims.take_over(stream_id)

    # -- the tasks ---------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._tasks or self._pump.is_closing:
            return
        works = {
            "pump": self._pump.run,
            "housekeeping": self._pump.keep_house,
            "sealing": self._pump.seal,
            "control": self._listen,
            "marks": self._show_readers,
        }
        self._tasks = [asyncio.create_task(work(), name=f"resume {name}") for name, work in works.items()]

    async def _listen(self) -> None:
        """For stops that come from other processes. One that gets lost is found by housekeeping."""
        while True:
            with suppress(StoreAway):
                async with self._lines.line() as line:
                    await line.ask([("SUBSCRIBE", channel_of(self.owner))])
                    while True:
                        self._take_message(await line.next_message())
            await asyncio.sleep(RETRY_SECONDS)

    def _take_message(self, message: list[bytes]) -> None:
        stream = self._pump.streams.get(message[-1].decode("latin-1"))
        if stream is not None:
            self._pump.stop(stream)

    async def _show_readers(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            await self._lines.close_unused()
            with suppress(StoreAway):
                await self._following.show_readers()
                await self._claims.release_doubtful()

    async def close(self) -> None:
        if self._pump.is_closing:
            return
        self._pump.begin_closing()
        if self._tasks:
            await self._pump.settle(CLOSE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._following.aclose()
        if self._tasks and not self.is_away:
            with suppress(StoreAway):
                await self._lines.ask(("DEL", lease_of(self.owner)), seconds=RETRY_SECONDS)
        await self._lines.aclose()
        self._pump.close()
