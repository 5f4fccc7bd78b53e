"""When the client leaves, downstream is released within a second, whatever the gateway is waiting for."""

import json
from collections.abc import Callable

import pytest

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.client import Stream, one_whole_answer
from tests.harness.gateway import Gateway
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Gate, HoldOpen, Pause, Reply, Send, Step, Upstream

BUSY: list[Step] = [step for n in range(3000) for step in (Pause(0.01), VLLM.content(f"{n} "))]
BUSY_LEG2: list[Step] = [step for n in range(3000) for step in (Pause(0.01), VLLM_LEG2.content(f"{n} "))]


def let_go(upstream: Upstream, stream: Stream, request: int = -1) -> float:
    """Seconds from the client's leaving to the end of the downstream connection."""
    connection = upstream.requests[request].connection
    assert not connection.gone.is_set()
    left = stream.drop()
    return connection.wait_closed_by_peer() - left


@pytest.mark.parametrize("headers", [(), [("X-Continuation", "off")]], ids=["guarded", "passed-through"])
@pytest.mark.parametrize(
    "reply,seen",
    [
        (Reply([VLLM.role(), *BUSY]), b"5 "),
        (Reply([*started(VLLM, [], ["a"]), HoldOpen()]), b'"a"'),
        (Reply([VLLM.role(), HoldOpen()]), b"assistant"),
        (Reply([HoldOpen()]), None),
        (Reply([Send(b'data: {"half"'), HoldOpen()]), None),
        (Reply(before=[HoldOpen()]), None),
    ],
    ids=[
        "tokens-flow",
        "silent-in-mid-stream",
        "silent-after-the-role",
        "silent",
        "half-an-event",
        "no-headers",
    ],
)
def test_leg_1_is_released(
    gateway: GatewayFor,
    upstream: Upstream,
    chat: Chat,
    headers: list[tuple[str, str]],
    reply: Reply,
    seen: bytes | None,
) -> None:
    upstream.script(reply)
    stream = chat(gateway(), body(), headers)
    upstream.wait_for_requests(1)
    if seen:
        stream.read_until(seen)
    assert let_go(upstream, stream) < 1.0


@pytest.mark.parametrize(
    "reply", [Reply([Send(b"x"), HoldOpen()]), Reply(before=[HoldOpen()])], ids=["body", "headers"]
)
def test_any_other_request_is_released(
    gateway: GatewayFor, upstream: Upstream, open_stream: Callable[..., Stream], reply: Reply
) -> None:
    upstream.script(reply)
    stream = open_stream(gateway(), "GET", "/v1/events")
    upstream.wait_for_requests(1)
    assert let_go(upstream, stream) < 1.0


@pytest.mark.parametrize(
    "reply,seen",
    [
        (Reply([VLLM_LEG2.role(), *BUSY_LEG2]), b"5 "),
        (Reply([*started(VLLM_LEG2, [], ["b"]), HoldOpen()]), b'"b"'),
        (Reply([HoldOpen()]), b'"a"'),
        (Reply(before=[HoldOpen()]), b'"a"'),
    ],
    ids=["tokens-flow", "silent-in-mid-stream", "silent", "no-headers"],
)
def test_leg_2_is_released(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, reply: Reply, seen: bytes
) -> None:
    one = gateway()
    upstream.script(Reply(started(VLLM, [], ["a"])), reply)
    stream = chat(one, body())
    stream.read_until(seen)
    upstream.wait_for_requests(2)
    assert let_go(upstream, stream) < 1.0
    row = one.event(stream.request_id)
    assert (row["failure"], row["decision"], row["outcome"]) == ("eof", "continue", "client_gone")


def test_a_leg_2_that_is_still_connecting_is_given_up(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, unanswering_url: str
) -> None:
    one = gateway(CONTINUATION_URL=unanswering_url, CONNECT_TIMEOUT_SECONDS="30")
    upstream.script(Reply(started(VLLM, [], ["a"])))
    sockets = len(_sockets(one))
    stream = chat(one, body())
    stream.read_until(b'"a"')
    upstream.wait_until_idle()
    stream.drop()
    row = one.event(stream.request_id)
    assert (row["decision"], row["outcome"]) == ("continue", "client_gone")
    assert row["total_seconds"] < 2.0
    assert len(_sockets(one)) <= sockets + 3  # the idle connection to leg 1's upstream, the audit's database


