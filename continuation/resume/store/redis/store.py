"""Logs in Redis: every process can serve a resume, and go on with a stream whose process is gone."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from continuation.patience import is_done_within
from continuation.resume.log import Entry, Held, Limits, Log, State, StoreAway, Taken
from continuation.resume.store.hot import HotLog, HotWriter
from continuation.resume.store.redis.following import (
    MARKED_SECONDS,
    Following,
    Meta,
    RemoteLog,
    follows,
    last_mark,
)
from continuation.resume.store.redis.ledger import HOUSEKEEPING_SECONDS, Kept, Mirror
from continuation.resume.store.redis.lines import Lines, call
from continuation.resume.store.redis.scripts import (
    CLAIM,
    END_PART,
    RELEASE,
    STOP,
    channel_of,
    cursor_of,
    keys_of,
    lease_of,
)
from continuation.resume.store.redis.sealing import Seal, Unreadable

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 1.0
RETRY_SECONDS = 0.5
LOAD_COUNT = 256
YOUNG_SECONDS = 5
RELEASED_TIMES = 3
# A reader who has shown itself so lately is there; once Redis is back, all have shown themselves after so long.
SEEN_SECONDS = MARKED_SECONDS + 2 * HOUSEKEEPING_SECONDS
MARKS_BACK_SECONDS = SEEN_SECONDS + 1.0


class RedisWriter(HotWriter):
    def __init__(self, kept: Kept, mirror: Mirror) -> None:
        super().__init__(kept.log)
        self._kept, self._mirror = kept, mirror

    @property
    def is_shared(self) -> bool:
        return self._kept.runs and self._kept.is_created and not self._mirror.health.is_late

    def append(self, entries: Sequence[Entry]) -> None:
        self._mirror.append(self._kept, entries)

    def leg2_begins(self) -> None:
        self.log.leg2_from = self.log.last + 1
        self._mirror.note(self._kept)

    def end(self, state: State) -> None:
        self._mirror.end(self._kept, state)

    def hand_over(self) -> None:
        self._mirror.hand_over(self._kept)

    def discard(self) -> None:
        self._mirror.drop(self._kept)

    def listen(self, stop: Callable[[], None], lost: Callable[[], None]) -> None:
        kept = self._kept
        kept.stop, kept.lost = stop, lost
        if kept.log.gone:
            lost()
        elif kept.is_stopped:
            stop()


class RedisStore:
    """url: redis://, rediss:// or unix://, with what redis-py reads from it. on_append: told for each append the
    seconds until its readers could have it. on_missed: told why a stream without a process could not be taken over:
    another_was_first, no_place or unreadable. Raises ValueError for what is not such a URL.

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
        self._seal = seal or Seal()
        self._lines = Lines(url)
        self._mirror = Mirror(self._lines, self.owner, limits, self._seal, on_append)
        self._following = Following(self._lines, self._seal, limits.grace)
        self._tasks: list[asyncio.Task[None]] = []
        self._on_missed = on_missed
        self._taking: set[str] = set()
        # Claims of which is not known whether they came to be, with the epoch: these are let go of, so many times.
        self._doubtful: dict[str, tuple[int, int]] = {}
        self._is_closing = False

    @property
    def keeps_requests(self) -> bool:
        return True

    def open(self) -> None:
        self._start()

    @property
    def held(self) -> Held:
        return self._mirror.held

    @property
    def is_away(self) -> bool:
        return self._mirror.health.is_away

    @property
    def has_place(self) -> bool:
        return self.held.streams < self.limits.streams and self.held.bytes < self.limits.total_bytes

    # -- streams of this process -------------------------------------------------------------------

    async def begin(self, stream_id: str, request: bytes, seconds: float) -> RedisWriter | None:
        self._start()
        if self._is_closing or self.is_away or not self.has_place:
            return None
        kept = Kept(HotLog(stream_id, self.limits, self.held, gated=True), request)
        kept.has_begun = asyncio.get_running_loop().create_future()
        self._mirror.add(kept)
        try:
            has_begun = await is_done_within(kept.has_begun, seconds) and kept.has_begun.result()
        except BaseException:
            self._mirror.drop(kept)
            raise
        if not has_begun:
            self._mirror.drop(kept)
            return None
        kept.has_begun = None
        return RedisWriter(kept, self._mirror)

    async def find(self, stream_id: str) -> Log | None:
        self._start()
        kept = self._mirror.kept.get(stream_id)
        if kept is not None and not kept.is_handed:
            return kept.log
        return (
            RemoteLog(stream_id, self._following, self._is_orphaned) if await self._meta(stream_id) else None
        )

    async def may_have_forgotten(self) -> bool:
        """A Redis that has just been started is told again what it has lost, by the processes that run the streams."""
        with suppress(StoreAway, ValueError, IndexError):
            (told,) = await self._lines.ask(("INFO", "server"))
            _, _, up = told.partition(b"uptime_in_seconds:")
            return int(up.split()[0]) < YOUNG_SECONDS
        return False

    async def stop(self, stream_id: str) -> None:
        self._start()
        kept = self._mirror.kept.get(stream_id)
        if kept is not None:
            self._mirror.stop(kept)
            return
        self._raise_if_away()
        (owner,) = await self._lines.ask(call(STOP, (keys_of(stream_id).meta,)))
        if owner:
            with suppress(StoreAway):  # who misses it reads it in `meta`
                await self._lines.ask(("PUBLISH", channel_of(owner.decode()), stream_id))

    async def read_elsewhere(self, stream_id: str) -> float | None:
        if self._is_closing:
            return None
        self._start()
        self._raise_if_away()
        marked, left = await self._lines.ask(*last_mark(stream_id))
        if marked is None:
            if not self._mirror.health.has_been_well(time.monotonic(), MARKS_BACK_SECONDS):
                raise StoreAway("Redis may have lost the marks of readers")
            return None
        age = (int(marked) - max(left, 0)) / 1000
        return 0.0 if age < SEEN_SECONDS else age

    # -- streams of others -------------------------------------------------------------------------

    async def take_over(self, stream_id: str) -> Taken | None:
        self._start()
        if self._cannot_take(stream_id):
            return None
        self._taking.add(stream_id)
        try:
            meta = await self._meta(stream_id)
            if meta is None or meta.standing.state is not State.RUNNING:
                return None
            if not await self._is_orphaned(meta):
                return None
            if not self.has_place:
                self._on_missed("no_place")
                return None
            return await self._claim(stream_id, meta)
        finally:
            self._taking.discard(stream_id)

    def _cannot_take(self, stream_id: str) -> bool:
        here = stream_id in self._mirror.kept or stream_id in self._taking or stream_id in self._mirror.handed
        return here or self._is_closing

    async def _claim(self, stream_id: str, meta: Meta) -> Taken | None:
        keys, epoch = keys_of(stream_id), meta.epoch + 1
        self._doubtful.pop(stream_id, None)
        try:
            command = call(CLAIM, (keys.meta,), meta.owner, meta.epoch, self.owner)
            (claimed_as,) = await self._lines.ask(command)
            if claimed_as is None:
                self._on_missed("another_was_first")
                return None
            claimed = await self._meta(stream_id)
            if claimed is None or claimed.owner != self.owner or claimed.epoch != epoch:
                return None
            return await self._load(stream_id, claimed)
        except BaseException as trouble:
            self._doubtful[stream_id] = epoch, RELEASED_TIMES
            with suppress(StoreAway):
                await self._release(stream_id, epoch)
            if not isinstance(trouble, Unreadable):
                raise
            self._on_missed("unreadable")
            return None

    async def _release(self, stream_id: str, epoch: int) -> None:
        await self._lines.ask(call(RELEASE, (keys_of(stream_id).meta,), self.owner, epoch))

    async def _release_doubtful(self) -> None:
        """A claim whose answer did not come may be carried out later than what was sent after it."""
        for stream_id, (epoch, times) in list(self._doubtful.items()):
            if self._cannot_take(stream_id):
                continue
            await self._release(stream_id, epoch)
            if times > 1:
                self._doubtful[stream_id] = epoch, times - 1
            else:
                self._doubtful.pop(stream_id, None)

    async def _load(self, stream_id: str, meta: Meta) -> Taken:
        """Raises StoreAway, Unreadable."""
        entries = await self._entries(stream_id)
        request = await self._request(stream_id, meta)
        log = HotLog(stream_id, self.limits, self.held, gated=True)
        log.restore(entries, meta.standing, meta.at)
        kept = Kept(log, request, meta.epoch, at=meta.at, is_created=True)
        kept.pieces_written = kept.pieces
        self._mirror.add(kept)
        whole = entries[0].cursor == (1, 0) if entries else meta.at == (0, 0)
        return Taken(RedisWriter(kept, self._mirror), tuple(entries), whole, log.stands(), request)

    async def _entries(self, stream_id: str) -> list[Entry]:
        """All behind the last gap, if there is any."""
        entries: list[Entry] = []
        start = "-"
        while True:
            (found,) = await self._lines.ask(
                ("XRANGE", keys_of(stream_id).log, start, "+", "COUNT", LOAD_COUNT)
            )
            for entry_id, (kind, sealed) in found:
                number, part = cursor_of(entry_id)
                if part == END_PART:
                    continue
                if entries and not follows(entries[-1].cursor, entries[-1].open, (number, part)):
                    entries.clear()
                entries.append(Entry(number, part, self._seal.open(sealed), open=kind == b"o"))
            if len(found) < LOAD_COUNT:
                return entries
            start = f"({found[-1][0].decode()}"

    async def _request(self, stream_id: str, meta: Meta) -> bytes:
        """Empty if it has not been written to its end."""
        pieces = []
        for index in range(meta.request):
            (piece,) = await self._lines.ask(("LINDEX", keys_of(stream_id).request, index))
            if piece is None:
                return b""
            opened = (
                await asyncio.to_thread(self._seal.open, piece)
                if self._seal.encrypts
                else self._seal.open(piece)
            )
            pieces.append(opened)
        return b"".join(pieces)

    async def _is_orphaned(self, meta: Meta) -> bool:
        if not meta.owner or meta.owner == self.owner:  # and not among the streams of this process
            return True
        return self._mirror.health.has_been_well(time.monotonic()) and await self._following.is_dead(
            meta.owner
        )

    # -- the tasks ---------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._tasks or self._is_closing:
            return
        works = {
            "mirror": self._mirror.run,
            "housekeeping": self._mirror.keep_house,
            "sealing": self._mirror.seal,
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
        kept = self._mirror.kept.get(message[-1].decode("latin-1"))
        if kept is not None:
            self._mirror.stop(kept)

    async def _show_readers(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            await self._lines.close_unused()
            with suppress(StoreAway):
                await self._following.show_readers()
                await self._release_doubtful()

    async def _meta(self, stream_id: str) -> Meta | None:
        self._raise_if_away()
        return await self._following.meta(stream_id)

    def _raise_if_away(self) -> None:
        if self.is_away or self._is_closing:
            raise StoreAway("the process ends" if self._is_closing else "Redis is away")

    async def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        for kept in self._mirror.kept.values():
            self._mirror.hand_over(kept)
        if self._tasks:
            await self._mirror.settle(CLOSE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._following.aclose()
        if self._tasks and not self.is_away:
            with suppress(StoreAway):
                await self._lines.ask(("DEL", lease_of(self.owner)), seconds=RETRY_SECONDS)
        await self._lines.aclose()
        self._mirror.close()
