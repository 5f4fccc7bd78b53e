"""The log of one stream in memory: what only its own process sees."""

from __future__ import annotations

import asyncio

import pytest

from continuation.resume.log import START, Entry, Held, Limits, Standing, State, after
from continuation.resume.store.hot import ASIDE_BYTES, COMPACTED, WINDOW_BYTES, HotLog
from tests.continuation.resume.streams import DEADLINE, event, events, numbers, parts


def hot(limits: Limits | None = None, *, gated: bool = False) -> tuple[HotLog, Held]:
    held = Held()
    return HotLog("a" * 32, limits or Limits(), held, gated=gated), held


async def test_without_a_reader_there_is_always_room() -> None:
    log, _ = hot()
    log.append([Entry(1, 0, b"x" * 2 * WINDOW_BYTES)])
    async with asyncio.timeout(DEADLINE):
        await log.room()


async def test_there_is_no_room_until_the_fastest_reader_has_come_closer() -> None:
    log, _ = hot()
    fast, slow = log.reader(START), log.reader(START)
    log.append([event(number, size=998) for number in range(1, 1 + WINDOW_BYTES // 1000)])
    async with asyncio.timeout(DEADLINE):
        await log.room()  # a window is not more than a window
    log.append(events(263, 264, size=998))
    waiting = asyncio.create_task(log.room())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await fast.read(5000)
    async with asyncio.timeout(DEADLINE):
        await waiting
    assert slow.behind_bytes > WINDOW_BYTES
    await fast.aclose()
    await slow.aclose()


async def test_there_is_room_again_when_the_last_reader_leaves() -> None:
    log, _ = hot()
    reader = log.reader(START)
    log.append([Entry(1, 0, b"x" * (WINDOW_BYTES + 1))])
    waiting = asyncio.create_task(log.room())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await reader.aclose()
    async with asyncio.timeout(DEADLINE):
        await waiting


async def test_a_reader_that_joins_late_is_as_far_behind_as_what_it_has_not_read() -> None:
    log, _ = hot()
    log.append(events(1, 10, size=100))
    reader = log.reader(after(4))
    assert (reader.behind_entries, reader.behind_bytes) == (6, 6 * 102)
    log.append(events(11, 11, size=100))
    assert (reader.behind_entries, reader.behind_bytes) == (7, 7 * 102)
    await reader.read()
    assert (reader.behind_entries, reader.behind_bytes) == (0, 0)
    await reader.aclose()


async def test_an_entry_that_would_push_out_what_nobody_has_read_has_no_room() -> None:
    log, _ = hot(Limits(events=100, bytes=1000))
    reader = log.reader(START)
    log.append([event(1, size=400)])
    async with asyncio.timeout(DEADLINE):
        await log.room(500)  # both fit
    waiting = asyncio.create_task(log.room(900))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await reader.read()
    async with asyncio.timeout(DEADLINE):
        await waiting
        await log.room(5000)  # larger than the log: the newest is always kept, and nothing unread is lost
    await reader.aclose()


@pytest.mark.parametrize("end", ["hurry", "expire"])
async def test_nobody_is_waited_for_once_the_stream_ends(end: str) -> None:
    log, _ = hot()
    log.reader(START)
    log.append([Entry(1, 0, b"x" * (WINDOW_BYTES + 1))])
    waiting = asyncio.create_task(log.room())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    getattr(log, end)()
    async with asyncio.timeout(DEADLINE):
        await waiting


async def test_a_window_is_half_of_a_small_log() -> None:
    log, _ = hot(Limits(events=10, bytes=2**20))
    reader = log.reader(START)
    log.append(events(1, 5))
    async with asyncio.timeout(DEADLINE):
        await log.room()
    log.append(events(6, 6))
    waiting = asyncio.create_task(log.room())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await reader.read()
    async with asyncio.timeout(DEADLINE):
        await waiting
    await reader.aclose()


async def test_a_gated_log_shows_what_is_let_through_and_its_end_only_behind_it() -> None:
    log, _ = hot(gated=True)
    reader = log.reader(START)
    log.append([event(1), *parts(2, 3), event(3)])
    log.end(State.FINISHED)
    piece = await reader.read()
    assert (piece.entries, piece.ended, piece.lost) == ((), False, False)
    assert not await reader.changed(0.0)
    waiting = asyncio.create_task(reader.changed(DEADLINE))
    await asyncio.sleep(0)
    log.show((2, 1))
    assert await waiting
    piece = await reader.read()
    assert piece.entries == (event(1), *parts(2, 3)[:2])
    assert not piece.ended
    log.show((1, 0))  # nothing is taken back
    assert (await reader.read()).entries == ()
    log.show_all()
    piece = await reader.read()
    assert piece.entries == (parts(2, 3)[2], event(3))
    assert piece.ended
    await reader.aclose()


async def test_comments_reach_the_readers_that_are_there_and_no_log() -> None:
    log, held = hot()
    early = log.reader(START)
    log.aside(b": one\n")
    late = log.reader(START)
    assert await early.changed(0.0)
    assert not await late.changed(0.0)
    assert (await early.read()).aside == b": one\n"
    assert not await early.changed(0.0)
    for _ in range(ASIDE_BYTES):
        log.aside(b": more\n")
    assert len((await late.read()).aside) <= ASIDE_BYTES
    assert held.bytes == 0
    await early.aclose()
    await late.aclose()


async def test_what_is_held_follows_the_log_to_the_byte() -> None:
    log, held = hot(Limits(events=1000, bytes=50_000))
    for number in range(1, 4 * COMPACTED + 1):
        log.append([event(number, size=number % 700)])
        kept = log.since(START)
        assert held.events == len(kept) <= 1000
        assert held.bytes == log.bytes == sum(len(entry.data) for entry in kept) <= 50_000
    assert held.events_appended == 4 * COMPACTED
    log.expire()
    log.expire()
    assert (held.streams, held.events, held.bytes) == (0, 0, 0)
    log.append(events(1, 5))
    assert (held.streams, held.events, held.bytes) == (0, 0, 0)


async def test_a_long_stream_is_let_go_of_behind_its_limit() -> None:
    log, _ = hot(Limits(events=100))
    log.append(events(1, 20_000))
    assert len(log._entries) <= 100 + COMPACTED + 100
    assert numbers(log.since(START)) == list(range(19_901, 20_001))


async def test_large_events_are_let_go_of_though_they_are_few() -> None:
    log, held = hot(Limits(bytes=2**22))
    for number in range(1, 200):
        log.append([Entry(number, 0, bytes(2**20))])
    assert held.bytes == 2**22
    assert sum(len(entry.data) for entry in log._entries) <= 2**22 + 2**20


async def test_a_reader_of_an_expired_log_is_told_while_it_waits() -> None:
    log, _ = hot()
    reader = log.reader(START)
    waiting = asyncio.create_task(reader.changed(DEADLINE))
    await asyncio.sleep(0)
    log.expire()
    assert await waiting
    assert (await reader.read()).lost
    assert await log.standing() is None
    await reader.aclose()


async def test_waits_that_are_given_up_leave_nothing_behind() -> None:
    log, _ = hot()
    reader = log.reader(START)
    for _ in range(200):
        waiting = asyncio.create_task(reader.changed(DEADLINE))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert not log._waiting
    await reader.aclose()


async def test_readers_that_come_and_go_are_told_of() -> None:
    log, _ = hot()
    counts: list[int] = []
    log.readers_changed = lambda: counts.append(log.reader_count)
    one, other = log.reader(START), log.reader(START)
    await one.aclose()
    await one.aclose()
    await other.aclose()
    assert counts == [1, 2, 1, 0]


@pytest.mark.parametrize(
    ("entries", "at", "lost", "kept"),
    [
        (events(1, 3), (3, 0), [], [START, after(1), after(3)]),
        (events(5, 7), (7, 0), [START, after(3)], [after(4), after(7)]),
        ([*parts(5, 3)[1:], event(6)], (6, 0), [START, after(4)], [(5, 0), after(5)]),
        ([], (9, 2), [START, after(8), (9, 1)], [(9, 2), after(9)]),
        ([], (0, 0), [], [START]),
    ],
    ids=["whole", "trimmed", "trimmed within an event", "nothing left", "nothing yet"],
)
async def test_a_restored_log_knows_what_it_lacks(
    entries: list[Entry], at: tuple[int, int], lost: list[tuple[int, int]], kept: list[tuple[int, int]]
) -> None:
    log, held = hot(gated=True)
    first = entries[0].number + bool(entries[0].part) if entries else at[0] + 1
    log.restore(entries, Standing(State.RUNNING, first, at[0], leg2_from=2, started_at=12.5), at)
    standing = await log.standing()
    assert standing == Standing(State.RUNNING, first, at[0], leg2_from=2, started_at=12.5)
    assert held.events == len(entries)
    for cursor in lost:
        reader = log.reader(cursor)
        assert (await reader.read()).lost, cursor
        await reader.aclose()
    for cursor in kept:
        reader = log.reader(cursor)
        piece = await reader.read()
        assert not piece.lost, cursor
        assert list(piece.entries) == [entry for entry in entries if entry.cursor > cursor]
        await reader.aclose()
