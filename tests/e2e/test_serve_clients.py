"""Clients that do not keep up, under `manage.py serve`: they slow their own stream, and cost little."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.asking import body
from tests.harness.client import Stream, one_whole_answer, request_id
from tests.harness.gateway import Database, Gateway
from tests.harness.shapes import VLLM, ended, joined, started
from tests.harness.upstream import Gate, HoldOpen, Pause, Reply, Step, Upstream, json_reply

PATIENCE = 60.0
MB = 2**20
PIECE = "word " * 3200  # 16 kB
ASK = b"GET /v1/models HTTP/1.1\r\nHost: here\r\n\r\n"
GUARDED: list[tuple[str, str]] = []
PASSED = [("X-Continuation", "off")]
BOTH = pytest.mark.parametrize("headers", [GUARDED, PASSED], ids=["guarded", "passed-through"])


@pytest.fixture(scope="module")
def fleet_of_serve(
    migrated: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Gateway]]:
    running: dict[frozenset[tuple[str, str]], Gateway] = {}

    def start(**settings: str) -> Gateway:
        key = frozenset(settings.items())
        if key not in running:
            running[key] = Gateway(settings, migrated, tmp_path_factory.mktemp("gateway"), "serve")
        return running[key]

    yield start
    for one in running.values():
        one.terminate()
    assert {one.wait(PATIENCE) for one in running.values()} == {0}


@pytest.fixture
def serving(
    upstream: Upstream, fleet_of_serve: Callable[..., Gateway], watched: Callable[[Gateway], Gateway]
) -> Callable[..., Gateway]:
    def running(**settings: str) -> Gateway:
        return watched(
            fleet_of_serve(DOWNSTREAM_URL=upstream.url, CONTINUATION_MODEL="house-model", **settings)
        )

    return running


class Narrow(Stream):
    """A client with little room of its own, so that what it does not read is soon felt."""

    def _send(self, *request: Any) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        super()._send(*request)

    def read_some(self, size: int) -> int:
        """Straight from the socket; how much came."""
        return len(self._socket.recv(size))


def chat(to: Gateway, headers: list[tuple[str, str]], kind: type[Stream] = Narrow) -> Any:
    own = [("Content-Type", "application/json"), ("X-Request-Id", request_id()), *headers]
    sent = json.dumps(body()).encode()
    return kind(to.port, "POST", "/v1/chat/completions", own, sent, PATIENCE)


class Flood(list[Step]):
    """Steps of a reply, and how many of them the upstream has come to."""

    taken = 0

    def __iter__(self) -> Iterator[Step]:
        for step in super().__iter__():
            self.taken += 1
            yield step

    def wait_until_held_up(self) -> None:
        """Until nothing has moved for a while: everything between the upstream and the client is full."""
        since, seen, until = time.monotonic(), 0, time.monotonic() + PATIENCE
        while not self.taken or time.monotonic() - since < 1.0:
            if self.taken != seen:
                since, seen = time.monotonic(), self.taken
            assert time.monotonic() < until, f"still flowing: {self.taken} of {len(self)}"
            time.sleep(0.05)
        assert self.taken < len(self), "the upstream could send all that it had"


def flood(megabytes: int) -> Flood:
    """An answer of so many megabytes, with its ending."""
    return Flood([*started(VLLM), *[VLLM.content(PIECE)] * (megabytes * MB // len(PIECE)), *ended(VLLM)])


# -- memory ----------------------------------------------------------------------------------------


@BOTH
def test_a_client_that_never_reads_costs_little_memory(
    serving: Callable[..., Gateway], upstream: Upstream, headers: list[tuple[str, str]]
) -> None:
    one, answer = serving(), flood(200)
    upstream.script(Reply([*started(VLLM, [], ["warm"]), *ended(VLLM)]), Reply(answer))
    with chat(one, headers) as warming:
        warming.read_rest()
    before = one.memory_bytes()
    with chat(one, headers) as stream:
        answer.wait_until_held_up()
        cost = one.memory_bytes() - before
        assert cost < 32 * MB, f"{cost / MB:.1f} MB"
        stream.drop()
    upstream.wait_until_idle()


def test_while_the_client_is_blocked_no_comments_pile_up(
    serving: Callable[..., Gateway], upstream: Upstream
) -> None:
    one, answer = serving(KEEPALIVE_SECONDS="0.05"), flood(20)
    upstream.script(Reply(answer))
    with chat(one, GUARDED) as stream:
        answer.wait_until_held_up()
        time.sleep(1.0)  # twenty comments would be due
        whole = stream.read_rest().body
    assert whole.count(b": keepalive") <= 3
    assert whole.replace(b": keepalive\n", b"") == joined(list(answer))  # type: ignore[arg-type]


# -- what is slowed, and what is not ---------------------------------------------------------------


def test_a_slow_reader_never_trips_the_idle_clock_and_gets_the_whole_answer(
    serving: Callable[..., Gateway], upstream: Upstream
) -> None:
    """A leg 2 would be beyond the script."""
    one, answer = serving(STALL_IDLE_TIMEOUT_SECONDS="0.5"), flood(20)
    upstream.script(Reply(answer))
    with chat(one, GUARDED) as stream:
        answer.wait_until_held_up()
        time.sleep(1.0)
        content = PIECE * (len(answer) - 3)
        one_whole_answer(stream.read_rest(), reasoning="", content=content, like=VLLM)


@BOTH
def test_a_blocked_client_delays_no_other_stream(
    serving: Callable[..., Gateway], upstream: Upstream, headers: list[tuple[str, str]]
) -> None:
    one, answer = serving(), flood(50)
    quick = Reply([*started(VLLM, [], ["quick"]), *ended(VLLM)])
    upstream.script(Reply(answer), *[quick] * 20)
    with chat(one, headers):
        answer.wait_until_held_up()
        begun = time.monotonic()
        for _ in range(20):
            with chat(one, headers, Stream) as other:
                one_whole_answer(other.read_rest(), reasoning="", content="quick", like=VLLM)
        assert time.monotonic() - begun < 5.0


# -- clients that leave, or are given up -----------------------------------------------------------


@BOTH
def test_a_client_that_leaves_while_sending_is_blocked_is_noticed_at_once(
    serving: Callable[..., Gateway], upstream: Upstream, headers: list[tuple[str, str]]
) -> None:
    one, answer = serving(), flood(200)
    upstream.script(Reply(answer))
    with chat(one, headers) as stream:
        answer.wait_until_held_up()
        (connection,) = upstream.busy
        left = stream.drop()
        assert connection.wait_closed_by_peer(PATIENCE) - left < 1.0
    if headers == GUARDED:
        assert one.event(stream.request_id)["outcome"] == "client_gone"


@BOTH
@pytest.mark.parametrize("behind", [b"\r\n" * 100_000, ASK * 5_000], ids=["blanks", "requests"])
def test_a_client_that_sent_much_behind_its_request_and_left_is_noticed_at_once(
    serving: Callable[..., Gateway], upstream: Upstream, headers: list[tuple[str, str]], behind: bytes
) -> None:
    one = serving()
    upstream.script(Reply([*started(VLLM, [], ["some "]), HoldOpen()]))
    with chat(one, headers, Stream) as stream:
        stream.read_until("some ")
        stream._socket.sendall(behind)
        (connection,) = upstream.busy
        left = stream.drop()
        assert connection.wait_closed_by_peer(PATIENCE) - left < 2.0
    if headers == GUARDED:
        assert one.event(stream.request_id)["outcome"] == "client_gone"


@BOTH
def test_what_is_sent_behind_a_request_costs_neither_memory_nor_the_answer(
    serving: Callable[..., Gateway], upstream: Upstream, headers: list[tuple[str, str]]
) -> None:
    one, gate = serving(), Gate()
    upstream.script(Reply([*started(VLLM, [], ["some "]), Pause(gate), *ended(VLLM)]))
    with chat(one, headers, Stream) as stream:
        stream.read_until("some ")
        before = one.memory_bytes()
        stream._socket.sendall(ASK * (64 * MB // len(ASK)))
        assert one.memory_bytes() - before < 16 * MB
        gate.open()
        one_whole_answer(stream.read_rest(), reasoning="", content="some ", like=VLLM)


def test_a_few_requests_behind_the_first_are_answered_in_order(
    serving: Callable[..., Gateway], upstream: Upstream
) -> None:
    one = serving()
    upstream.respond(lambda request: json_reply({"path": request.target}))
    last = ASK.replace(b"/v1/models", b"/v1/last").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with socket.create_connection(("127.0.0.1", one.port), timeout=PATIENCE) as connection:
        connection.sendall(ASK * 20 + last)
        received = b""
        while data := connection.recv(65536):
            received += data
    assert received.count(b"HTTP/1.1 200 ") == 21
    assert b"/v1/last" in received.rpartition(b"\r\n\r\n")[2]


STALL = {"CLIENT_STALL_TIMEOUT_SECONDS": "1.5"}


@BOTH
def test_a_client_that_takes_nothing_is_dropped_and_downstream_released(
    serving: Callable[..., Gateway], upstream: Upstream, headers: list[tuple[str, str]]
) -> None:
    one, answer = serving(**STALL), flood(200)
    upstream.script(Reply(answer))
    with chat(one, headers) as stream:
        answer.wait_until_held_up()
        upstream.wait_until_idle(PATIENCE)
        assert not stream.read_rest().complete
        assert stream.reset
    assert f"request {stream.request_id}: dropped, its client took nothing for 1.5 s" in one.new_log()
    if headers == GUARDED:
        assert one.event(stream.request_id)["outcome"] == "client_gone"


def test_a_client_that_takes_a_little_now_and_then_is_not_dropped(
    serving: Callable[..., Gateway], upstream: Upstream
) -> None:
    one, answer = serving(CLIENT_STALL_TIMEOUT_SECONDS="3"), flood(20)
    upstream.script(Reply(answer))
    with chat(one, GUARDED) as stream:
        answer.wait_until_held_up()  # which takes a second of the three
        for _ in range(10):
            assert stream.read_some(64 * 1024)
            time.sleep(0.5)
        assert upstream.busy
        assert "took nothing" not in one.new_log()


# -- requests that come slowly ---------------------------------------------------------------------

LIMIT = 0.8
SLOW = {
    "CLIENT_HEAD_TIMEOUT_SECONDS": str(LIMIT),
    "CLIENT_BODY_TIMEOUT_SECONDS": str(LIMIT),
    "CLIENT_BODY_BYTES_PER_SECOND": "1000",
}
UPLOAD = b"POST /v1/files HTTP/1.1\r\nHost: here\r\nX-Request-Id: slow-one\r\n"
LONG = UPLOAD + b"Content-Length: 200000\r\n\r\n"
CHUNKED = UPLOAD + b"Transfer-Encoding: chunked\r\n\r\n"


def connected(to: Gateway) -> socket.socket:
    return socket.create_connection(("127.0.0.1", to.port), timeout=PATIENCE)


def read_answer(connection: socket.socket) -> bytes:
    """Up to the end of an answer of known length."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += (data := connection.recv(65536))
        assert data, received
    head, _, rest = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    while len(rest) < length:
        rest += (data := connection.recv(65536))
        assert data, received
    return head + b"\r\n\r\n" + rest


