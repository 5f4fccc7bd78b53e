"""What one reader of a log gets, from any cursor to the end: over logs in memory, and over a line to a log that is
elsewhere, which may say anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from openai._streaming import SSEDecoder

from continuation.http import ending as ends
from continuation.http.ending import CLOSE_CONNECTION, AnswerBrokenOff
from continuation.relay import KEEPALIVE
from continuation.resume import reading as module
from continuation.resume import token as tokens
from continuation.resume.log import (
    PIECE_BYTES,
    START,
    Cursor,
    Entry,
    Held,
    Limits,
    Log,
    LogSlice,
    Standing,
    State,
    StoreAway,
)
from continuation.resume.log import after as behind
from continuation.resume.reading import LOOK_SECONDS, Asked, Reading
from continuation.resume.store.hot import HotLog, HotReader
from continuation.resume.store.memory import MemoryStore
from tests.continuation.resume.eventsource import blocks_without_data, dispatched
from tests.continuation.resume.streams import DEADLINE, begun, event, events, until

STREAM = "0123456789abcdef" * 2
CHECKPOINT = b"event: resume_token\n"


def hot(limits: Limits | None = None) -> HotLog:
    return HotLog(STREAM, limits or Limits(), Held())


def asked(cursor: Cursor = START, **more: Any) -> Asked:
    token: Callable[[int], str] = lambda position: f"token-{position}"  # noqa: E731
    return Asked(**({"request_id": "r", "cursor": cursor, "token": token, "keepalive": 0.0} | more))


def reading_of(log: Log, cursor: Cursor = START, **more: Any) -> Reading:
    async def find() -> Log | None:
        return log if await log.standing() is not None else None

    async def nobody() -> None:
        raise AssertionError("nothing was to be taken over")

    return Reading(log, asked(cursor, **more), find, nobody)


async def all_of(reading: Reading) -> list[bytes]:
    async with asyncio.timeout(DEADLINE):
        return [piece async for piece in reading.pieces()]


def sent(entries: Sequence[Entry]) -> bytes:
    return b"".join(entry.data for entry in entries)


class Client:
    """Reads in a task of its own."""

    def __init__(self, reading: Reading) -> None:
        self.got = b""
        self.task = asyncio.create_task(self._read(reading))

    async def _read(self, reading: Reading) -> None:
        async for piece in reading.pieces():
            self.got += piece

    async def ended(self) -> bytes:
        async with asyncio.timeout(DEADLINE):
            await self.task
        return self.got

    async def has(self, data: bytes) -> None:
        await until(lambda: self.got == data)


# -- from a cursor on -------------------------------------------------------------------------------


async def test_from_every_cursor_all_that_comes_after_it_is_sent() -> None:
    log = hot()
    log.append(events(1, 40))
    log.end(State.FINISHED)
    for number in range(41):
        assert b"".join(await all_of(reading_of(log, behind(number)))) == sent(events(number + 1, 40))
    assert log.reader_count == 0


async def test_then_it_follows_to_the_end() -> None:
    log = hot()
    log.append(events(1, 20))
    clients = [Client(reading_of(log, behind(number))) for number in range(21)]
    for number, client in enumerate(clients):
        await client.has(sent(events(number + 1, 20)))
    assert log.reader_count == 21
    for number in range(21, 41):
        log.append([event(number)])
        await asyncio.sleep(0)
    log.end(State.FAILED)
    for number, client in enumerate(clients):
        assert await client.ended() == sent(events(number + 1, 40))
    assert log.reader_count == 0


async def test_an_end_without_an_event_is_told_to_those_who_wait() -> None:
    log = hot()
    log.append(events(1, 3))
    client = Client(reading_of(log))
    await client.has(sent(events(1, 3)))
    log.end(State.ABANDONED)
    assert await client.ended() == sent(events(1, 3))


async def test_two_who_read_at_once_get_a_whole_copy_each() -> None:
    log = hot()
    log.append(events(1, 500, size=1000))
    one, two = reading_of(log).pieces(), reading_of(log).pieces()
    first, second = await anext(one), await anext(two)
    assert first == second
    async for piece in one:
        first += piece
        if len(first) >= len(sent(events(1, 500, size=1000))):
            break
    log.append(events(501, 600))
    log.end(State.FINISHED)
    second += b"".join([piece async for piece in two])
    first += b"".join([piece async for piece in one])
    assert first == second == sent(events(1, 500, size=1000)) + sent(events(501, 600))


async def test_one_that_stops_reading_is_no_reader_any_more() -> None:
    log = hot()
    log.append(events(1, 3))
    pieces = reading_of(log).pieces()
    assert await anext(pieces)
    assert log.reader_count == 1
    await pieces.aclose()
    assert log.reader_count == 0
    waiting = Client(reading_of(log))
    await waiting.has(sent(events(1, 3)))
    waiting.task.cancel()
    await asyncio.wait({waiting.task})
    assert log.reader_count == 0


async def test_ten_megabytes_come_in_pieces_and_each_when_the_one_before_was_taken() -> None:
    log = hot(Limits(events=10**6, bytes=20 * 2**20))
    written = events(1, 10 * 2**10, size=1022)
    log.append(written)
    log.end(State.FINISHED)
    pieces = await all_of(reading_of(log))
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert len(pieces) >= 160
    assert b"".join(pieces) == sent(written)
    taking = reading_of(log).pieces()
    await anext(taking)
    [reader] = log._readers
    assert len(sent(written)) - reader.behind_bytes <= PIECE_BYTES
    await taking.aclose()


async def test_an_event_that_is_larger_than_a_piece_is_one() -> None:
    log = hot()
    written = [event(1), event(2, size=3 * PIECE_BYTES), event(3)]
    log.append(written)
    log.end(State.FINISHED)
    assert await all_of(reading_of(log)) == [entry.data for entry in written]


async def test_it_is_told_what_has_begun_and_what_is_live() -> None:
    log, noted = hot(), []
    log.append(events(1, 3))
    reading = reading_of(log)
    reading.on_event = lambda: noted.append("event")
    reading.on_live = lambda: noted.append("live")
    client = Client(reading)
    await client.has(sent(events(1, 3)))
    await until(lambda: noted == ["event", "live"])
    log.end(State.FINISHED)
    await client.ended()


# -- comments ---------------------------------------------------------------------------------------


async def test_comments_go_to_those_who_are_there_and_to_nobody_who_comes_later() -> None:
    log = hot()
    log.append(events(1, 2))
    log.aside(b": nobody hears this\n")
    there = Client(reading_of(log))
    await there.has(sent(events(1, 2)))
    log.aside(b": ping\n")
    await there.has(sent(events(1, 2)) + b": ping\n")
    later = Client(reading_of(log))
    await later.has(sent(events(1, 2)))
    log.append(events(3, 3))
    log.end(State.FINISHED)
    assert await there.ended() == sent(events(1, 2)) + b": ping\n" + sent(events(3, 3))
    assert await later.ended() == sent(events(1, 3))


async def test_a_comment_is_no_part_of_an_event_that_is_not_complete() -> None:
    log = hot()
    client = Client(reading_of(log))
    log.append([Entry(1, 0, b"id: 1\ndata: ab", open=True)])
    await client.has(b"id: 1\ndata: ab")
    log.aside(b": ping\n")
    log.append([Entry(1, 1, b"cd\n\n")])
    log.aside(b": pong\n")
    log.end(State.FINISHED)
    got = await client.ended()
    assert got.startswith(b"id: 1\ndata: abcd\n\n")
    assert [one.data for one in dispatched(got)] == [b"abcd"]


# -- what comes by the clock ------------------------------------------------------------------------


@dataclass
class Clock:
    """Time passes where somebody waits, and nowhere else."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


