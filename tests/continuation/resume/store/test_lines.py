"""Questions to Redis: many at once wait for their turn, and only a Redis that does not answer is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from continuation.resume.log import StoreAway
from continuation.resume.store.redis import lines
from continuation.resume.store.redis.lines import Lines
from tests.harness.redis import RedisServer

TAKES = 0.25  # seconds until Redis answers LONG
LONG = ("BLPOP", "nothing is ever there", str(TAKES))


@pytest.fixture
async def asked(own_redis: RedisServer) -> AsyncIterator[Lines]:
    one = Lines(own_redis.url)
    yield one
    await one.aclose()


async def test_questions_wait_for_their_turn_while_redis_answers(asked: Lines) -> None:
    asked._places = asyncio.Semaphore(1)
    many = int(2.5 * lines.ASK_SECONDS / TAKES)
    answers = await asyncio.gather(*(asked.ask(LONG) for _ in range(many)))
    assert answers == [[None]] * many


async def test_a_turn_is_not_waited_for_for_ever(asked: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    asked._places = asyncio.Semaphore(1)
    monkeypatch.setattr(lines, "TURN_SECONDS", 3 * TAKES)
    answers = await asyncio.gather(*(asked.ask(LONG) for _ in range(12)), return_exceptions=True)
    answered = sum(answer == [None] for answer in answers)
    assert [type(answer) for answer in answers] == [list] * answered + [StoreAway] * (12 - answered)
    assert 1 < answered < 12
    assert await asked.ask(("PING",)) == [b"PONG"]


async def test_where_redis_answers_nobody_none_waits_for_longer_than_one_answer(
    asked: Lines, own_redis: RedisServer
) -> None:
    asked._places = asyncio.Semaphore(2)
    await asyncio.gather(*(asked.ask(LONG) for _ in range(2)))
    with own_redis.paused():
        began = time.monotonic()
        answers = await asyncio.gather(
            *(asked.ask(("PING",), seconds=0.5) for _ in range(20)), return_exceptions=True
        )
        assert {type(answer) for answer in answers} == {StoreAway}
        assert time.monotonic() - began < 5.0  # ten turns of half a second, if each waited for its own
    assert await asyncio.gather(*(asked.ask(("PING",)) for _ in range(20))) == [[b"PONG"]] * 20


async def test_a_question_that_nobody_waits_for_any_more_gives_its_turn_back(asked: Lines) -> None:
    asked._places = asyncio.Semaphore(1)
    asking = [asyncio.create_task(asked.ask(LONG)) for _ in range(4)]
    await asyncio.sleep(TAKES / 2)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    assert await asked.ask(("PING",)) == [b"PONG"]


async def test_an_answer_that_is_there_is_not_missed_because_this_process_was_busy(asked: Lines) -> None:
    await asked.ask(("PING",))
    loop = asyncio.get_running_loop()
    asking = [asyncio.create_task(asked.ask(("PING",), seconds=0.2)) for _ in range(30)]
    for _ in range(3):  # some wait for an answer now, others for their turn, others for a connection
        await asyncio.sleep(0)
    loop.call_soon(time.sleep, 0.5)
    assert await asyncio.gather(*asking) == [[b"PONG"]] * 30


async def test_connections_that_a_rush_has_opened_are_closed_in_time(
    asked: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.gather(*(asked.ask(LONG) for _ in range(lines.ASKING_LINES + 5)))
    assert len(asked._idle) == lines.ASKING_LINES
    await asked.close_unused()
    assert len(asked._idle) == lines.ASKING_LINES
    monkeypatch.setattr(lines, "IDLE_SECONDS", 0.0)
    await asked.close_unused()
    assert len(asked._idle) == lines.IDLE_LINES
    assert await asked.ask(("PING",)) == [b"PONG"]
    await asked.aclose()
    assert asked._idle == []
