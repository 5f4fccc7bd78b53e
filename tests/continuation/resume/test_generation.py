"""A relay that runs whether or not a client is there: with readers, without, and ended from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from continuation import lifecycle
from continuation.downstream.client import Upstream
from continuation.lifecycle import Process
from continuation.relay import Relay
from continuation.resume.generation import Generation, Generations
from continuation.resume.log import START, Entry, Limits, State, StoreAway
from continuation.resume.store.hot import WINDOW_BYTES, HotLog, HotReader
from continuation.resume.store.memory import MemoryStore, MemoryWriter
from continuation.splice.actions import OpenLeg, OpenTokens
from continuation.splice.course import Phase
from continuation.splice.machine import Splice
from continuation.splice.options import Options
from continuation.splice.record import StreamRecord
from continuation.vocabulary import Reason
from tests.continuation.resume.eventsource import blocks_without_data, dispatched
from tests.continuation.resume.streams import DEADLINE, until
from tests.continuation.splice.playbook import (
    DONE,
    ID2,
    Play,
    Told,
    chunk,
    content,
    finished,
    role,
    told,
    usage,
)

STREAM = "0123456789abcdef" * 2
LONG = 600.0
EVENT_STREAM = [(b"content-type", b"text/event-stream")]
ASKS = {"stream_options": {"include_usage": True}}
BROKEN = httpx.ReadError("the connection broke")


class Body:
    """An answer of an engine that says what the test wants, when the test wants it."""

    def __init__(self, *said: bytes | BaseException) -> None:
        self.said = [*said]
        self.taken = 0
        self.closed = 0
        self._news = asyncio.Event()

    def says(self, *said: bytes | BaseException) -> None:
        self.said += said
        self._news.set()

    async def read(self) -> bytes:
        while not self.said:
            self._news.clear()
            await self._news.wait()
        self.taken += 1
        said = self.said.pop(0)
        if isinstance(said, BaseException):
            raise said
        return said

    def read_nowait(self) -> bytes:
        return b""

    @property
    def at_end(self) -> bool:
        return not self.said

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.close()


class Engine:
    """Where leg 2 is asked for: what was asked, and the answer once there is one."""

    def __init__(self) -> None:
        self.asked: list[OpenLeg | OpenTokens] = []
        self.answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        self.cancelled = 0

    async def open(self, action: OpenLeg | OpenTokens) -> Upstream:
        self.asked.append(action)
        try:
            return Upstream(200, EVENT_STREAM, await asyncio.shield(self.answer))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Elsewhere(MemoryStore):
    """A store that other processes read as well: what it says when it is asked whether one does."""

    def __init__(self) -> None:
        super().__init__(Limits())
        self.answers: list[float | StoreAway | asyncio.Future[float]] = []
        self.asked = 0

    async def read_elsewhere(self, stream_id: str) -> float | None:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, StoreAway):
            raise answer
        return await answer if isinstance(answer, asyncio.Future) else answer


class Shared(MemoryWriter):
    """Of a log that another process could go on with."""

    handed_over = 0

    @property
    def is_shared(self) -> bool:
        return True

    def hand_over(self) -> None:
        self.handed_over += 1


def generations() -> Generations:
    """Of the test's own process."""
    return lifecycle.current().generations


