"""The store of resume logs that the settings want."""

from __future__ import annotations

from importlib.util import find_spec

from django.conf import settings

from continuation.metrics import noting
from continuation.resume.log import Limits, Store
from continuation.resume.store.memory import MemoryStore
from continuation.resume.store.redis.sealing import Seal

REDIS_PACKAGES = ("redis", "hiredis")
if settings.REDIS_URL and all(find_spec(package) for package in REDIS_PACKAGES):
    # They are an extra, which a check asks for, and take their time to be loaded.
    from continuation.resume.store.redis.store import RedisStore


def chosen_store() -> Store:
    """A new one, which is not open yet."""
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
