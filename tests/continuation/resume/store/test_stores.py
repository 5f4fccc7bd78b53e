"""What every store of logs does, read in the process that runs the stream and, where there is such a thing, in
another one."""

from __future__ import annotations

import asyncio
import time

import pytest

from continuation.resume.log import PIECE_BYTES, START, Entry, Limits, State, after
from tests.continuation.resume.store.conftest import Place
from tests.continuation.resume.streams import (
    BEGIN,
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


async def test_what_is_appended_is_read_once_in_order_and_byte_by_byte(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    reader = (await found(reading, writer.stream_id)).reader(START)
    for number in range(1, 101):
        writer.append([event(number)])
        assert await taken(reader, number) == [event(number)]
    writer.end(State.FINISHED)
    piece = await told(reader)
    assert piece.ended
    assert not piece.entries
    await reader.aclose()


async def test_a_reader_gets_what_comes_after_its_cursor_whichever_that_is(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    writer.append(events(1, 60))
    writer.end(State.FINISHED)
    log = await found(reading, writer.stream_id)
    await until(lambda: _has_ended(reading, writer.stream_id))
    for number in range(61):
        assert await read_to_end(log, after(number)) == events(number + 1, 60)


async def test_readers_do_not_share_what_they_read(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    log = await found(reading, writer.stream_id)
    readers = [asyncio.create_task(read_to_end(log)) for _ in range(5)]
    for number in range(1, 51):
        writer.append([event(number)])
        await asyncio.sleep(0)
    writer.end(State.FINISHED)
    assert await asyncio.gather(*readers) == [events(1, 50)] * 5


async def test_a_reader_that_waits_is_woken(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    reader = (await found(reading, writer.stream_id)).reader(START)
    assert not (await reader.read()).entries
    waiting = asyncio.create_task(reader.changed(DEADLINE))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    began = time.monotonic()
    writer.append([event(1)])
    assert await waiting
    assert time.monotonic() - began < DEADLINE / 2
    assert (await reader.read()).entries == (event(1),)
    await reader.aclose()


async def test_a_reader_waits_no_longer_than_it_says(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    reader = (await found(reading, writer.stream_id)).reader(START)
    assert not await reader.changed(0.0)
    began = time.monotonic()
    assert not await reader.changed(0.1)
    assert 0.09 < time.monotonic() - began < DEADLINE / 2
    assert not (await reader.read()).entries
    await reader.aclose()


async def test_a_waiting_reader_learns_of_the_end_although_nothing_comes_with_it(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    writer.append([event(1)])
    reader = (await found(reading, writer.stream_id)).reader(after(1))
    waiting = asyncio.create_task(told(reader))
    await asyncio.sleep(0.05)
    writer.end(State.FINISHED)
    piece = await waiting
    assert piece.ended
    assert not piece.entries
    await reader.aclose()


async def test_a_stream_that_ends_without_an_event_ends(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    log = await found(reading, writer.stream_id)
    writer.end(State.FAILED)
    assert await read_to_end(log) == []
    await until(lambda: _has_ended(reading, writer.stream_id))
    standing = await log.standing()
    assert standing is not None
    assert (standing.state, standing.first, standing.last) == (State.FAILED, 1, 0)


async def test_nothing_comes_behind_the_end(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    writer.append(events(1, 3))
    writer.end(State.FINISHED)
    writer.end(State.FAILED)
    log = await found(reading, writer.stream_id)
    assert await read_to_end(log) == events(1, 3)
    await until(lambda: _has_ended(reading, writer.stream_id))
    standing = await log.standing()
    assert standing is not None
    assert standing.state is State.FINISHED


async def test_a_large_backlog_comes_in_pieces(place: Place) -> None:
    running, reading = place.stores(Limits(bytes=2**24))
    writer = await begun(running)
    sent = events(1, 10_000, size=1000)
    for start in range(0, len(sent), 500):
        writer.append(sent[start : start + 500])
    writer.end(State.FINISHED)
    await until(lambda: _has_ended(reading, writer.stream_id))
    reader = (await found(reading, writer.stream_id)).reader(START)
    got: list[Entry] = []
    while True:
        piece = await told(reader)
        assert sum(len(entry.data) for entry in piece.entries) <= PIECE_BYTES
        got += piece.entries
        if piece.ended:
            break
    assert got == sent
    await reader.aclose()


async def test_a_piece_is_as_large_as_its_reader_wants_and_holds_one_entry_at_least(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    writer.append([event(1, 100), event(2, 100), event(3, 5000), event(4)])
    reader = (await found(reading, writer.stream_id)).reader(START)
    await until(lambda: _reaches(reading, writer.stream_id, 4))
    assert numbers((await reader.read(250)).entries) == [1, 2]
    assert numbers((await reader.read(250)).entries) == [3]
    assert numbers((await reader.read(250)).entries) == [4]
    await reader.aclose()


async def test_an_event_in_parts_comes_whole_and_can_be_resumed_within(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    entries = [event(1), *parts(2, 4), event(3)]
    for entry in entries:
        writer.append([entry])
    writer.end(State.FINISHED)
    await until(lambda: _has_ended(reading, writer.stream_id))
    log = await found(reading, writer.stream_id)
    assert await read_to_end(log) == entries
    for at, entry in enumerate(entries):
        assert await read_to_end(log, entry.cursor) == entries[at + 1 :]
    assert await read_to_end(log, after(1)) == entries[1:]


@pytest.mark.parametrize("limits", [Limits(events=20), Limits(bytes=20 * 102)], ids=["events", "bytes"])
async def test_what_was_trimmed_is_told_and_the_rest_is_there(place: Place, limits: Limits) -> None:
    running, reading = place.stores(limits)
    writer = await begun(running)
    for number in range(1, 251):
        writer.append([event(number, size=100)])
    writer.end(State.FINISHED)
    await until(lambda: _has_ended(reading, writer.stream_id))
    log = await found(reading, writer.stream_id)
    standing = await log.standing()
    assert standing is not None
    assert (standing.first, standing.last) == (231, 250)
    assert await read_to_end(log, after(230)) == events(231, 250, size=100)
    for cursor in (START, after(10), after(229), (230, 0)):
        reader = log.reader(cursor)
        piece = await told(reader)
        if cursor == (230, 0):  # that this event was whole is not known to all stores
            assert piece.lost or numbers(piece.entries)[0] == 231
        else:
            assert piece.lost
            assert not piece.entries
        await reader.aclose()


async def test_a_reader_that_is_overtaken_by_the_trimming_is_told(place: Place) -> None:
    running, reading = place.stores(Limits(events=20))
    writer = await begun(running)
    writer.append(events(1, 5))
    reader = (await found(reading, writer.stream_id)).reader(START)
    assert numbers(await taken(reader, 5)) == [1, 2, 3, 4, 5]
    writer.append(events(6, 105))
    await until(lambda: _reaches(reading, writer.stream_id, 105))
    assert (await told(reader)).lost
    await reader.aclose()


async def test_parts_are_trimmed_one_by_one_and_the_hole_is_told(place: Place) -> None:
    running, reading = place.stores(Limits(events=4))
    writer = await begun(running)
    entries = [*parts(1, 4), event(2), event(3)]
    writer.append(entries)
    await until(lambda: _reaches(reading, writer.stream_id, 3))
    log = await found(reading, writer.stream_id)
    standing = await log.standing()
    assert standing is not None
    assert (standing.first, standing.last) == (2, 3)
    for cursor, lost in ((START, True), ((1, 0), True), ((1, 1), False), ((1, 2), False), (after(1), False)):
        reader = log.reader(cursor)
        assert (await told(reader)).lost is lost, cursor
        await reader.aclose()


async def test_a_reader_within_an_event_whose_other_parts_are_trimmed_is_told(place: Place) -> None:
    running, reading = place.stores(Limits(events=4))
    writer = await begun(running)
    writer.append(parts(1, 4)[:1])
    reader = (await found(reading, writer.stream_id)).reader(START)
    assert numbers(await taken(reader, 1)) == [1]
    writer.append([*parts(1, 4)[1:], *events(2, 5)])
    await until(lambda: _reaches(reading, writer.stream_id, 5))
    assert (await told(reader)).lost
    await reader.aclose()


async def test_an_entry_larger_than_the_log_is_kept_alone(place: Place) -> None:
    running, reading = place.stores(Limits(bytes=1000))
    writer = await begun(running)
    writer.append([event(1), event(2, size=50_000)])
    await until(lambda: _reaches(reading, writer.stream_id, 2))
    log = await found(reading, writer.stream_id)
    reader = log.reader(after(1))
    assert (await told(reader)).entries == (event(2, size=50_000),)
    await reader.aclose()
    writer.append([event(3)])
    writer.end(State.FINISHED)
    await until(lambda: _has_ended(reading, writer.stream_id))
    assert await read_to_end(log, after(2)) == [event(3)]


async def test_limits_hold_at_the_limit_and_not_before(place: Place) -> None:
    running, _ = place.stores(Limits(events=10, bytes=1000))
    writer = await begun(running)
    sent = [Entry(number, 0, b"x" * 100) for number in range(1, 11)]
    writer.append(sent)
    assert (writer.log.first, writer.log.bytes) == (1, 1000)
    writer.append([Entry(11, 0, b"x")])
    assert (writer.log.first, writer.log.bytes) == (2, 901)


async def test_two_streams_have_nothing_of_each_other(place: Place) -> None:
    running, reading = place.stores()
    one, other = await begun(running), await begun(running)
    one.append(events(1, 5))
    other.append([Entry(1, 0, b"another")])
    for writer in (one, other):
        writer.end(State.FINISHED)
    assert await read_to_end(await found(reading, one.stream_id)) == events(1, 5)
    assert await read_to_end(await found(reading, other.stream_id)) == [Entry(1, 0, b"another")]


async def test_a_stream_says_where_it_stands(place: Place) -> None:
    running, reading = place.stores()
    began = time.time()
    writer = await begun(running)
    log = await found(reading, writer.stream_id)
    standing = await log.standing()
    assert standing is not None
    assert (standing.state, standing.first, standing.last, standing.leg2_from) == (State.RUNNING, 1, 0, 0)
    assert (standing.ended, standing.ended_at) == (False, None)
    assert began - 1 <= standing.started_at <= time.time() + 1
    writer.append(events(1, 7))
    writer.leg2_begins()
    writer.append(events(8, 9))
    writer.end(State.STOPPED)
    await until(lambda: _has_ended(reading, writer.stream_id))
    standing = await log.standing()
    assert standing is not None
    assert (standing.state, standing.first, standing.last, standing.leg2_from) == (State.STOPPED, 1, 9, 8)
    assert standing.ended_at is not None
    assert standing.started_at <= standing.ended_at <= time.time() + 1


async def test_that_a_second_leg_is_asked_for_is_known_before_its_first_event(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    writer.append(events(1, 3))
    writer.leg2_begins()
    log = await found(reading, writer.stream_id)

    async def is_told() -> bool:
        standing = await log.standing()
        return standing is not None and standing.leg2_from == 4

    await until(is_told)


async def test_an_unknown_stream_is_none(place: Place) -> None:
    running, reading = place.stores()
    await begun(running)
    assert await reading.find(new_id()) is None
    assert await running.find(new_id()) is None
    await reading.stop(new_id())
    assert await reading.take_over(new_id()) is None
    assert await running.read_elsewhere(new_id()) is None


async def test_a_log_expires_after_its_end_and_whoever_waits_is_told(place: Place) -> None:
    running, reading = place.stores(Limits(ttl=1.0))
    writer = await begun(running)
    writer.append(events(1, 3))
    log = await found(reading, writer.stream_id)
    reader = log.reader(START)
    assert numbers(await taken(reader, 3)) == [1, 2, 3]
    writer.end(State.FINISHED)
    assert (await told(reader)).ended
    late = log.reader(START)  # reads nothing before it is too late

    async def is_gone() -> bool:
        return await reading.find(writer.stream_id) is None and await running.find(writer.stream_id) is None

    await until(is_gone)
    assert await log.standing() is None
    assert (await told(late)).lost
    await late.aclose()
    await reader.aclose()


async def test_a_stream_that_did_not_come_to_be_leaves_no_trace(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    writer.append(events(1, 3))
    writer.discard()

    async def is_gone() -> bool:
        return await reading.find(writer.stream_id) is None and await running.find(writer.stream_id) is None

    await until(is_gone)
    writer.append(events(4, 5))
    writer.end(State.FINISHED)
    assert await running.find(writer.stream_id) is None
    assert writer.log.bytes == 0


async def test_no_more_streams_begin_than_the_limit_allows(place: Place) -> None:
    running, _ = place.stores(Limits(streams=3, ttl=0.5))
    writers = [await begun(running) for _ in range(3)]
    assert await running.begin(new_id(), b"", BEGIN) is None
    writers[0].end(State.FINISHED)
    assert await running.begin(new_id(), b"", BEGIN) is None  # it is kept still

    async def begins() -> bool:
        return await running.begin(new_id(), b"", BEGIN) is not None

    await until(begins)
    writers[1].discard()
    assert await running.begin(new_id(), b"", BEGIN) is not None


async def test_no_stream_begins_above_the_limit_of_bytes_over_all(place: Place) -> None:
    running, _ = place.stores(Limits(total_bytes=10_000))
    writer = await begun(running, request=b"")
    writer.append([Entry(1, 0, b"x" * 9_999)])
    other = await running.begin(new_id(), b"", BEGIN)
    assert other is not None
    writer.append([Entry(2, 0, b"x")])
    assert await running.begin(new_id(), b"", BEGIN) is None
    writer.append([Entry(3, 0, b"x")])  # what runs goes on
    assert writer.log.last == 3
    writer.discard()
    assert await running.begin(new_id(), b"", BEGIN) is not None


async def test_a_stop_reaches_the_generation_once(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    stops: list[str] = []
    writer.listen(lambda: stops.append("stop"), lambda: stops.append("lost"))
    await reading.stop(writer.stream_id)
    await until(lambda: stops)
    writer.append(events(1, 2))
    writer.end(State.STOPPED)
    await until(lambda: _has_ended(reading, writer.stream_id))
    await reading.stop(writer.stream_id)
    await asyncio.sleep(0.1)
    assert stops == ["stop"]


async def test_a_reader_that_stops_waiting_can_read_on(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    reader = (await found(reading, writer.stream_id)).reader(START)
    for number in range(1, 6):
        waiting = asyncio.create_task(reader.changed(DEADLINE))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        writer.append([event(number)])
        assert await taken(reader, number) == [event(number)]
    await reader.aclose()
    await reader.aclose()


async def test_readers_that_come_and_go_leave_no_task_behind(place: Place) -> None:
    running, reading = place.stores()
    writer = await begun(running)
    writer.append(events(1, 3))
    log = await found(reading, writer.stream_id)
    await asyncio.sleep(0.1)
    before = asyncio.all_tasks()
    for cycle in range(200):
        reader = log.reader(after(cycle % 4))
        waiting = asyncio.create_task(told(reader))
        await asyncio.sleep(0)
        if cycle % 2:
            await asyncio.sleep(0.002)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await reader.aclose()
    await until(lambda: asyncio.all_tasks() <= before)
    assert writer.log.reader_count == 0


async def _has_ended(store, stream_id: str) -> bool:  # type: ignore[no-untyped-def]
    log = await store.find(stream_id)
    standing = await log.standing() if log else None
    return standing is not None and standing.ended


async def _reaches(store, stream_id: str, last: int) -> bool:  # type: ignore[no-untyped-def]
    """Its standing may be ahead of what may be shown; a reader says."""
    log = await store.find(stream_id)
    reader = log.reader(after(last - 1))
    try:
        return bool((await reader.read()).entries)
    finally:
        await reader.aclose()