class Run:
    """A generation with all that belongs to it."""

    def __init__(
        self,
        body: Body,
        *,
        grace: float = LONG,
        limits: Limits | None = None,
        store: MemoryStore | None = None,
        writer: type[MemoryWriter] = MemoryWriter,
        stream_id: str = STREAM,
        asks: dict[str, Any] | None = None,
        begins: bool = True,
        **options: Any,
    ) -> None:
        self.body, self.engine = body, Engine()
        self.store = store or MemoryStore(limits or Limits())
        self.log = HotLog(stream_id, self.store.limits, self.store.held)
        self.writer = writer(self.log, self.store)
        self.store._writers[stream_id] = self.writer
        self.splice = Splice(
            Play(asks).plan, Options(**options), stream_id, datetime.now(UTC), time.monotonic()
        )
        leg1 = Upstream(200, EVENT_STREAM, body)
        audit = lifecycle.current().audit
        self.relay = Relay(self.splice, leg1, self.engine.open, keepalive=0.0, silence=LONG, audit=audit)
        limit = self.splice.options.event_limit
        self.generation = Generation(
            self.relay, self.writer, self.store, generations(), grace=grace, event_limit=limit
        )
        if begins:
            self.generation.start()

    @property
    def bytes(self) -> bytes:
        return b"".join(entry.data for entry in self.log.since((0, 0)))

    async def ended(self) -> State:
        await until(lambda: self.log.ended_at is not None)
        assert generations().find(self.log.stream_id) is None
        return self.log.state

    async def has(self, number: int) -> None:
        await until(lambda: self.log.last >= number)

    def answer(self) -> Told:
        """What the log says, which is in order and complete."""
        events = dispatched(self.bytes)
        assert [one.id for one in events] == [b"%d" % number for number in range(1, len(events) + 1)]
        assert blocks_without_data(self.bytes) == 0
        return told(self.bytes)

    def failed(self, code: str) -> Told:
        answer = self.answer()
        assert (answer.done, [error["code"] for error in answer.errors]) == (0, [code])
        return answer


@pytest.fixture
def kept(process: Process, monkeypatch: pytest.MonkeyPatch) -> list[StreamRecord]:
    """What the audit is given."""
    records: list[StreamRecord] = []
    monkeypatch.setattr(process.audit, "record", records.append)
    return records


@pytest.fixture(autouse=True)
async def nothing_stays(kept: list[StreamRecord]) -> AsyncIterator[None]:
    """When a test is over no generation runs, and no task of one is left."""
    yield
    assert generations().running == 0
    await until(lambda: not _tasks())


def _tasks() -> list[str]:
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith(("generation", "grace", "continuation"))]


SAID = (role(), content("Hello"))
REST = (content(" world"), chunk({}, "stop"), DONE, b"")


async def read_to_end(reader: HotReader) -> list[Entry]:
    entries: list[Entry] = []
    async with asyncio.timeout(DEADLINE):
        while True:
            piece = await reader.read()
            assert not piece.lost
            entries += piece.entries
            if piece.ended:
                await reader.aclose()
                return entries
            if not piece.entries:
                await reader.changed(DEADLINE)


# -- to the end --------------------------------------------------------------------------------------


async def test_a_stream_runs_to_its_end_without_anybody(kept: list[StreamRecord]) -> None:
    run = Run(Body(*SAID, *REST))
    assert await run.ended() is State.FINISHED
    assert run.answer().content == "Hello world"
    assert [entry.number for entry in run.log.since((0, 0))] == [1, 2, 3, 4, 5]
    assert run.body.closed >= 1
    assert kept == []
    assert run.log.readers_changed is None
    assert run.generation._patience is None


async def test_it_is_found_while_it_runs_and_its_readers_are_counted() -> None:
    run = Run(Body(*SAID))
    await run.has(2)
    assert generations().find(STREAM) is run.generation
    assert (generations().running, generations().detached, generations().readers(STREAM)) == (1, 1, 0)
    reader = run.log.reader(START)
    assert (generations().running, generations().detached, generations().readers(STREAM)) == (1, 0, 1)
    run.body.says(*REST)
    assert len(await read_to_end(reader)) == 5
    assert await run.ended() is State.FINISHED
    assert (generations().running, generations().detached, generations().readers(STREAM)) == (0, 0, 0)


async def test_those_who_want_to_know_are_told_of_each_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    generations().on_end.append(lambda: ends.append(generations().running))
    runs = [Run(Body(*SAID, *REST), stream_id=name * 32) for name in "abc"]
    for run in runs:
        await run.ended()
    assert sorted(ends) == [0, 1, 2]


async def test_comments_go_to_who_is_there_and_into_no_log() -> None:
    run = Run(Body(*SAID))
    await run.has(2)
    reader = run.log.reader(START)
    await reader.read()
    run.body.says(b": ping\n\n")
    async with asyncio.timeout(DEADLINE):
        assert await reader.changed(DEADLINE)
    assert (await reader.read()).aside == b": ping\n"
    run.body.says(*REST)
    await read_to_end(reader)
    await run.ended()
    assert b"ping" not in run.bytes


