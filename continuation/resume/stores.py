"""The one store of the process, as the settings want it."""

from __future__ import annotations

import asyncio

from django.conf import settings

from continuation import client
from continuation.resume import generation
from continuation.resume.log import Limits, Store
from continuation.resume.memory import MemoryStore

_current: tuple[asyncio.AbstractEventLoop, Store] | None = None


def current() -> Store:
    """Of the running event loop; opened at its first use."""
    global _current
    loop = asyncio.get_running_loop()
    if _current is None or _current[0] is not loop:
        _current = loop, _opened()
        client.before_closing(put_away)
    return _current[1]


def _opened() -> Store:
    limits = Limits(
        events=settings.RESUME_MAX_EVENTS,
        bytes=settings.RESUME_MAX_BYTES,
        streams=settings.RESUME_MAX_STREAMS,
        total_bytes=settings.RESUME_MAX_TOTAL_BYTES,
        ttl=settings.RESUME_TTL_SECONDS,
        grace=settings.RESUME_GRACE_SECONDS,
    )
    return MemoryStore(limits)


async def put_away() -> None:
    """The process ends: first what runs, then what it has written."""
    global _current
    if _current is None or _current[0] is not asyncio.get_running_loop():
        return
    await generation.put_away()
    store, _current = _current[1], None
    await store.close()
