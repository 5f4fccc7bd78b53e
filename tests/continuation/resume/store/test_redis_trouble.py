"""Redis is late, away, full, read-only, or has forgotten everything: live streams go on as if nothing were, and it is
made good as soon as it is back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import redis

from continuation.resume.log import START, Limits, LogWriter, State, StoreAway, after
from continuation.resume.store.redis import account, health, pump
from continuation.resume.store.redis.scripts import keys_of, lease_of
from continuation.resume.store.redis.store import RedisStore
from tests.continuation.resume.store.conftest import KEY
from tests.continuation.resume.streams import (
    BEGIN,
    begun,
    event,
    events,
    found,
    new_id,
    numbers,
    read_to_end,
    taken,
    told,
    until,
)
from tests.harness.redis import RedisServer
from tests.harness.upstream import Unanswering

Opened = Callable[..., RedisStore]
# What a live stream may wait for a store in trouble: PATIENCE, and what a busy machine adds. Far below any timeout.
SOON = 1.0


def asked(server: RedisServer) -> redis.Redis:
    return redis.Redis(port=server.port, decode_responses=True)


def log_of(server: RedisServer, stream_id: str) -> list[tuple[str, str]]:
    """Ids and kinds of what Redis has."""
    with asked(server) as client:
        return [(each, next(iter(fields))) for each, fields in client.xrange(keys_of(stream_id).log)]


async def written(server: RedisServer, writer: LogWriter) -> None:
    """Until Redis has what the stream has, each entry once."""
    last = writer.log.last
    wanted = [f"{number}-0" for number in range(writer.log.first, last + 1)]

    def is_there() -> bool:
        try:
            return [each for each, kind in log_of(server, writer.stream_id) if kind != "e"] == wanted
        except redis.RedisError:
            return False

    await until(is_there)


@asynccontextmanager
async def live(writer: LogWriter, first: int) -> AsyncIterator[list[float]]:
    """While the block runs an event comes each few milliseconds and is read; then the seconds each of them took."""
    delays: list[float] = []
    ends = asyncio.Event()

    async def run() -> None:
        reader = writer.log.reader(after(first - 1))
        number = first
        while not ends.is_set():
            began = time.monotonic()
            writer.append([event(number)])
            assert await taken(reader, number) == [event(number)]
            delays.append(time.monotonic() - began)
            number += 1
            await asyncio.sleep(0.005)
        await reader.aclose()

    running = asyncio.create_task(run())
    try:
        yield delays
    finally:
        ends.set()
        await running


def assert_soon(delays: list[float]) -> None:
    assert len(delays) > 20
    assert max(delays) < SOON, sorted(delays)[-5:]


async def test_an_event_is_in_redis_before_its_reader_has_it(opened: Opened, own_redis: RedisServer) -> None:
    writer = await begun(opened(own_redis))
    reader = writer.log.reader(START)
    with asked(own_redis) as client:
        for number in range(1, 201):
            writer.append([event(number)])
            assert not (await reader.read()).entries
            await taken(reader, number)
            assert client.xlen(keys_of(writer.stream_id).log) >= number
    await reader.aclose()


@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["plain", "sealed"])
async def test_a_paused_redis_delays_no_live_stream_and_has_all_of_it_afterwards(
    opened: Opened, own_redis: RedisServer, keys: tuple[str, ...]
) -> None:
    store, other = opened(own_redis, keys=keys), opened(own_redis, keys=keys)
    writer = await begun(store)
    async with live(writer, 1) as delays:
        await until(lambda: len(delays) > 20)
        with own_redis.paused():
            await until(lambda: store.is_away)
            seen = len(delays)
            await until(lambda: len(delays) > seen + 20)
        await until(lambda: not store.is_away)
        seen = len(delays)
        await until(lambda: len(delays) > seen + 20)
    assert_soon(delays)
    writer.end(State.FINISHED)
    await written(own_redis, writer)
    log = await found(other, writer.stream_id)
    assert await read_to_end(log) == events(1, writer.log.last)


async def test_a_pause_that_outlives_the_connection_writes_nothing_twice(
    opened: Opened, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "FLUSH_SECONDS", 0.3)
    store = opened(own_redis)
    writer = await begun(store)
    writer.append(events(1, 5))
    await written(own_redis, writer)
    with own_redis.paused():
        for number in range(6, 60):
            writer.append([event(number)])
            await asyncio.sleep(
                0.02
            )  # some of them on connections that are given up with their flush under way
    writer.append(events(60, 65))
    await written(own_redis, writer)
    writer.end(State.FINISHED)
    assert await read_to_end(await found(opened(own_redis), writer.stream_id)) == events(1, 65)


@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["plain", "sealed"])
async def test_a_killed_redis_delays_no_live_stream_and_is_told_all_when_it_is_back(
    opened: Opened, own_redis: RedisServer, keys: tuple[str, ...]
) -> None:
    store, other = opened(own_redis, keys=keys), opened(own_redis, keys=keys)
    before = await begun(store)
    before.append(events(1, 10))
    before.end(State.FINISHED)
    writer = await begun(store, request=b"what was asked for" * 10_000)
    async with live(writer, 1) as delays:
        await until(lambda: len(delays) > 20)
        own_redis.kill()
        await until(lambda: store.is_away)
        assert await store.begin(new_id(), b"", BEGIN) is None
        with pytest.raises(StoreAway):
            await store.find(new_id())
        assert await store.find(writer.stream_id) is not None  # in this process, it is there
        own_redis.start_again()
        await until(lambda: not store.is_away)
        seen = len(delays)
        await until(lambda: len(delays) > seen + 20)
    assert_soon(delays)
    await written(own_redis, writer)
    await written(own_redis, before)
    await until(lambda: not other.is_away)
    assert await read_to_end(await found(other, before.stream_id)) == events(1, 10)
    writer.hand_over()
    await until(lambda: writer.log.gone)
    taken_over = await other.take_over(writer.stream_id)
    assert taken_over is not None
    assert taken_over.request == b"what was asked for" * 10_000
    assert numbers(taken_over.entries) == list(range(1, taken_over.standing.last + 1))
    assert await begun(store)


async def test_a_redis_that_is_down_at_the_start_costs_nothing_and_is_found_later(
    opened: Opened, own_redis: RedisServer
) -> None:
    own_redis.kill()
    store = opened(own_redis)
    began = time.monotonic()
    assert await store.begin(new_id(), b"", BEGIN) is None
    assert await store.begin(new_id(), b"", BEGIN) is None
    assert time.monotonic() - began < BEGIN / 2
    assert store.held.streams == 0
    with pytest.raises(StoreAway):
        await store.find(new_id())
    with pytest.raises(StoreAway):
        await store.stop(new_id())
    with pytest.raises(StoreAway):
        await store.take_over(new_id())
    with pytest.raises(StoreAway):
        await store.read_elsewhere(new_id())
    own_redis.start_again()
    await until(lambda: not store.is_away)
    with pytest.raises(StoreAway):  # readers show themselves again within some seconds
        await store.read_elsewhere(new_id())
    writer = await begun(store)
    writer.append(events(1, 3))
    await written(own_redis, writer)


async def test_a_connect_that_hangs_holds_nobody_up(opened: Opened) -> None:
    nobody = Unanswering()
    store = opened(f"redis://127.0.0.1:{nobody.port}")
    try:
        began = time.monotonic()
        assert await store.begin(new_id(), b"", 0.05) is None
        assert time.monotonic() - began < SOON
        with pytest.raises(StoreAway):
            await store.find(new_id())
        await until(lambda: store.is_away)
        began = time.monotonic()
        assert await store.begin(new_id(), b"", BEGIN) is None
        assert time.monotonic() - began < SOON
    finally:
        nobody.stop()
    began = time.monotonic()
    await store.close()
    assert time.monotonic() - began < 3.0


async def test_a_begin_that_is_not_answered_in_time_leaves_no_key_behind(
    opened: Opened, own_redis: RedisServer
) -> None:
    store = opened(own_redis)
    await (await begun_and_ended(store))
    with own_redis.paused():
        began = time.monotonic()
        assert await store.begin(new_id(), b"a request", 0.1) is None
        assert time.monotonic() - began < SOON
        assert store.held.streams == 0
    await until(lambda: stream_keys(own_redis) == [], account.CREATED_SECONDS / 2)
    waiting = asyncio.create_task(store.begin(new_id(), b"a request", BEGIN))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: stream_keys(own_redis) == [] and store.held.streams == 0, account.CREATED_SECONDS / 2)
    writer = await begun(store, request=b"x" * 100_000)
    writer.append(events(1, 3))
    await written(own_redis, writer)
    assert len(stream_keys(own_redis)) == 3
    writer.discard()
    await until(lambda: stream_keys(own_redis) == [], account.CREATED_SECONDS / 2)


async def begun_and_ended(store: RedisStore):  # type: ignore[no-untyped-def]
    """The store is connected, and has no stream."""
    writer = await begun(store)
    writer.discard()
    return until(lambda: store.held.streams == 0)


def stream_keys(server: RedisServer) -> list[str]:
    with asked(server) as client:
        return sorted(client.keys("continuation:{*"))


@pytest.mark.parametrize("trouble", ["full", "a replica", "misconfigured"])
async def test_a_redis_that_takes_nothing_delays_no_live_stream(
    opened: Opened, own_redis: RedisServer, trouble: str
) -> None:
    harm, heal = {
        "full": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        "a replica": (("REPLICAOF", "127.0.0.1", "9"), ("REPLICAOF", "NO", "ONE")),
        "misconfigured": (
            ("CONFIG", "SET", "min-replicas-to-write", "1"),
            ("CONFIG", "SET", "min-replicas-to-write", "0"),
        ),
    }[trouble]
    store = opened(own_redis)
    writer = await begun(store)
    async with live(writer, 1) as delays:
        await until(lambda: len(delays) > 20)
        assert own_redis.ask(*harm).startswith(b"+OK")
        await until(lambda: store.is_away)
        assert await store.begin(new_id(), b"", BEGIN) is None
        seen = len(delays)
        await until(lambda: len(delays) > seen + 100)
        assert own_redis.ask(*heal).startswith(b"+OK")
        await until(lambda: not store.is_away)
        seen = len(delays)
        await until(lambda: len(delays) > seen + 20)
    assert_soon(delays)
    await written(own_redis, writer)


@pytest.mark.parametrize(
    "loss",
    [("FLUSHALL",), ("DEL", "log"), ("DEL", "meta"), ("DEL", "log", "meta"), ("SCRIPT", "FLUSH")],
    ids=" ".join,
)
async def test_what_redis_has_forgotten_it_is_told_again(
    opened: Opened, own_redis: RedisServer, loss: tuple[str, ...]
) -> None:
    store = opened(own_redis)
    writer = await begun(store)
    writer.append(events(1, 50))
    await written(own_redis, writer)
    keys = keys_of(writer.stream_id)
    own_redis.ask(*({"log": keys.log, "meta": keys.meta}.get(word, word) for word in loss))
    async with live(writer, 51) as delays:
        await until(lambda: len(delays) > 20)
    assert_soon(delays)
    await written(own_redis, writer)
    writer.end(State.FINISHED)
    log = await found(opened(own_redis), writer.stream_id)
    assert await read_to_end(log) == events(1, writer.log.last)


async def test_what_redis_has_forgotten_of_a_silent_stream_it_is_told_again(
    opened: Opened, own_redis: RedisServer
) -> None:
    store = opened(own_redis)
    writer = await begun(store)
    writer.append(events(1, 5))
    await written(own_redis, writer)
    own_redis.ask("FLUSHALL")
    await written(own_redis, writer)


async def test_what_was_trimmed_while_redis_was_away_is_a_gap_that_is_told(
    opened: Opened, own_redis: RedisServer
) -> None:
    store, other = opened(own_redis, Limits(events=20)), opened(own_redis)
    writer = await begun(store)
    writer.append(events(1, 10))
    await written(own_redis, writer)
    log = await found(other, writer.stream_id)
    reader = log.reader(START)
    assert numbers(await taken(reader, 10)) == list(range(1, 11))
    with own_redis.paused():
        await until(lambda: store.is_away)
        writer.append(events(11, 100))
    await written(own_redis, writer)
    await until(lambda: not other.is_away)
    assert (await told(reader)).lost
    await reader.aclose()
    standing = await log.standing()
    assert standing is not None
    assert (standing.first, standing.last) == (81, 100)
    reader = log.reader(after(80))
    assert numbers(await taken(reader, 100)) == list(range(81, 101))
    await reader.aclose()


async def test_connections_that_are_cut_cost_no_event(opened: Opened, own_redis: RedisServer) -> None:
    store, other = opened(own_redis), opened(own_redis)
    writer = await begun(store)
    reading = asyncio.create_task(read_to_end(await found(other, writer.stream_id)))
    async with live(writer, 1) as delays:
        for cut in range(10):
            await until(lambda cut=cut: len(delays) > 20 * cut)
            own_redis.ask("CLIENT", "KILL", "TYPE", "pubsub" if cut % 3 == 2 else "normal")
        await until(lambda: not store.is_away)
    assert_soon(delays)
    writer.end(State.FINISHED)
    assert await reading == events(1, writer.log.last)
    await written(own_redis, writer)


async def test_that_it_goes_and_comes_back_is_said_once(
    opened: Opened, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(own_redis)
    writers = [await begun(store) for _ in range(20)]
    with caplog.at_level(logging.INFO):
        own_redis.kill()
        await until(lambda: store.is_away)
        for number in range(1, 101):
            for writer in writers:
                writer.append([event(number)])
            await asyncio.sleep(0.01)
        own_redis.start_again()
        await until(lambda: not store.is_away)
        for writer in writers:
            await written(own_redis, writer)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said
    assert " is away" in said[0]
    assert " is back" in said[1]


async def test_an_event_loop_that_is_held_up_does_not_take_redis_for_late(
    opened: Opened, own_redis: RedisServer
) -> None:
    store = opened(own_redis)
    writer = await begun(store)
    reader = writer.log.reader(START)
    for number in range(1, 21):
        writer.append([event(number)])
        if number % 2:
            await asyncio.sleep(0)  # the flush is under way
        time.sleep(3 * health.PATIENCE)  # noqa: ASYNC251
        await asyncio.sleep(0)
        await taken(reader, number)
        assert store._ledger.health.troubled_at is None
    await reader.aclose()


async def test_a_process_ends_in_time_whatever_redis_does(opened: Opened, own_redis: RedisServer) -> None:
    store = opened(own_redis)
    writer = await begun(store)
    writer.append(events(1, 5))
    with own_redis.paused():
        writer.append(events(6, 10))
        began = time.monotonic()
        await store.close()
        assert time.monotonic() - began < 3.0
    assert store.held.streams == 0
    assert await store.begin(new_id(), b"", BEGIN) is None
    with pytest.raises(StoreAway):
        await store.find(writer.stream_id)


async def test_a_process_that_ends_writes_what_it_has_and_lets_go(
    opened: Opened, own_redis: RedisServer
) -> None:
    store, other = opened(own_redis), opened(own_redis)
    writers = [await begun(store) for _ in range(20)]
    for writer in writers:
        writer.append(events(1, 200, size=500))
    before = asyncio.all_tasks()
    await store.close()
    assert not [
        task for task in before if task.get_name().startswith("resume ") and task in asyncio.all_tasks()
    ]
    with asked(own_redis) as client:
        assert {client.hget(keys_of(writer.stream_id).meta, "owner") for writer in writers} == {""}
        assert not client.exists(lease_of(store.owner))
    for writer in writers:
        taken_over = await other.take_over(writer.stream_id)
        assert taken_over is not None
        assert taken_over.entries == tuple(events(1, 200, size=500))


async def test_redis_going_away_is_told_to_a_reader_in_another_process(
    opened: Opened, own_redis: RedisServer
) -> None:
    store, other = opened(own_redis), opened(own_redis)
    writer = await begun(store)
    writer.append(events(1, 3))
    reader = (await found(other, writer.stream_id)).reader(START)
    assert numbers(await taken(reader, 3)) == [1, 2, 3]
    waiting = asyncio.create_task(reader.changed(60.0))
    await asyncio.sleep(0.1)
    own_redis.kill()
    began = time.monotonic()
    with pytest.raises(StoreAway):
        await waiting
    assert time.monotonic() - began < 10.0
    with pytest.raises(StoreAway):
        await reader.read()
    await reader.aclose()
    with pytest.raises(StoreAway):
        await other.find(writer.stream_id)


async def test_a_reader_in_another_process_outlives_a_redis_that_is_started_anew(
    opened: Opened, own_redis: RedisServer
) -> None:
    store, other = opened(own_redis), opened(own_redis)
    writer = await begun(store)
    writer.append(events(1, 3))
    reading = asyncio.create_task(read_to_end(await found(other, writer.stream_id)))
    await asyncio.sleep(0.1)
    own_redis.start_again()
    await written(own_redis, writer)
    writer.append(events(4, 6))
    writer.end(State.FINISHED)
    assert await reading == events(1, 6)


@pytest.mark.parametrize("key", ["meta", "log", "request", "reader"])
async def test_a_key_that_holds_something_else_costs_no_other_stream_and_is_written_again(
    opened: Opened, own_redis: RedisServer, key: str
) -> None:
    store, other = opened(own_redis), opened(own_redis)
    spoilt, healthy = await begun(store, request=b"asked"), await begun(store)
    for writer in (spoilt, healthy):
        writer.append(events(1, 3))
        await written(own_redis, writer)
    with asked(own_redis) as client:
        name = getattr(keys_of(spoilt.stream_id), key)
        client.delete(name)
        client.zadd(name, {"x": 1}) if key != "reader" else client.set(name, "x")
    for writer in (spoilt, healthy):
        writer.append(events(4, 6))
        await written(own_redis, writer)
        writer.end(State.FINISHED)
        assert await read_to_end(await found(other, writer.stream_id)) == events(1, 6)
    assert not store.is_away
    assert await begun(store)


async def test_a_redis_that_is_quick_and_forgets_delays_no_live_stream(
    opened: Opened, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that evicts does: each answer is in time, and the whole log is to be written anew."""
    writer = await begun(opened(own_redis))
    writer.append([event(number, size=200) for number in range(1, 12_000)])
    await written(own_redis, writer)
    keys = keys_of(writer.stream_id)
    monkeypatch.setattr(account, "STREAM_BYTES", 200)  # so that it takes 12,000 answers, which is seconds
    with asked(own_redis) as client:
        async with live(writer, 12_000) as delays:
            for _ in range(4):
                client.delete(keys.log)
                seen = len(delays)
                await until(lambda seen=seen: len(delays) > seen + 5)
    assert_soon(delays)
    monkeypatch.undo()
    await written(own_redis, writer)
