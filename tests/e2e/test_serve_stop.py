"""`manage.py serve` is stopped: nobody new is let in, and what is open runs to its end."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gatewaysite.server.stopping import leaving_cleanly
from tests.e2e.asking import body
from tests.harness import gateway as harness
from tests.harness.client import Stream, one_failed_ending, one_whole_answer, request_id
from tests.harness.gateway import ROOT, TROUBLE, Database, Gateway, environment, free_port
from tests.harness.nursery import run_python
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Cut, Gate, HoldOpen, Pause, Reply, Send, Upstream, json_reply

PATIENCE = 60.0  # seconds that a busy machine may need for what takes one
STREAMS = 100
Serving = Callable[..., Gateway]


@pytest.fixture
def serving(upstream: Upstream, migrated: Database, tmp_path: Path) -> Iterator[Serving]:
    """serving(NAME="value", ...): a gateway of the test's own, which it may stop."""
    started_ones: list[Gateway] = []

    def start(**settings: str) -> Gateway:
        chosen = {"DOWNSTREAM_URL": upstream.url, "CONTINUATION_MODEL": "house-model", **settings}
        started_ones.append(Gateway(chosen, migrated, tmp_path, "serve"))
        return started_ones[-1]

    yield start
    for one in started_ones:
        one.terminate()
        one.terminate()
        one.wait(PATIENCE)
        assert not TROUBLE.search(one.log), one.log


def chat(to: Gateway, **changes: Any) -> Stream:
    headers = [("Content-Type", "application/json"), ("X-Request-Id", request_id())]
    sent = json.dumps(body(**changes)).encode()
    return Stream(to.port, "POST", "/v1/chat/completions", headers, sent, timeout=PATIENCE)


def wait_until(what: Callable[[], bool], told: Callable[[], str] = str) -> None:
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until, told()
        time.sleep(0.02)


def refuses(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) != 0


def stop_and_wait_until_closed(one: Gateway, number: int = signal.SIGTERM) -> None:
    one.terminate(number)
    wait_until(lambda: refuses(one.port), lambda: one.log)


def test_a_stop_does_not_wait_for_an_engine_that_never_ends_a_finished_answer(
    serving: Serving, upstream: Upstream
) -> None:
    one = serving(STALL_IDLE_TIMEOUT_SECONDS="1")
    said = [*started(VLLM, [], ["yes"]), VLLM.finish()]
    upstream.script(Reply([*said, HoldOpen()]))
    with chat(one) as stream:
        stream.read_until(said[-1].data)
        assert one.stop(PATIENCE) == 0
        one_whole_answer(stream.read_rest(), reasoning="", content="yes", like=VLLM)


