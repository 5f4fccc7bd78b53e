"""What does not wait: the first token, and a shutdown."""

import contextlib
import json
import time
from pathlib import Path

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.client import Stream, one_whole_answer
from tests.harness.gateway import Database, Gateway
from tests.harness.shapes import VLLM, ended, started
from tests.harness.upstream import Gate, HoldOpen, Pause, Reply, Upstream


def test_a_silent_stream_does_not_hold_up_a_shutdown(
    upstream: Upstream, tmp_path: Path, migrated: Database
) -> None:
    settings = {"DOWNSTREAM_URL": upstream.url, "CONTINUATION_MODEL": "house-model"}
    one = Gateway(settings, migrated, tmp_path)
    upstream.respond(
        lambda request: Reply([HoldOpen()]) if b"headers" in request.body else Reply(before=[HoldOpen()])
    )
    asked = [
        json.dumps(body(messages=[{"role": "user", "content": what}])).encode()
        for what in ("headers", "nothing")
    ]
    with contextlib.ExitStack() as clients:
        for each in asked:
            clients.enter_context(Stream(one.port, "POST", "/v1/chat/completions", (), each))
        requests = upstream.wait_for_requests(2)
        begun = time.monotonic()
        assert one.stop() == 0
        assert time.monotonic() - begun < 5.0
        for request in requests:
            request.connection.wait_closed_by_peer()


def test_the_first_token_does_not_wait_for_the_second(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    """Neither planned nor passed through, nor where the client asks for compression."""
    one = gateway()
    for headers in ((), [("X-Continuation", "off")], [("Accept-Encoding", "gzip")]):
        gate = Gate()
        upstream.script(Reply([*started(VLLM, [], ["a"]), Pause(gate), *ended(VLLM)]))
        begun = time.monotonic()
        stream = chat(one, body(), headers)
        stream.read_until('"a"')
        assert time.monotonic() - begun < 1.0
        assert stream.all("Content-Encoding") == []
        gate.open()
        one_whole_answer(stream.read_rest(), reasoning="", content="a", like=VLLM)
