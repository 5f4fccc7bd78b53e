"""Streams and the processes that run and read them: handed over, lost by a process that died, taken over by exactly
one other, followed from anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from cryptography.fernet import Fernet

from continuation.resume.generation import Generation, Generations
from continuation.resume.log import START, Entry, Limits, LogWriter, State, StoreAway, Taken, after
from continuation.resume.store.redis import account, following, health, ledger
from continuation.resume.store.redis.claims import RELEASED_TIMES
from continuation.resume.store.redis.scripts import CLAIM, RELEASE, Command, keys_of, lease_of
from continuation.resume.store.redis.store import RedisStore
from continuation.splice.course import Phase
from tests.continuation.resume.store.conftest import KEY
from tests.continuation.resume.streams import (
    DEADLINE,
    begun,
    event,
    events,
    found,
    new_id,
    numbers,
    parts,
    read_to_end,
    taken,
    told,
    until,
)
from tests.harness.gateway import ROOT
from tests.harness.redis import RedisServer

Opened = Callable[..., RedisStore]
OTHER_KEY = Fernet.generate_key().decode()


class Flood:
    """A relay of so many events of so many bytes, as fast as they are taken."""

    def __init__(self, events: int, size: int) -> None:
        self.splice = SimpleNamespace(request_id="flood", phase=Phase.DONE, ended=False)
        self._piece = b"data: " + b"x" * size + b"\n\n"
        self._left = events

    async def pieces(self) -> AsyncIterator[bytes]:
        while self._left:
            self._left -= 1
            yield self._piece


class Owner:
    """Another process, with streams of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.streams: list[str] = []
        self.said: list[str] = []

    async def line(self) -> str:
        assert self.process.stdout
        async with asyncio.timeout(DEADLINE):
            return (await self.process.stdout.readline()).decode().strip()


@asynccontextmanager
async def owner(server: RedisServer, streams: int, first: int, seconds: float) -> AsyncIterator[Owner]:
    command = [
        sys.executable,
        "-m",
        "tests.continuation.resume.store.owner",
        server.url,
        str(streams),
        str(first),
        str(seconds),
    ]
    running = Owner(await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE))
    try:
        while (line := await running.line()) != "written":
            kind, _, stream_id = line.partition(" ")
            assert kind == "begun", line
            running.streams.append(stream_id)
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.process.kill()
        await running.process.wait()


async def state(store: RedisStore, stream_id: str) -> State | None:
    standing = await (await found(store, stream_id)).standing()
    return standing.state if standing else None


async def taken_over(store: RedisStore, stream_id: str) -> Taken:
    got: list[Taken] = []

    async def is_taken() -> bool:
        result = await store.take_over(stream_id)
        if result is not None:
            got.append(result)
        return bool(got)

    await until(is_taken)
    return got[0]


async def handed(writer: LogWriter) -> None:
    writer.hand_over()
    await until(lambda: writer.log.gone)


async def test_the_streams_of_a_killed_process_are_taken_over_each_by_exactly_one(
    opened: Opened, redis_server: RedisServer
) -> None:
    stores = [opened(redis_server) for _ in range(3)]
    async with owner(redis_server, streams=20, first=30, seconds=0.02) as killed:
        assert await state(stores[0], killed.streams[0]) is State.RUNNING
        assert await stores[0].take_over(killed.streams[0]) is None
        readers = [asyncio.create_task(read_to_end(await found(stores[2], each))) for each in killed.streams]
        killed.process.send_signal(signal.SIGKILL)
        await killed.process.wait()

        async def is_noticed() -> bool:
            return await state(stores[0], killed.streams[0]) is State.INTERRUPTED

        await until(is_noticed)
        for stream_id in killed.streams:
            tried = await asyncio.gather(*(store.take_over(stream_id) for store in stores for _ in range(3)))
            (won,) = [each for each in tried if each is not None]
            last = won.standing.last
            assert won.entries == tuple(events(1, last))
            assert last >= 30
            assert won.whole
            assert won.request == b"asked for"
            assert await state(stores[0], stream_id) is State.RUNNING
            won.writer.append(events(last + 1, last + 5))
            won.writer.end(State.FINISHED)
        for got in await asyncio.gather(*readers):
            assert numbers(got) == list(range(1, got[-1].number + 1))
            assert got[-1].number >= 35


