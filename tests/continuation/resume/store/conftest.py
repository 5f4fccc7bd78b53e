"""Stores to be tested, and a Redis for those that need one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from cryptography.fernet import Fernet

from continuation.resume.log import Held, Limits, Store
from continuation.resume.store.memory import MemoryStore
from continuation.resume.store.redis.sealing import Seal
from continuation.resume.store.redis.store import RedisStore
from tests.harness.redis import RedisServer

KEY = Fernet.generate_key().decode()


@pytest.fixture(scope="session")
def session_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis_server(session_redis: RedisServer) -> RedisServer:
    """Empty, and not to be harmed."""
    session_redis.ask("FLUSHALL")
    return session_redis


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """To be killed, paused and refused memory."""
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def asking(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client that has nothing to do with the stores."""
    with redis.Redis(port=redis_server.port, decode_responses=True) as client:
        yield client


@dataclass(frozen=True)
class Place:
    """Where streams run, and where they are read: the same process, or another one with the same Redis."""

    open: Callable[[Limits], tuple[Store, Store]]
    shares: bool
    opened: list[Store]

    def stores(self, limits: Limits | None = None) -> tuple[Store, Store]:
        running, reading = self.open(limits or Limits())
        self.opened.extend((running, reading))
        return running, reading


PLACES = ["memory", "redis", "redis sealed", "redis elsewhere", "redis sealed elsewhere"]


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    kind = request.param
    server = None if kind == "memory" else request.getfixturevalue("redis_server")

    def opened(limits: Limits) -> tuple[Store, Store]:
        if server is None:
            memory = MemoryStore(limits)
            return memory, memory
        keys = [KEY] if "sealed" in kind else []
        running = RedisStore(server.url, limits, Seal(keys))
        return running, RedisStore(server.url, limits, Seal(keys)) if "elsewhere" in kind else running

    place = Place(opened, "elsewhere" in kind, [])
    yield place
    for store in place.opened:
        await store.close()
        held = store.held  # type: ignore[attr-defined]
        assert (held.streams, held.events, held.bytes) == (0, 0, 0), held
        assert isinstance(held, Held)


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., RedisStore]]:
    """opened(server, limits, keys=...): a store that is closed when the test is over."""
    stores: list[RedisStore] = []

    def opening(
        server: RedisServer | str, limits: Limits | None = None, keys: tuple[str, ...] = ()
    ) -> RedisStore:
        url = server if isinstance(server, str) else server.url
        stores.append(RedisStore(url, limits or Limits(), Seal(keys)))
        return stores[-1]

    yield opening
    for store in stores:
        await store.close()
