"""Parts that other libraries do not promise, and that the gateway uses: they are there, and mean the same.

Where one fails, the bound of its library in pyproject.toml is not to be raised before the code that uses the part fits.
"""

import asyncio
import inspect
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from daphne.http_protocol import WebRequest
from daphne.server import Server
from django.core.handlers.asgi import ASGIRequest
from twisted.internet import abstract, asyncioreactor
from twisted.web import http


async def test_aiohttp_gives_out_what_has_arrived_without_a_look_at_the_exception() -> None:
    content = aiohttp.StreamReader(Mock(_reading_paused=False), 2**16, loop=asyncio.get_running_loop())
    assert not content._buffer
    content.feed_data(b"one")
    content.feed_data(b"two")
    content.set_exception(aiohttp.ClientPayloadError("cut"))
    assert content._buffer
    assert b"".join(iter(lambda: content._read_nowait(-1), b"")) == b"onetwo"
    assert not content._buffer


async def test_aiohttp_tells_by_a_future_that_a_connection_is_lost_and_closes_one_that_is_forced() -> None:
    protocol = ResponseHandler(asyncio.get_running_loop())
    protocol.connection_made(Mock(spec=asyncio.Transport))
    closed = protocol.closed
    assert isinstance(closed, asyncio.Future)
    assert not closed.done()
    assert protocol.closed is closed
    assert not protocol.should_close
    protocol.force_close()
    assert protocol.should_close
    protocol.connection_lost(OSError("reset"))
    assert closed.done()
    assert closed.exception() is not None


async def test_aiohttp_starts_an_answer_with_its_connection() -> None:
    assert list(inspect.signature(aiohttp.ClientResponse.start).parameters) == ["self", "connection"]
    assert "response_class" in inspect.signature(aiohttp.ClientSession.__init__).parameters


@pytest.mark.parametrize(
    "name, value",
    [("dataBuffer", b""), ("_tempDataLen", 0), ("offset", 0), ("connected", 0), ("disconnecting", 0)],
)
def test_twisteds_transport_counts_what_it_has_not_sent(name: str, value: Any) -> None:
    assert getattr(abstract.FileDescriptor(), name) == value


def test_twisteds_transport_keeps_in_its_counts_what_was_written() -> None:
    transport = abstract.FileDescriptor()
    transport.connected = 1
    transport.startWriting = lambda: None  # type: ignore[method-assign]
    transport.write(b"four")
    assert len(transport.dataBuffer) - transport.offset + transport._tempDataLen == 4


@pytest.mark.parametrize("name, value", [("_handlingRequest", False), ("_dataBuffer", []), ("requests", [])])
def test_twisteds_channel_tells_what_it_is_at(name: str, value: Any) -> None:
    assert getattr(http.HTTPChannel(), name) == value


def test_twisteds_channel_ends_a_bad_request_and_names_the_parts_of_a_request_line() -> None:
    channel: Any = http.HTTPChannel()
    channel.requestFactory = lambda channel, queued: Mock()
    channel.makeConnection(transport := Mock())
    channel.dataReceived(b"GET /path HTTP/1.1\r\n")
    assert (channel._command, channel._path, channel._version) == (b"GET", b"/path", b"HTTP/1.1")
    channel._respondToBadRequestAndDisconnect()
    assert b"400 Bad Request" in transport.write.call_args.args[0]
    assert transport.loseConnection.called or transport.abortConnection.called


def test_twisteds_request_reads_forms_only_where_it_is_asked_to() -> None:
    assert "_parsePOSTFormSubmission" in inspect.getsource(http.Request)


def test_twisteds_reactor_names_the_loop_that_it_runs_on() -> None:
    assert "self._asyncioEventloop" in inspect.getsource(asyncioreactor.AsyncioSelectorReactor.__init__)


def test_daphnes_request_says_whether_its_answer_has_begun() -> None:
    started = inspect.getsource(WebRequest.handle_reply)
    assert "self._response_started = True" in started
    assert "self.application_queue" in inspect.getsource(WebRequest.process)
    for name in ("basic_error", "handle_reply", "send_disconnect", "process"):
        assert callable(getattr(WebRequest, name))


def test_daphnes_server_keeps_its_applications_by_their_protocols() -> None:
    made = inspect.getsource(Server.create_application)
    assert 'self.connections[protocol]["application_instance"]' in made
    assert inspect.iscoroutinefunction(Server.handle_reply)
    for name in ("protocol_connected", "protocol_disconnected"):
        assert callable(getattr(Server, name))


def test_djangos_request_has_the_file_of_its_body() -> None:
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    body = Mock()
    assert ASGIRequest(scope, body)._stream is not None