def test_a_stream_that_was_left_is_recorded_with_what_was_delivered(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    upstream.script(Reply([*started(VLLM, ["think"], ["abc", "de"]), HoldOpen()]))
    stream = chat(one, body())
    stream.read_until(b'"de"')
    let_go(upstream, stream)
    row = one.event(stream.request_id)
    assert (row["failure"], row["decision"], row["outcome"]) == ("", "none", "client_gone")
    assert (row["reasoning_chars"], row["content_chars"]) == (5, 5)


def test_a_stream_that_was_left_before_its_first_event_is_recorded(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    for reply in (Reply([HoldOpen()]), Reply(before=[HoldOpen()])):
        upstream.script(reply)
        stream = chat(one, body())
        upstream.wait_for_requests(1)
        let_go(upstream, stream)
        row = one.event(stream.request_id)
        assert (row["outcome"], row["reasoning_chars"], row["content_chars"]) == ("client_gone", 0, 0)


def test_a_client_that_has_gone_gets_no_leg_2(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    """A second request would be beyond the script."""
    one = gateway(STALL_IDLE_TIMEOUT_SECONDS="0.4")
    upstream.script(Reply([*started(VLLM, [], ["a"]), HoldOpen()]))
    stream = chat(one, body())
    stream.read_until(b'"a"')
    let_go(upstream, stream)
    row = one.event(stream.request_id)
    assert (row["decision"], row["outcome"]) == ("none", "client_gone")


def _leaving(one: Gateway, upstream: Upstream, chat: Chat, round_: int) -> None:
    held: list[Reply] = [
        Reply([VLLM.role(), *BUSY]),
        Reply([HoldOpen()]),
        Reply(before=[HoldOpen()]),
        Reply(started(VLLM, [], ["a"])),
        Reply(started(VLLM, [], ["a"])),
    ]
    second = [Reply(before=[HoldOpen()]), Reply([VLLM_LEG2.role(), *BUSY_LEG2])][round_ % 2]
    legs = [held[round_ % 5], *([second] if round_ % 5 >= 3 else [])]
    upstream.script(*legs)
    stream = chat(one, body())
    requests = upstream.wait_for_requests(len(legs))
    if round_ % 5 == 0:
        stream.read_until(b"1 ")
    stream.drop()
    requests[-1].connection.wait_closed_by_peer()


def _sockets(one: Gateway) -> list[str]:
    """The database's files come and go with the threads that write rows and read strategies."""
    return [name for name in one.open_files() if name.startswith("socket:")]


def test_fifty_clients_leave_and_nothing_stays(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    one = gateway()
    for round_ in range(5):
        _leaving(one, upstream, chat, round_)
    before = len(_sockets(one))
    for round_ in range(50):
        _leaving(one, upstream, chat, round_)
    assert upstream.busy == []
    upstream.script(Reply([*started(VLLM, [], ["fine"]), *ended(VLLM)]))
    one_whole_answer(chat(one, body()).read_rest(), reasoning="", content="fine", like=VLLM)
    assert len(_sockets(one)) <= before + 4, one.open_files()


def test_a_connection_limit_is_not_used_up_by_those_who_left(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    limited = gateway(DOWNSTREAM_CONNECTION_LIMIT="2")
    upstream.respond(lambda request: Reply([HoldOpen()]))
    streams = [chat(limited, body()) for _ in range(5)]
    upstream.wait_for_requests(2)
    for stream in streams:
        stream.drop()
    upstream.wait_until_idle()
    upstream.respond(lambda request: Reply([*started(VLLM, [], ["fine"]), *ended(VLLM)]))
    one_whole_answer(chat(limited, body()).read_rest(), reasoning="", content="fine", like=VLLM)


def test_the_client_leaving_after_done_is_no_event(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one, gate = gateway(), Gate()
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM), Pause(gate)]))
    stream = chat(one, body())
    stream.read_until(b"[DONE]")
    stream.drop()
    gate.open()
    upstream.script(Reply([*started(VLLM), HoldOpen()]))
    later = chat(one, json.dumps(body()).encode())
    later.read_until("assistant")
    let_go(upstream, later)
    one.event(later.request_id)
    assert one.events(stream.request_id, count=0) == []