def test_who_answers_on_the_port_of_a_gateway_is_not_taken_for_it(
    migrated: Database, tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the tests' own Gateway: a signal would go to one process, and the questions to another."""
    upstream.respond(lambda request: json_reply({}))
    ports = iter([upstream.port, free_port()])
    monkeypatch.setattr(harness, "free_port", lambda: next(ports))
    one = Gateway({"DOWNSTREAM_URL": upstream.url, "CONTINUATION_MODEL": "m"}, migrated, tmp_path, "serve")
    assert one.port != upstream.port
    assert one.stop(PATIENCE) == 0


# -- what is open ends -----------------------------------------------------------------------------


def test_a_hundred_open_streams_end_whole_and_new_connections_are_refused(
    serving: Serving, upstream: Upstream
) -> None:
    one, gate = serving(), Gate()

    def answer(request: Any) -> Reply:
        asked = request.json()["messages"][0]["content"]
        return Reply(
            [*started(VLLM, [], [f"{asked} "]), Pause(gate), *started(VLLM, [], ["end"])[1:], *ended(VLLM)]
        )

    upstream.respond(answer)
    streams = [chat(one, messages=[{"role": "user", "content": str(n)}]) for n in range(STREAMS)]
    for stream in streams:
        stream.read_until(" ")
    stop_and_wait_until_closed(one)
    wait_until(lambda: f"stopping: {STREAMS} open streams are waited for" in one.log, lambda: one.log)
    assert one.is_running()
    assert refuses(one.port)
    gate.open()
    with ThreadPoolExecutor(16) as readers:
        read = list(readers.map(Stream.read_rest, streams))
    for number, stream in enumerate(read):
        one_whole_answer(stream, reasoning="", content=f"{number} end", like=VLLM)
        stream.drop()
    assert one.wait(PATIENCE) == 0
    assert "stopped" in one.log


def test_a_stream_that_breaks_during_the_stop_is_rescued_and_its_row_is_written(
    serving: Serving, upstream: Upstream
) -> None:
    one, gate = serving(), Gate()
    upstream.script(
        Reply([*started(VLLM, [], ["some "]), Pause(gate), Cut()]),
        Reply([*started(VLLM_LEG2, [], ["text"]), *ended(VLLM_LEG2)]),
    )
    with chat(one) as stream:
        stream.read_until("some ")
        stop_and_wait_until_closed(one)
        gate.open()
        one_whole_answer(stream.read_rest(), reasoning="", content="some text", like=VLLM)
    assert one.wait(PATIENCE) == 0
    assert one.event(stream.request_id)["outcome"] == "rescued"


def test_who_waits_at_the_door_is_still_served(serving: Serving, upstream: Upstream) -> None:
    """Connected and asked before the signal, but not yet accepted."""
    one = serving()
    upstream.respond(lambda request: json_reply({"ok": True}))
    os.kill(one.pid, signal.SIGSTOP)
    waiting = [Stream(one.port, "GET", "/v1/models", timeout=PATIENCE) for _ in range(50)]
    one.terminate()
    os.kill(one.pid, signal.SIGCONT)
    for stream in waiting:
        assert stream.read_rest().json() == {"ok": True}
        assert stream.header("Connection") == "close"
        stream.drop()
    assert one.wait(PATIENCE) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once(serving: Serving, number: int) -> None:
    one = serving()
    with socket.create_connection(("127.0.0.1", one.port)) as silent:
        one.terminate(number)
        assert silent.recv(1) == b""
        assert one.wait(PATIENCE) == 0
    assert "waited for" not in one.log


def test_how_many_are_open_is_logged_again_and_again(serving: Serving, upstream: Upstream) -> None:
    one, gate = serving(), Gate()
    upstream.script(Reply([*started(VLLM, [], ["a"]), Pause(gate), *ended(VLLM)]))
    with chat(one) as stream:
        stream.read_until('"a"')
        one.terminate()
        wait_until(lambda: one.log.count("stopping: 1 open stream is waited for") >= 2, lambda: one.log)
        gate.open()
        stream.read_rest()
    assert one.wait(PATIENCE) == 0


# -- kept-alive connections ------------------------------------------------------------------------


class Kept:
    """A connection for several requests."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._received = b""

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, and a body of known length."""
        while b"\r\n\r\n" not in self._received:
            self._more()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers["content-length"])
        while len(self._received) < length:
            self._more()
        answer, self._received = self._received[:length], self._received[length:]
        return int(first.split(" ")[1]), headers, answer

    def _more(self) -> None:
        data = self._socket.recv(65536)
        assert data, "closed"
        self._received += data

    def is_closed_by_the_server(self) -> bool:
        return self._received == b"" and self._socket.recv(1) == b""

    def close(self) -> None:
        self._socket.close()


ASK_READY = b"GET /ready HTTP/1.1\r\nHost: here\r\n\r\n"


def test_ready_turns_503_on_a_connection_that_was_there_before_and_it_is_closed(serving: Serving) -> None:
    one = serving()
    kept = Kept(one.port)
    kept.send(ASK_READY)
    assert kept.answer()[0] == 200
    kept.send(ASK_READY[:30])  # under way, so the connection is not idle
    stop_and_wait_until_closed(one)
    kept.send(ASK_READY[30:])
    status, headers, answer = kept.answer()
    assert status == 503
    assert json.loads(answer)["checks"] == {"strategies": "ok", "server": "stopping", "database": "ok"}
    assert headers["connection"] == "close"
    assert kept.is_closed_by_the_server()
    kept.close()
    assert one.wait(PATIENCE) == 0