async def test_an_event_that_is_too_large_comes_in_parts() -> None:
    large = content("y" * 1000)
    run = Run(Body(role(), large[:500]), event_limit=300)
    await run.has(2)
    assert run.log.since((2, -1))[0].open
    run.body.says(large[500:700], large[700:], *REST)
    assert await run.ended() is State.FINISHED
    assert [(entry.number, entry.part, entry.open) for entry in run.log.since((1, 0))][:4] == [
        (2, 0, True),
        (2, 1, True),
        (2, 2, False),
        (3, 0, False),
    ]
    assert run.answer().content == "y" * 1000 + " world"


async def test_an_engine_that_breaks_in_such_an_event_leaves_none_open() -> None:
    for rest in ((), (b"\n",)):
        run = Run(Body(role(), content("y" * 1000)[:-2], *rest, BROKEN), event_limit=300)
        assert await run.ended() is State.FAILED
        assert not any(entry.open for entry in run.log.since((2, 1)))
        events = dispatched(run.bytes)
        assert len(events) == 3
        assert b"event_too_large" in events[2].data
        assert blocks_without_data(run.bytes) == 0


# -- a second leg ------------------------------------------------------------------------------------


async def test_a_leg_that_breaks_is_continued_under_the_same_numbers(kept: list[StreamRecord]) -> None:
    run = Run(Body(*SAID, BROKEN), asks=ASKS)
    await until(lambda: run.engine.asked)
    assert run.log.leg2_from == 3
    assert run.body.closed >= 1
    run.engine.answer.set_result(second := Body(*finished(content(" world", ID2)), b""))
    assert await run.ended() is State.FINISHED
    answer = run.answer()
    assert (answer.content, answer.finishes, answer.done, len(answer.usages)) == (
        "Hello world",
        ["stop"],
        1,
        1,
    )
    assert second.closed >= 1
    assert [record.outcome for record in kept] == ["rescued"]


async def test_one_that_is_broken_on_purpose_is_continued() -> None:
    run = Run(Body(*SAID))
    await run.has(2)
    assert generations().break_leg(STREAM)
    await until(lambda: run.engine.asked)
    assert run.body.closed >= 1
    run.engine.answer.set_result(Body(*finished(content(" world", ID2)), b""))
    assert await run.ended() is State.FINISHED
    assert run.answer().content == "Hello world"
    assert not generations().break_leg(STREAM)
    assert not generations().break_leg("f" * 32)


async def test_one_that_is_broken_twice_fails() -> None:
    run = Run(Body(*SAID))
    await run.has(2)
    assert generations().break_leg(STREAM)
    await until(lambda: run.engine.asked)
    run.engine.answer.set_result(second := Body(role(ID2), content(" wor", ID2)))
    await until(lambda: "wor" in told(run.bytes).content)
    assert generations().break_leg(STREAM)
    assert await run.ended() is State.FAILED
    assert run.failed("disconnect").content == "Hello wor"
    assert second.closed >= 1
    assert len(run.engine.asked) == 1


# -- the grace ---------------------------------------------------------------------------------------


async def test_without_a_reader_it_is_given_up_after_the_grace(kept: list[StreamRecord]) -> None:
    began = time.monotonic()
    run = Run(Body(*SAID), grace=0.3)
    assert await run.ended() is State.ABANDONED
    assert time.monotonic() - began >= 0.3
    assert run.failed("client_gone").content == "Hello"
    assert run.body.closed >= 1
    assert run.engine.asked == []
    [record] = kept
    assert (record.outcome, record.reason, record.failure) == ("client_gone", "client_gone", "")


async def test_a_second_leg_is_given_up_too_also_while_it_is_asked_for() -> None:
    run = Run(Body(*SAID, BROKEN), grace=0.2)
    assert await run.ended() is State.ABANDONED
    assert len(run.engine.asked) == 1
    assert run.engine.cancelled == 1
    run.failed("client_gone")


