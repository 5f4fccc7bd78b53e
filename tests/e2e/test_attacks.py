"""What a hostile client or server may send harms nobody: no exception, no hang, one ending, the right server."""

import socket
import time

import pytest

from tests.e2e.asking import asking_usage, body
from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.client import call, one_failed_ending, one_whole_answer
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Cut, Reply, Send, Step, Upstream, event, json_reply

DEEP = "[" * 1000 + "]" * 1000


def asked_raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        one.sendall(request)
        answer = b""
        while piece := one.recv(65536):
            answer += piece
    return answer


@pytest.mark.parametrize(
    "target", ["%2f@127.0.0.1:{port}/x", "%2f@localhost:{port}", "%2fv1/models", "x@127.0.0.1:{port}/"]
)
def test_a_target_never_chooses_the_server(
    gateway: GatewayFor, upstream: Upstream, second_upstream: Upstream, target: str
) -> None:
    second_upstream.script()
    upstream.script()
    head = f"GET {target.format(port=second_upstream.port)} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = asked_raw(gateway().port, head.encode())
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
    assert b"<html" not in answer.lower()
    assert second_upstream.requests == []
    assert upstream.requests == []


def test_an_at_sign_and_a_colon_in_a_path_are_just_that(gateway: GatewayFor, upstream: Upstream) -> None:
    upstream.script(json_reply({}), json_reply({}))
    one = gateway()
    for target in ("/@127.0.0.1:1/x?a=@b:2", "//elsewhere.example/x"):
        assert call(one.port, "GET", target).status == 200
    assert [request.target for request in upstream.requests] == [
        "/@127.0.0.1:1/x?a=@b:2",
        "//elsewhere.example/x",
    ]


def test_a_control_character_in_a_header_is_named(gateway: GatewayFor, upstream: Upstream) -> None:
    upstream.script()
    answer = asked_raw(
        gateway().port, b"GET /x HTTP/1.1\r\nHost: a\r\nX-Y: \x1b[31m\r\nConnection: close\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"invalid_header" in answer


def test_an_odd_status_passes(gateway: GatewayFor, upstream: Upstream) -> None:
    upstream.script(json_reply({}, status="999 Weird"), json_reply({}, status="600 Odd"))
    one = gateway()
    assert [call(one.port, "GET", "/x").status, call(one.port, "GET", "/x").status] == [999, 600]
    upstream.wait_until_idle()


def test_a_prefix_is_not_left_by_dots(gateway: GatewayFor, upstream: Upstream) -> None:
    upstream.script()
    one = gateway(PASSTHROUGH_PATHS="/v1/")
    for target in ("/v1/../internal", "/v1/%2e%2e/internal", "/v1/./x"):
        assert call(one.port, "GET", target).status == 404, target


def test_a_root_path_is_not_taken_from_a_header(gateway: GatewayFor, upstream: Upstream) -> None:
    upstream.script(json_reply({"from": "downstream"}))
    headers = [("Daphne-Root-Path", "/v1")]
    assert call(gateway().port, "GET", "/v1/admin/login/", headers).json() == {"from": "downstream"}


DEEP_EVENTS: list[Step] = [
    event(f'{{"object":"error","code":400,"message":{DEEP}}}'),
    event(f'{{"error":{{"message":{DEEP}}}}}'),
    event(f'{{"id":{DEEP},"choices":[{{"index":0,"delta":{{"content":"x"}},"finish_reason":"abort"}}]}}'),
]


@pytest.mark.parametrize("trouble", DEEP_EVENTS, ids=["object", "error", "abort"])
@pytest.mark.parametrize("leg", [1, 2])
def test_a_deeply_nested_event_ends_a_stream_once(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, trouble: Step, leg: int
) -> None:
    first: list[Step] = [*started(VLLM, [], ["some "]), trouble if leg == 1 else Cut()]
    second: list[Step] = [*started(VLLM_LEG2, [], ["text"]), *([trouble] if leg == 2 else ended(VLLM_LEG2))]
    upstream.script(Reply(first), Reply(second))
    stream = chat(gateway(), body()).read_rest()
    assert stream.complete
    assert (stream.body.count(b'"error"') > 0) != (stream.body.count(b"[DONE]") == 1)


def test_a_deeply_nested_usage_does_not_swallow_the_ending(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    usage = event(f'{{"choices":[],"usage":{{"completion_tokens":3,"x":{DEEP}}}}}')
    leg2 = [*started(VLLM_LEG2, [], ["ld"]), VLLM_LEG2.finish("stop"), usage]
    upstream.script(Reply([*started(VLLM, [], ["wor"]), Cut()]), Reply(leg2))
    one = gateway()
    stream = chat(one, asking_usage()).read_rest()
    assert (b"[DONE]" in stream.body) != (b'"error"' in stream.body)
    one.new_log()  # what cannot be written is logged


def test_a_deeply_nested_request_is_passed_through(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    upstream.script(Reply([*started(VLLM, [], ["x"]), *ended(VLLM)]))
    sent = ('{"model":"x","stream":true,"messages":[],"x":' + "[" * 990 + "]" * 990 + "}").encode()
    stream = chat(gateway(), sent).read_rest()
    assert stream.all("X-Continuation") == ["passthrough; reason=not_json"]
    assert upstream.requests[0].body == sent


def test_comments_without_end_do_not_hide_silence(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    flood: list[Step] = [Send(b": ping\n\n" * 2000)] * 400
    upstream.script(
        Reply([*started(VLLM, [], ["some "]), *flood, Cut()]),
        Reply([*started(VLLM_LEG2, [], ["text"]), *ended(VLLM_LEG2)]),
    )
    began = time.monotonic()
    stream = chat(gateway(STALL_IDLE_TIMEOUT_SECONDS="0.4"), body()).read_rest()
    assert time.monotonic() - began < 30
    one_whole_answer(stream, reasoning="", content="some text", like=VLLM)


def test_an_absolute_target_is_answered_in_json(gateway: GatewayFor, upstream: Upstream) -> None:
    upstream.script()
    answer = asked_raw(gateway().port, b"GET http://a/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert b"<html" not in answer.lower()
    assert b'"error"' in answer


def test_leg_2_that_fails_after_text_is_not_followed_by_a_third(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    upstream.script(
        Reply([*started(VLLM, [], ["some "]), Cut()]), Reply([*started(VLLM_LEG2, [], ["te"]), Cut()])
    )
    one_failed_ending(chat(gateway(), body()).read_rest(), content="some te")
    assert len(upstream.requests) == 2
