"""Taking over streams of processes that are gone: exactly one process gets each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from continuation.resume.log import Entry, State, StoreAway, Taken
from continuation.resume.store.hot import HotLog
from continuation.resume.store.redis.account import Account, Presence, RequestPieces
from continuation.resume.store.redis.following import Following, Meta, follows
from continuation.resume.store.redis.ledger import Ledger
from continuation.resume.store.redis.lines import Lines
from continuation.resume.store.redis.pump import LocalStream, Pump
from continuation.resume.store.redis.scripts import CLAIM, END_PART, RELEASE, call, cursor_of, keys_of
from continuation.resume.store.redis.sealing import Unreadable
from continuation.resume.store.redis.writer import RedisWriter

LOAD_COUNT = 256
RELEASED_TIMES = 3


class Claims:
    """on_missed: called with why a stream without a process could not be taken over: another_was_first, no_place or
    unreadable."""

    def __init__(
        self,
        lines: Lines,
        ledger: Ledger,
        pump: Pump,
        following: Following,
        on_missed: Callable[[str], None],
    ) -> None:
        # Claims of which is not known whether they came to be, with the epoch: these are let go of, so many times.
        self.doubtful: dict[str, tuple[int, int]] = {}
        self._lines, self._ledger, self._pump, self._following = lines, ledger, pump, following
        self._owner, self._seal = ledger.terms.owner, ledger.terms.seal
        self._on_missed = on_missed
        self._taking: set[str] = set()

    async def take_over(self, stream_id: str) -> Taken | None:
        """Raises StoreAway."""
        if self._cannot_take(stream_id):
            return None
        self._taking.add(stream_id)
        try:
            meta = await self._meta(stream_id)
            if meta is None or meta.standing.state is not State.RUNNING:
                return None
            if not await self.is_orphaned(meta):
                return None
            if not self._ledger.has_place:
                self._on_missed("no_place")
                return None
            return await self._claim(stream_id, meta)
        finally:
            self._taking.discard(stream_id)

    async def is_orphaned(self, meta: Meta) -> bool:
        """Whether nobody runs the stream any more; it is not among those of this process."""
        if not meta.owner or meta.owner == self._owner:
            return True
        if not self._ledger.health.has_been_well(self._ledger.terms.now()):
            return False
        return await self._following.is_dead(meta.owner)

    async def release_doubtful(self) -> None:
        """A claim whose answer did not come may be carried out later than what was sent after it."""
        for stream_id, (epoch, times) in list(self.doubtful.items()):
            if self._cannot_take(stream_id):
                continue
            await self._release(stream_id, epoch)
            if times > 1:
                self.doubtful[stream_id] = epoch, times - 1
            else:
                self.doubtful.pop(stream_id, None)

    def _cannot_take(self, stream_id: str) -> bool:
        ledger = self._ledger
        is_here = stream_id in ledger.accounts or stream_id in ledger.handed or stream_id in self._taking
        return is_here or self._pump.is_closing

    async def _meta(self, stream_id: str) -> Meta | None:
        self._pump.raise_if_away()
        return await self._following.meta(stream_id)

    async def _claim(self, stream_id: str, meta: Meta) -> Taken | None:
        keys, epoch = keys_of(stream_id), meta.epoch + 1
        self.doubtful.pop(stream_id, None)
        try:
            command = call(CLAIM, (keys.meta,), meta.owner, meta.epoch, self._owner)
            (claimed_as,) = await self._lines.ask(command)
            if claimed_as is None:
                self._on_missed("another_was_first")
                return None
            claimed = await self._meta(stream_id)
            if claimed is None or claimed.owner != self._owner or claimed.epoch != epoch:
                return None
            return await self._load(stream_id, claimed)
        except BaseException as trouble:
            self.doubtful[stream_id] = epoch, RELEASED_TIMES
            with suppress(StoreAway):
                await self._release(stream_id, epoch)
            if not isinstance(trouble, Unreadable):
                raise
            self._on_missed("unreadable")
            return None

    async def _release(self, stream_id: str, epoch: int) -> None:
        await self._lines.ask(call(RELEASE, (keys_of(stream_id).meta,), self._owner, epoch))

    # -- what is loaded ----------------------------------------------------------------------------

    async def _load(self, stream_id: str, meta: Meta) -> Taken:
        """Raises StoreAway, Unreadable."""
        entries = await self._entries(stream_id)
        request = RequestPieces(await self._request(stream_id, meta))
        request.note_written(request.count)
        terms = self._ledger.terms
        log = HotLog(stream_id, terms.limits, self._ledger.held, gated=True)
        log.restore(entries, meta.standing, meta.at)
        account = Account(terms, log, request, meta.epoch, at=meta.at, presence=Presence.THERE)
        stream = LocalStream(log, account)
        self._pump.add(stream)
        whole = entries[0].cursor == (1, 0) if entries else meta.at == (0, 0)
        return Taken(RedisWriter(stream, self._pump), tuple(entries), whole, log.stands(), request.data)

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