def test_a_request_under_way_on_a_kept_alive_connection_is_answered_and_the_connection_closed(
    serving: Serving, upstream: Upstream
) -> None:
    one, gate = serving(), Gate()
    upstream.script(
        json_reply({"n": 1}), Reply([Send(b'{"n": 2}')], framing="length", length=8, before=[Pause(gate)])
    )
    kept, idle = Kept(one.port), Kept(one.port)
    kept.send(b"GET /v1/models HTTP/1.1\r\nHost: here\r\n\r\n")
    assert kept.answer()[2] == b'{"n": 1}'
    kept.send(b"GET /v1/models HTTP/1.1\r\nHost: here\r\n\r\n")
    gate.wait_reached()
    stop_and_wait_until_closed(one)
    assert idle.is_closed_by_the_server()
    gate.open()
    status, headers, answer = kept.answer()
    assert (status, headers["connection"], answer) == (200, "close", b'{"n": 2}')
    assert kept.is_closed_by_the_server()
    kept.close()
    idle.close()
    assert one.wait(PATIENCE) == 0


# -- requests that have not come whole -------------------------------------------------------------


def is_open(connection: socket.socket) -> bool:
    """As far as can be told without waiting."""
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


HALF = b"GET /v1/models HTTP/1.1\r\nHost: here\r\n"
UPLOAD = b"POST /v1/models HTTP/1.1\r\nHost: here\r\nContent-Length: 9000000\r\n\r\n"
HANDSHAKE = b"GET /ws HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"


def test_requests_that_drip_hold_up_a_stop_for_ten_seconds_and_uploads_that_go_on_for_longer(
    serving: Serving, upstream: Upstream
) -> None:
    upstream.respond(lambda request: json_reply({"bytes": len(request.body)}))
    one = serving()
    dripping = {Kept(one.port): drop for drop in (b"A: b\r\n", b"x", b"A: b\r\n")}
    for kept, head in zip(dripping, (HALF, UPLOAD, HANDSHAKE), strict=True):
        kept.send(head)
    flowing = Kept(one.port)
    flowing.send(UPLOAD)
    left = 9_000_000
    stop_and_wait_until_closed(one)
    wait_until(lambda: "stopping: 4 unfinished requests are waited for" in one.log, lambda: one.log)
    begun, until = time.monotonic(), time.monotonic() + PATIENCE
    while any(is_open(kept._socket) for kept in dripping):
        assert time.monotonic() < until, one.log
        for kept, drop in dripping.items():
            with contextlib.suppress(OSError):
                kept.send(drop)
        flowing.send(bytes(4096))
        left -= 4096
        time.sleep(0.5)
    assert time.monotonic() - begun > 8.0
    flowing.send(bytes(left))
    status, headers, answer = flowing.answer()
    assert (status, headers["connection"], json.loads(answer)) == (200, "close", {"bytes": 9_000_000})
    for kept in (*dripping, flowing):
        kept.close()
    assert one.wait(PATIENCE) == 0
    assert one.log.count("a request had not come whole") == 3
    assert "open stream" not in one.log.split("unfinished")[0]


# The reactor is chosen for a whole process, so not in this one.
HURRIED = """
    import os, sys
    import django
    os.environ["DJANGO_SETTINGS_MODULE"] = "gatewaysite.settings"
    django.setup()
    from twisted.internet.testing import StringTransport
    from gatewaysite.server.channel import Factory
    from gatewaysite.server.listener import Listener
    from gatewaysite.server.pace import Slowest
    from gatewaysite.server.server import Server, ServerLimits

    listener = Listener("127.0.0.1", 0)
    server = Server(None, listener, ServerLimits(2**30, None, 60.0, Slowest(30, 60, 500)))
    listener.close()

    def seconds_given_to(pace):
        transport, channel = StringTransport(), Factory(server).buildProtocol(None)
        channel.makeConnection(transport)
        channel.dataReceived(b"POST / HTTP/1.1\\r\\nHost: here\\r\\nContent-Length: 9000000\\r\\n\\r\\n")
        for second in range(60):
            channel.hurry(100.0 + second)
            if transport.disconnecting:
                return second
            channel.dataReceived(bytes(pace))

    print(*(seconds_given_to(int(pace)) for pace in sys.argv[1:]))
"""


