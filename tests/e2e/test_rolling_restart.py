"""Two `serve` processes behind nginx, configured as documented, are restarted one after the other."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.asking import body
from tests.harness import nginx, pages
from tests.harness.client import Stream, call, one_whole_answer
from tests.harness.gateway import TROUBLE, Database, Gateway, free_port
from tests.harness.nginx import Nginx
from tests.harness.shapes import VLLM, ended, started
from tests.harness.upstream import Gate, Pause, Reply, Upstream, json_reply

pytestmark = pytest.mark.skipif(bool(nginx.is_missing()), reason=nginx.is_missing() or "nginx")

PATIENCE = 60.0
CLIENTS = 4
HELD = 6
MOST_REQUESTS = 3000  # of each client
TALK = "held until the test lets it go"
HEADERS = [("Content-Type", "application/json")]


@pytest.fixture
def pair(upstream: Upstream, migrated: Database, tmp_path: Path) -> Iterator[list[Gateway]]:
    settings = {"DOWNSTREAM_URL": upstream.url, "CONTINUATION_MODEL": "house-model"}
    both = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        both.append(Gateway(settings, migrated, tmp_path / name, "serve"))
    yield both
    for one in both:
        assert one.stop(PATIENCE) == 0
        assert not TROUBLE.search(one.log), one.log


def as_documented(port: int, first: int, second: int) -> str:
    servers = pages.block("rolling-restart")
    ports = {"127.0.0.1:8001": first, "127.0.0.1:8002": second}
    for written, meant in ports.items():
        assert servers.count(written) == 1
        servers = servers.replace(written, f"127.0.0.1:{meant}")
    assert servers.count("listen 8080;") == 1
    return servers.replace("listen 8080;", f"listen 127.0.0.1:{port};")


def stream_of(port: int, text: str) -> Stream:
    asked = json.dumps(body(messages=[{"role": "user", "content": text}])).encode()
    return Stream(port, "POST", "/v1/chat/completions", HEADERS, asked, PATIENCE)


def a_stream(port: int) -> None:
    with stream_of(port, "quick") as stream:
        one_whole_answer(stream.read_rest(), reasoning="", content="quick ", like=VLLM)


def a_post(port: int) -> None:
    answer = call(port, "POST", "/v1/embeddings", HEADERS, b'{"input": "x"}')
    assert (answer.status, answer.json()) == (200, {"path": "/v1/embeddings"})


def a_get(port: int) -> None:
    answer = call(port, "GET", "/v1/models")
    assert (answer.status, answer.json()) == (200, {"path": "/v1/models"})


class Load:
    """Clients that ask one request after the other, until `end`; what failed, and how many did not."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self.failed: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        self._clients = [self._pool.submit(self._ask) for _ in range(CLIENTS)]

    def _ask(self) -> None:
        for number in range(MOST_REQUESTS):
            if self._over.is_set():
                return
            kind: Callable[[int], None] = (a_stream, a_post, a_get)[number % 3]
            try:
                kind(self._port)
                self.served[kind.__name__] += 1
            except (AssertionError, OSError, ValueError) as trouble:
                self.failed[f"{kind.__name__}: {trouble!r}"[:300]] += 1
            time.sleep(0.01)

    def wait_for_more(self, count: int = 30) -> None:
        before, until = self.served.total(), time.monotonic() + PATIENCE
        while self.served.total() < before + count and not self.failed:
            assert time.monotonic() < until
            time.sleep(0.02)

    def end(self) -> None:
        self._over.set()
        for each in self._clients:
            each.result(PATIENCE)
        self._pool.shutdown()


def test_a_rolling_restart_behind_nginx_loses_no_request_and_no_stream(
    upstream: Upstream, pair: list[Gateway], tmp_path: Path
) -> None:
    gates = [Gate(), Gate()]
    held_by: list[Gate] = []

    def answer(request: Any) -> Reply:
        if not request.target.endswith("/chat/completions"):
            return json_reply({"path": request.target})
        if request.json()["messages"][0]["content"] == TALK:
            return Reply([*started(VLLM, [], ["slow "]), Pause(held_by[-1]), *ended(VLLM)])
        return Reply([*started(VLLM, [], ["quick "]), Pause(0.02), *ended(VLLM)])

    upstream.respond(answer)
    port = free_port()
    (tmp_path / "nginx").mkdir()
    proxy = Nginx(tmp_path / "nginx", as_documented(port, pair[0].port, pair[1].port), port)
    load = Load(port)
    try:
        for one, gate in zip(pair, gates, strict=True):
            held_by.append(gate)
            held = [stream_of(port, TALK) for _ in range(HELD)]
            for stream in held:
                stream.read_until("slow ")
            load.wait_for_more()
            one.terminate()
            load.wait_for_more()  # while it waits for what it has open, and refuses what is new
            assert one.is_running()
            gate.open()
            for stream in held:
                one_whole_answer(stream.read_rest(), reasoning="", content="slow ", like=VLLM)
                stream.drop()
            assert one.wait(PATIENCE) == 0
            one.start_again()  # returns once /ready answers 200
            load.wait_for_more()
    finally:
        for gate in gates:
            gate.open()
        load.end()
        proxy.stop()
    assert load.failed == {}, proxy.log[-2000:]
    assert set(load.served) == {"a_stream", "a_post", "a_get"}
    for one in pair:
        assert one.log.count("serving on") == 2