Happening = tuple[float, Callable[[], object]]


@dataclass
class Timed:
    """A log to which things happen at their time; `waits` is how long its reader wanted to wait."""

    log: HotLog
    clock: Clock
    script: list[Happening]
    waits: list[float] = field(default_factory=list)

    async def standing(self) -> Standing | None:
        return await self.log.standing()

    def reader(self, cursor: Cursor) -> TimedReader:
        return TimedReader(self, self.log.reader(cursor))


@dataclass
class TimedReader:
    of: Timed
    reader: HotReader

    async def read(self, most: int = PIECE_BYTES) -> LogSlice:
        return await self.reader.read(most)

    async def changed(self, seconds: float) -> bool:
        of = self.of
        of.waits.append(seconds)
        until = of.clock.now + seconds
        while of.script and of.script[0][0] <= until:
            at, happens = of.script.pop(0)
            of.clock.now = max(of.clock.now, at)
            happens()
            if await self.reader.changed(0):
                return True
        of.clock.now = until
        return await self.reader.changed(0)

    async def aclose(self) -> None:
        await self.reader.aclose()


Played = list[tuple[float, bytes]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


async def played(clock: Clock, log: HotLog, script: list[Happening], **more: Any) -> tuple[Played, Timed]:
    """What is sent, and when: seconds since the start. Times of the script are seconds since then too."""
    start = clock.now
    timed = Timed(log, clock, [(start + at, happens) for at, happens in script])
    async with asyncio.timeout(DEADLINE):
        got = [(clock.now - start, piece) async for piece in reading_of(timed, **more).pieces()]
    return got, timed


def appending(log: HotLog, *entries: Entry) -> Callable[[], object]:
    return lambda: log.append(entries)


def ending(log: HotLog) -> Callable[[], object]:
    return lambda: log.end(State.FINISHED)


async def test_while_nothing_is_sent_a_comment_says_that_somebody_is_there(clock: Clock) -> None:
    log = hot()
    script = [(1.0, appending(log, event(1))), (25.0, appending(log, event(2))), (26.0, ending(log))]
    got, _ = await played(clock, log, script, keepalive=10.0)
    assert got == [(1.0, event(1).data), (11.0, KEEPALIVE), (21.0, KEEPALIVE), (25.0, event(2).data)]
    read = list(SSEDecoder().iter_bytes(iter([piece for _, piece in got])))
    assert [(one.id, one.data) for one in read] == [("1", "the event 1"), ("2", "the event 2")]


@pytest.mark.parametrize("last", [b"[DONE]", b'{"error":{"code":"stopped"}}'])
async def test_behind_the_last_event_there_is_none_however_long_the_end_takes(
    clock: Clock, last: bytes
) -> None:
    log = hot()
    done = Entry(2, 0, b"id: 2\ndata: " + last + b"\n\n")
    script = [(1.0, appending(log, event(1), done)), (60.0, ending(log))]
    got, _ = await played(clock, log, script, keepalive=10.0, checkpoints=2.0)
    assert b"".join(piece for _, piece in got) == event(1).data + done.data


async def test_without_a_setting_there_is_none(clock: Clock) -> None:
    log = hot()
    got, timed = await played(clock, log, [(600.0, ending(log))], keepalive=0.0)
    assert got == []
    assert len(timed.waits) == 600 / LOOK_SECONDS


async def test_there_is_none_inside_an_event_nor_any_hurry_because_it_is_due(clock: Clock) -> None:
    log = hot()
    script = [
        (1.0, appending(log, Entry(1, 0, b"id: 1\ndata: a", open=True))),
        (35.0, appending(log, Entry(1, 1, b"b", open=True))),
        (70.0, appending(log, Entry(1, 2, b"c\n\n"))),
        (85.0, ending(log)),
    ]
    got, timed = await played(clock, log, script, keepalive=10.0, checkpoints=2.0)
    assert b"".join(piece for at, piece in got if at < 70) == b"id: 1\ndata: ab"
    assert got[2][1].startswith(b"c\n\n")
    assert next(one.data for one in dispatched(b"".join(piece for _, piece in got))) == b"abc"
    assert sum(wait == 0 for wait in timed.waits) == 0
    assert len(timed.waits) < 100


def _checkpoints(got: Played) -> list[tuple[float, int]]:
    found = []
    for at, piece in got:
        if piece.startswith(CHECKPOINT):
            said = json.loads(piece.removeprefix(CHECKPOINT).removeprefix(b"data: "))
            assert set(said) == {"token", "last_event_id"}
            assert said["token"] == f"token-{said['last_event_id']}"
            found.append((at, said["last_event_id"]))
        else:
            assert CHECKPOINT not in piece
    return found


async def test_tokens_come_at_their_spacing_with_the_position_behind_what_was_sent(clock: Clock) -> None:
    log = hot()
    script = [(float(at), appending(log, event(at))) for at in range(1, 36)]
    script += [(200.0, appending(log, event(36))), (201.0, appending(log, event(37))), (202.0, ending(log))]
    got, timed = await played(clock, log, script, checkpoints=10.0)
    assert _checkpoints(got) == [(10.0, 10), (20.0, 20), (30.0, 30), (40.0, 35), (200.0, 36)]
    newest = 0
    for _, piece in got:
        if piece.startswith(CHECKPOINT):
            assert json.loads(piece.split(b"data: ")[1])["last_event_id"] == newest
        else:
            newest = int(dispatched(piece)[-1].id)
    assert min(timed.waits) > 0


async def test_there_is_no_token_where_nothing_new_came(clock: Clock) -> None:
    log = hot()
    log.append(events(1, 5))
    got, _ = await played(clock, log, [(100.0, ending(log))], cursor=behind(5), checkpoints=1.0)
    assert got == []


async def test_there_is_none_unless_asked_for(clock: Clock) -> None:
    log = hot()
    script = [(float(at), appending(log, event(at))) for at in range(1, 36)]
    got, _ = await played(clock, log, [*script, (36.0, ending(log))])
    assert _checkpoints(got) == []


async def test_a_token_is_an_event_without_an_id_and_moves_no_cursor(clock: Clock) -> None:
    log = hot()
    script = [(float(at), appending(log, event(at))) for at in range(1, 6)]
    got, _ = await played(clock, log, [*script, (5.5, ending(log))], checkpoints=2.0, keepalive=0.4)
    stream = b"".join(piece for _, piece in got)
    told = dispatched(stream)
    named = [one for one in told if one.name == b"resume_token"]
    assert len(named) == 2
    assert all(one.told == 0 for one in named)
    assert [one.data for one in told if not one.name] == [b"the event %d" % number for number in range(1, 6)]
    assert blocks_without_data(stream) == 0


async def test_a_token_resumes_where_it_was_sent(clock: Clock) -> None:
    log = hot()
    script = [(float(at), appending(log, event(at))) for at in range(1, 21)] + [(20.5, ending(log))]

    def issued(position: int) -> str:
        return tokens.issue(STREAM, "Bearer k", position)

    got, _ = await played(clock, log, script, checkpoints=3.0, token=issued)
    resumed = 0
    for at, (_, piece) in enumerate(got):
        if piece.startswith(CHECKPOINT):
            token = tokens.read(json.loads(piece.split(b"data: ")[1])["token"], "Bearer k")
            assert token is not None
            assert token.position is not None
            rest = b"".join(await all_of(reading_of(log, behind(token.position))))
            later = [data for _, data in got[at:] if not data.startswith(CHECKPOINT)]
            assert rest == b"".join(later)
            resumed += 1
    assert resumed == 6


# -- what is lost -----------------------------------------------------------------------------------


def is_gap(piece: bytes) -> bool:
    assert piece.startswith(b"data: ")
    assert piece.endswith(b"\n\n")
    error = json.loads(piece[6:])["error"]
    assert error["type"] == "stream_interrupted"
    assert "interrupted" in error["message"]
    return bool(error["code"] == "resume_gap")


async def test_what_was_trimmed_while_reading_is_told_once_and_ends_it() -> None:
    log = hot(Limits(events=10))
    log.append(events(1, 5))
    pieces = reading_of(log).pieces()
    assert await anext(pieces) == sent(events(1, 5))
    log.append(events(6, 30))
    [gap] = [piece async for piece in pieces]
    assert is_gap(gap)
    assert log.reader_count == 0


async def test_what_was_trimmed_inside_an_event_ends_that_event_first() -> None:
    for part in (b"id: 2\ndata: ab", b"id: 2\ndata: ab\n"):
        log = hot(Limits(events=10))
        log.append([event(1), Entry(2, 0, part, open=True)])
        pieces = reading_of(log).pieces()
        got = await anext(pieces)
        log.append([Entry(2, number, b"c", open=True) for number in range(1, 20)])
        got += b"".join([piece async for piece in pieces])
        told = dispatched(got)
        assert [one.data for one in told[:2]] == [b"the event 1", b"ab"]
        assert is_gap(b"data: " + told[2].data + b"\n\n")
        assert len(told) == 3
        assert blocks_without_data(got) == 0


async def test_a_log_that_expires_while_one_waits_is_told_soon() -> None:
    store = MemoryStore(Limits())
    writer = await begun(store)
    writer.append(events(1, 3))

    async def nobody() -> None:
        raise AssertionError

    reading = Reading(writer.log, asked(), lambda: store.find(writer.stream_id), nobody)
    client = Client(reading)
    await client.has(sent(events(1, 3)))
    await store.close()
    got = await client.ended()
    assert is_gap(got.removeprefix(sent(events(1, 3))))
    assert (store.held.streams, store.held.bytes) == (0, 0)


async def test_a_log_that_has_expired_before_it_is_read_is_told_too() -> None:
    log = hot()
    log.append(events(1, 3))
    log.expire()
    [gap] = await all_of(reading_of(log))
    assert is_gap(gap)


# -- broken off -------------------------------------------------------------------------------------


async def test_one_that_is_to_leave_breaks_off_and_is_no_reader_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = hot()
    log.append(events(1, 3))
    reading = reading_of(log)
    client = Client(reading)
    await client.has(sent(events(1, 3)))
    reading.leave()
    with pytest.raises(AnswerBrokenOff):
        await client.ended()
    assert log.reader_count == 0
    assert client.got == sent(events(1, 3))

    closed: list[int] = []
    monkeypatch.setattr(ends, "CLOSING_SECONDS", 0.0)
    scope = {"extensions": {CLOSE_CONNECTION: lambda: closed.append(1)}}
    reading = reading_of(log, scope=scope)
    reading.leave()
    assert await all_of(reading) == []
    assert closed == [1]


@dataclass
class Line:
    """A log that is elsewhere: what reading it gives, piece by piece, and where it stands then."""

    script: list[LogSlice | BaseException]
    state: State | BaseException | None = State.RUNNING
    last: int = 100
    first: int = 1
    opened: list[Cursor] = field(default_factory=list)
    closed: int = 0
    certain: Cursor | None = None

    async def standing(self) -> Standing | None:
        if isinstance(self.state, BaseException):
            raise self.state
        return None if self.state is None else Standing(self.state, self.first, self.last)

    def reader(self, cursor: Cursor) -> Line:
        self.opened.append(cursor)
        return self

    async def read(self, most: int = PIECE_BYTES) -> LogSlice:
        return _given(self.script.pop(0)) if self.script else LogSlice()

    async def changed(self, seconds: float) -> bool:
        await asyncio.sleep(0 if self.script else min(seconds, 0.01))
        return bool(self.script)

    async def aclose(self) -> None:
        self.closed += 1


def _given(piece: LogSlice | BaseException) -> LogSlice:
    if isinstance(piece, BaseException):
        raise piece
    return piece


AWAY = StoreAway("it does not answer")


def over(
    line: Log,
    find: Callable[[], Awaitable[Log | None]],
    take_over: Callable[[], Awaitable[None]] | None = None,
) -> Reading:
    async def nobody() -> None:
        raise AssertionError("nothing was to be taken over")

    return Reading(line, asked(), find, take_over or nobody)


async def found_nothing() -> Log | None:
    return None


async def away() -> None:
    raise AWAY


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.0)


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)


