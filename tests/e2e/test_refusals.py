"""What is refused, by whom, and how it says so."""

import json
from collections.abc import Iterator

import pytest

from tests.docs.test_tables import refusals
from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.scenes import SMALL, raw
from tests.harness.client import call, request_id
from tests.harness.gateway import TROUBLE, Database, Gateway
from tests.harness.upstream import Headers, Upstream, whole

Asked = tuple[dict[str, str], str, str, Headers, bytes]


REFUSED: dict[str, list[tuple[int, Asked]]] = {
    "invalid_header": [(400, ({}, "GET", "/v1/models", [("X-Y", "\x1b[31m")], b""))],
    "not_found": [
        (404, ({"PASSTHROUGH_PATHS": "/v1/"}, "GET", "/tokenize", (), b"")),
        (404, ({}, "GET", "/v1/streams/none", (), b"")),
        (404, ({"GATEWAY_ROLE": "proxy"}, "GET", "/admin/", (), b"")),
        (404, ({"GATEWAY_ROLE": "admin"}, "POST", "/v1/chat/completions", (), b"{}")),
        (404, ({}, "CONNECT", "elsewhere.example:443", (), b"")),
    ],
    "method_not_allowed": [
        (405, ({}, "POST", "/health", (), b"")),
        (405, ({}, "DELETE", "/ready", (), b"")),
        (405, ({}, "CONNECT", "/v1/models", (), b"")),
    ],
    "request_too_large": [
        (413, ({"MAX_REQUEST_BODY_MB": "0.1", **SMALL}, "POST", path, (), bytes(200_000)))
        for path in ("/v1/files", "/v1/chat/completions")
    ],
    "downstream_unreachable": [
        (502, ({"DOWNSTREAM_URL": "refusing"}, "POST", path, (), json.dumps(body()).encode()))
        for path in ("/v1/embeddings", "/v1/chat/completions")
    ],
    "downstream_timeout": [
        (504, ({"DOWNSTREAM_URL": "mute", "CONNECT_TIMEOUT_SECONDS": "0.3"}, "POST", path, (), b"{}"))
        for path in ("/v1/embeddings", "/v1/chat/completions")
    ],
}


# Those that a view cannot provoke are beside the core's tests, that of a stop is with those of the stop;
# those of who comes back, and of the metrics, are with theirs.
COMING_BACK = {"bad_cursor", "expired", "trimmed", "resume_unavailable"}


# These need a server or a shortage of their own: see test_serve_clients.py and test_descriptors.py.
SERVED = {"request_timeout", "overloaded"}


ELSEWHERE = {"internal_error", "bad_request", "shutting_down", "unauthorized"} | SERVED | COMING_BACK


LOGGED = {"invalid_header", "downstream_unreachable", "downstream_timeout", "request_too_large"}


EACH = [(code, status, asked) for code, cases in REFUSED.items() for status, asked in cases]


def test_each_refusal_has_its_request_here() -> None:
    assert {code for code, _status in refusals()} == set(REFUSED) | ELSEWHERE


@pytest.mark.parametrize("code,status,asked", EACH, ids=[f"{c}-{a[1]}-{a[2]}" for c, _, a in EACH])
def test_what_is_refused_says_so_by_name(
    gateway: GatewayFor,
    upstream: Upstream,
    refusing_url: str,
    unanswering_url: str,
    code: str,
    status: int,
    asked: Asked,
) -> None:
    settings, method, target, headers, sent = asked
    urls = {"refusing": refusing_url, "mute": unanswering_url}
    upstream.script()
    one = gateway(**{name: urls.get(value, value) for name, value in settings.items()})
    mine = request_id()
    answer = call(one.port, method, target, [("X-Request-Id", mine), *headers], sent)
    assert (answer.status, answer.all("Content-Type")) == (status, ["application/json"])
    error = answer.json()["error"]
    assert (error["code"], set(error)) == (code, {"message", "type", "code"})
    assert error["message"].endswith(".")
    assert answer.all("X-Request-Id") == [mine]
    assert (f"request {mine}: {code}: " in one.log) is (code in LOGGED)
    assert upstream.requests == []