def test_how_long_an_upload_may_take_after_the_signal(tmp_path: Path) -> None:
    """By the bytes that come of it each second."""
    done = run_python(
        ["-c", textwrap.dedent(HURRIED), "0", "1", "1000", "1024", "100000"],
        cwd=ROOT,
        env=environment({"DOWNSTREAM_URL": "http://127.0.0.1:9"}, tmp_path / "none.sqlite3"),
        timeout=PATIENCE,
    )
    assert done.stdout.split() == ["10", "10", "10", "30", "30"], done.stderr


def test_an_endless_stall_limit_tracks_connections_as_any_other(serving: Serving, upstream: Upstream) -> None:
    """More milliseconds than the kernel can count."""
    one, gate = serving(CLIENT_STALL_TIMEOUT_SECONDS="2592000"), Gate()
    upstream.script(Reply([*started(VLLM, [], ["some "]), Pause(gate), *ended(VLLM)]))
    with chat(one) as stream:
        stream.read_until("some ")
        stop_and_wait_until_closed(one)
        wait_until(lambda: "stopping: 1 open stream is waited for" in one.log, lambda: one.log)
        gate.open()
        one_whole_answer(stream.read_rest(), reasoning="", content="some ", like=VLLM)
    assert one.wait(PATIENCE) == 0


async def test_a_request_that_is_cancelled_twice_leaves_no_task_behind() -> None:
    """The second time while it is given a while to end by itself."""
    began, ended_at_last = asyncio.Event(), asyncio.Event()

    async def deaf(scope: Any, receive: Any, send: Any) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended_at_last.set()

    request = asyncio.create_task(leaving_cleanly(deaf)({}, asyncio.Queue().get, None))
    await began.wait()
    request.cancel()
    await asyncio.wait({request}, timeout=0.1)
    assert not request.done()
    request.cancel()
    await asyncio.wait_for(ended_at_last.wait(), 2.0)
    assert request.cancelled()


# -- when patience is over -------------------------------------------------------------------------

SHUT_DOWN = {"shutting_down"}
IMPATIENT = {"GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS": "0.5"}


def test_then_a_guarded_stream_gets_the_failed_ending_and_a_row(serving: Serving, upstream: Upstream) -> None:
    one = serving(**IMPATIENT)
    upstream.script(Reply([*started(VLLM, [], ["some "]), HoldOpen()]))
    with chat(one) as stream:
        stream.read_until("some ")
        one.terminate()
        one_failed_ending(stream.read_rest(), content="some ", code=SHUT_DOWN)
    assert one.wait(PATIENCE) == 0
    row = one.event(stream.request_id)
    assert (row["outcome"], row["reason"], row["decision"]) == ("failed", "shutting_down", "none")
    assert row["content_chars"] == 5
    assert "ended by the shutdown" in one.log


def test_then_a_stream_that_waits_for_its_leg_2_gets_it_too(serving: Serving, upstream: Upstream) -> None:
    one = serving(**IMPATIENT)
    upstream.script(Reply([*started(VLLM, [], ["some "]), Cut()]), Reply(before=[HoldOpen()]))
    with chat(one) as stream:
        upstream.wait_for_requests(2, PATIENCE)
        one.terminate()
        one_failed_ending(stream.read_rest(), content="some ", code=SHUT_DOWN)
    assert one.wait(PATIENCE) == 0
    row = one.event(stream.request_id)
    assert (row["outcome"], row["reason"], row["failure"]) == ("failed", "shutting_down", "disconnect")


def test_then_a_stream_whose_finish_has_been_seen_is_completed(serving: Serving, upstream: Upstream) -> None:
    one = serving(**IMPATIENT)
    upstream.script(Reply([*started(VLLM, [], ["all"]), VLLM.finish(), HoldOpen()]))
    with chat(one) as stream:
        stream.read_until('"stop"')
        one.terminate()
        one_whole_answer(stream.read_rest(), reasoning="", content="all", like=VLLM)
    assert one.wait(PATIENCE) == 0