async def test_a_store_that_is_away_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    line = Line([LogSlice((event(1),)), AWAY, AWAY, LogSlice((event(2),)), AWAY, LogSlice(ended=True)])
    got = await all_of(over(line, found_nothing))
    assert b"".join(got) == sent(events(1, 2))
    assert line.closed == 1


async def test_what_is_lost_is_looked_for_until_the_store_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    answers = [AWAY, AWAY]
    there = Line([LogSlice((event(2),), ended=True)], first=1, last=2)

    async def find() -> Log | None:
        if answers:
            raise answers.pop()
        return there

    line = Line([LogSlice((event(1),)), *[LogSlice(lost=True)] * 3])
    got = await all_of(over(line, find))
    assert b"".join(got) == sent(events(1, 2))


@pytest.mark.usefixtures("impatient")
async def test_a_store_that_does_not_answer_breaks_it_off() -> None:
    line = Line([LogSlice((event(1),)), AWAY])
    client = Client(over(line, found_nothing))
    with pytest.raises(AnswerBrokenOff):
        await client.ended()
    assert client.got == event(1).data
    assert line.closed == 1


@pytest.mark.usefixtures("looks_often", "impatient")
async def test_so_does_one_that_cannot_say_where_the_stream_stands_or_take_it_over() -> None:
    for line, take_over in (
        (Line([LogSlice((event(1),))], state=AWAY), None),
        (Line([LogSlice((event(1),))], state=State.INTERRUPTED), away),
    ):
        client = Client(over(line, found_nothing, take_over))
        with pytest.raises(AnswerBrokenOff):
            await client.ended()
        assert client.got == event(1).data
        assert line.closed == 1


