"""What is not planned goes through untouched, in both directions."""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from http import HTTPStatus

import pytest

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, Fleet, GatewayFor
from tests.harness.client import call
from tests.harness.gateway import Gateway
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import (
    Cut,
    Gate,
    Pause,
    Reply,
    Reset,
    Send,
    SendRaw,
    Step,
    Upstream,
    json_reply,
    whole,
)
from tests.harness.wire import Wire

TEXT = (("Content-Type", "text/plain"),)
OK = json_reply({"ok": True})
RANDOM = random.Random(1)
BINARY = RANDOM.randbytes(3_000_000)

TARGETS = [
    "/",
    "/v1/models",
    "/v1/models/",
    "/v1//models",
    "//v1/models",
    "/v1/models/org%2Fname",
    "/v1/models/org%2fname%20x",
    "/caf%C3%A9/%e2%82%ac",
    "/broken/%e2%82/%zz",
    "/v1/a/../b/./c",
    "/v1/a/%2e%2e/b",
    "/v1/a;b=c,d:e@f!$&'()*+~",
    "/v1/completions?x=1&x=2&y=%20+&z",
    "/v1/completions?next=/a//b?c=%2F&q=%E4%BD",
    "/v1/chat/completions/",
    "/v1/chat/completions/render",
    "//v1/chat/completions",
    "/healthz",
    "/readyz",
    "/adminx",
    "/v1/streamsx",
]


@pytest.mark.parametrize("target", TARGETS)
def test_the_target_arrives_as_it_was_sent(plain: Gateway, upstream: Upstream, target: str) -> None:
    upstream.script(OK)
    answer = call(plain.port, "POST", target, body=b"{}")
    assert answer.status == 200
    assert upstream.requests[0].target == target
    assert answer.json() == {"ok": True}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"])
def test_every_method_goes_through_with_its_body(plain: Gateway, upstream: Upstream, method: str) -> None:
    upstream.script(whole(b"\x00\xffanswer", headers=TEXT))
    answer = call(plain.port, method, "/v1/things", body=b"\x00\xfe\r\n\r\nrequest")
    (request,) = upstream.requests
    assert (request.method, request.body) == (method, b"\x00\xfe\r\n\r\nrequest")
    assert (answer.status, answer.body) == (200, b"\x00\xffanswer")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_the_chat_path_is_planned_for_post_alone(plain: Gateway, upstream: Upstream, method: str) -> None:
    upstream.script(OK)
    answer = call(plain.port, method, "/v1/chat/completions")
    assert (answer.status, answer.json()) == (200, {"ok": True})
    assert upstream.requests[0].method == method


def test_a_request_without_a_body_gets_none_downstream(plain: Gateway, upstream: Upstream) -> None:
    upstream.script(OK)
    call(plain.port, "GET", "/v1/models")
    assert upstream.requests[0].body == b""
    assert upstream.requests[0].all("Transfer-Encoding") == []
    assert upstream.requests[0].all("Content-Length") in ([], ["0"])


def test_request_headers_arrive_with_their_duplicates(plain: Gateway, upstream: Upstream) -> None:
    upstream.script(OK)
    sent = [
        ("Authorization", "Bearer key"),
        ("Cookie", "a=1; b=2"),
        ("Accept", "application/json"),
        ("Accept-Encoding", "br;q=0.5, gzip"),
        ("User-Agent", "of the client/1"),
        ("X-Twice", "one"),
        ("X-Twice", "two, three"),
        ("X-Name", "caf\xc3\xa9"),  # UTF-8 on the wire
    ]
    call(plain.port, "POST", "/v1/embeddings", sent, b"{}")
    request = upstream.requests[0]
    for name in {name for name, _value in sent}:
        assert request.all(name) == [value for key, value in sent if key == name]
    assert request.all("Host") == [f"127.0.0.1:{upstream.port}"]
    assert request.all("Content-Length") == ["2"]


