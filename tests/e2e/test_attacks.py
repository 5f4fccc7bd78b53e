"""What a hostile client or server may send harms nobody: no exception, no hang, one ending, the right server.

All of it under each server whose parser differs.
"""

import socket
import time
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from tests.e2e.asking import asking_usage, body
from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.client import call, one_failed_ending, one_whole_answer
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Cut, Reply, Send, Step, Upstream, event, json_reply
from tests.harness.wire import Wire

SERVERS = ["serve", "daphne", "uvicorn-h11", "uvicorn-httptools"]
TWISTED = tuple(int(part) for part in version("twisted").split(".")[:2])
DEEP = "[" * 1000 + "]" * 1000


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    one = Wire()
    yield one
    one.stop()


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


def test_a_control_character_in_a_header_is_named(
    gateway: GatewayFor, server: str, upstream: Upstream
) -> None:
    upstream.script()
    answer = asked_raw(
        gateway().port, b"GET /x HTTP/1.1\r\nHost: a\r\nX-Y: \x1b[31m\r\nConnection: close\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 400")
    if server != "uvicorn-httptools":  # which refuses it itself
        assert b"invalid_header" in answer


def test_an_odd_status_passes(gateway: GatewayFor, upstream: Upstream) -> None:
    upstream.script(json_reply({}, status="999 Weird"), json_reply({}, status="600 Odd"))
    one = gateway()
    assert [call(one.port, "GET", "/x").status, call(one.port, "GET", "/x").status] == [999, 600]
    upstream.wait_until_idle()


LEADS_OUT = [
    "/v1/../internal",
    "/v1/..",
    "/v1/./x",
    "/v1/%2e%2e/internal",
    "/v1/.%2E/internal",
    "/v1/%252e%252e/internal",
    "/v1/.%25252e/internal",
    "/v1/..%2finternal",
    "/v1/..%252finternal",
    "/v1/..#",
    "/v1/..%23",
    "/v1/..%3fx",
    "/v1/..;/internal",
    "/v1/..;a=b/internal",
    "/v1/..%3b/internal",
    "/v1/.;/x",
    "/v1/..%00/internal",
    "/v1/..%09/internal",
    "/v1/..%20/internal",
    "/v1/..\\internal",
    "/v1/..%5cinternal",
    "/v1/..%255cinternal",
    "/v1\\..\\internal",
    "/v1/x\\y",
]
STAYS = [
    "/v1/...",
    "/v1/..x",
    "/v1/x..",
    "/v1/.well-known/x",
    "/v1/models/org%2Fname%2E1",
    "/v1/a;b=../c?x=../#",
]


@pytest.mark.parametrize("target", LEADS_OUT)
def test_a_prefix_is_not_left_by_dots(gateway: GatewayFor, upstream: Upstream, target: str) -> None:
    upstream.script()
    head = f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = asked_raw(gateway(PASSTHROUGH_PATHS="/v1/").port, head.encode())
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
    assert upstream.requests == []