async def test_a_process_that_was_only_held_up_has_lost_its_streams_and_learns_it(
    opened: Opened, redis_server: RedisServer
) -> None:
    store = opened(redis_server)
    async with owner(redis_server, streams=2, first=5, seconds=0.02) as stopped:
        moving, other = stopped.streams
        os.kill(stopped.process.pid, signal.SIGSTOP)
        won = await taken_over(store, moving)
        last = won.standing.last
        won.writer.append(events(last + 1, last + 3))
        os.kill(stopped.process.pid, signal.SIGCONT)
        assert await stopped.line() == f"lost {moving}"
        won.writer.append(events(last + 4, last + 4))
        won.writer.end(State.FINISHED)
        assert await read_to_end(await found(opened(redis_server), moving)) == events(1, last + 4)
        assert await state(store, other) is State.RUNNING
        assert await store.take_over(other) is None
        before = await (await found(store, other)).standing()
        assert before is not None

        async def goes_on() -> bool:
            standing = await (await found(store, other)).standing()
            return standing is not None and standing.last > before.last

        await until(goes_on)


async def test_a_process_that_has_lost_a_stream_writes_nothing_more_and_is_told_once(
    opened: Opened, redis_server: RedisServer, asking: redis.Redis
) -> None:
    store, other = opened(redis_server), opened(redis_server)
    writer = await begun(store)
    calls: list[str] = []
    writer.listen(lambda: calls.append("stop"), lambda: calls.append("lost"))
    writer.append(events(1, 3))
    reader = writer.log.reader(START)
    assert numbers(await taken(reader, 3)) == [1, 2, 3]
    # as it is when the lease has run out
    asking.hset(keys_of(writer.stream_id).meta, mapping={"owner": ""})
    won = await taken_over(other, writer.stream_id)
    writer.append([Entry(4, 0, b"from the one that has lost it")])
    await until(lambda: calls)
    assert (await told(reader)).lost
    assert writer.log.gone
    assert not writer.is_shared
    writer.append([Entry(5, 0, b"from the one that has lost it")])
    writer.leg2_begins()
    writer.end(State.FAILED)
    writer.hand_over()
    won.writer.append(events(4, 6))
    won.writer.end(State.FINISHED)
    assert await read_to_end(await found(store, writer.stream_id)) == events(1, 6)
    assert calls == ["lost"]
    assert (store.held.streams, store.held.events, store.held.bytes) == (0, 0, 0)
    await reader.aclose()


async def test_a_stream_that_is_handed_over_is_another_one_s_at_once(
    opened: Opened, redis_server: RedisServer
) -> None:
    store, other = opened(redis_server), opened(redis_server)
    writer = await begun(store, request=b"the request")
    assert writer.is_shared
    writer.append([event(1), *parts(2, 3)])
    writer.leg2_begins()
    writer.append([event(3)])
    reading = asyncio.create_task(read_to_end(await found(other, writer.stream_id)))
    await handed(writer)
    assert await state(other, writer.stream_id) is State.INTERRUPTED
    assert await store.take_over(writer.stream_id) is None  # it has just given it away
    won = await other.take_over(writer.stream_id)
    assert won is not None
    assert won.entries == (event(1), *parts(2, 3), event(3))
    standing = won.standing
    assert (standing.state, standing.first, standing.last, standing.leg2_from) == (State.RUNNING, 1, 3, 3)
    assert abs(standing.started_at - writer.log.started_at) < 0.001
    assert (won.whole, won.request) == (True, b"the request")
    assert await read_now(won.writer) == [1, 2, 2, 2, 3]
    won.writer.append([event(4)])
    won.writer.end(State.FINISHED)
    assert await reading == [event(1), *parts(2, 3), event(3), event(4)]