def drip(connection: socket.socket, beginning: bytes, drop: bytes) -> tuple[bytes, float]:
    """All that is answered, and after how many seconds the connection had ended, while drops went on coming."""
    connection.sendall(beginning)
    begun, received = time.monotonic(), b""
    connection.settimeout(0.05)
    try:
        while time.monotonic() - begun < PATIENCE:
            try:
                if not (data := connection.recv(65536)):
                    break
                received += data
            except TimeoutError:
                connection.sendall(drop)
    except OSError:  # reset, or a pipe that is broken
        pass
    return received, time.monotonic() - begun


@pytest.mark.parametrize("before", [b"", ASK], ids=["first", "second"])
@pytest.mark.parametrize("head", [b"G", b"GET /v1/models HTTP/1.1\r\nX-Slow: "], ids=["line", "header"])
def test_a_head_that_comes_byte_by_byte_is_given_up_at_its_deadline(
    serving: Callable[..., Gateway], upstream: Upstream, head: bytes, before: bytes
) -> None:
    one = serving(**SLOW)
    upstream.respond(lambda request: json_reply({}))
    with connected(one) as connection:
        if before:
            connection.sendall(before)
            assert read_answer(connection).startswith(b"HTTP/1.1 200 ")
        answer, seconds = drip(connection, head, b"a")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"\r\nConnection: close\r\n" in answer
    assert LIMIT <= seconds < 15.0
    assert f"had not sent the head of a request after {LIMIT:g} s" in one.new_log()