def test_what_is_behind_a_number_sign_never_arrives(gateway: GatewayFor, wire: Wire) -> None:
    one = gateway(DOWNSTREAM_URL=wire.url, PASSTHROUGH_PATHS="/v1/")
    wire.forget()
    asked_raw(one.port, b"GET /v1/x#/../../internal HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert call(one.port, "GET", "/v1/bystander").status == 200
    assert {each.target for each in wire.wait_for("/v1/bystander")} <= {"/v1/x", "/v1/bystander"}


@pytest.mark.parametrize("target", STAYS)
def test_dots_that_are_part_of_a_name_stay_within_a_prefix(
    gateway: GatewayFor, upstream: Upstream, target: str
) -> None:
    upstream.script(json_reply({}))
    assert call(gateway(PASSTHROUGH_PATHS="/v1/").port, "GET", target).status == 200


# -- one framing --------------------------------------------------------------------------------------

LAST = b"GET /v1/last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
CHUNKED = b"3\r\nabc\r\n0\r\n\r\n"
# The lines of a request's head behind its Host, its body, and who answers under serve, daphne, uvicorn with h11 and
# uvicorn with httptools: (s)erver, which refuses, (g)ateway, which refuses, or (d)ownstream.
FRAMINGS: dict[str, tuple[str, list[str], bytes, str]] = {
    "length, then chunks": (
        "POST",
        ["Content-Length: 120", "Transfer-Encoding: chunked"],
        b"0\r\n\r\n",
        "ssgs",
    ),
    "chunks, then length": ("POST", ["Transfer-Encoding: chunked", "Content-Length: 3"], CHUNKED, "ssgs"),
    "two lengths": ("POST", ["Content-Length: 3", "Content-Length: 30"], b"abc", "ssss"),
    "one length twice": ("POST", ["Content-Length: 3", "Content-Length: 3"], b"abc", "ssds"),
    "a list of lengths": ("POST", ["Content-Length: 3, 30"], b"abc", "ssss"),
    "a list of one length": ("POST", ["Content-Length: 3, 3"], b"abc", "ssds"),
    "a length with a sign": ("POST", ["Content-Length: +3"], b"abc", "ssss"),
    "a negative length": ("POST", ["Content-Length: -3"], b"abc", "ssss"),
    "a length with an underscore": ("POST", ["Content-Length: 1_0"], b"abc", "ssss"),
    "an empty length": ("POST", ["Content-Length: "], b"", "ssss"),
    "names with underscores": (
        "POST",
        ["Content_Length: 120", "Transfer_Encoding: chunked", "Content-Length: 3"],
        b"abc",
        "dddd",
    ),
    "a space behind the length's name": ("POST", ["Content-Length : 120"], b"", "ssss"),
    "a space behind the coding's name": (
        "POST",
        ["Content-Length: 3", "Transfer-Encoding : chunked"],
        b"abc",
        "ssss",
    ),
    "a tab before chunked": ("POST", ["Transfer-Encoding:\tchunked"], CHUNKED, "dddd"),
    "an unknown coding": ("POST", ["Transfer-Encoding: xchunked", "Content-Length: 3"], b"abc", "ssss"),
    "two codings": ("POST", ["Transfer-Encoding: gzip, chunked"], CHUNKED, "sssg"),
    "identity with a length": ("POST", ["Transfer-Encoding: identity", "Content-Length: 3"], b"abc", "ggss"),
    "chunked and identity": (
        "POST",
        ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
        CHUNKED,
        "ggss",
    ),
    "chunked twice": ("POST", ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], CHUNKED, "ssss"),
    "a folded line that looks like a coding": (
        "POST",
        ["X-A: b", " Transfer-Encoding: chunked", "Content-Length: 3"],
        b"abc",
        "ddds",
    ),
    "a folded coding": ("POST", ["Transfer-Encoding:", " chunked"], CHUNKED, "ddds"),
    "a folded length": ("POST", ["Content-Length:", " 3"], b"abc", "ddds"),
    "a line that ends in CR alone": (
        "POST",
        ["X-A: b\rTransfer-Encoding: chunked", "Content-Length: 3"],
        b"abc",
        # Twisted below 26.10 puts a space in the place of the CR.
        "ssss" if TWISTED >= (26, 10) else "ddss",
    ),
    "a chunk's extension": ("POST", ["Transfer-Encoding: chunked"], b"3;a=b\r\nabc\r\n0\r\n\r\n", "dddd"),
    "a length in the trailers": (
        "POST",
        ["Transfer-Encoding: chunked"],
        b"3\r\nabc\r\n0\r\nContent-Length: 99\r\n\r\n",
        "ddds",
    ),
    "chunks with other line ends": ("POST", ["Transfer-Encoding: chunked"], b"3\nabc\n0\n\n", "ssss"),
    "a chunk's size with a prefix": (
        "POST",
        ["Transfer-Encoding: chunked"],
        b"0x3\r\nabc\r\n0\r\n\r\n",
        "ssss",
    ),
    "a length that Connection names": (
        "POST",
        ["Connection: content-length", "Content-Length: 3"],
        b"abc",
        "dddd",
    ),
    "a GET with a length": ("GET", ["Content-Length: 3"], b"abc", "dddd"),
    "a GET in chunks": ("GET", ["Transfer-Encoding: chunked"], CHUNKED, "dddd"),
    "a HEAD with a length": ("HEAD", ["Content-Length: 3"], b"abc", "dddd"),
    "a DELETE in chunks": ("DELETE", ["Transfer-Encoding: chunked"], CHUNKED, "dddd"),
    "an OPTIONS without a body": ("OPTIONS", [], b"", "dddd"),
}