def test_no_request_header_is_made_up_for_the_client(plain: Gateway, upstream: Upstream) -> None:
    upstream.script(OK)
    call(plain.port, "GET", "/v1/models")
    names = {name.lower() for name, _value in upstream.requests[0].headers}
    assert names.isdisjoint(
        {"user-agent", "accept", "accept-encoding", "cookie", "authorization", "content-type"}
    )


def test_hop_by_hop_request_headers_stay_here(plain: Gateway, upstream: Upstream) -> None:
    upstream.script(OK)
    hop_by_hop = [
        ("Connection", "keep-alive, X-Mine"),
        ("X-Mine", "secret"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Authorization", "Basic eA=="),
        ("Proxy-Connection", "keep-alive"),
        ("TE", "trailers"),
        ("Upgrade", "h2c"),
    ]
    call(plain.port, "POST", "/v1/embeddings", [*hop_by_hop, ("X-End", "1")], [b"{", b"}"])
    request = upstream.requests[0]
    for name, value in hop_by_hop:
        assert value not in request.all(name)
    assert request.all("X-End") == ["1"]
    assert request.body == b"{}"


def test_response_headers_come_back_with_their_duplicates(plain: Gateway, upstream: Upstream) -> None:
    sent = [
        ("Content-Type", "text/plain; charset=latin-1"),
        ("Set-Cookie", "a=1; Path=/, x"),
        ("Set-Cookie", "b=2; HttpOnly"),
        ("ETag", '"x"'),
        ("Server", "the upstream/1"),
        ("Date", "Sun, 29 Nov 2026 18:34:03 GMT"),
        ("Vary", "Origin"),
        ("X-Latin", "caf\xe9"),
        ("Cache-Control", "max-age=7"),
    ]
    upstream.script(whole(b"caf\xe9", headers=sent))
    answer = call(plain.port, "GET", "/v1/models")
    for name in {name for name, _value in sent}:
        assert answer.all(name) == [value for key, value in sent if key == name]
    assert answer.all("Content-Length") == ["4"]
    assert answer.body == b"caf\xe9"


def test_no_response_header_is_made_up_for_the_upstream(plain: Gateway, upstream: Upstream) -> None:
    upstream.script(whole(b"bare", headers=()))
    answer = call(plain.port, "GET", "/v1/models")
    names = {name.lower() for name, _value in answer.headers}
    assert names - {"content-length", "x-request-id", "server", "date"} == set()


def test_hop_by_hop_response_headers_stay_here(plain: Gateway, upstream: Upstream) -> None:
    hop_by_hop = [
        ("Connection", "X-Theirs"),
        ("X-Theirs", "secret"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Authenticate", "Basic"),
        ("Trailer", "X-Sum"),
        ("Upgrade", "h2c"),
    ]
    upstream.script(whole(b"ok", headers=[*TEXT, *hop_by_hop, ("X-End", "1")]))
    answer = call(plain.port, "GET", "/v1/models")
    for name, value in hop_by_hop:
        assert value not in answer.all(name)
    assert answer.all("X-End") == ["1"]


def test_a_compressed_body_is_not_decoded(plain: Gateway, upstream: Upstream) -> None:
    packed = gzip.compress(b"text " * 1000)
    upstream.script(whole(packed, headers=[*TEXT, ("Content-Encoding", "gzip")]))
    answer = call(plain.port, "GET", "/v1/models", [("Accept-Encoding", "gzip")])
    assert answer.all("Content-Encoding") == ["gzip"]
    assert answer.all("Content-Length") == [str(len(packed))]
    assert answer.body == packed
    assert upstream.requests[0].all("Accept-Encoding") == ["gzip"]


def test_a_compressed_request_body_is_not_decoded(plain: Gateway, upstream: Upstream) -> None:
    upstream.script(OK)
    packed = gzip.compress(b'{"input": "x"}')
    call(plain.port, "POST", "/v1/embeddings", [("Content-Encoding", "gzip")], packed)
    assert upstream.requests[0].body == packed
    assert upstream.requests[0].all("Content-Encoding") == ["gzip"]


@pytest.mark.parametrize("status", ["301 Moved Permanently", "307 Temporary Redirect"])
def test_a_redirect_is_the_clients_business(plain: Gateway, upstream: Upstream, status: str) -> None:
    upstream.script(whole(b"there", status, [("Location", f"{upstream.url}/elsewhere")]))
    answer = call(plain.port, "POST", "/v1/embeddings", body=b"{}")
    assert answer.status == int(status[:3])
    assert answer.all("Location") == [f"{upstream.url}/elsewhere"]
    assert len(upstream.requests) == 1


def test_head_keeps_the_length_and_has_no_body(plain: Gateway, upstream: Upstream) -> None:
    upstream.script(Reply([], headers=TEXT, framing="length", length=12345), OK)
    answer = call(plain.port, "HEAD", "/v1/models")
    assert (answer.status, answer.body, answer.all("Content-Length")) == (200, b"", ["12345"])
    assert upstream.requests[0].method == "HEAD"
    assert call(plain.port, "GET", "/v1/models").json() == {"ok": True}


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_an_answer_without_a_body_ends_at_its_headers(
    plain: Gateway, upstream: Upstream, status: str
) -> None:
    upstream.script(Reply([], status, [("ETag", '"x"')], "none"), OK)
    answer = call(plain.port, "GET", "/v1/models")
    assert (answer.status, answer.body, answer.all("ETag")) == (int(status[:3]), b"", ['"x"'])
    assert answer.all("Transfer-Encoding") == []
    assert call(plain.port, "GET", "/v1/models").json() == {"ok": True}


@pytest.mark.parametrize(
    "status", ["201 Created", "404 Not Found", "429 Too Many Requests", "500 Oops", "503 Away"]
)
def test_the_status_is_the_upstreams(plain: Gateway, upstream: Upstream, status: str) -> None:
    upstream.script(json_reply({"detail": "as it says"}, status))
    answer = call(plain.port, "GET", "/v1/models")
    assert (answer.status, answer.json()) == (int(status[:3]), {"detail": "as it says"})


@pytest.mark.parametrize("status", ["422 Unprocessable Entity", "429 Too Many Requests"])
def test_the_status_line_has_words_for_every_status(plain: Gateway, upstream: Upstream, status: str) -> None:
    upstream.script(json_reply({}, status))
    answer = call(plain.port, "GET", "/v1/models")
    assert answer.reason == HTTPStatus(int(status[:3])).phrase


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_binary_of_any_framing_comes_back_whole(plain: Gateway, upstream: Upstream, framing: str) -> None:
    parts = [Send(BINARY[at : at + 70_000]) for at in range(0, len(BINARY), 70_000)]
    upstream.script(Reply(parts, headers=TEXT, framing=framing, length=len(BINARY)))  # type: ignore[arg-type]
    answer = call(plain.port, "GET", "/v1/files/1")
    assert answer.complete
    assert answer.body == BINARY


def test_an_answer_comes_piece_by_piece(plain: Gateway, upstream: Upstream, open_stream: Chat) -> None:
    first, second = Gate(), Gate()
    upstream.script(Reply([Pause(first), Send(b"one"), Pause(second), Send(b"two")], headers=TEXT))
    stream = open_stream(plain, "GET", "/v1/events")
    assert stream.read_head().status == 200
    first.open()
    assert stream.read_until(b"one") == b"one"
    second.open()
    assert stream.read_rest().body == b"onetwo"
    assert stream.complete


@pytest.mark.parametrize("end", [Cut(), Reset()])
@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_a_body_that_was_cut_looks_cut(
    plain: Gateway, upstream: Upstream, open_stream: Chat, end: Cut | Reset, framing: str
) -> None:
    gate = Gate()
    steps = [Send(b"some"), Pause(gate), end]
    upstream.script(Reply(steps, headers=TEXT, framing=framing, length=100))  # type: ignore[arg-type]
    stream = open_stream(plain, "GET", "/v1/files/1")
    stream.read_until(b"some")
    gate.open()
    assert stream.read_rest().body == b"some"
    assert not stream.complete


@pytest.mark.parametrize("begun", [b"some", b""])
def test_a_reset_is_no_end_where_only_the_connection_ends_an_answer(
    plain: Gateway, upstream: Upstream, open_stream: Chat, begun: bytes
) -> None:
    gate = Gate()
    steps = [*([Send(begun)] if begun else []), Pause(gate), Reset()]
    upstream.script(Reply(steps, headers=TEXT, framing="close"))
    stream = open_stream(plain, "GET", "/v1/files/1")
    assert stream.read_head().status == 200
    if begun:
        stream.read_until(begun)
    gate.open()
    assert stream.read_rest().body == begun
    assert not stream.complete


def test_twelve_megabytes_go_through(plain: Gateway, upstream: Upstream) -> None:
    body = BINARY * 4
    upstream.script(OK, OK)
    assert call(plain.port, "POST", "/v1/files", body=body).status == 200
    assert upstream.requests[0].body == body
    assert upstream.requests[0].all("Content-Length") == [str(len(body))]
    assert call(plain.port, "POST", "/v1/files", body=[body[:5_000_000], body[5_000_000:]]).status == 200
    assert upstream.requests[1].body == body


@pytest.mark.parametrize("target", ["/v1/files", "/v1/chat/completions"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_in_json(
    gateway: GatewayFor, upstream: Upstream, target: str, chunked: bool
) -> None:
    small = gateway(MAX_REQUEST_BODY_MB="2", MAX_CONTINUATION_BODY_MB="0.01")
    upstream.script(OK)
    body = BINARY[:2_200_000]
    answer = call(small.port, "POST", target, body=[body[:1_500_000], body[1_500_000:]] if chunked else body)
    assert answer.status == 413
    error = answer.json()["error"]
    assert set(error) >= {"message", "type", "code"}
    assert "application/json" in (answer.header("Content-Type") or "")
    assert upstream.requests == []
    assert call(small.port, "POST", target, body=BINARY[:1_900_000]).status == 200


def _is_openai_error(body: bytes) -> bool:
    return set(json.loads(body)["error"]) >= {"message", "type", "code"}


@pytest.mark.parametrize("target", ["/v1/models", "/v1/chat/completions"])
def test_an_upstream_that_refuses_is_a_502(gateway: GatewayFor, refusing_url: str, target: str) -> None:
    answer = call(gateway(DOWNSTREAM_URL=refusing_url).port, "POST", target, body=b'{"stream": true}')
    assert answer.status == 502
    assert _is_openai_error(answer.body)
    assert answer.header("X-Request-Id")


@pytest.mark.parametrize("target", ["/v1/models", "/v1/chat/completions"])
def test_an_upstream_that_does_not_take_the_connection_is_a_504(
    gateway: GatewayFor, unanswering_url: str, target: str
) -> None:
    slow = gateway(DOWNSTREAM_URL=unanswering_url, CONNECT_TIMEOUT_SECONDS="0.3")
    answer = call(slow.port, "POST", target, body=b'{"stream": true}')
    assert answer.status == 504
    assert _is_openai_error(answer.body)


@pytest.mark.parametrize("before", [[Cut()], [Reset()], [SendRaw(b"no HTTP at all\r\n\r\n"), Cut()]])
@pytest.mark.parametrize("target", ["/v1/models", "/v1/chat/completions"])
def test_an_upstream_that_ends_before_its_headers_is_a_502(
    plain: Gateway, upstream: Upstream, target: str, before: list[Cut]
) -> None:
    upstream.script(Reply(before=before))
    answer = call(plain.port, "POST", target, body=b'{"stream": true, "messages": []}')
    assert answer.status == 502
    assert _is_openai_error(answer.body)
    assert len(upstream.requests) == 1


def test_the_request_id_is_the_clients(plain: Gateway, upstream: Upstream) -> None:
    upstream.script(whole(b"x", headers=[("X-Request-Id", "of the upstream")]), OK)
    answer = call(plain.port, "GET", "/v1/models", [("X-Request-Id", "mine-1")])
    assert answer.all("X-Request-Id") == ["mine-1"]


def test_a_request_id_is_made_where_there_is_none(plain: Gateway, upstream: Upstream) -> None:
    upstream.script(OK, OK)
    ids = [call(plain.port, "GET", "/v1/models").all("X-Request-Id") for _ in range(2)]
    assert [len(each) for each in ids] == [1, 1]
    assert ids[0] != ids[1]
    assert all(len(each[0]) >= 16 for each in ids)


@pytest.mark.parametrize(
    "sent, used",
    [
        ("a b\x1b[31m\xc3\xa9", "a%20b%1B[31m%C3%A9"),
        ("x" * 5000, "x" * 128),
        ("mine-1: rescued", "mine-1:%20rescued"),
        ("ab-01_9.x/100%", "ab-01_9.x/100%"),
    ],
)
def test_a_request_id_is_reflected_and_logged_quoted_and_cut(
    gateway: GatewayFor, refusing_url: str, sent: str, used: str
) -> None:
    one = gateway(DOWNSTREAM_URL=refusing_url)
    before = len(one.log)
    answer = call(one.port, "GET", "/v1/models", [("X-Request-Id", sent)])
    assert answer.all("X-Request-Id") == [used]
    logged = one.log[before:]
    assert f"request {used}: " in logged
    assert "\x1b" not in logged


def test_downstream_gets_the_request_id_as_the_client_sent_it(plain: Gateway, upstream: Upstream) -> None:
    upstream.script(OK)
    sent = "two words, " + "x" * 200
    call(plain.port, "GET", "/v1/models", [("X-Request-Id", sent)])
    assert upstream.requests[0].header("X-Request-Id") == sent


def test_other_paths_answer_404_where_prefixes_are_named(gateway: GatewayFor, upstream: Upstream) -> None:
    fenced = gateway(PASSTHROUGH_PATHS="/v1/,/tokenize")
    upstream.script(OK, OK, OK)
    for target in ["/v1/models", "/tokenize", "/v1/chat/completions"]:
        assert call(fenced.port, "POST", target, body=b"{}").status == 200
    for target in ["/", "/detokenize", "/v2/models", "/x?/v1/", "//v1/models", "/server_info"]:
        answer = call(fenced.port, "POST", target, body=b"{}")
        assert answer.status == 404
        assert _is_openai_error(answer.body)
    assert len(upstream.requests) == 3


@pytest.mark.parametrize("target", ["/v1/streams/x", "/v1/streams/x/status", "/static/none.css", "/admin"])
def test_the_gateways_own_paths_never_go_downstream(plain: Gateway, upstream: Upstream, target: str) -> None:
    upstream.script()
    answer = call(plain.port, "GET", target)
    assert answer.status == 404
    assert _is_openai_error(answer.body)
    assert upstream.requests == []


@pytest.mark.parametrize("target", ["/health", "/ready"])
def test_health_and_readiness_answer_by_themselves(plain: Gateway, upstream: Upstream, target: str) -> None:
    upstream.script()
    answer = call(plain.port, "GET", target)
    assert answer.status == 200
    assert "application/json" in (answer.header("Content-Type") or "")
    assert isinstance(answer.json(), dict)
    assert upstream.requests == []


def test_djangos_manners_do_not_reach_the_api(plain: Gateway, upstream: Upstream) -> None:
    """No slash is added, no CSRF token wanted, no host refused, no HTML given."""
    upstream.script(*[OK] * 4)
    assert call(plain.port, "POST", "/v1/embeddings", body=b"{}").json() == {"ok": True}
    form = [("Content-Type", "application/x-www-form-urlencoded"), ("Origin", "https://elsewhere.example")]
    assert call(plain.port, "POST", "/v1/embeddings", form, b"a=1").json() == {"ok": True}
    assert upstream.requests[1].body == b"a=1"
    foreign = [("Host", "elsewhere.example")]
    assert call(plain.port, "POST", "/v1/chat/completions", foreign, b"{}").json() == {"ok": True}
    part = [("Content-Type", "multipart/form-data; boundary=x")]
    upload = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\xff\x00\r\n--x--\r\n'
    )
    assert call(plain.port, "POST", "/v1/audio/transcriptions", part, upload).json() == {"ok": True}
    assert upstream.requests[3].body == upload


def test_no_cookie_is_kept_for_the_next_client(plain: Gateway, upstream: Upstream) -> None:
    upstream.script(whole(b"x", headers=[("Set-Cookie", "session=of-the-first; Path=/")]), OK, OK)
    assert call(plain.port, "GET", "/v1/models").all("Set-Cookie") == ["session=of-the-first; Path=/"]
    call(plain.port, "GET", "/v1/models")
    call(plain.port, "POST", "/v1/chat/completions", body=b'{"stream": true}')
    assert [request.all("Cookie") for request in upstream.requests] == [[], [], []]


def test_downstreams_path_prefix_is_kept(gateway: GatewayFor, upstream: Upstream) -> None:
    prefixed = gateway(DOWNSTREAM_URL=f"{upstream.url}/router/a")
    upstream.script(OK, OK)
    call(prefixed.port, "GET", "/v1/models?x=%2F")
    call(prefixed.port, "POST", "/v1/chat/completions", body=b'{"stream": true}')
    targets = [request.target for request in upstream.requests]
    assert targets == ["/router/a/v1/models?x=%2F", "/router/a/v1/chat/completions"]


# -- the mark of an empty query -----------------------------------------------------------------------


@pytest.fixture
def serving(
    fleet: Fleet, upstream: Upstream, second_upstream: Upstream, watched: Callable[[Gateway], Gateway]
) -> Gateway:
    """Under `serve`, which tells the target as it was sent."""
    settings = {
        "DOWNSTREAM_URL": upstream.url,
        "CONTINUATION_URL": second_upstream.url,
        "CONTINUATION_MODEL": "house-model",
    }
    return watched(fleet(settings, "serve"))


@pytest.mark.parametrize("target", ["/v1/x?", "/v1/x", "/v1/x??", "/v1/x?a", "/?", "/v1/x%3F", "/v1/x?a?b="])
def test_an_empty_query_keeps_its_mark(serving: Gateway, upstream: Upstream, target: str) -> None:
    upstream.script(OK)
    assert call(serving.port, "GET", target).status == 200
    assert upstream.requests[0].target == target


@pytest.mark.parametrize("mark", ["?", "", "?a=b"])
def test_a_continuation_asks_for_the_target_as_it_was_sent(
    serving: Gateway, upstream: Upstream, second_upstream: Upstream, mark: str
) -> None:
    upstream.script(Reply([*started(VLLM, [], ["some "]), Cut()]))
    second_upstream.script(Reply([*started(VLLM_LEG2, [], ["text"]), *ended(VLLM_LEG2)]))
    sent, target = json.dumps(body()).encode(), f"/v1/chat/completions{mark}"
    answer = call(serving.port, "POST", target, [("Content-Type", "application/json")], sent)
    assert answer.body.count(b"[DONE]") == 1
    assert [upstream.requests[0].target, second_upstream.requests[0].target] == [target, target]


# -- kept connections ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Cut(), Reset()])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/chat/completions"])
def test_a_kept_connection_that_closes_as_it_is_used_is_named(
    gateway: GatewayFor, upstream: Upstream, end: Step, path: str
) -> None:
    one = gateway(DOWNSTREAM_KEEPALIVE_SECONDS="30")
    upstream.script(OK, OK, Reply(before=[end]))
    sent = json.dumps(body()).encode()
    assert [call(one.port, "POST", path, body=sent).status for _ in range(2)] == [200, 200]
    answer = call(one.port, "POST", path, body=sent)
    assert (answer.status, answer.json()["error"]["code"]) == (502, "downstream_unreachable")
    assert "DOWNSTREAM_KEEPALIVE_SECONDS" in answer.json()["error"]["message"]
    assert len(upstream.requests) == 3  # nothing was sent twice


def test_a_new_connection_that_closes_unanswered_is_not_taken_for_a_kept_one(
    gateway: GatewayFor, upstream: Upstream
) -> None:
    upstream.script(Reply(before=[Cut()]))
    answer = call(gateway(DOWNSTREAM_KEEPALIVE_SECONDS="0").port, "POST", "/v1/embeddings", body=b"{}")
    assert answer.status == 502
    assert "DOWNSTREAM_KEEPALIVE_SECONDS" not in answer.json()["error"]["message"]


def test_without_keepalive_no_connection_is_used_twice(gateway: GatewayFor, upstream: Upstream) -> None:
    one = gateway(DOWNSTREAM_KEEPALIVE_SECONDS="0")
    upstream.script(OK, OK, OK)
    for _ in range(3):
        assert call(one.port, "POST", "/v1/embeddings", body=b"{}").status == 200
    assert [request.connection.served for request in upstream.requests] == [1, 1, 1]
    assert [request.all("Connection") for request in upstream.requests] == [["close"]] * 3


def test_an_idle_connection_is_closed_when_its_seconds_are_over(
    gateway: GatewayFor, upstream: Upstream
) -> None:
    one = gateway(DOWNSTREAM_KEEPALIVE_SECONDS="0.3")
    upstream.script(OK, OK)
    assert call(one.port, "POST", "/v1/embeddings", body=b"{}").status == 200
    upstream.requests[0].connection.wait_closed_by_peer()
    assert call(one.port, "POST", "/v1/embeddings", body=b"{}").status == 200
    assert upstream.requests[1].connection is not upstream.requests[0].connection


# -- IPv6 ---------------------------------------------------------------------------------------------


@pytest.fixture
def of_ipv6() -> Iterator[Wire]:
    one = Wire("::1")
    yield one
    one.stop()


def test_a_downstream_with_an_ipv6_address_is_reached(gateway: GatewayFor, of_ipv6: Wire) -> None:
    one = gateway(DOWNSTREAM_URL=f"{of_ipv6.url}/base")
    for path in ("/v1/embeddings?x=1", "/v1/chat/completions"):
        assert call(one.port, "POST", path, body=b'{"stream":true}').json() == {}
    first, second = of_ipv6.wait_for("/base/v1/chat/completions")
    assert (first.target, second.target) == ("/base/v1/embeddings?x=1", "/base/v1/chat/completions")
    assert first.all(b"host") == [f"[::1]:{of_ipv6.port}".encode()]


def test_a_continuation_url_with_an_ipv6_address_is_reached(
    gateway: GatewayFor, upstream: Upstream, of_ipv6: Wire, chat: Chat
) -> None:
    upstream.script(Reply([*started(VLLM, [], ["some "]), Cut()]))
    stream = chat(gateway(CONTINUATION_URL=of_ipv6.url), body()).read_rest()
    assert stream.complete
    (leg2,) = of_ipv6.wait_for("/v1/chat/completions")
    assert b"continue_final_message" in leg2.body


# -- faults of the gateway's own ----------------------------------------------------------------------


def test_a_continuation_that_cannot_be_written_down_is_a_fault_of_the_gateway(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway(CONTINUATION_API_KEY="a\x1bkey")
    upstream.script(Reply([*started(VLLM, [], ["some "]), Cut()]))
    stream = chat(one, body()).read_rest()
    assert b'"code":"internal_error"' in stream.body
    assert one.event(stream.all("X-Request-Id")[0])["reason"] == "internal_error"
    assert "LocalProtocolError" in one.new_log()