async def test_a_reader_who_comes_in_time_ends_the_grace_and_one_who_leaves_begins_it() -> None:
    run = Run(Body(*SAID), grace=1.0)
    await run.has(2)
    reader = run.log.reader(START)
    assert run.generation._patience is None
    await asyncio.sleep(1.5)  # more than the grace
    assert run.log.ended_at is None
    left = time.monotonic()
    await reader.aclose()
    assert await run.ended() is State.ABANDONED
    assert time.monotonic() - left >= 1.0


async def test_it_has_a_reader_while_one_of_several_is_there() -> None:
    run = Run(Body(*SAID), grace=0.0)
    readers = [run.log.reader(START) for _ in range(3)]
    for reader in readers[:2]:
        await reader.aclose()
        await reader.aclose()
    await asyncio.sleep(0.05)
    assert run.log.ended_at is None
    await readers[2].aclose()
    assert await run.ended() is State.ABANDONED


async def test_a_reader_in_another_process_counts() -> None:
    store = Elsewhere()
    store.answers = [0.0, 0.0]
    run = Run(Body(*SAID), grace=0.05, store=store)
    assert await run.ended() is State.ABANDONED
    assert store.asked == 3


async def test_the_grace_counts_from_when_one_was_last_seen_there() -> None:
    store = Elsewhere()
    store.answers = [0.5]
    run = Run(Body(*SAID), grace=2.0, store=store)
    began = time.monotonic()
    await until(lambda: store.asked)
    asked = time.monotonic()
    assert await run.ended() is State.ABANDONED
    assert asked - began == pytest.approx(2.0, abs=0.4)
    assert time.monotonic() - asked == pytest.approx(1.5, abs=0.4)
    assert store.asked == 2


@pytest.mark.parametrize(
    ("unknown_seconds", "answers", "asked"),
    [
        (60.0, [StoreAway(), StoreAway()], 3),
        (0.5, [StoreAway()] * 9, 1),  # not for ever
        (1.5, [0.0, 0.0, StoreAway()], 4),  # the time in which one read elsewhere counts for nothing
    ],
)
async def test_a_store_that_cannot_say_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, unknown_seconds: float, answers: list[float | StoreAway], asked: int
) -> None:
    monkeypatch.setattr("continuation.resume.generation.UNKNOWN_SECONDS", unknown_seconds)
    store = Elsewhere()
    store.answers = [*answers]
    run = Run(Body(*SAID), grace=0.0, store=store)
    assert await run.ended() is State.ABANDONED
    assert store.asked == asked


async def test_nor_is_it_waited_for_by_a_process_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Elsewhere()
    store.answers = [StoreAway("away")]
    run = Run(Body(*SAID), store=store)
    await run.has(2)
    generations().is_stopping = True
    run.generation.look_after()
    assert await run.ended() is State.ABANDONED
    assert store.asked == 1


async def test_the_first_reader_may_take_a_moment_however_short_the_grace() -> None:
    run = Run(Body(*SAID), grace=0.0)
    await asyncio.sleep(0.3)
    reader = run.log.reader(START)
    await asyncio.sleep(1.0)
    assert run.log.ended_at is None
    await reader.aclose()
    assert await run.ended() is State.ABANDONED


async def test_one_who_comes_while_that_is_asked_counts() -> None:
    store = Elsewhere()
    answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    store.answers = [answer]
    run = Run(Body(*SAID), grace=0.0, store=store)
    await until(lambda: store.asked)
    reader = run.log.reader(START)
    await until(lambda: answer.cancelled())
    assert run.log.ended_at is None
    run.body.says(*REST)
    assert len(await read_to_end(reader)) == 5
    assert await run.ended() is State.FINISHED


async def test_a_stream_that_ends_while_that_is_asked_is_over() -> None:
    store = Elsewhere()
    answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    store.answers = [answer]
    run = Run(Body(*SAID), grace=0.0, store=store)
    await until(lambda: store.asked)
    run.body.says(*REST)
    assert await run.ended() is State.FINISHED
    await until(lambda: answer.cancelled())