@pytest.mark.parametrize(
    ("head", "drop"), [(LONG, b"a"), (CHUNKED, b"1\r\na\r\n")], ids=["length", "chunked"]
)
def test_a_body_that_comes_byte_by_byte_is_refused(
    serving: Callable[..., Gateway], head: bytes, drop: bytes
) -> None:
    one = serving(**SLOW)
    with connected(one) as connection:
        answer, seconds = drip(connection, head, drop)
    head, _, told = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"\r\nX-Request-Id: slow-one" in head
    assert json.loads(told)["error"]["code"] == "request_timeout"
    assert LIMIT <= seconds < 15.0
    assert "request slow-one: request_timeout: fewer than 1000 bytes a second came" in one.new_log()


def test_a_body_that_was_fast_and_stops_is_refused_all_the_same(serving: Callable[..., Gateway]) -> None:
    one = serving(**SLOW)
    with connected(one) as connection:
        answer, _seconds = drip(connection, LONG + bytes(150_000), b"a")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert "request_timeout" in one.new_log()


def test_an_upload_that_is_slow_but_fast_enough_is_waited_for(
    serving: Callable[..., Gateway], upstream: Upstream
) -> None:
    """For more than three windows."""
    one = serving(**SLOW)
    upstream.respond(lambda request: json_reply({"size": len(request.body)}))
    with connected(one) as connection:
        connection.sendall(UPLOAD + b"Expect: 100-continue\r\nContent-Length: 120000\r\n\r\n")
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        for _ in range(30):
            time.sleep(LIMIT / 8)
            connection.sendall(bytes(4000))
        assert read_answer(connection).endswith(b'{"size": 120000}')


