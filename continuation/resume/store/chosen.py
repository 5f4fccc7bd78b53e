"""The one store of the process, as the settings want it."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

from django.conf import settings

from continuation.downstream import client
from continuation.metrics import noting
from continuation.resume import generation, takeover
from continuation.resume.log import Limits, Store
from continuation.resume.store.memory import MemoryStore
from continuation.resume.store.redis.sealing import Seal

REDIS_PACKAGES = ("redis", "hiredis")
if settings.REDIS_URL and all(find_spec(package) for package in REDIS_PACKAGES):
    # They are an extra, which a check asks for, and take their time to be loaded.
    from continuation.resume.store.redis.store import RedisStore

_current: tuple[asyncio.AbstractEventLoop, Store] | None = None


def current() -> Store:
    """Of the running event loop; opened at its first use."""
    global _current
    loop = asyncio.get_running_loop()
    if _current is None or _current[0] is not loop:
        store = _opened()
        _current = loop, store
        client.before_closing(put_away)
        noting.watch_log(lambda: store.held)
    return _current[1]


def open_early() -> None:
    """Once the event loop runs, where streams can be resumed at all."""
    if settings.RESUME_MODE != "off" and settings.GATEWAY_ROLE != "admin":
        current().open()


def _opened() -> Store:
    limits = Limits(
        events=settings.RESUME_MAX_EVENTS,
        bytes=settings.RESUME_MAX_BYTES,
        streams=settings.RESUME_MAX_STREAMS,
        total_bytes=settings.RESUME_MAX_TOTAL_BYTES,
        ttl=settings.RESUME_TTL_SECONDS,
        grace=settings.RESUME_GRACE_SECONDS,
    )
    if not settings.REDIS_URL:
        return MemoryStore(limits)
    seal = Seal(settings.RESUME_ENCRYPTION_KEYS)
    return RedisStore(settings.REDIS_URL, limits, seal, on_append=noting.appended, on_missed=noting.takeover)


async def put_away() -> None:
    """The process ends: first what runs, then what it has written."""
    global _current
    if _current is None or _current[0] is not asyncio.get_running_loop():
        return
    await takeover.put_away()
    await generation.put_away()
    store, _current = _current[1], None
    await store.close()
