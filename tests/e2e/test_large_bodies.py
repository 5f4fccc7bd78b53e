"""Requests of ten megabytes: what they take while their streams live, and that no other stream waits for them."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.client import Stream
from tests.harness.gateway import ROOT, Database, Gateway
from tests.harness.shapes import VLLM
from tests.harness.upstream import Gate, Pause, Reply, Upstream

MB = 2**20
BEGINNING = b'{"model":"house-model","stream":true,"messages":['
GUARDED, TOO_LARGE = "guarded", "passthrough; reason=body_too_large"


def said(text: bytes) -> bytes:
    return BEGINNING + b'{"role":"user","content":"' + text + b'"}]}'


def many(one: bytes, count: int) -> bytes:
    return BEGINNING + b",".join([one] * count) + b"]}"


BODIES = {
    "objects": (many(b"{}", 3 * MB), TOO_LARGE),
    "messages": (many(b'{"role":"user","content":"' + b"word " * 60 + b'"}', 31_000), GUARDED),
    "text": (said(b"Tell me, please, of the sea.\\n" * (10 * MB // 31)), GUARDED),
    "chinese": (said("杭州, a".encode() * (10 * MB // 10)), GUARDED),
    "image": (said(b"QUJDRA" * (10 * MB // 6 - 50)), GUARDED),
    "json-in-a-text": (said(b'{\\"a\\": [1, 2]}, ' * (10 * MB // 19)), GUARDED),
}


@pytest.fixture(scope="module")
def serving(
    migrated: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Gateway]]:
    running: list[Gateway] = []

    def start(url: str) -> Gateway:
        settings = {"DOWNSTREAM_URL": url, "CONTINUATION_MODEL": "house-model"}
        running.append(Gateway(settings, migrated, tmp_path_factory.mktemp("gateway"), "serve"))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture(scope="module")
def measure(
    serving: Callable[[str], Gateway], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[bytes], Any]]:
    command = [sys.executable, "-m", "tests.harness.beats"]
    path = tmp_path_factory.mktemp("body") / "body.json"
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as beats:
        assert beats.stdin
        assert beats.stdout
        port = serving(f"http://127.0.0.1:{int(beats.stdout.readline())}").port

        def measured(body: bytes) -> Any:
            assert beats.stdin
            assert beats.stdout
            path.write_bytes(body)
            beats.stdin.write(f"{port} {path}\n")
            beats.stdin.flush()
            return json.loads(beats.stdout.readline())

        yield measured
        beats.stdin.close()


@pytest.mark.parametrize("kind", BODIES)
def test_another_stream_hardly_waits_for_a_large_body_nor_for_its_continuation(
    measure: Callable[[bytes], Any], kind: str
) -> None:
    """The best of some tries: what holds the gateway up does so at each, a busy machine does not. What the other stream
    waits beside small requests is not counted."""
    body, note = BODIES[kind]
    small, found = measure(said(b"a")), measure(body)
    assert set(found["notes"]) == {note}
    assert found["ended"] == (len(found["notes"]) if note == GUARDED else 0)
    # The goal is 0.05, and 0.01 to 0.03 is usual; a machine that does other work at the same time adds to it.
    assert min(found["delays"]) - min(small["delays"]) < 0.1, (found, small)


def test_a_large_request_takes_little_more_than_its_bytes_while_its_stream_lives(
    serving: Callable[[str], Gateway], upstream: Upstream
) -> None:
    one, gate, size = serving(upstream.url), Gate(), 5
    bodies = [BODIES["messages"][0], many(b"{}", 3 * MB), many(b"{}", 40_000)]
    for body in bodies:  # what the process takes once is not counted
        upstream.script(Reply(steps=[VLLM.role(), VLLM.content("a")]), Reply(steps=[VLLM.role()]))
        with Stream(one.port, "POST", "/v1/chat/completions", body=body) as stream:
            stream.read_rest()
    upstream.settle()
    before = one.memory_bytes()
    replies = [Reply(steps=[VLLM.role(), VLLM.content("a"), Pause(gate)]) for _ in range(size * len(bodies))]
    upstream.script(*replies)
    streams = [
        Stream(one.port, "POST", "/v1/chat/completions", body=body) for body in bodies for _ in range(size)
    ]
    try:
        for stream in streams:
            stream.read_head()
            stream.read_until('"a"')
        taken = one.memory_bytes() - before
    finally:
        gate.open()
        for stream in streams:
            stream.__exit__(None, None, None)
    assert taken < 2.5 * size * sum(map(len, bodies)), f"{taken / MB:.0f} MB"
