"""How a stream becomes resumable, or does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field

from django.conf import settings
from django.http import HttpRequest

from continuation import lifecycle
from continuation.downstream.client import Upstream
from continuation.metrics import noting
from continuation.patience import is_done_within
from continuation.plan import Guarded
from continuation.resume import token
from continuation.resume.log import START, LogWriter
from continuation.resume.readers import names, reading_for, says
from continuation.resume.takeover import packed
from continuation.splice.machine import Splice
from continuation.wiring import Origin, relay_for

logger = logging.getLogger(__name__)

# Seconds that the store gets to begin a log, from when downstream has answered.
PATIENCE = 0.1
BEGIN_SECONDS = 10.0
UNAVAILABLE = {b"x-resume": b"unavailable"}


def is_asked_for(request: HttpRequest) -> bool:
    """Whether the client itself says that it could come back."""
    return settings.RESUME_MODE != "off" and says(request, "X-Resumable")


@dataclass(frozen=True, slots=True)
class Started:
    """A stream that can be resumed, and what its first reader gets."""

    pieces: AsyncGenerator[bytes, None]
    headers: dict[bytes, bytes]


@dataclass(slots=True)
class Beginning:
    """A log is begun while downstream is asked, so that neither waits for the other. refusal: headers that say that
    a stream cannot be resumed which was to be."""

    request: HttpRequest
    origin: Origin
    refusal: dict[bytes, bytes] = field(default_factory=dict)
    task: asyncio.Task[LogWriter | None] | None = None

    @classmethod
    def of(cls, request: HttpRequest, origin: Origin, planned: Guarded) -> Beginning:
        wanted = is_asked_for(request) or settings.RESUME_MODE == "always"
        beginning = cls(request, origin, UNAVAILABLE if wanted else {})
        if wanted:
            store = lifecycle.current().store()
            packed_request = packed(origin, planned.body) if store.keeps_requests else b""
            opening = store.begin(token.new_stream_id(), packed_request, BEGIN_SECONDS)
            beginning.task = asyncio.create_task(opening, name=f"log of {origin.request_id}")
        return beginning

    async def start(self, splice: Splice, upstream: Upstream) -> Started | None:
        """None if the stream cannot be resumed, and is the caller's to run."""
        writer = await self._writer()
        if writer is None:
            if self.task is not None:
                noting.resumable("unavailable")
            return None
        noting.resumable("resumable")
        process = lifecycle.current()
        relay = relay_for(process.parts, splice, self.origin, upstream, keepalive=0)
        process.generations.start(relay, writer, process.store())
        reading = reading_for(self.request, writer.stream_id, writer.log, START)
        return Started(reading.pieces(), names(self.request, writer.stream_id))

    def give_up(self) -> None:
        """There is no stream, or none that can be resumed: no trace of a log stays, now or when it has begun."""
        if self.task is not None:
            self.task.cancel()
            self.task.add_done_callback(_discard)

    async def _writer(self) -> LogWriter | None:
        if self.task is None:
            return None
        if await is_done_within(self.task, PATIENCE):
            return self._begun(self.task)
        self.give_up()
        return None

    def _begun(self, task: asyncio.Task[LogWriter | None]) -> LogWriter | None:
        try:
            return task.result()
        except Exception:  # whatever it is, the stream does not depend on it
            logger.exception("request %s: the stream's log could not be begun", self.origin.request_id)
            return None


def _discard(task: asyncio.Task[LogWriter | None]) -> None:
    with suppress(asyncio.CancelledError, Exception):
        if (writer := task.result()) is not None:
            writer.discard()
