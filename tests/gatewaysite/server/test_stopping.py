"""A server that stops waits for every application, not only for the first that has ended."""

from __future__ import annotations

import asyncio

from gatewaysite.server.stopping import Attendance


async def test_all_who_are_here_are_waited_for_and_nobody_else() -> None:
    attendance, left = Attendance(), list[int]()

    async def leaves_after(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        left.append(turns)

    for turns in (1, 50, 5):
        attendance.note(asyncio.ensure_future(leaves_after(turns)))
    await attendance.until_all_have_left()
    assert left == [1, 5, 50]
    await attendance.until_all_have_left()
