"""A gateway that is stopped leaves quietly, with idle and with busy connections to downstream."""

import json
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.asking import body
from tests.harness.client import Stream, call
from tests.harness.gateway import TROUBLE, Database, Gateway
from tests.harness.shapes import VLLM, started
from tests.harness.upstream import Gate, Pause, Reply, Upstream, json_reply


def test_sigterm_closes_connections_and_logs_no_trouble(migrated: Database, tmp_path: Path) -> None:
    upstream, gate = Upstream(), Gate()
    one = Gateway({"DOWNSTREAM_URL": upstream.url, "CONTINUATION_MODEL": "m"}, migrated, tmp_path)
    try:
        upstream.script(json_reply({"data": []}), Reply([*started(VLLM, [], ["some "]), Pause(gate)]))
        assert call(one.port, "GET", "/v1/models").status == 200
        with Stream(one.port, "POST", "/v1/chat/completions", [], json.dumps(body()).encode()) as stream:
            stream.read_until(b"some ")
            request_id = stream.all("X-Request-Id")[0]
            assert one.stop() == 0
        upstream.wait_until_idle()
        assert not TROUBLE.search(one.log), one.log
        assert one.event(request_id)["outcome"] == "client_gone", one.log
    finally:
        gate.open()
        one.stop()
        upstream.stop()


def test_daphne_lets_every_stream_leave_not_only_the_first(migrated: Database, tmp_path: Path) -> None:
    """It stops as soon as one of the applications that it cancels has ended, so the others' rows could be lost."""
    upstream = Upstream()
    one = Gateway({"DOWNSTREAM_URL": upstream.url, "CONTINUATION_MODEL": "m"}, migrated, tmp_path)
    try:
        upstream.script(*[Reply([*started(VLLM, [], ["some "]), Pause(Gate())]) for _ in range(8)])
        with ExitStack() as streams:
            ids = []
            for _ in range(8):
                sent = json.dumps(body()).encode()
                stream = streams.enter_context(Stream(one.port, "POST", "/v1/chat/completions", [], sent))
                stream.read_until(b"some ")
                ids += stream.all("X-Request-Id")
            assert one.stop() == 0
        assert [one.event(request_id)["outcome"] for request_id in ids] == ["client_gone"] * 8
        assert not TROUBLE.search(one.log), one.log
    finally:
        one.stop()
        upstream.stop()