def test_then_a_passed_through_answer_is_broken_off(serving: Serving, upstream: Upstream) -> None:
    one = serving(**IMPATIENT)
    upstream.script(
        Reply([Send(b"part"), HoldOpen()]), Reply([Send(b"part"), HoldOpen()], framing="length", length=9)
    )
    with Stream(one.port, "GET", "/a") as chunked, Stream(one.port, "GET", "/b") as counted:
        chunked.read_until("part")
        counted.read_until("part")
        one.terminate()
        assert (chunked.read_rest().complete, counted.read_rest().complete) == (False, False)
        assert chunked.body == counted.body == b"part"
    assert one.wait(PATIENCE) == 0


def test_then_a_request_that_has_no_answer_yet_gets_503(serving: Serving, upstream: Upstream) -> None:
    one = serving(**IMPATIENT)
    upstream.script(Reply(before=[HoldOpen()]), Reply(before=[HoldOpen()]))
    with chat(one) as guarded, Stream(one.port, "GET", "/v1/models") as passed:
        upstream.wait_for_requests(2, PATIENCE)
        one.terminate()
        for stream in (guarded, passed):
            assert stream.read_rest().status == 503
            assert stream.json()["error"]["code"] == "shutting_down"
            assert stream.header("Connection") == "close"
    assert one.wait(PATIENCE) == 0


def test_then_a_request_that_has_not_come_whole_is_dropped(serving: Serving) -> None:
    one = serving(**IMPATIENT)
    kept = Kept(one.port)
    kept.send(b"POST /v1/models HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\nhalf")
    one.terminate()
    with pytest.raises(ConnectionResetError):
        kept._socket.recv(1)
    kept.close()
    assert one.wait(PATIENCE) == 0


def test_then_a_client_that_takes_nothing_does_not_hold_up_the_end(
    serving: Serving, upstream: Upstream
) -> None:
    one = serving(**IMPATIENT)
    upstream.script(Reply([*started(VLLM), *[VLLM.content("x" * 60_000)] * 1000, HoldOpen()]))
    with chat(one) as stream:
        stream.read_until("assistant")
        one.terminate()
        assert one.wait(PATIENCE) == 0


# -- a second signal -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(serving: Serving, upstream: Upstream, number: int) -> None:
    one = serving()
    upstream.script(Reply([*started(VLLM, [], ["some "]), HoldOpen()]), Reply([Send(b"part"), HoldOpen()]))
    with chat(one) as guarded, Stream(one.port, "GET", "/a") as passed:
        guarded.read_until("some ")
        passed.read_until("part")
        stop_and_wait_until_closed(one)
        wait_until(lambda: "2 open streams are waited for" in one.log, lambda: one.log)
        one.terminate(number)
        assert one.wait(PATIENCE) == 128 + number
        one_failed_ending(guarded.read_rest(), content="some ", code=SHUT_DOWN)
        assert not passed.read_rest().complete
    assert one.event(guarded.request_id)["reason"] == "shutting_down"


def test_a_second_signal_does_not_wait_for_the_rest_of_a_refusal(
    serving: Serving, upstream: Upstream
) -> None:
    one, gate = serving(), Gate()
    begun = Reply(
        [Send(b'{"error":'), Pause(gate), HoldOpen()], "400 Bad Request", framing="length", length=99
    )
    upstream.script(Reply([*started(VLLM, [], ["some "]), Cut()]), begun)
    with chat(one) as stream:
        gate.wait_reached()
        stop_and_wait_until_closed(one)
        one.terminate()
        assert one.wait(PATIENCE) == 128 + signal.SIGTERM
        one_failed_ending(stream.read_rest(), content="some ", code="disconnect")
    row = one.event(stream.request_id)
    assert (row["outcome"], row["reason"], row["leg2_status"]) == ("failed", "leg2_refused", 400)
