"""What `manage.py serve` does with answers that break off, applications that fail, and bodies that are too large."""

import json
import re
import signal
import socket
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.client import Stream, call
from tests.harness.gateway import ROOT, TROUBLE, Database, Gateway, environment
from tests.harness.nursery import Started, start_python
from tests.harness.upstream import Cut, Reply, Reset, Send, Upstream, json_reply

PATIENCE = 60.0
MB = 2**20


@pytest.fixture(scope="module")
def one(
    session_upstream: Upstream, migrated: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("gateway")
    settings = {
        "DOWNSTREAM_URL": session_upstream.url,
        "MAX_REQUEST_BODY_MB": "2",
        "MAX_CONTINUATION_BODY_MB": "1",
    }
    gateway = Gateway(settings, migrated, directory, "serve")
    yield gateway
    assert gateway.stop(PATIENCE) == 0
    assert not TROUBLE.search(gateway.log), gateway.log


def raw(port: int, request: bytes) -> tuple[bytes, bool]:
    """All that comes back, and whether the connection was reset."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(request)
        try:
            while data := connection.recv(65536):
                received += data
        except ConnectionResetError:
            return received, True
    return received, False


# -- answers that break off ------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Cut(), Reset()])
@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_a_passed_through_answer_that_breaks_off_is_broken_off(
    one: Gateway, upstream: Upstream, end: Cut | Reset, framing: str
) -> None:
    upstream.script(Reply([Send(b"part"), end], framing=framing, length=9))  # type: ignore[arg-type]
    answer = call(one.port, "GET", "/v1/x")
    assert answer.status == 200
    assert answer.body == b"part"
    assert not answer.complete


def test_a_client_that_speaks_http_1_0_can_tell_too(one: Gateway, upstream: Upstream) -> None:
    """It takes the end of the connection for the end of the answer, unless it is a reset."""
    upstream.script(Reply([Send(b"part"), Cut()]), Reply([Send(b"whole")]))
    received, was_reset = raw(one.port, b"GET /v1/x HTTP/1.0\r\n\r\n")
    assert received.endswith(b"\r\n\r\npart")
    assert was_reset
    received, was_reset = raw(one.port, b"GET /v1/x HTTP/1.0\r\n\r\n")
    assert received.endswith(b"\r\n\r\nwhole")
    assert not was_reset


# -- applications that fail ------------------------------------------------------------------------

APPLICATION = """
    import asyncio, os, sys
    import django
    os.environ["DJANGO_SETTINGS_MODULE"] = "gatewaysite.settings"
    django.setup()
    from gatewaysite.server.listener import Listener
    from gatewaysite.server.pace import Slowest
    from gatewaysite.server.server import Server, ServerLimits

    STARTED = {"type": "http.response.start", "status": 200, "headers": []}

    async def application(scope, receive, send):
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            print("websocket ended with", (await receive())["code"], flush=True)
            return
        match scope["path"]:
            case "/before":
                raise ValueError("before the answer")
            case "/after":
                await send(STARTED)
                await send({"type": "http.response.body", "body": b"part", "more_body": True})
                raise ValueError("after the start of the answer")
            case "/given-up":
                await send(STARTED)
                await send({"type": "http.response.body", "body": b"part", "more_body": True})
            case "/wrong":
                await send(STARTED | {"headers": [("no bytes", b"x")]})
            case "/deaf":
                while True:
                    try:
                        await asyncio.sleep(3600)
                    except asyncio.CancelledError:
                        print("cancelled", flush=True)
                        raise
            case "/big":
                await send(STARTED)
                await send({"type": "http.response.body", "body": bytes(8 * 2**20)})
            case _:
                await send(STARTED)
                await send({"type": "http.response.body", "body": b"fine"})

    listener = Listener("127.0.0.1", int(sys.argv[1]))
    server = Server(application, listener, ServerLimits(2**20, 0.2, 1.5, Slowest(30, 60, 500)))
    server.application_close_timeout = 1
    sys.exit(server.run())
"""


class Served:
    def __init__(self, port: int, process: Started, log: Path) -> None:
        self.port, self.process, self._log = port, process, log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, words: str) -> None:
        until = time.monotonic() + PATIENCE
        while words not in self.log:
            assert time.monotonic() < until, self.log
            time.sleep(0.02)


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Served]:
    """A server of applications that do what they should not."""
    from tests.harness.gateway import free_port

    log, port = tmp_path / "log", free_port()
    with log.open("wb") as file:
        process = start_python(
            ["-c", textwrap.dedent(APPLICATION), str(port)],
            cwd=ROOT,
            env=environment({"DOWNSTREAM_URL": "http://127.0.0.1:9"}, tmp_path / "none.sqlite3"),
            output=file,
        )
    served = Served(port, process, log)
    served.wait_for("serving on")
    yield served
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0, served.log


def test_an_exception_before_the_answer_is_a_500_in_json(failing: Served) -> None:
    answer = call(failing.port, "GET", "/before")
    assert answer.status == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "ValueError: before the answer" in failing.log


@pytest.mark.parametrize("path", ["/after", "/given-up"])
def test_an_answer_that_its_application_leaves_is_broken_off_at_once(failing: Served, path: str) -> None:
    begun = time.monotonic()
    for _ in range(3):
        answer = call(failing.port, "GET", path)
        assert (answer.status, answer.body, answer.complete) == (200, b"part", False)
    assert time.monotonic() - begun < 2.0
    assert failing.log.count("ValueError: after the start of the answer") == (3 if path == "/after" else 0)


def test_a_header_that_is_none_is_a_500(failing: Served) -> None:
    assert call(failing.port, "GET", "/wrong").status == 500


def test_housekeeping_goes_on_after_all_that(failing: Served) -> None:
    """It is what cancels an application that does not hear that its client has gone."""
    for path in ("/after", "/wrong", "/before", "/given-up"):
        call(failing.port, "GET", path)
    Stream(failing.port, "GET", "/deaf").drop()
    failing.wait_for("cancelled")
    assert call(failing.port, "GET", "/fine").body == b"fine"


def test_a_client_that_does_not_take_the_end_of_its_answer_is_dropped(failing: Served) -> None:
    """Its application has ended by then: nobody else would look after it."""
    with Stream(failing.port, "GET", "/big", timeout=PATIENCE) as stream:
        failing.wait_for("its client took nothing for 1.5 s")
        assert not stream.read_rest().complete
        assert stream.reset


def test_an_open_websocket_is_told_that_the_server_goes_away(failing: Served) -> None:
    handshake = (
        b"GET /ws HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", failing.port), timeout=PATIENCE) as connection:
        connection.sendall(handshake)
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 101 ")
        failing.process.send_signal(signal.SIGTERM)
        frame = connection.recv(65536)
        assert frame[:1] == b"\x88"  # a close
        assert int.from_bytes(frame[2:4], "big") == 1001
        connection.sendall(b"\x88\x82" + bytes(4) + frame[2:4])
        failing.wait_for("websocket ended with 1001")
    assert failing.process.wait(PATIENCE) == 0


# -- requests that are odd -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_line,more",
    [
        ("GET /ws HTTP/1.1", ""),
        ("GET /ws HTTP/1.0", ""),
        ("POST /v1/chat/completions HTTP/1.1", "Content-Length: 0\r\n"),
        (
            "GET /ws HTTP/1.1",
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: \xff\r\n",
        ),
    ],
)
def test_a_websocket_handshake_that_is_none_is_refused_without_a_traceback(
    one: Gateway, request_line: str, more: str
) -> None:
    head = f"{request_line}\r\nHost: here\r\nUpgrade: websocket\r\n{more}\r\n"
    received, _ = raw(one.port, head.encode("latin-1"))
    assert received.startswith(b"HTTP/1.1 4")
    assert not TROUBLE.search(one.log), one.log
    assert "CRITICAL" not in one.log


@pytest.mark.parametrize("value", [b"\xff", b"/mounted", b"%ff"])
def test_a_root_path_is_a_header_as_any_other(one: Gateway, upstream: Upstream, value: bytes) -> None:
    upstream.script(json_reply({"ok": True}))
    head = (
        b"GET /v1/x HTTP/1.1\r\nHost: here\r\nConnection: close\r\nDaphne-Root-Path: %b\r\nOther: %b\r\n\r\n"
    )
    received, _ = raw(one.port, head % (value, value))
    assert received.startswith(b"HTTP/1.1 200 ")
    (request,) = upstream.requests
    assert request.target == "/v1/x"
    assert len(request.all("Daphne-Root-Path")) == 1
    assert request.header("Daphne-Root-Path") == request.header("Other")


def test_a_root_path_that_is_no_header_value_is_refused(one: Gateway) -> None:
    received, _ = raw(one.port, b"GET /v1/x HTTP/1.0\r\nDaphne-Root-Path: a\x0bb\r\n\r\n")
    assert received.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))


@pytest.mark.parametrize("digits", [19, 5000])
def test_a_length_beyond_reason_is_a_bad_request(one: Gateway, digits: int) -> None:
    head = b"POST /v1/x HTTP/1.1\r\nHost: here\r\nContent-Length: "
    for rest in (b"\r\n\r\n", b"\r\nA: b\r\n\r\n"):
        received, _ = raw(one.port, head + b"9" * digits + rest)
        assert received == b"HTTP/1.1 400 Bad Request\r\n\r\n"


@pytest.mark.parametrize(
    "options", ["close, te", "te,close", "TE ,\tClose", "te\r\nConnection: close", "close"]
)
def test_a_client_that_asks_for_the_end_of_the_connection_gets_it(one: Gateway, options: str) -> None:
    received, _ = raw(
        one.port, f"GET /health HTTP/1.1\r\nHost: here\r\nConnection: {options}\r\n\r\n".encode()
    )
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.lower().count(b"\r\nconnection: close\r\n") == 1


# -- bodies that are too large ---------------------------------------------------------------------


def refusal(one: Gateway, head: str, body: bytes = b"") -> bytes:
    """The headers of the answer to a request of which no more than this is sent."""
    with socket.create_connection(("127.0.0.1", one.port), timeout=PATIENCE) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        received = b""
        while data := connection.recv(65536):  # to its end: the server has closed its side
            received += data
    first, _, rest = received.partition(b"\r\n")
    assert first == b"HTTP/1.1 413 Request Entity Too Large"
    headers, _, answer = rest.partition(b"\r\n\r\n")
    assert b"connection: close" in headers.lower()
    error = json.loads(answer)["error"]
    assert error["code"] == "request_too_large"
    assert error["message"] == "The request body is larger than 2 MB."
    return headers


HEAD = "POST /v1/chat/completions HTTP/1.1\nHost: here\nX-Request-Id: mine"


def test_a_body_that_is_announced_as_too_large_is_refused_before_it_comes(
    one: Gateway, upstream: Upstream
) -> None:
    upstream.script()
    assert b"X-Request-Id: mine" in refusal(one, f"{HEAD}\nContent-Length: {2 * MB + 1}")
    refusal(one, f"{HEAD}\nContent-Length: {2**59}\nExpect: 100-continue")
    assert upstream.requests == []


def test_a_refusal_is_logged_under_the_id_that_its_answer_has(one: Gateway) -> None:
    headers = refusal(one, f"POST /v1/x HTTP/1.1\nHost: here\nContent-Length: {2 * MB + 1}")
    [given] = re.findall(rb"X-Request-Id: (\w+)", headers)
    assert f"request {given.decode()}: request_too_large" in one.log


def test_a_refusal_quotes_and_cuts_the_id_of_its_client(one: Gateway) -> None:
    sent = "two words " + "x" * 500
    headers = refusal(
        one, f"POST /v1/x HTTP/1.1\nHost: here\nX-Request-Id: {sent}\nContent-Length: {2 * MB + 1}"
    )
    used = ("two%20words%20" + "x" * 500)[:128]
    assert re.findall(rb"X-Request-Id: ([^\r\n]*)", headers) == [used.encode()]
    assert f"request {used}: request_too_large" in one.log


def test_a_chunked_body_is_refused_when_it_has_become_too_large(one: Gateway, upstream: Upstream) -> None:
    upstream.script()
    refusal(one, f"{HEAD}\nTransfer-Encoding: chunked", b"%x\r\n%b\r\n" % (3 * MB, bytes(3 * MB)))
    assert upstream.requests == []


def test_a_client_that_sends_all_of_it_first_can_read_the_answer(one: Gateway, upstream: Upstream) -> None:
    upstream.script(json_reply({"ok": True}))
    answer = call(one.port, "POST", "/v1/x", body=bytes(40 * MB))
    assert answer.status == 413
    assert call(one.port, "POST", "/v1/x", body=bytes(2 * MB)).status == 200
