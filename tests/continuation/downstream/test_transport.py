"""What aiohttp writes of a request, and the body of an answer as it gives it out."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from unittest.mock import Mock

import aiohttp
import httpx
import pytest

from continuation.downstream.transport import AiohttpTransport, Body
from continuation.downstream.troubles import status_for
from continuation.http.headers import end_to_end, framing_fault
from tests.harness.wire import Wire


async def sent(wire: Wire, headers: dict[str, str], body: object, **extensions: object) -> None:
    async with AiohttpTransport(limit=0, connect_timeout=5) as transport:
        request = httpx.Request(
            "POST",
            f"{wire.url}/x",
            headers=headers,
            content=body,
            extensions=extensions,  # type: ignore[arg-type]
        )
        await (await transport.handle_async_request(request)).aread()


async def in_pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.fixture
def wire() -> Iterator[Wire]:
    one = Wire()
    yield one
    one.stop()


@pytest.mark.parametrize("length", ["0", "2", "120"])
@pytest.mark.parametrize("name", ["Content-Length", "content_length"])
async def test_the_length_is_that_of_the_bytes_whatever_the_headers_say(
    wire: Wire, name: str, length: str
) -> None:
    headers = {name: length, "Transfer-Encoding": "chunked", "Transfer_Encoding": "chunked"}
    for body in (b"", b"abc", b"abcdef"):
        await sent(wire, headers, body)
    await sent(wire, headers, in_pieces(b"ab", b"cd"), size=4)
    requests = await asyncio.to_thread(wire.wait_for, "/x")
    for request in requests:
        assert request.all(b"content-length") == [b"%d" % len(request.body)]
        assert request.head.lower().count(b"length") == 1
        assert b"transfer" not in request.head.lower()


@pytest.mark.parametrize("pieces", [(b"abc",), (b"abc", b"de")])
async def test_a_body_that_is_not_of_its_size_ends_its_connection(
    wire: Wire, pieces: tuple[bytes, ...]
) -> None:
    """Downstream would take the next request for the rest of it."""
    async with AiohttpTransport(limit=0, connect_timeout=5) as transport:
        request = httpx.Request("POST", f"{wire.url}/x", content=in_pieces(*pieces), extensions={"size": 4})
        with suppress(httpx.HTTPError):  # the answer may come before the body's end
            await (await transport.handle_async_request(request)).aread()
        await (await transport.handle_async_request(httpx.Request("GET", f"{wire.url}/next"))).aread()
    assert [each.target for each in wire.wait_for("/next")] == ["/next"]


async def test_a_request_that_cannot_be_written_down_is_no_fault_of_the_client(wire: Wire) -> None:
    with pytest.raises(httpx.LocalProtocolError) as raised:
        await sent(wire, {"X-Y": "a\x1bb"}, b"")
    assert status_for(raised.value) == 500


@pytest.mark.parametrize(
    "headers",
    [
        [(b"Content-Length", b"3"), (b"transfer-encoding", b"chunked")],
        [(b"content-length", b"3"), (b"content-length", b"4")],
        [(b"content-length", b"3, 3")],
        [(b"content-length", b"+3")],
        [(b"content-length", b"")],
        [(b"transfer-encoding", b"gzip, chunked")],
        [(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")],
    ],
)
def test_a_length_that_is_not_certain_is_a_fault(headers: list[tuple[bytes, bytes]]) -> None:
    assert framing_fault("1.1", headers)


def test_a_length_that_is_certain_is_none() -> None:
    assert not framing_fault("1.1", [])
    assert not framing_fault("1.0", [(b"content-length", b"3")])
    assert not framing_fault("1.1", [(b"content-length", b"3"), (b"content-length", b"3")])
    assert not framing_fault("1.1", [(b"Transfer-Encoding", b" Chunked ")])
    assert framing_fault("1.0", [(b"transfer-encoding", b"chunked")])


def test_a_hop_by_hop_header_is_dropped_also_with_an_underscore() -> None:
    headers = [(b"Transfer_Encoding", b"chunked"), (b"Keep_Alive", b"5"), (b"X_Own", b"1"), (b"x_b", b"2")]
    assert end_to_end([*headers, (b"Connection", b"x-b")]) == [(b"X_Own", b"1")]


async def test_what_came_before_a_break_is_read_before_the_break_is_told() -> None:
    content = aiohttp.StreamReader(Mock(_reading_paused=False), 2**16, loop=asyncio.get_running_loop())
    content.feed_data(b"the finish")
    content.set_exception(aiohttp.ClientPayloadError("cut"))
    body = Body(Mock(content=content, connection=None), httpx.Request("POST", "http://x/"))
    assert await body.read() == b"the finish"
    with pytest.raises(httpx.ReadError):
        await body.read()
