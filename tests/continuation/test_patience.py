"""A deadline that forgives an event loop which was held up itself."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from continuation.patience import Alarm, Patience, catch_up, is_done_within

SECONDS = 0.05


async def answer(turns: int = 1) -> str:
    """What comes after a few turns of the loop, as what was read from a socket does."""
    for _ in range(turns):
        await asyncio.sleep(0)
    return "the answer"


def hold_up(seconds: float = 4 * SECONDS) -> None:
    asyncio.get_running_loop().call_soon(time.sleep, seconds)


async def test_what_is_there_in_time_is_seen_at_once() -> None:
    task = asyncio.create_task(answer())
    began = time.monotonic()
    assert await is_done_within(task, 60.0)
    assert time.monotonic() - began < 30.0


async def test_an_answer_counts_that_lies_there_when_a_loop_that_was_held_up_goes_on() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(2 * SECONDS, future.set_result, None)
    hold_up()
    assert await is_done_within(future, SECONDS)


async def test_what_does_not_come_is_given_up_and_not_cancelled() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert not await is_done_within(future, SECONDS)
    assert not future.cancelled()


async def test_the_loop_turns_no_more_often_than_it_has_to() -> None:
    looks: list[None] = []
    assert await catch_up(lambda: len(looks) == 2 or bool(looks.append(None)))
    assert len(looks) == 2
    assert not await catch_up(lambda: bool(looks.append(None)), turns=3)
    assert len(looks) == 2 + 4


async def test_an_alarm_goes_off_once_for_each_time_that_it_is_set() -> None:
    until, rung = time.monotonic() + SECONDS, asyncio.Event()
    times: list[float] = []

    def ring() -> None:
        times.append(time.monotonic())
        rung.set()

    alarm = Alarm(lambda: until - time.monotonic(), ring)
    alarm.set()
    alarm.set()
    await asyncio.wait_for(rung.wait(), 30.0)
    await asyncio.sleep(SECONDS)
    assert len(times) == 1
    assert times[0] >= until
    alarm.set()
    await asyncio.sleep(SECONDS)
    assert len(times) == 2


async def test_an_alarm_asks_again_how_much_time_is_left_and_rings_for_nothing_that_has_come() -> None:
    left: list[float | None] = [None, None, SECONDS / 10, SECONDS / 10, 0.0]
    rung: list[bool] = []
    alarm = Alarm(left.pop, lambda: rung.append(True))
    alarm.set()
    await asyncio.sleep(2 * SECONDS)
    assert (left, rung) == ([None], [])  # it was set, looked three times, and learnt that nobody waits
    alarm.set()
    assert left == []


async def test_an_alarm_that_is_cancelled_is_silent() -> None:
    rung: list[bool] = []
    alarm = Alarm(lambda: 0.0, lambda: rung.append(True))
    alarm.set()
    alarm.cancel()
    alarm.cancel()
    await asyncio.sleep(SECONDS)
    assert rung == []


async def test_a_block_that_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with Patience(SECONDS):
            await asyncio.sleep(60.0)
    assert SECONDS <= time.monotonic() - began < 30.0


async def test_time_for_which_the_loop_was_held_up_does_not_count_for_a_block() -> None:
    async with Patience(SECONDS):
        hold_up()
        await asyncio.sleep(0)
        await asyncio.sleep(SECONDS / 2)


@pytest.mark.parametrize(("most", "ends"), [(60.0, False), (2 * SECONDS, True)])
async def test_a_sign_of_life_prolongs_a_block_but_not_for_ever(most: float, ends: bool) -> None:
    loop = asyncio.get_running_loop()
    limit: Any = pytest.raises(TimeoutError) if ends else asyncio.timeout(60.0)
    if ends:
        with limit:
            async with Patience(SECONDS, loop.time, most):
                await asyncio.sleep(60.0)
    else:
        async with limit, Patience(SECONDS, loop.time, most):
            await asyncio.sleep(4 * SECONDS)