async def read_now(writer: LogWriter) -> list[int]:
    """What a reader in the same process gets without waiting."""
    reader = writer.log.reader(START)
    piece = await reader.read()
    await reader.aclose()
    return numbers(piece.entries)


async def test_a_stream_that_is_handed_over_twice_keeps_its_numbers(
    opened: Opened, redis_server: RedisServer
) -> None:
    first, second, third = (opened(redis_server) for _ in range(3))
    writer = await begun(first)
    writer.append(events(1, 2))
    await handed(writer)
    won = await taken_over(second, writer.stream_id)
    won.writer.append(events(3, 4))
    await handed(won.writer)
    again = await taken_over(third, writer.stream_id)
    assert again.entries == tuple(events(1, 4))
    again.writer.append(events(5, 6))
    again.writer.end(State.FINISHED)
    assert await read_to_end(await found(first, writer.stream_id)) == events(1, 6)


async def test_what_is_trimmed_is_missing_in_what_is_taken_over(
    opened: Opened, redis_server: RedisServer
) -> None:
    store, other = opened(redis_server, Limits(events=10)), opened(redis_server, Limits(events=10))
    writer = await begun(store)
    writer.append(events(1, 25))
    await handed(writer)
    won = await taken_over(other, writer.stream_id)
    assert not won.whole
    assert won.entries == tuple(events(16, 25))
    assert (won.standing.first, won.standing.last) == (16, 25)
    won.writer.append(events(26, 27))
    won.writer.end(State.FINISHED)
    await until(lambda: _is_ended(store, writer.stream_id))
    assert await read_to_end(await found(store, writer.stream_id), after(17)) == events(18, 27)
    reader = (await found(store, writer.stream_id)).reader(after(16))
    assert (await told(reader)).lost
    await reader.aclose()


async def _is_ended(store: RedisStore, stream_id: str) -> bool:
    standing = await (await found(store, stream_id)).standing()
    return standing is not None and standing.ended


async def test_a_stream_without_an_event_can_be_taken_over(opened: Opened, redis_server: RedisServer) -> None:
    store, other = opened(redis_server), opened(redis_server)
    writer = await begun(store, request=b"the request")
    await handed(writer)
    won = await taken_over(other, writer.stream_id)
    assert (won.entries, won.whole, won.request) == ((), True, b"the request")
    won.writer.append(events(1, 2))
    won.writer.end(State.FINISHED)
    assert await read_to_end(await found(store, writer.stream_id)) == events(1, 2)


