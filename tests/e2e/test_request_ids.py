"""The client's X-Request-Id."""

import sqlite3
import time

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.scenes import WHOLE_LEG2
from tests.harness.client import call, one_whole_answer
from tests.harness.gateway import EVENT_TABLE, Gateway
from tests.harness.shapes import VLLM, started
from tests.harness.upstream import Reply, Upstream, json_reply


def test_an_empty_request_id_is_none(gateway: GatewayFor, upstream: Upstream) -> None:
    upstream.script(json_reply({"ok": True}))
    answer = call(gateway().port, "GET", "/v1/models", [("X-Request-Id", "")])
    assert [bool(value) for value in answer.all("X-Request-Id")] == [True]


def test_a_long_request_id_is_recorded_as_far_as_there_is_room(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one, name = gateway(), "x" * 4000
    before = _rows(one)
    upstream.script(Reply(started(VLLM, [], ["a"])), WHOLE_LEG2)
    stream = chat(one, body(), [("X-Request-Id", name)]).read_rest()
    one_whole_answer(stream, reasoning="", content="ab", like=VLLM)
    _wait_for_rows(one, before + 1)


def _rows(one: Gateway) -> int:
    connection = sqlite3.connect(f"file:{one.database}?mode=ro", uri=True, timeout=5)
    try:
        (count,) = connection.execute(f"SELECT count(*) FROM {EVENT_TABLE}").fetchone()
        return int(count)
    finally:
        connection.close()


def _wait_for_rows(one: Gateway, count: int) -> None:
    until = time.monotonic() + 5.0
    while _rows(one) < count:
        assert time.monotonic() < until, f"{_rows(one)} audit rows, {count} were expected"
        time.sleep(0.02)