@pytest.mark.usefixtures("impatient")
async def test_so_does_one_that_cannot_find_what_was_lost() -> None:
    async def find() -> Log | None:
        raise AWAY

    line = Line([LogSlice((event(1),)), LogSlice(lost=True)])
    client = Client(over(line, find))
    with pytest.raises(AnswerBrokenOff):
        await client.ended()


# -- another process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("certain", [(1, 0), (2, 0), (3, 0)])
async def test_what_redis_never_had_is_not_gone_on_with_elsewhere(certain: Cursor) -> None:
    """The reader has events 1 and 2, and another process may have had another event 2."""
    line, there = Line([LogSlice((event(1), event(2))), LogSlice(lost=True)], certain=certain), hot()
    there.append(events(1, 4))
    there.end(State.FINISHED)

    async def find() -> Log | None:
        return there

    got = b"".join(await all_of(over(line, find)))
    if certain < (2, 0):
        assert got.startswith(sent(events(1, 2)))
        assert b"resume_gap" in got
    else:
        assert got == sent(events(1, 4))


async def test_no_comment_comes_behind_the_last_event() -> None:
    done = Entry(2, 0, b"id: 2\ndata: [DONE]\n\n")
    line = Line([LogSlice((event(1),), aside=b": one\n"), LogSlice((done,), ended=True, aside=b": two\n")])
    assert b"".join(await all_of(over(line, found_nothing))) == event(1).data + b": one\n" + done.data