def test_a_connection_without_a_request_and_one_that_waits_for_its_answer_have_no_deadline(
    serving: Callable[..., Gateway], upstream: Upstream
) -> None:
    one, gate = serving(**SLOW), Gate()
    upstream.script(Reply([*started(VLLM, [], ["long "]), Pause(gate), *ended(VLLM)]), json_reply({}))
    with connected(one) as idle, chat(one, GUARDED, Stream) as stream:
        stream.read_until("long ")
        stream._socket.sendall(ASK[:10])  # the head of the next one has begun
        time.sleep(4 * LIMIT)
        gate.open()
        one_whole_answer(stream.read_rest(), reasoning="", content="long ", like=VLLM)
        idle.sendall(ASK)
        assert read_answer(idle).startswith(b"HTTP/1.1 200 ")


def files_of_bodies(of: Gateway) -> list[str]:
    return [name for name in of.open_files() if name.endswith("(deleted)")]


def test_uploads_that_are_only_begun_have_no_file(serving: Callable[..., Gateway]) -> None:
    one, begun = serving(), []
    before = len(one.open_files())
    for head in [LONG + b"a", CHUNKED + b"1\r\na\r\n"] * 10:
        begun.append(connected(one))
        begun[-1].sendall(head)
    until = time.monotonic() + PATIENCE
    while len(one.open_files()) < before + len(begun):
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(0.2)  # a file would be opened just after its connection
    assert files_of_bodies(one) == []
    for each in begun:
        each.close()


def test_the_file_of_a_large_body_is_closed_before_the_answer(
    serving: Callable[..., Gateway], upstream: Upstream
) -> None:
    one, gate = serving(), Gate()
    upstream.script(Reply([*started(VLLM), Pause(gate), *ended(VLLM)]))
    with connected(one) as connection:
        connection.sendall(LONG + bytes(199_999))
        until = time.monotonic() + PATIENCE
        while not files_of_bodies(one):
            assert time.monotonic() < until
            time.sleep(0.02)
        connection.sendall(b"a")
        gate.wait_reached()
        assert files_of_bodies(one) == []
        gate.open()
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
