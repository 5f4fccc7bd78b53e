"""What a process of the gateway has once, from its start to its end.

Views, commands and the server ask `current()`, and pass what they take from it on: nothing below them asks.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings

from continuation.audit.database import Question
from continuation.audit.writer import AuditWriter
from continuation.downstream import reactor
from continuation.downstream.client import Downstream
from continuation.downstream.shortage import Notice
from continuation.metrics import DIRECTORY
from continuation.metrics.noting import Watch
from continuation.resume.generation import Generations
from continuation.resume.log import Store
from continuation.resume.store.chosen import chosen_store
from continuation.resume.takeover import Takeovers
from continuation.token_route.route import Endpoints
from continuation.wiring import Parts
from strategies import cache


class Process:
    """What happens when:

    start           the server loads the application
    begin_serving   its event loop runs; without a server that tells, this is the first request of any kind
    begin_stopping  nobody is let in any more, what is open goes on; only `manage.py serve` tells
    end             what is still open ends; without a server that tells, Twisted's reactor calls `close`, and
                    the audit is written as the interpreter ends

    Whatever is not started or opened by then is so at its first use.
    """

    def __init__(self) -> None:
        self.audit = AuditWriter()
        self.downstream = Downstream()
        self.parts = Parts(self.downstream, Endpoints(), self.audit)
        self.generations = Generations()
        self.takeovers = Takeovers(self.parts, self.generations)
        self.watch = Watch()
        self.database = Question()
        self.shortage = Notice()  # of descriptors
        self.is_stopping = False
        self._serves = False
        self._store: tuple[asyncio.AbstractEventLoop, Store] | None = None

    def store(self) -> Store:
        """That of the running event loop; made at its first use."""
        loop = asyncio.get_running_loop()
        if self._store is None or self._store[0] is not loop:
            store = chosen_store()
            self._store = loop, store
            self.watch.look_at(lambda: store.held)
        return self._store[1]

    # -- start ---------------------------------------------------------------------------------------

    def start(self, strategies_seconds: float) -> bool:
        """Begin to load the strategies. False if that takes longer than strategies_seconds."""
        cache.start()
        return cache.wait_until_loaded(strategies_seconds)

    async def open(self) -> None:
        """Open all that can be opened before the first request. Raises what stands in the way of serving."""
        await self.downstream.open_early()
        self.audit.start()
        self.begin_serving()

    def begin_serving(self) -> None:
        """The event loop runs. Only the first call does anything."""
        if self._serves:
            return
        self._serves = True
        reactor.before_it_stops(self.close)
        if settings.RESUME_MODE != "off" and settings.GATEWAY_ROLE != "admin":
            self.store().open()

    # -- end -----------------------------------------------------------------------------------------

    def begin_stopping(self) -> None:
        """From now on the process is not ready: it serves what is open, and no more."""
        self.is_stopping = True
        self.generations.begin_stopping()

    async def close(self) -> None:
        """First what runs, while downstream can still be reached; then what it has written; then downstream."""
        if self._store is not None and self._store[0] is asyncio.get_running_loop():
            await self.takeovers.put_away()
            await self.generations.put_away()
            store, self._store = self._store[1], None
            await store.close()
        await self.downstream.close()

    async def end(self, flush_seconds: float) -> None:
        """Close, then write the audit for flush_seconds at most."""
        try:
            await self.close()
        finally:
            await asyncio.to_thread(self.audit.flush, flush_seconds)

    def at_exit(self) -> None:
        """The interpreter ends, however it came to that."""
        self.audit.flush_at_exit()
        if DIRECTORY:
            self.watch.stop()


_current = Process()


def current() -> Process:
    return _current


@contextmanager
def standing_in(process: Process) -> Iterator[Process]:
    """For tests: `current()` is this one meanwhile."""
    global _current
    usual, _current = _current, process
    try:
        yield process
    finally:
        _current = usual


def _after_fork() -> None:
    # What is queued is the parent's to write. Its locks may be held, so nothing of it is asked.
    global _current
    _current = Process()


def _at_exit() -> None:
    _current.at_exit()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