@pytest.mark.parametrize("name", FRAMINGS)
def test_a_request_has_one_length_downstream(gateway: GatewayFor, server: str, wire: Wire, name: str) -> None:
    method, lines, sent, answering = FRAMINGS[name]
    one, by = gateway(DOWNSTREAM_URL=wire.url), answering[SERVERS.index(server)]
    wire.forget()
    head = "\r\n".join([f"{method} /v1/first HTTP/1.1", "Host: a", *lines]) + "\r\n\r\n"
    answer = asked_raw(one.port, head.encode() + sent + LAST)
    assert answer.startswith(b"HTTP/1.1 200" if by == "d" else b"HTTP/1.1 400")
    assert (b'"error"' in answer) == (by == "g")
    assert call(one.port, "GET", "/v1/bystander").status == 200
    requests = wire.wait_for("/v1/bystander")
    came = ["/v1/first", "/v1/last"] if by == "d" else []
    assert sorted(request.target for request in requests) == sorted([*came, "/v1/bystander"])
    for request in requests:
        lengths = request.all(b"content-length")
        assert len(lengths) <= 1
        assert lengths in ([], [b"%d" % len(request.body)])
        assert not any(
            request.all(word) for word in (b"transfer-encoding", b"content_length", b"transfer_encoding")
        )
        assert request.body == (b"abc" if request.target == "/v1/first" and sent else b"")
    assert wire.unread == []


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_chunks_under_http_1_0_are_refused_and_end_the_connection(
    gateway: GatewayFor, wire: Wire, connection: str
) -> None:
    one = gateway(DOWNSTREAM_URL=wire.url)
    wire.forget()
    head = f"POST /v1/first HTTP/1.0\r\nConnection: {connection}\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = asked_raw(one.port, head.encode() + CHUNKED + LAST)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert call(one.port, "GET", "/v1/bystander").status == 200
    assert [request.target for request in wire.wait_for("/v1/bystander")] == ["/v1/bystander"]


@pytest.mark.parametrize("path", ["/v1/first", "/v1/chat/completions"])
def test_with_the_length_of_a_following_head_no_request_runs_past_the_prefixes(
    gateway: GatewayFor, wire: Wire, path: str
) -> None:
    """Were the first request's length the client's, the second one's head would be its body, and the body of that
    one, which nobody has looked at, a request."""
    one = gateway(DOWNSTREAM_URL=wire.url, PASSTHROUGH_PATHS="/v1/")
    wire.forget()
    hidden = b"GET /internal HTTP/1.1\r\nHost: a\r\n\r\n"
    assert call(one.port, "POST", "/v1/second", body=hidden).status == 200
    (second,) = wire.wait_for("/v1/second")
    length = len(second.head) + len(b"\r\n\r\n")
    wire.forget()
    lines = f"Host: a\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
    asked_raw(one.port, f"POST {path} HTTP/1.1\r\n{lines}\r\n0\r\n\r\n".encode())
    assert call(one.port, "POST", "/v1/second", body=hidden).status == 200
    assert [request.target for request in wire.wait_for("/v1/second")] == ["/v1/second"]
    assert wire.unread == []


def test_an_answer_with_two_framings_does_not_become_two_answers(
    gateway: GatewayFor, upstream: Upstream
) -> None:
    """The client would take what is beyond the length for the answer to its next request."""
    forged = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
    lies = (("Content-Type", "text/plain"), ("Content-Length", "2"))
    upstream.script(Reply([Send(b"{}" + forged)], headers=lies, framing="chunked"), json_reply({"own": 1}))
    ask = b"GET /v1/%d HTTP/1.1\r\nHost: a\r\n%b\r\n"
    answer = asked_raw(gateway().port, ask % (1, b"") + ask % (2, b"Connection: close\r\n"))
    assert answer.startswith(b"HTTP/1.1 502")
    assert b"forged" not in answer
    assert answer.count(b"HTTP/1.1 ") == 2


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


def test_an_absolute_target_is_answered_in_json(gateway: GatewayFor, server: str, upstream: Upstream) -> None:
    """uvicorn with httptools takes the path out of it, and asks for that."""
    upstream.script(*([json_reply({"error": {}})] if server == "uvicorn-httptools" else []))
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
