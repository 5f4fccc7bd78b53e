"""The body of an answer, as aiohttp gives it out."""

import asyncio
from unittest.mock import Mock

import aiohttp
import httpx
import pytest

from continuation.transport import Body


async def test_what_came_before_a_break_is_read_before_the_break_is_told() -> None:
    content = aiohttp.StreamReader(Mock(_reading_paused=False), 2**16, loop=asyncio.get_running_loop())
    content.feed_data(b"the finish")
    content.set_exception(aiohttp.ClientPayloadError("cut"))
    body = Body(Mock(content=content, connection=None), httpx.Request("POST", "http://x/"))
    assert await body.read() == b"the finish"
    with pytest.raises(httpx.ReadError):
        await body.read()