@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["plain", "sealed"])
@pytest.mark.parametrize("size", [0, 1, account.REQUEST_BYTES, account.AWAITED_BYTES + 1, 10 * 2**20])
async def test_a_request_of_any_size_comes_with_the_stream(
    opened: Opened, redis_server: RedisServer, asking: redis.Redis, keys: tuple[str, ...], size: int
) -> None:
    store, other = opened(redis_server, keys=keys), opened(redis_server, keys=keys)
    request = os.urandom(size)
    writer = await begun(store, request=request)
    writer.append(events(1, 3))
    pieces = -(-size // account.REQUEST_BYTES)
    await until(lambda: asking.llen(keys_of(writer.stream_id).request) == pieces)
    await handed(writer)
    won = await taken_over(other, writer.stream_id)
    assert won.request == request
    won.writer.end(State.FINISHED)
    await until(lambda: not asking.exists(keys_of(writer.stream_id).request))
    await until(lambda: not other._ledger.accounts[writer.stream_id].request.data)
    assert asking.exists(keys_of(writer.stream_id).log)


async def test_a_request_that_is_not_there_to_its_end_is_none(
    opened: Opened, redis_server: RedisServer
) -> None:
    store, other = opened(redis_server, keys=(KEY,)), opened(redis_server, keys=(KEY,))
    writer = await begun(store, request=os.urandom(10 * 2**20))
    await handed(writer)  # much earlier than ten megabytes are encrypted
    won = await taken_over(other, writer.stream_id)
    assert won.request == b""


async def test_a_large_request_does_not_delay_the_streams(opened: Opened, redis_server: RedisServer) -> None:
    store = opened(redis_server, keys=(KEY,))
    loop = asyncio.get_running_loop()
    began = loop.time()
    writers = [await begun(store, request=os.urandom(10 * 2**20)) for _ in range(3)]
    for number in range(1, 31):
        for writer in writers:
            writer.append([event(number)])
        for writer in writers:
            await taken(writer.log.reader(after(number - 1)), number)
    assert loop.time() - began < DEADLINE / 3
    assert any(not each.request.is_whole for each in store._ledger.accounts.values())


async def test_with_keys_redis_never_sees_a_word_and_without_it_does(
    opened: Opened, redis_server: RedisServer
) -> None:
    plain, sealed = opened(redis_server), opened(redis_server, keys=(KEY,))
    with redis.Redis(port=redis_server.port) as client:
        for store, seen in ((plain, True), (sealed, False)):
            writer = await begun(store, request=b"the secret question")
            writer.append([Entry(1, 0, b"the secret answer")])
            await taken(writer.log.reader(START), 1)
            keys = keys_of(writer.stream_id)
            stored = repr(
                (client.xrange(keys.log), client.lrange(keys.request, 0, -1), client.hgetall(keys.meta))
            )
            assert ("secret answer" in stored) is seen
            assert ("secret question" in stored) is seen


async def test_a_log_that_no_key_opens_is_lost_to_its_reader_and_is_not_taken_over(
    opened: Opened, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    store, other = opened(redis_server, keys=(KEY,)), opened(redis_server, keys=(OTHER_KEY,))
    rotated = opened(redis_server, keys=(OTHER_KEY, KEY))
    writer = await begun(store)
    writer.append(events(1, 3))
    reader = (await found(other, writer.stream_id)).reader(START)
    with caplog.at_level(logging.WARNING):
        assert (await told(reader)).lost
        await handed(writer)
        assert await other.take_over(writer.stream_id) is None
        assert await other.take_over(writer.stream_id) is None
    assert len(caplog.records) == 1, caplog.text
    assert other.held.streams == 0
    won = await taken_over(rotated, writer.stream_id)  # whoever has the key can
    assert won.entries == tuple(events(1, 3))
    await reader.aclose()


async def test_keys_can_be_switched_on_while_streams_run(opened: Opened, redis_server: RedisServer) -> None:
    plain, sealed = opened(redis_server), opened(redis_server, keys=(KEY,))
    writer = await begun(plain, request=b"asked")
    writer.append(events(1, 3))
    await handed(writer)
    won = await taken_over(sealed, writer.stream_id)
    assert (won.entries, won.request) == (tuple(events(1, 3)), b"asked")
    won.writer.append(events(4, 6))
    won.writer.end(State.FINISHED)
    reader_with_key = await found(opened(redis_server, keys=(KEY,)), writer.stream_id)
    assert await read_to_end(reader_with_key) == events(1, 6)


async def test_a_limit_of_streams_holds_for_what_is_taken_over(
    opened: Opened, redis_server: RedisServer
) -> None:
    store, full = opened(redis_server), opened(redis_server, Limits(streams=1))
    writer = await begun(store)
    await handed(writer)
    own = await begun(full)
    assert await full.take_over(writer.stream_id) is None
    assert await state(full, writer.stream_id) is State.INTERRUPTED
    own.discard()
    assert (await taken_over(full, writer.stream_id)).whole


async def test_a_stop_reaches_the_process_although_its_message_is_lost(
    opened: Opened, redis_server: RedisServer
) -> None:
    store, other = opened(redis_server), opened(redis_server)
    writer = await begun(store)
    stops: list[float] = []
    loop = asyncio.get_running_loop()
    writer.listen(lambda: stops.append(loop.time()), lambda: None)
    await until(lambda: b"control" in redis_server.ask("PUBSUB", "CHANNELS"))
    redis_server.ask("CLIENT", "KILL", "TYPE", "pubsub")
    assert b"control" not in redis_server.ask("PUBSUB", "CHANNELS")
    asked_at = loop.time()
    await other.stop(writer.stream_id)
    await until(lambda: stops)
    assert stops[0] - asked_at < DEADLINE / 3


async def test_a_stop_of_a_stream_that_nobody_runs_reaches_whoever_takes_it_over(
    opened: Opened, redis_server: RedisServer
) -> None:
    store, other = opened(redis_server), opened(redis_server)
    writer = await begun(store)
    writer.append(events(1, 2))
    await handed(writer)
    await other.stop(writer.stream_id)
    won = await taken_over(other, writer.stream_id)
    stops: list[str] = []
    won.writer.listen(lambda: stops.append("stop"), lambda: None)
    await until(lambda: stops == ["stop"])


async def test_a_lease_that_is_missing_for_a_moment_costs_no_stream(
    opened: Opened, redis_server: RedisServer, asking: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SECOND_LOOK_SECONDS", 3.0)
    store, other = opened(redis_server), opened(redis_server)
    writer = await begun(store)
    await cancelled(store)
    asking.delete(lease_of(store.owner))
    taking = asyncio.create_task(other.take_over(writer.stream_id))
    await until(lambda: store.owner in other._following._missed)
    asking.set(lease_of(store.owner), "1")
    assert await taking is None
    asking.delete(lease_of(store.owner))
    assert await other.take_over(writer.stream_id) is not None


async def test_after_redis_was_away_every_process_has_time_to_renew_its_lease(
    opened: Opened, own_redis: RedisServer
) -> None:
    store, other = opened(own_redis), opened(own_redis)
    writer = await begun(store)
    assert await other.find(writer.stream_id)
    await cancelled(store)
    with own_redis.paused():
        await until(lambda: other.is_away)
    await until(lambda: not other.is_away)
    own_redis.ask("DEL", lease_of(store.owner))
    loop = asyncio.get_running_loop()
    back_at = loop.time()
    assert await other.take_over(writer.stream_id) is None
    assert await state(other, writer.stream_id) is State.RUNNING
    await taken_over(other, writer.stream_id)
    assert loop.time() - back_at > health.STEADY_SECONDS - 0.5


async def cancelled(store: RedisStore) -> None:
    """No sign of life comes from it any more."""
    for task in store._tasks:
        task.cancel()
    await asyncio.gather(*store._tasks, return_exceptions=True)


async def test_an_end_whose_marker_is_lost_is_found(
    opened: Opened, redis_server: RedisServer, asking: redis.Redis
) -> None:
    store, other = opened(redis_server), opened(redis_server)
    writer = await begun(store)
    writer.append(events(1, 3))
    reader = (await found(other, writer.stream_id)).reader(START)
    assert numbers(await taken(reader, 3)) == [1, 2, 3]
    waiting = asyncio.create_task(told(reader))
    await asyncio.sleep(0.1)
    asking.hset(keys_of(writer.stream_id).meta, "state", "finished")
    loop = asyncio.get_running_loop()
    began = loop.time()
    piece = await waiting
    assert (piece.ended, piece.lost, piece.entries) == (True, False, ())
    assert loop.time() - began < DEADLINE / 3
    await reader.aclose()


async def test_a_reader_elsewhere_is_seen_as_long_as_it_is_open(
    opened: Opened, redis_server: RedisServer
) -> None:
    store, other = opened(redis_server), opened(redis_server)
    writer = await begun(store)
    writer.append(events(1, 2))
    assert await store.read_elsewhere(writer.stream_id) is None
    here = writer.log.reader(START)
    assert await store.read_elsewhere(writer.stream_id) is None
    reader = (await found(other, writer.stream_id)).reader(START)
    await taken(reader, 2)
    loop = asyncio.get_running_loop()
    until_when = loop.time() + 6.0
    while loop.time() < until_when:  # neither reads nor waits: a slow client
        assert await store.read_elsewhere(writer.stream_id) == 0
        await asyncio.sleep(0.1)
    await reader.aclose()
    await here.aclose()


async def test_how_long_ago_it_was_there_is_known_for_the_whole_grace(
    opened: Opened, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark lasts for the grace and some seconds more."""
    monkeypatch.setattr(following, "MARK_SECONDS", 3.0)
    limits = Limits(grace=5.0)
    store, other = opened(redis_server, limits), opened(redis_server, limits)
    writer = await begun(store)
    writer.append(events(1, 2))
    reader = (await found(other, writer.stream_id)).reader(START)
    loop = asyncio.get_running_loop()
    await taken(reader, 2)
    left = loop.time()
    await reader.aclose()
    seen: list[float] = []
    while (age := await store.read_elsewhere(writer.stream_id)) is not None:
        assert age == 0 or age == pytest.approx(loop.time() - left, abs=1.0)
        seen.append(age)
        await asyncio.sleep(0.1)
    assert loop.time() - left == pytest.approx(8.0, abs=1.0)
    assert max(seen) > 5.0


async def test_a_claim_whose_answer_does_not_come_is_let_go_of(
    opened: Opened, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = opened(redis_server), opened(redis_server)
    async with owner(redis_server, streams=1, first=3, seconds=30) as process:
        (stream_id,) = process.streams
    ask, claims, releases = store._lines.ask, 0, 0

    async def slow(*commands: Command, **options: Any) -> list[Any]:
        """The first release comes to Redis before the claim, and changes nothing."""
        nonlocal claims, releases
        if RELEASE.sha in commands[0]:
            releases += 1
            if releases == 1:
                return [b"ok"]
        answers = await ask(*commands, **options)
        if CLAIM.sha in commands[0]:
            claims += 1
            raise StoreAway("Redis does not answer in time")
        return answers

    monkeypatch.setattr(store._lines, "ask", slow)

    async def is_tried() -> bool:
        with contextlib.suppress(StoreAway):
            await store.take_over(stream_id)
        return claims == 1

    async def is_orphaned() -> bool:
        return await state(other, stream_id) is State.INTERRUPTED

    await until(is_tried)
    assert await state(other, stream_id) is State.RUNNING
    await until(is_orphaned)
    taken_ = await taken_over(other, stream_id)
    await asyncio.sleep(RELEASED_TIMES + 1.5)  # nor is what another one has claimed since let go of
    assert await state(store, stream_id) is State.RUNNING
    assert store._claims.doubtful == {}
    taken_.writer.append(events(4, 4))
    await taken(taken_.writer.log.reader(START), 4)


async def test_a_stuck_reader_is_overtaken_where_another_one_reads_elsewhere(
    opened: Opened, redis_server: RedisServer
) -> None:
    """Half-open connections are the rule where a client has come back to another process."""
    store, other = opened(redis_server), opened(redis_server)
    writer = await begun(store)
    flood = Flood(1000, 1000)
    running = Generation(
        flood,  # type: ignore[arg-type]
        writer,
        store,
        Generations(),
        grace=60.0,
        event_limit=2**20,
    )
    running.start()
    stuck = writer.log.reader(START)
    entries = await read_to_end(await found(other, writer.stream_id))
    assert numbers(entries) == list(range(1, 1001))
    await stuck.aclose()
    await running.ended()


async def test_leases_that_ran_out_because_redis_was_away_cost_no_stream(
    opened: Opened, own_redis: RedisServer
) -> None:
    store, other = opened(own_redis), opened(own_redis)
    writer = await begun(store)
    lost: list[str] = []
    writer.listen(lambda: None, lambda: lost.append("lost"))
    writer.append(events(1, 2))
    log = await found(other, writer.stream_id)
    with own_redis.paused():
        await asyncio.sleep(ledger.LEASE_SECONDS + 0.5)
    await until(lambda: not other.is_away)
    for _ in range(30):
        assert await other.take_over(writer.stream_id) is None
        standing = await log.standing()
        assert standing is not None
        assert standing.state is State.RUNNING
        await asyncio.sleep(0.1)
    assert not lost


async def test_readers_elsewhere_that_come_and_go_leave_nothing_in_redis(
    opened: Opened, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MARK_SECONDS", 2.0)
    limits = Limits(ttl=1.0, grace=1.0)
    store, other = opened(own_redis, limits), opened(own_redis, limits)
    with redis.Redis(port=own_redis.port, decode_responses=True) as client:
        writer = await begun(store, request=b"x" * 1000)
        writer.append(events(1, 3))
        log = await found(other, writer.stream_id)
        await taken(reader := log.reader(START), 3)
        await reader.aclose()
        await until(lambda: len(client.client_list(_type="pubsub")) == 2)
        connections, tasks = len(client.client_list()), asyncio.all_tasks()
        for cycle in range(200):
            reader = log.reader(after(3 if cycle % 2 else 1))
            waiting = asyncio.create_task(reader.changed(DEADLINE))
            await asyncio.sleep((cycle % 5) * 0.002)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await reader.aclose()
        await until(lambda: len(client.client_list()) <= connections + 2)
        await until(lambda: asyncio.all_tasks() <= tasks)
        assert not other._following.readers
        for _ in range(200):  # streams that begin and do not come to be, or end
            short = await begun(store)
            short.append(events(1, 2))
            short.discard() if _ % 2 else short.end(State.FINISHED)
        writer.end(State.FINISHED)
        await until(lambda: not client.keys("continuation:{*"))
        await until(lambda: store.held.streams == 0)
        await store.close()
        await other.close()
        await until(lambda: len(client.client_list()) == 1)
        assert client.keys("*") == []
        assert client.pubsub_channels() == []


async def test_a_stream_that_is_silent_for_long_does_not_expire(
    opened: Opened, redis_server: RedisServer, asking: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "RENEWAL_SECONDS", 0.5)
    store = opened(redis_server, Limits(ttl=1.0, grace=1.0))
    writer = await begun(store, request=b"asked")
    writer.append(events(1, 2))
    keys = keys_of(writer.stream_id)
    await taken(writer.log.reader(START), 2)
    for _ in range(40):
        assert asking.exists(keys.meta, keys.log, keys.request) == 3
        await asyncio.sleep(0.1)


async def test_what_a_dead_process_leaves_expires(opened: Opened, redis_server: RedisServer) -> None:
    store = opened(redis_server, Limits(ttl=1.0, grace=2.0))
    writer = await begun(store, request=b"asked")
    writer.append(events(1, 2))
    await taken(writer.log.reader(START), 2)
    await cancelled(store)
    with redis.Redis(port=redis_server.port, decode_responses=True) as client:
        assert client.exists(keys_of(writer.stream_id).meta)
        await until(lambda: client.keys("*") == [])


async def test_an_id_that_is_taken_is_not_begun_again(opened: Opened, redis_server: RedisServer) -> None:
    store, other = opened(redis_server), opened(redis_server)
    stream_id = new_id()
    writer = await begun(store, stream_id)
    writer.append(events(1, 2))
    await taken(writer.log.reader(START), 2)
    assert await other.begin(stream_id, b"", DEADLINE) is None
    writer.end(State.FINISHED)
    assert await read_to_end(await found(other, stream_id)) == events(1, 2)