@pytest.fixture(scope="module")
def serving(
    tmp_path_factory: pytest.TempPathFactory, session_upstream: Upstream, migrated: Database
) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("gateway")
    one = Gateway({"DOWNSTREAM_URL": session_upstream.url}, migrated, directory, "serve")
    yield one
    assert one.stop(60) == 0
    assert not TROUBLE.search(one.log), one.log


NO_HTTP = {
    "a path that is no text": (b"GET /caf\xc3\xa9 HTTP/1.1", b"X: 1"),
    "a query that is no text": (b"GET /x?q=\xe9 HTTP/1.1", b"X: 1"),
    "no request line": (b"GET", b"X: 1"),
    "another protocol": (b"GET /x HTTP/9.9", b"X: 1"),
    "a header without a name": (b"GET /x HTTP/1.1", b": 1"),
    "a space in a name": (b"GET /x HTTP/1.1", b"X Y: 1"),
    "a NUL": (b"GET /x HTTP/1.1", b"X: a\x00b"),
    "two lengths": (b"POST /x HTTP/1.1", b"Content-Length: 3\r\nTransfer-Encoding: chunked"),
    "a length that is none": (b"POST /x HTTP/1.1", b"Content-Length: -1"),
    "five hundred headers": (b"GET /x HTTP/1.1", b"\r\n".join(b"X-%d: 1" % n for n in range(501))),
}


TOO_LONG = {
    "a long target": (b"GET /" + b"x" * 17_000 + b" HTTP/1.1", b"X: 1"),
    "a long header": (b"GET /x HTTP/1.1", b"X: " + b"x" * 17_000),
}


@pytest.mark.parametrize("server", ["daphne", "serve"])
@pytest.mark.parametrize("name", [*NO_HTTP, *TOO_LONG])
def test_what_is_no_http_is_refused_before_the_gateway_sees_it(
    plain: Gateway, serving: Gateway, upstream: Upstream, server: str, name: str
) -> None:
    upstream.script()
    first, header = (NO_HTTP | TOO_LONG)[name]
    one = serving if server == "serve" else plain
    received = raw(one, b"\r\n".join([first, b"Host: a", b"Connection: close", header, b"", b""]))
    assert received == (b"HTTP/1.1 400 Bad Request\r\n\r\n" if name in NO_HTTP else b"")
    assert upstream.requests == []


def test_a_websocket_is_refused_and_goes_nowhere(plain: Gateway, upstream: Upstream) -> None:
    upstream.script()
    handshake = (
        b"GET /v1/realtime HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert raw(plain, handshake).startswith(b"HTTP/1.1 403 ")
    assert upstream.requests == []


@pytest.mark.parametrize(
    "status,headers",
    [
        ("429 Too Many Requests", [("Retry-After", "7"), ("X-RateLimit-Remaining", "0")]),
        ("401 Unauthorized", [("WWW-Authenticate", "Bearer")]),
        ("307 Temporary Redirect", [("Location", "/v1/elsewhere")]),
        ("503 Service Unavailable", [("Retry-After", "1")]),
    ],
)
def test_a_chat_that_the_engine_refuses_is_refused_in_its_own_words(
    plain: Gateway, upstream: Upstream, chat: Chat, status: str, headers: Headers
) -> None:
    """Nothing has failed in mid-answer: there is no second request, and no row."""
    told = b'{"error": {"message": "no", "type": "t", "code": null}}'
    upstream.script(whole(told, status, [("Content-Type", "application/json"), *headers]))
    stream = chat(plain, body()).read_rest()
    assert (stream.status, stream.body) == (int(status[:3]), told)
    assert [stream.header(name) for name, _value in headers] == [value for _name, value in headers]
    assert plain.events(stream.request_id, count=0) == []
