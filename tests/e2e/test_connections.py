"""Connections to engines and clients: when they are used again, and when they are let go."""

import http.client
import json
import time

import pytest

from tests.e2e.asking import asking_usage, body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.faults import CUT, EOF, ERROR_EVENT, STALL, Fault
from tests.e2e.scenes import LEG1, LEG2, WHOLE_LEG2, raw
from tests.harness.client import Answer, call, one_whole_answer
from tests.harness.gateway import Gateway
from tests.harness.shapes import SGLANG, SGLANG_LEG2, VLLM, VLLM_LEG2, Sglang, Vllm, ended, started
from tests.harness.upstream import EVENT_STREAM, Gate, HoldOpen, Pause, Reply, Upstream, json_reply

QUICK = {"STALL_IDLE_TIMEOUT_SECONDS": "0.4"}


def test_a_leg_2_that_stays_open_after_done_is_let_go(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    leg2 = Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2), HoldOpen()])
    upstream.script(Reply(started(VLLM, [], ["a"])), leg2)
    one_whole_answer(chat(one, body()).read_rest(), reasoning="", content="ab", like=VLLM)
    assert upstream.requests[1].connection.gone.wait(1.0)


def test_headers_of_one_connection_are_not_those_of_the_next(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    steps = [*started(VLLM, [], ["a"]), *ended(VLLM)]
    length = sum(len(step.data) for step in steps)
    hop_by_hop = [("Connection", "keep-alive, X-Theirs"), ("X-Theirs", "1"), ("Keep-Alive", "timeout=5")]
    headers = [*EVENT_STREAM, *hop_by_hop, ("X-End", "1")]
    upstream.script(Reply(steps, headers=headers, framing="length", length=length))
    stream = chat(gateway(), body()).read_rest()
    for name in ("Content-Length", "X-Theirs", "Keep-Alive"):
        assert stream.all(name) == []
    assert "X-Theirs" not in "".join(stream.all("Connection"))
    assert stream.all("X-End") == ["1"]
    one_whole_answer(stream, reasoning="", content="a", like=VLLM)


@pytest.mark.parametrize("fault", [CUT, EOF, ERROR_EVENT, STALL], ids=str)
def test_one_connection_is_enough_for_both_legs(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, fault: Fault
) -> None:
    one = gateway(DOWNSTREAM_CONNECTION_LIMIT="1", **QUICK)
    upstream.script(fault.leg(VLLM, started(VLLM, [], ["a"])), WHOLE_LEG2)
    one_whole_answer(chat(one, body()).read_rest(), reasoning="", content="ab", like=VLLM)


def test_those_who_left_while_waiting_for_a_connection_are_not_served(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    """A request beyond the script would be one of theirs."""
    one = gateway(DOWNSTREAM_CONNECTION_LIMIT="1", **QUICK)
    gate = Gate()
    upstream.script(Reply([*started(VLLM, [], ["a"]), Pause(gate), *ended(VLLM)]))
    first = chat(one, body())
    first.read_until('"a"')
    waiting = [chat(one, body()) for _ in range(5)]
    assert call(one.port, "GET", "/health").status == 200  # they have all been accepted
    for stream in waiting:
        stream.drop()
    for stream in waiting:
        assert one.event(stream.request_id)["outcome"] == "client_gone"
    gate.open()
    one_whole_answer(first.read_rest(), reasoning="", content="a", like=VLLM)
    upstream.script(Reply([*started(VLLM, [], ["c"]), *ended(VLLM)]))
    one_whole_answer(chat(one, body()).read_rest(), reasoning="", content="c", like=VLLM)


def test_a_connection_can_be_used_again_after_a_stream_however_it_ended(
    plain: Gateway, upstream: Upstream
) -> None:
    healthy = Reply([*started(VLLM, [], ["some text"]), *ended(VLLM)])
    upstream.script(LEG1, LEG2, healthy, LEG1, json_reply({}, "503 Away"), LEG1, LEG2)
    client = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=30)
    sockets, answers = set(), []
    for _ in range(4):
        client.request("POST", "/v1/chat/completions", json.dumps(body()))
        sockets.add(client.sock)
        answers.append(Answer.of(client.getresponse().read()))
    client.close()
    assert len(sockets) == 1
    told = [(answer.content, answer.done, len(answer.errors)) for answer in answers]
    assert told == [("some text", 1, 0), ("some text", 1, 0), ("some ", 0, 1), ("some text", 1, 0)]


@pytest.mark.parametrize("second", [LEG2, json_reply({}, "503 Away")], ids=["rescued", "failed"])
def test_a_client_of_http_1_0_reads_to_the_end_of_the_connection(
    plain: Gateway, upstream: Upstream, second: Reply
) -> None:
    upstream.script(LEG1, second)
    sent = json.dumps(body()).encode()
    head = b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(sent)
    first, _, received = raw(plain, head + sent).partition(b"\r\n\r\n")
    assert b"chunked" not in first.lower()
    answer = Answer.of(received)
    assert (answer.done, len(answer.errors)) == ((1, 0) if second is LEG2 else (0, 1))
    assert answer.content == ("some text" if second is LEG2 else "some ")


@pytest.mark.parametrize("engines", [(VLLM, VLLM_LEG2), (SGLANG, SGLANG_LEG2)], ids=["vllm", "sglang"])
@pytest.mark.parametrize("leg", [1, 2])
def test_an_engine_that_stays_after_done_keeps_nobody(
    plain: Gateway, upstream: Upstream, chat: Chat, engines: tuple[Vllm | Sglang, Vllm | Sglang], leg: int
) -> None:
    first, _ = engines
    last = engines[leg - 1]
    held = Reply([*started(last, [], ["a"]), *ended(last, usage=(9, 1, 0)), HoldOpen()])
    upstream.script(*([Reply(started(first, [], ["a"]))] if leg == 2 else []), held)
    stream = chat(plain, asking_usage())
    stream.read_until(b"[DONE]")
    begun = time.monotonic()
    one_whole_answer(stream.read_rest(), reasoning="", content="a" * leg, like=first, usage=True)
    upstream.requests[-1].connection.wait_closed_by_peer()
    assert time.monotonic() - begun < 5.0  # a minute, if it were waited for