async def test_what_another_process_has_by_now_is_read_there() -> None:
    line, there = Line([LogSlice((event(1), event(2))), LogSlice(lost=True)]), hot()
    there.append(events(1, 4))
    there.end(State.FINISHED)

    async def find() -> Log | None:
        return there

    got = await all_of(over(line, find))
    assert b"".join(got) == sent(events(1, 4))
    assert line.closed == 1
    assert there.reader_count == 0


async def test_what_is_lost_where_it_was_found_again_is_a_gap() -> None:
    line = Line([LogSlice((event(1),)), *[LogSlice(lost=True)] * 10])

    async def find() -> Log | None:
        return line

    got = await all_of(over(line, find))
    assert got[0] == event(1).data
    assert is_gap(got[1])
    assert len(got) == 2
    assert len(line.script) == 8


@pytest.mark.parametrize(("first", "last"), [(4, 9), (1, 1)])
async def test_what_is_found_again_without_its_next_event_is_a_gap(first: int, last: int) -> None:
    async def find() -> Log | None:
        return Line([], first=first, last=last)

    got = await all_of(over(Line([LogSlice((event(1), event(2))), LogSlice(lost=True)]), find))
    assert is_gap(got[1])


async def test_a_stream_may_move_more_than_once_although_nothing_comes_in_between() -> None:
    lines: list[Log] = [
        Line([LogSlice((event(1),)), LogSlice(lost=True)]),
        Line([LogSlice(), LogSlice(lost=True)]),
    ]
    last = hot()
    last.append(events(1, 3))
    last.end(State.FINISHED)
    lines.append(last)
    found = iter(lines[1:])

    async def find() -> Log | None:
        return next(found)

    assert b"".join(await all_of(over(lines[0], find))) == sent(events(1, 3))