async def test_an_answer_with_its_finish_gets_its_ending_also_where_nobody_waits() -> None:
    run = Run(Body(*SAID, chunk({}, "stop")), grace=0.1, asks=ASKS)
    assert await run.ended() is State.FINISHED
    answer = run.answer()
    assert (answer.finishes, answer.done, len(answer.usages), answer.errors) == (["stop"], 1, 1, [])


# -- stopped -----------------------------------------------------------------------------------------


async def test_it_is_stopped_for_good(kept: list[StreamRecord]) -> None:
    run = Run(Body(*SAID))
    await run.has(2)
    reader = run.log.reader(START)
    await run.store.stop(STREAM)
    assert b"stopped" in (await read_to_end(reader))[-1].data
    assert await run.ended() is State.STOPPED
    assert run.failed("stopped").content == "Hello"
    assert run.body.closed >= 1
    assert [(record.outcome, record.reason) for record in kept] == [("client_gone", "stopped")]
    before = run.bytes
    await run.store.stop(STREAM)
    run.generation.stop()
    assert run.bytes == before


async def test_before_it_has_said_a_word() -> None:
    run = Run(Body())
    run.generation.stop()
    assert await run.ended() is State.STOPPED
    run.failed("stopped")


async def test_what_is_asked_first_is_what_it_ended_for() -> None:
    run = Run(Body(*SAID))
    await run.has(2)
    run.generation.stop()
    run.generation._give_up(State.ABANDONED, Reason.CLIENT_GONE)
    assert await run.ended() is State.STOPPED
    run.failed("stopped")


@pytest.mark.parametrize("then", ["break_leg", "shut_down"])
def test_a_stop_is_not_forgotten_for_what_is_asked_of_it_then(then: str) -> None:
    async def play() -> None:
        run = Run(Body(*SAID))
        await run.has(2)
        run.generation.stop()
        getattr(generations(), then)(STREAM)
        assert await run.ended() is State.STOPPED
        run.failed("stopped")
        assert run.engine.asked == []

    asyncio.run(play())


async def test_a_stream_that_is_over_is_not_stopped() -> None:
    run = Run(Body(*SAID, *REST))
    await run.ended()
    run.generation.stop()
    await run.store.stop(STREAM)
    assert run.log.state is State.FINISHED
    assert run.answer().done == 1


async def test_one_that_was_lost_before_it_began_does_nothing() -> None:
    run = Run(Body(*SAID, *REST), begins=False)
    run.generation.let_go()
    run.generation.start()
    assert generations().running == 0
    assert run.bytes == b""


async def test_one_that_is_taken_back_is_not_ended_by_the_old_one() -> None:
    """The process has lost the stream, and takes it over while the old relay winds down."""
    run, again = Run(Body(*SAID)), Run(Body(*SAID))
    await again.has(2)
    assert generations().find(STREAM) is again.generation
    run.generation.let_go()
    await run.generation.ended()
    assert generations().find(STREAM) is again.generation
    again.generation.stop()
    assert await again.ended() is State.STOPPED


# -- readers that are slow ---------------------------------------------------------------------------


def wide(count: int, size: int = 2**14) -> list[bytes]:
    return [content("w" * size) for _ in range(count)]


async def test_a_reader_that_does_not_read_holds_it_up_and_its_idle_clock_stands_still(
    kept: list[StreamRecord],
) -> None:
    run = Run(Body(role(), *wide(100), *REST), idle_timeout=0.1)
    reader = run.log.reader(START)
    await until(lambda: reader.behind_bytes > WINDOW_BYTES)
    await asyncio.sleep(0.5)  # five times what would be silence
    taken = run.body.taken
    assert taken < 30
    assert WINDOW_BYTES < reader.behind_bytes < WINDOW_BYTES + 2**15
    await asyncio.sleep(0.1)
    assert run.body.taken == taken
    assert len(await read_to_end(reader)) == 104
    assert await run.ended() is State.FINISHED
    assert run.engine.asked == []
    assert kept == []


