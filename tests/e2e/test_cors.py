"""Browsers of other origins: those of CORS_ALLOWED_ORIGINS may ask for streams and come back to them."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.resuming import Ticket, ask, close_all, come_back
from tests.harness.client import Stream, call, one_whole_answer, request_id
from tests.harness.gateway import SERVER, Gateway
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import (
    EVENT_STREAM,
    PATIENCE,
    Gate,
    Headers,
    HoldOpen,
    Pause,
    Reply,
    Reset,
    Upstream,
    json_reply,
    whole,
)

APP = "https://app.example.org"
OTHER = "https://other.example.org:8443"
FOREIGN = "https://evil.example.org"
FROM_APP: Headers = [("Origin", APP)]
ORIGINS = {"CORS_ALLOWED_ORIGINS": f"{APP},{OTHER}"}
STREAM = f"/v1/streams/{'0' * 32}"
EXPOSED = {
    "Retry-After",
    "X-Continuation",
    "X-Last-Event-Id",
    "X-Request-Id",
    "X-Resume",
    "X-Resume-Token",
    "X-Stream-Id",
}
# What an engine with origins of its own says.
ENGINES_OWN: Headers = [
    ("Access-Control-Allow-Origin", "*"),
    ("access-control-allow-credentials", "true"),
    ("Access-Control-Expose-Headers", "X-Engine"),
    ("Vary", "Accept-Encoding"),
    ("vary", "Origin"),
]
OF_THE_ENGINE = sorted((name.lower(), value) for name, value in ENGINES_OWN)


def told(stream: Stream) -> list[tuple[str, str]]:
    """What an answer says of origins, and by what it varies."""
    names = sorted({name.lower() for name, _ in stream.headers})
    about = [name for name in names if name.startswith("access-control-") or name == "vary"]
    return [(name, value) for name in about for value in stream.all(name)]


def for_the_app(stream: Stream, vary: str = "origin") -> None:
    """Each header once."""
    (origin, exposed, varies) = told(stream)
    assert origin == ("access-control-allow-origin", APP)
    assert exposed[0] == "access-control-expose-headers"
    assert set(exposed[1].split(", ")) == EXPOSED
    assert varies == ("vary", vary)


# -- preflights ------------------------------------------------------------------------------------


def preflight(one: Gateway, path: str, origin: str, method: str = "POST", asked: str = "") -> Stream:
    headers = [("Origin", origin), ("Access-Control-Request-Method", method)]
    return call(
        one.port, "OPTIONS", path, [*headers, *([("Access-Control-Request-Headers", asked)] if asked else [])]
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", STREAM, f"{STREAM}/status"])
@pytest.mark.parametrize("origin", [APP, OTHER])
def test_a_preflight_is_answered_by_the_gateway(
    gateway: GatewayFor, upstream: Upstream, path: str, origin: str
) -> None:
    answer = preflight(gateway(**ORIGINS), path, origin, "DELETE", "x-resume-token,last-event-id")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.all("Access-Control-Allow-Origin") == [origin]
    assert set((answer.header("Access-Control-Allow-Methods") or "").split(", ")) == {
        "GET",
        "POST",
        "DELETE",
        "OPTIONS",
    }
    assert set((answer.header("Access-Control-Allow-Headers") or "").split(", ")) >= {
        "authorization",
        "cache-control",
        "content-type",
        "last-event-id",
        "x-continuation",
        "x-request-id",
        "x-resumable",
        "x-resume-events",
        "x-resume-token",
        "x-stainless-retry-count",
    }
    assert int(answer.header("Access-Control-Max-Age") or 0) > 0
    assert answer.all("Access-Control-Allow-Credentials") == []
    assert answer.all("Vary") == ["origin"]
    assert upstream.requests == []


@pytest.mark.parametrize(
    "origin",
    [FOREIGN, "null", "https://app.example.org:444", "http://app.example.org", f"{APP}.evil.org", "", "[x"],
)
def test_a_preflight_of_any_other_origin_is_granted_nothing(
    gateway: GatewayFor, upstream: Upstream, origin: str
) -> None:
    answer = preflight(gateway(**ORIGINS), "/v1/chat/completions", origin)
    assert told(answer) == [("vary", "origin")]
    assert upstream.requests == []


@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/v1/chat/completions/x", "/v1/chat/completionsx", "/v1/streams", "/x/v1/streams/1", "/"],
)
def test_a_preflight_for_any_other_path_is_passed_through(
    gateway: GatewayFor, upstream: Upstream, path: str
) -> None:
    upstream.script(whole(b"", headers=ENGINES_OWN))
    answer = preflight(gateway(**ORIGINS), path, APP)
    assert told(answer) == OF_THE_ENGINE
    assert [request.method for request in upstream.requests] == ["OPTIONS"]


# -- answers ---------------------------------------------------------------------------------------


def test_a_guarded_stream_is_for_the_origin_that_asked_whatever_the_engine_says(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one, gate = gateway(**ORIGINS), Gate()
    upstream.script(
        Reply([*started(VLLM, [], ["half "]), Pause(gate), Reset()], headers=[*EVENT_STREAM, *ENGINES_OWN]),
        Reply([VLLM_LEG2.role(), VLLM_LEG2.content("an answer"), *ended(VLLM_LEG2)]),
    )
    stream = chat(one, body(), FROM_APP)
    stream.read_until("half ")
    gate.open()
    one_whole_answer(stream.read_rest(), reasoning="", content="half an answer", like=VLLM)
    for_the_app(stream, "Accept-Encoding, origin")
    assert stream.all("Content-Type") == ["text/event-stream; charset=utf-8"]
    assert stream.all("X-Continuation") == ["guarded"]


def test_a_foreign_origin_is_granted_nothing_whatever_the_engine_says(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)], headers=[*EVENT_STREAM, *ENGINES_OWN]))
    stream = chat(gateway(**ORIGINS), body(), [("Origin", FOREIGN)]).read_rest()
    assert told(stream) == [("vary", "Accept-Encoding, origin")]
    one_whole_answer(stream, reasoning="", content="a", like=VLLM)


def test_who_names_no_origin_is_answered_as_ever(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    cookies = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)], headers=[*EVENT_STREAM, *cookies]))
    stream = chat(gateway(**ORIGINS), body()).read_rest()
    assert told(stream) == [("vary", "origin")]
    assert stream.all("Set-Cookie") == ["a=1", "b=2"]


def test_an_answer_that_is_passed_through_is_for_the_origin_too(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    upstream.script(json_reply({"error": {"message": "no such model"}}, "404 Not Found"))
    stream = chat(gateway(**ORIGINS), body(stream=False), FROM_APP).read_rest()
    assert (stream.status, stream.all("Content-Type")) == (404, ["application/json"])
    for_the_app(stream)


@pytest.mark.parametrize("path", [STREAM, f"{STREAM}/status", f"{STREAM}/nothing", "/v1/streams/x"])
def test_that_there_is_no_such_stream_can_be_read(gateway: GatewayFor, path: str) -> None:
    answer = call(gateway(**ORIGINS).port, "GET", path, FROM_APP)
    assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")
    for_the_app(answer)


def test_every_refusal_of_a_chat_request_can_be_read(
    gateway: GatewayFor, chat: Chat, refusing_url: str
) -> None:
    away = chat(gateway(DOWNSTREAM_URL=refusing_url, **ORIGINS), body(), FROM_APP).read_rest()
    assert (away.status, away.json()["error"]["code"]) == (502, "downstream_unreachable")
    for_the_app(away)
    nothing = chat(gateway(GATEWAY_ROLE="admin", **ORIGINS), body(), FROM_APP).read_rest()
    assert (nothing.status, nothing.json()["error"]["code"]) == (404, "not_found")
    for_the_app(nothing)


def test_a_body_that_the_application_finds_too_large_is_refused_so_that_it_can_be_read(
    gateway: GatewayFor, chat: Chat
) -> None:
    """Where the server itself finds it, before it has come whole, nobody has looked at its origin yet."""
    one = gateway(MAX_REQUEST_BODY_MB="0.001", MAX_CONTINUATION_BODY_MB="0.001", **ORIGINS)
    answer = chat(one, b"x" * 3000, FROM_APP).read_rest()
    assert (answer.status, answer.json()["error"]["code"]) == (413, "request_too_large")
    if SERVER == "daphne":
        for_the_app(answer)
    else:
        assert told(answer) == []


def test_coming_back_and_looking_and_stopping_are_for_the_origin(
    gateway: GatewayFor, upstream: Upstream
) -> None:
    one = gateway(**ORIGINS)
    upstream.script(Reply([*started(VLLM, [], ["a"]), HoldOpen()]))
    first = ask(one, FROM_APP)
    ticket = Ticket.of(first)
    for_the_app(first)
    first.read_until('"a"')
    second = come_back(one, ticket, 0, FROM_APP)
    second.read_until('"a"')
    for_the_app(second)
    assert {"X-Stream-Id", "X-Resume-Token", "X-Last-Event-Id"} <= {name for name, _ in second.headers}
    token = [("X-Resume-Token", ticket.token), *FROM_APP]
    for method, path in (("GET", "/status"), ("DELETE", "")):
        answer = call(one.port, method, ticket.address + path, token)
        assert answer.status == 200
        for_the_app(answer)
    close_all()


def test_an_event_source_says_its_token_in_the_address(gateway: GatewayFor, upstream: Upstream) -> None:
    """It can send no headers of its own."""
    one = gateway(**ORIGINS)
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]))
    first = ask(one, FROM_APP).read_rest()
    ticket = Ticket.of(first)
    accept = [("Accept", "text/event-stream"), ("Cache-Control", "no-cache")]
    address = f"{ticket.address}?token={ticket.token}&last_event_id=1"
    answer = call(one.port, "GET", address, [*accept, *FROM_APP])
    assert answer.status == 200
    for_the_app(answer)
    last = answer.header("X-Last-Event-Id") or ""
    over = call(one.port, "GET", address, [*accept, *FROM_APP, ("Last-Event-ID", last)])
    assert over.status == 204
    for_the_app(over)
    close_all()


def test_with_a_star_every_origin_is_granted_the_same(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway(CORS_ALLOWED_ORIGINS="*")
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)], headers=[*EVENT_STREAM, *ENGINES_OWN]))
    stream = chat(one, body(), [("Origin", FOREIGN)]).read_rest()
    assert stream.all("Access-Control-Allow-Origin") == ["*"]
    assert stream.all("Access-Control-Allow-Credentials") == []
    assert preflight(one, STREAM, "null").all("Access-Control-Allow-Origin") == ["*"]


def test_without_origins_nothing_changes(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    one = gateway()
    upstream.script(
        whole(b"", headers=ENGINES_OWN),
        Reply([*started(VLLM, [], ["a"]), *ended(VLLM)], headers=[*EVENT_STREAM, *ENGINES_OWN]),
        Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]),
    )
    for answer in (preflight(one, "/v1/chat/completions", APP), chat(one, body(), FROM_APP).read_rest()):
        assert told(answer) == OF_THE_ENGINE
    assert [request.method for request in upstream.requests] == ["OPTIONS", "POST"]
    assert told(chat(one, body(), FROM_APP).read_rest()) == []
    assert told(preflight(one, STREAM, APP)) == []


# -- the stream itself -----------------------------------------------------------------------------


def test_a_stream_flows_and_is_let_go_of_as_it_would_be_without(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one, gates = gateway(**ORIGINS), [Gate() for _ in range(3)]
    steps = [step for n, gate in enumerate(gates) for step in (VLLM.content(f"piece {n}"), Pause(gate))]
    upstream.script(Reply([VLLM.role(), *steps, HoldOpen()]))
    stream = chat(one, body(), FROM_APP)
    for n, gate in enumerate(gates):
        stream.read_until(f"piece {n}")  # the engine waits: nothing is held back for what comes next
        gate.open()
    connection = upstream.requests[-1].connection
    assert not connection.gone.is_set()
    left = stream.drop()
    assert connection.wait_closed_by_peer() - left < 1.0
    assert one.event(stream.request_id)["outcome"] == "client_gone"


def test_a_request_is_let_go_of_before_its_answer(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    upstream.script(Reply(before=[HoldOpen()]))
    stream = chat(gateway(**ORIGINS), body(), FROM_APP)
    (request,) = upstream.wait_for_requests(1)
    left = stream.drop()
    assert request.connection.wait_closed_by_peer() - left < 1.0


def test_streams_that_are_open_have_no_threads(
    gateway: GatewayFor, upstream: Upstream, open_stream: Callable[..., Stream], chat: Chat
) -> None:
    one = gateway(**ORIGINS)
    upstream.respond(lambda request: Reply([*started(VLLM, [], ["a"]), HoldOpen()]))
    chat(one, body(), FROM_APP).read_until('"a"')
    before = threads(one)
    for _ in range(40):
        chat(one, body(), [*FROM_APP, ("X-Request-Id", request_id())]).read_until('"a"')
    until = time.monotonic() + PATIENCE
    while threads(one) > before + 2:  # of the audit, and of the strategies, which come and go
        assert time.monotonic() < until, threads(one)
        time.sleep(0.05)


def threads(one: Gateway) -> int:
    return len(list(Path(f"/proc/{one.pid}/task").iterdir()))
