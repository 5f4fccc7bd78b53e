"""More clients than there are descriptors for: nobody's share is taken away, and a lack is said, not met."""

import json
import re
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.asking import body
from tests.harness.client import Stream, call, one_whole_answer
from tests.harness.gateway import TROUBLE, Database, Gateway
from tests.harness.shapes import VLLM, ended, started
from tests.harness.upstream import Gate, Pause, Reply, Upstream, json_reply

PATIENCE = 60.0
LIMIT = 200
STREAMS = 300
Starting = Callable[[str, str], Gateway]


@pytest.fixture
def starting(upstream: Upstream, migrated: Database, tmp_path: Path) -> Iterator[Starting]:
    """starting(server, ulimit)"""
    running: list[Gateway] = []

    def start(server: str, ulimit: str) -> Gateway:
        settings = {"DOWNSTREAM_URL": upstream.url, "CONTINUATION_MODEL": "house-model"}
        running.append(Gateway(settings, migrated, tmp_path, server, ulimit))
        return running[-1]

    yield start
    for one in running:
        one.stop(PATIENCE)
        assert not TROUBLE.search(one.log), one.log


def most_clients(of: Gateway) -> int:
    found = re.search(r"descriptors are enough for (\d+) clients", of.log)
    assert found is not None, of.log
    return int(found[1])


def begun_at_once(to: Gateway) -> list[Stream]:
    sent, headers = json.dumps(body()).encode(), [("Content-Type", "application/json")]
    return [Stream(to.port, "POST", "/v1/chat/completions", headers, sent, PATIENCE) for _ in range(STREAMS)]


def lines(of: Gateway, words: str) -> int:
    return sum(words in line for line in of.log.splitlines())


def test_three_hundred_streams_at_once_are_all_served_with_two_hundred_descriptors(
    starting: Starting, upstream: Upstream
) -> None:
    one, gate = starting("serve", f"-n {LIMIT}"), Gate()
    upstream.respond(lambda request: Reply([*started(VLLM, [], ["some "]), Pause(gate), *ended(VLLM)]))
    begun, most = time.monotonic(), most_clients(one)
    assert 30 < most < LIMIT / 2
    streams = begun_at_once(one)
    until = time.monotonic() + PATIENCE
    while len(upstream.busy) < most:
        assert time.monotonic() < until, one.log
        time.sleep(0.02)
    assert len(one.open_files()) < LIMIT
    gate.open()
    for stream in streams:
        one_whole_answer(stream.read_rest(), reasoning="", content="some ", like=VLLM)
        stream.drop()
    assert 1 <= lines(one, "others wait") <= time.monotonic() - begun + 1


def test_where_accepting_does_not_pause_a_lack_of_descriptors_is_a_503_and_a_line_a_second(
    starting: Starting, upstream: Upstream
) -> None:
    one, gate = starting("daphne", f"-n {LIMIT}"), Gate()
    upstream.respond(lambda request: Reply([*started(VLLM, [], ["some "]), Pause(gate), *ended(VLLM)]))
    begun, found = time.monotonic(), Counter[str]()
    streams = begun_at_once(one)
    for stream in streams:
        stream._socket.settimeout(1.0)
        try:
            stream.read_head()
        except (AssertionError, OSError):  # daphne itself closes whom it has no descriptor for
            found["closed"] += 1
            continue
        found[str(stream.status)] += 1
        if stream.status == 503:
            assert stream.header("Retry-After") == "1"
            assert stream.read_rest().json()["error"]["code"] == "overloaded"
    gate.open()
    seconds = time.monotonic() - begun
    for stream in streams:
        stream.drop()
    assert {"200", "503"} <= set(found) <= {"200", "503", "closed"}, found
    assert 1 <= lines(one, "overloaded") <= seconds + 1
    upstream.wait_until_idle(PATIENCE)


def test_the_soft_limit_is_raised_to_the_hard_one(starting: Starting) -> None:
    one = starting("serve", "-S -n 100")
    limits = Path(f"/proc/{one.pid}/limits").read_text()
    found = re.search(r"Max open files\s+(\d+)\s+(\d+)", limits)
    assert found is not None
    assert found[1] == found[2] != "100"


def test_idle_connections_make_room_for_those_who_wait(starting: Starting, upstream: Upstream) -> None:
    one = starting("serve", f"-n {LIMIT}")
    upstream.respond(lambda request: json_reply({}))
    idle = [socket.create_connection(("127.0.0.1", one.port)) for _ in range(most_clients(one))]
    with Stream(one.port, "GET", "/v1/models", timeout=PATIENCE) as waiting:
        assert waiting.read_rest().status == 200
    for each in idle:
        each.close()


def test_a_body_that_there_is_no_file_for_is_refused_with_503_and_the_next_one_is_not(
    starting: Starting, upstream: Upstream
) -> None:
    one, size = starting("serve", "-n 1000"), 300_000
    upstream.respond(lambda request: json_reply({"size": len(request.body)}))
    head = b"POST /v1/files HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % size
    with socket.create_connection(("127.0.0.1", one.port), timeout=PATIENCE) as connection:
        connection.sendall(head + b"a")
        call(one.port, "GET", "/health")  # so the one before has been let in
        _, hard = resource.prlimit(one.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(one.pid, resource.RLIMIT_NOFILE, (3, hard))
        connection.sendall(bytes(size - 1))
        answer = b""
        while data := connection.recv(65536):
            answer += data
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in answer
    assert b'"code": "overloaded"' in answer
    resource.prlimit(one.pid, resource.RLIMIT_NOFILE, (hard, hard))
    assert call(one.port, "POST", "/v1/files", body=bytes(size)).json() == {"size": size}