async def test_without_a_reader_it_runs_on() -> None:
    run = Run(Body(role(), *wide(100)))
    await run.has(101)
    reader = run.log.reader(START)
    run.body.says(*wide(5))
    await until(lambda: reader.behind_bytes > WINDOW_BYTES)
    assert run.log.last < 104  # it is held up from now on
    await reader.aclose()
    await run.has(106)
    run.body.says(*REST)
    assert await run.ended() is State.FINISHED


async def test_it_runs_as_fast_as_the_fastest() -> None:
    run = Run(Body(role(), *wide(100), *REST))
    slow, fast = run.log.reader(START), run.log.reader(START)
    assert len(await read_to_end(fast)) == 104
    assert await run.ended() is State.FINISHED
    assert len(await read_to_end(slow)) == 104


async def test_one_who_is_held_up_by_a_reader_can_be_stopped() -> None:
    run = Run(Body(role(), *wide(100)))
    reader = run.log.reader(START)
    await until(lambda: reader.behind_bytes > WINDOW_BYTES)
    run.generation.stop()
    assert await run.ended() is State.STOPPED
    assert b"stopped" in (await read_to_end(reader))[-1].data
    run.failed("stopped")


async def test_one_who_leaves_lets_it_go_on() -> None:
    run = Run(Body(role(), *wide(100), *REST))
    reader = run.log.reader(START)
    await until(lambda: reader.behind_bytes > WINDOW_BYTES)
    await reader.aclose()
    assert await run.ended() is State.FINISHED


# -- the process ends --------------------------------------------------------------------------------


async def test_another_process_goes_on_with_it_and_here_is_silence(kept: list[StreamRecord]) -> None:
    run = Run(Body(*SAID))
    await run.has(2)
    before, task = run.bytes, run.generation._task
    assert task is not None
    run.generation.let_go()
    run.generation.let_go()
    await asyncio.wait({task})
    assert run.bytes == before
    assert run.log.ended_at is None
    assert run.body.closed >= 1
    assert kept == []
    assert generations().find(STREAM) is None


async def test_so_it_is_while_a_second_leg_is_asked_for(kept: list[StreamRecord]) -> None:
    run = Run(Body(*SAID, BROKEN))
    await until(lambda: run.engine.asked)
    run.generation.let_go()
    await until(lambda: generations().running == 0)
    assert run.engine.cancelled == 1
    assert run.log.ended_at is None
    assert kept == []


async def test_a_shared_one_is_handed_over_and_another_gets_its_ending() -> None:
    shared, own = (
        Run(Body(*SAID), writer=Shared, stream_id="a" * 32),
        Run(Body(*SAID), stream_id="b" * 32, asks=ASKS),
    )
    await shared.has(2)
    await own.has(2)
    assert not generations().shut_down("a" * 32)
    assert generations().shut_down("b" * 32)
    assert not generations().shut_down("c" * 32)
    assert await own.ended() is State.FAILED
    own.failed("shutting_down")
    await until(lambda: generations().running == 0)
    assert isinstance(shared.writer, Shared)
    assert shared.writer.handed_over == 1
    assert shared.log.ended_at is None
    assert told(shared.bytes).errors == []


async def test_what_has_its_finish_gets_its_ending_when_the_process_ends() -> None:
    run = Run(Body(*SAID, chunk({}, "stop"), usage(1, 1)), asks=ASKS)
    await run.has(4)
    assert generations().shut_down(STREAM)
    assert await run.ended() is State.FINISHED
    assert run.answer().done == 1


async def test_all_that_is_left_is_put_away() -> None:
    runs = [Run(Body(*SAID), stream_id=name * 32) for name in "abcd"]
    runs.append(Run(Body(role(), *wide(100)), stream_id="e" * 32))
    stuck = runs[-1].log.reader(START)
    await until(lambda: stuck.behind_bytes > WINDOW_BYTES)
    await generations().put_away()
    for run in runs:
        assert run.log.state is State.FAILED
        run.failed("shutting_down")
        assert run.body.closed >= 1
    await stuck.aclose()