@pytest.mark.usefixtures("looks_often")
async def test_a_stream_whose_process_is_gone_is_taken_over_and_goes_on() -> None:
    line, there = Line([LogSlice((event(1), event(2)))], state=State.INTERRUPTED, last=2), hot()
    there.append(events(1, 2))

    async def take_over() -> None:
        asyncio.get_running_loop().call_soon(lambda: (there.append(events(3, 5)), there.end(State.FINISHED)))

    async def find() -> Log | None:
        return there

    assert b"".join(await all_of(over(line, find, take_over))) == sent(events(1, 5))
    assert line.closed == 1


@pytest.mark.usefixtures("looks_often")
async def test_it_is_asked_again_while_nobody_has_taken_it_over() -> None:
    line, there, asked_for = Line([LogSlice((event(1),))], state=State.INTERRUPTED, last=1), hot(), []
    there.append(events(1, 3))
    there.end(State.FINISHED)

    async def take_over() -> None:
        asked_for.append(1)

    async def find() -> Log | None:
        return line if len(asked_for) < 4 else there

    assert b"".join(await all_of(over(line, find, take_over))) == sent(events(1, 3))
    assert len(asked_for) == 4


@pytest.mark.usefixtures("looks_often")
async def test_what_moves_after_a_look_at_it_is_no_gap() -> None:
    """Another process was first to take it over; that moves the log."""
    line, there, looked = Line([LogSlice((event(1),))], state=State.INTERRUPTED, last=1), hot(), []
    there.append(events(1, 3))
    there.end(State.FINISHED)

    async def take_over() -> None:
        looked.append(1)
        line.state = State.RUNNING
        line.script.append(LogSlice(lost=True))

    async def find() -> Log | None:
        return line if len(looked) == 1 and line.script else there

    assert b"".join(await all_of(over(line, find, take_over))) == sent(events(1, 3))


@pytest.mark.usefixtures("looks_often")
async def test_a_stream_that_runs_or_has_ended_is_not_taken_over() -> None:
    for state in (State.RUNNING, None):
        line = Line([LogSlice((event(1),))], state=state)
        client = Client(over(line, found_nothing))
        await client.has(event(1).data)
        await asyncio.sleep(0.1)  # five looks
        assert not client.task.done()
        line.script.append(LogSlice((event(2),), ended=True))
        assert await client.ended() == sent(events(1, 2))