async def test_what_does_not_end_is_waited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = asyncio.Event()

    class Clinging(Body):
        async def aclose(self) -> None:
            await let_go.wait()

    monkeypatch.setattr("continuation.resume.generation.ENDING_SECONDS", 1.0)
    run, other = Run(Clinging(*SAID), stream_id="a" * 32), Run(Body(*SAID), stream_id="b" * 32)
    await run.has(2)
    await other.has(2)
    await generations().put_away()
    assert other.log.state is State.FAILED
    assert run.log.ended_at is None
    let_go.set()
    assert await run.ended() is State.FAILED


async def test_nothing_to_put_away_is_no_trouble() -> None:
    await generations().put_away()
    generations().shut_down_all()


async def test_a_process_that_stops_waits_for_nobody_to_come_back() -> None:
    alone, read = (Run(Body(*SAID), stream_id=name * 32) for name in "ab")
    shared = Run(Body(*SAID), stream_id="c" * 32, writer=Shared)
    for run in (alone, read, shared):
        await run.has(2)
    reader = read.log.reader(START)
    generations().begin_stopping()
    assert await alone.ended() is State.ABANDONED
    assert read.log.ended_at is None
    await reader.aclose()
    assert await read.ended() is State.ABANDONED
    assert shared.log.ended_at is None
    shared.generation.let_go()
    await until(lambda: generations().running == 0)


# -- trouble -----------------------------------------------------------------------------------------


async def test_a_relay_that_meets_an_error_of_its_own_ends_the_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Run(Body(*SAID, RuntimeError("nobody thought of this")))
    assert await run.ended() is State.FAILED
    assert run.failed("internal_error").content == "Hello"
    assert "nobody thought of this" in caplog.text
    assert run.body.closed >= 1


async def test_so_does_one_whose_continuation_cannot_be_asked_for() -> None:
    run = Run(Body(*SAID, BROKEN))
    run.engine.answer.set_exception(RuntimeError("nobody thought of this"))
    assert await run.ended() is State.FAILED
    run.failed("internal_error")


async def test_one_that_raises_is_over_and_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Raising(Body):
        async def aclose(self) -> None:
            raise RuntimeError("it cannot be closed")

    run = Run(Raising(*SAID, BROKEN))
    reader = run.log.reader(START)
    await read_to_end(reader)
    assert await run.ended() is State.FAILED
    assert "it cannot be closed" in caplog.text
    assert run.splice.phase is Phase.FAILED


def test_a_reader_and_an_end_may_come_in_any_order() -> None:
    """Each of these, at each point of a stream that is read event by event."""
    acts: list[Callable[[Run], object]] = [
        lambda run: run.generation.stop(),
        lambda run: generations().break_leg(STREAM),
        lambda run: generations().shut_down(STREAM),
        lambda run: run.log.reader(START),
    ]

    async def play(first: Callable[[Run], object], second: Callable[[Run], object], after: int) -> None:
        run = Run(Body(*SAID[:after]))
        if after:
            await run.has(after)
        first(run)
        await asyncio.sleep(0)
        second(run)
        run.engine.answer.set_result(Body(*finished(content(" world", ID2)), b""))
        run.body.says(*SAID[after:], *REST)
        await run.ended()
        answer = run.answer()
        assert answer.done + len(answer.errors) == 1
        assert len(answer.finishes) <= 1
        assert generations().running == 0

    for after in range(3):
        for first in acts:
            for second in acts:
                asyncio.run(play(first, second, after))


async def test_one_that_is_let_go_before_it_has_begun_leaves_nothing() -> None:
    run = Run(Body(*SAID))
    run.generation.let_go()
    await until(lambda: generations().running == 0)
    assert run.body.closed >= 1
    assert (run.bytes, run.log.ended_at) == (b"", None)


@pytest.mark.parametrize("reads", [[BROKEN], [chunk({}, "stop"), BROKEN], REST])
async def test_one_whose_relay_raises_gets_one_ending(reads: list[Any]) -> None:
    class Raising(Body):
        async def aclose(self) -> None:
            raise RuntimeError("it cannot be closed")

    run = Run(Raising(*SAID, *reads))
    state = await run.ended()
    answer = run.answer()
    assert answer.done + len(answer.errors) == 1
    assert state is (State.FINISHED if answer.done else State.FAILED)
