"""More neighbours of faults that are known of software of this kind, over sockets; and all that is refused or passed
through, by its name."""

import codecs
import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from continuation.vocabulary import PassReason
from tests.docs.test_tables import refusals
from tests.e2e.asking import QUESTION, asking_usage, body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.faults import CUT, EOF, Fault
from tests.e2e.test_token_route import TOKEN_ROUTE, rows_edited
from tests.harness.client import Answer, Stream, call, one_failed_ending, one_whole_answer, request_id
from tests.harness.gateway import TROUBLE, Database, Gateway
from tests.harness.shapes import SGLANG, SGLANG_LEG2, VLLM, VLLM_LEG2, Sglang, Vllm, ended, joined, started
from tests.harness.upstream import (
    DONE,
    EVENT_STREAM,
    Cut,
    Gate,
    Headers,
    HoldOpen,
    Pause,
    Reply,
    Request,
    Send,
    Step,
    Upstream,
    event,
    json_reply,
    whole,
)

LEG1 = Reply([*started(VLLM, [], ["some "]), Cut()])
LEG2 = Reply([*started(VLLM_LEG2, [], ["text"]), *ended(VLLM_LEG2)])


@pytest.fixture
def plain(gateway: GatewayFor) -> Gateway:
    return gateway()


# -- passed through, by name --------------------------------------------------------------------------

ODD = b'\xef\xbb\xbfdata: {"x"\r\r\n: \xff\n\ndata:[DONE]\n\nevent: error\ndata: no end'
GZIP = [*EVENT_STREAM, ("Content-Encoding", "gzip")]
SMALL = {"MAX_CONTINUATION_BODY_MB": "0.01"}
PASSED: dict[PassReason, tuple[dict[str, str], Any, Headers, Headers]] = {
    PassReason.BODY_TOO_LARGE: (SMALL, body(filler="x" * 20_000), (), EVENT_STREAM),
    PassReason.NOT_JSON: ({}, b"{no json", (), EVENT_STREAM),
    PassReason.NOT_STREAM: ({}, body(stream=False), (), EVENT_STREAM),
    PassReason.CLIENT_OPT_OUT: ({}, body(), [("X-Continuation", "off")], EVENT_STREAM),
    PassReason.CLIENT_CONTINUATION: ({}, body(continue_final_message=True), (), EVENT_STREAM),
    PassReason.STRUCTURED_OUTPUT: ({}, body(guided_json={"type": "object"}), (), EVENT_STREAM),
    PassReason.NO_STRATEGY: ({"CONTINUATION_MODEL": ""}, body(), (), EVENT_STREAM),
    PassReason.CONTENT_ENCODED: ({}, body(), (), GZIP),
}


def test_each_reason_to_pass_through_has_its_request_here() -> None:
    assert list(PASSED) == list(PassReason)


@pytest.mark.parametrize("reason", PASSED)
def test_what_is_passed_through_says_why_and_is_left_alone(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, reason: PassReason
) -> None:
    settings, asked, headers, answered = PASSED[reason]
    upstream.script(Reply([Send(ODD)], headers=answered))
    stream = chat(gateway(**settings), asked, headers).read_rest()
    assert stream.all("X-Continuation") == [f"passthrough; reason={reason}"]
    assert (stream.body, stream.complete) == (ODD, True)
    sent = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    assert [request.body for request in upstream.requests] == [sent]


NAME = {"name": "x", "schema": {"type": "object"}}
UNMENDED: dict[str, dict[str, Any]] = {
    "json_schema": body(response_format={"type": "json_schema", "json_schema": NAME}),
    "json_object": body(response_format={"type": "json_object"}),
    "regex": body(regex=r"\{.*\}"),
    "a continuation": body(continue_final_message=True, add_generation_prompt=False),
}


@pytest.mark.parametrize("name", UNMENDED)
def test_a_json_that_breaks_off_where_it_cannot_be_continued_breaks_off_for_the_client(
    plain: Gateway, upstream: Upstream, chat: Chat, name: str
) -> None:
    """A second request would be beyond the script."""
    gate, said = Gate(), started(VLLM, [], ['{"a":1,'])
    upstream.script(Reply([*said, Pause(gate), Cut()]))
    stream = chat(plain, UNMENDED[name])
    stream.read_until(said[-1].data)
    gate.open()
    assert stream.read_rest().body == joined(said)
    assert not stream.complete


def of(index: int, text: str = "", finish: str | None = None) -> Send:
    """An event of one of several choices."""
    one = {"index": index, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return event({"id": VLLM.id, "object": "chat.completion.chunk", "choices": [one]})


TURNS = [of(0, "a"), of(1, "b"), of(0, "c", "stop"), of(1, "d"), of(1, "e"), of(1, "", "length")]


@pytest.mark.parametrize("said", [TURNS[:2], TURNS[:3], TURNS[:5]], ids=["neither", "one", "all-but-the-end"])
@pytest.mark.parametrize(
    "end", [[], [DONE], [VLLM.usage(9, 5), DONE], [Cut()]], ids=["eof", "done", "usage", "cut"]
)
def test_two_choices_that_break_off_end_failed_and_are_not_continued(
    plain: Gateway, upstream: Upstream, chat: Chat, said: list[Send], end: list[Any]
) -> None:
    """A second request would be beyond the script."""
    gate = Gate()
    upstream.script(Reply([*said, Pause(gate), *end]))
    stream = chat(plain, asking_usage(n=2))
    stream.read_until(said[-1].data)
    gate.open()
    stream.read_rest()
    assert (stream.complete, stream.all("X-Continuation")) == (True, ["guarded"])
    counted = joined([one for one in end if isinstance(one, Send) and one is not DONE])
    assert stream.body.startswith(joined(said) + counted + b'data: {"error":')
    assert last_error(stream.body)["code"] == "multiple_choices"
    assert b"[DONE]" not in stream.body
    assert plain.event(stream.request_id)["reason"] == "multiple_choices"


def test_two_choices_are_waited_for_however_long_they_are_silent(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    upstream.script(Reply([*TURNS[:3], Pause(0.8), *TURNS[3:], HoldOpen()]))
    stream = chat(gateway(STALL_IDLE_TIMEOUT_SECONDS="0.4"), body(n=2)).read_rest()
    assert (stream.body, stream.complete) == (joined([*TURNS, DONE]), True)


def last_error(stream: bytes) -> Any:
    return json.loads(stream.rstrip().split(b"data: ")[-1])["error"]


def test_two_choices_that_come_in_turns_arrive_with_both_ends_and_one_usage(
    plain: Gateway, upstream: Upstream, chat: Chat
) -> None:
    steps = [*TURNS, VLLM.usage(9, 5), DONE]
    upstream.script(Reply(steps))
    stream = chat(plain, asking_usage(n=2)).read_rest()
    assert (stream.body, stream.complete) == (joined(steps), True)


# -- refused, by name ---------------------------------------------------------------------------------

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


def raw(one: Gateway, request: bytes) -> bytes:
    """All that comes back until the gateway closes the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", one.port), timeout=30) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        while data := connection.recv(65536):
            received += data
    return received


def test_a_websocket_is_refused_and_goes_nowhere(plain: Gateway, upstream: Upstream) -> None:
    upstream.script()
    handshake = (
        b"GET /v1/realtime HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert raw(plain, handshake).startswith(b"HTTP/1.1 403 ")
    assert upstream.requests == []


# -- reasons that are in a row and in the log ---------------------------------------------------------


def _second_choice(text: str) -> Send:
    one = {"index": 1, "delta": {"content": text}, "finish_reason": None}
    return event({"id": VLLM.id, "object": "chat.completion.chunk", "choices": [one]})


ROWS: dict[str, tuple[list[Reply], tuple[str, str]]] = {
    "ending_lost": ([Reply([*started(VLLM, [], ["a"]), VLLM.finish()])], ("complete", "completed")),
    "multiple_choices": ([Reply([*started(VLLM, [], ["a"]), _second_choice("b")])], ("refuse", "failed")),
    "leg2_empty": (
        [Reply(started(VLLM, ["hm"])), Reply([VLLM_LEG2.role(), *ended(VLLM_LEG2)])],
        ("continue", "failed"),
    ),
    "leg2_refused": ([Reply(started(VLLM, ["hm"])), json_reply({}, "503 Away")], ("continue", "failed")),
    "no_recoverable_content": ([Reply([VLLM.role()])], ("refuse", "failed")),
}


@pytest.mark.parametrize("reason", ROWS)
def test_the_reason_is_in_the_row_and_in_the_log(
    plain: Gateway, upstream: Upstream, chat: Chat, reason: str
) -> None:
    replies, (decision, outcome) = ROWS[reason]
    upstream.script(*replies)
    stream = chat(plain, body()).read_rest()
    assert stream.complete
    row = plain.event(stream.request_id)
    assert (row["reason"], row["decision"], row["outcome"]) == (reason, decision, outcome)
    (line,) = (line for line in plain.log.splitlines() if f"request {stream.request_id}: eof " in line)
    assert line.endswith(f": {outcome} {reason}")


def test_a_client_that_left_is_in_the_row_and_in_the_log(
    plain: Gateway, upstream: Upstream, chat: Chat
) -> None:
    upstream.script(Reply([*started(VLLM, [], ["a"]), HoldOpen()]))
    stream = chat(plain, body())
    stream.read_until('"a"')
    stream.drop()
    assert plain.event(stream.request_id)["reason"] == "client_gone"
    assert f"request {stream.request_id}: left by its client" in plain.log


def test_an_answer_that_was_passed_through_and_broke_off_is_in_the_log(
    plain: Gateway, upstream: Upstream, chat: Chat
) -> None:
    gate = Gate()
    upstream.script(Reply([Send(b"part"), Pause(gate), Cut()]))
    stream = chat(plain, body(continue_final_message=True))
    stream.read_until(b"part")
    gate.open()
    assert not stream.read_rest().complete
    assert f"request {stream.request_id}: a passed-through answer broke off: " in plain.log


# -- what the answer claims to be ---------------------------------------------------------------------

MORE = "\u2029 und mehr: 杭州 🎉"
TEXT = "✅ caf\u00e9\u0085k\u2028v 渐😀"
KINDS = ["text/event-stream", "text/event-stream;charset=iso-8859-1", 'text/event-stream; charset="utf-16"']


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", [CUT, EOF], ids=str)
def test_text_is_utf_8_in_both_legs_and_in_between_whatever_the_charset_says(
    plain: Gateway, upstream: Upstream, chat: Chat, kind: str, fault: Fault
) -> None:
    said = (joined(started(VLLM, [], [TEXT])), joined([*started(VLLM_LEG2, [], [MORE]), *ended(VLLM_LEG2)]))
    labelled = [("Content-Type", kind)]
    leg1 = [Send(said[0][at : at + 5]) for at in range(0, len(said[0]), 5)]
    leg2 = [Send(said[1][at : at + 5]) for at in range(0, len(said[1]), 5)]
    upstream.script(Reply([*leg1, *fault.end(VLLM)], headers=labelled), Reply(leg2, headers=labelled))
    stream = chat(plain, body()).read_rest()
    one_whole_answer(stream, reasoning="", content=TEXT + MORE, like=VLLM)
    assert stream.all("Content-Type") == [kind]
    assert upstream.requests[1].json()["messages"][-1]["content"] == TEXT


@pytest.mark.parametrize("named", ["identity", "Identity ", ""])
def test_an_encoding_that_changes_nothing_is_read_along(
    plain: Gateway, upstream: Upstream, chat: Chat, named: str
) -> None:
    headers = [*EVENT_STREAM, ("Content-Encoding", named)]
    upstream.script(Reply(LEG1.steps, headers=headers), Reply(LEG2.steps, headers=headers))
    stream = chat(plain, body()).read_rest()
    assert stream.all("X-Continuation") == ["guarded"]
    one_whole_answer(stream, reasoning="", content="some text", like=VLLM)


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


# -- clients of all kinds -----------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "kind", [[], [("Content-Type", "application/x-www-form-urlencoded")], [("Content-Type", "text/plain")]]
)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_chat_is_one_by_its_body_however_it_is_sent(
    plain: Gateway, upstream: Upstream, open_stream: Callable[..., Stream], kind: Headers, chunked: bool
) -> None:
    upstream.script(LEG1, LEG2)
    sent = json.dumps(body(), ensure_ascii=False).encode()
    pieces = [sent[at : at + 7] for at in range(0, len(sent), 7)]
    stream = open_stream(plain, "POST", "/v1/chat/completions", kind, pieces if chunked else sent)
    one_whole_answer(stream.read_rest(), reasoning="", content="some text", like=VLLM)
    leg1, leg2 = upstream.requests
    assert (leg1.body, leg1.all("Content-Type")) == (sent, [value for _name, value in kind])
    assert leg2.all("Content-Type") == ["application/json"]
    for request in (leg1, leg2):
        assert request.all("Content-Length") == [str(len(request.body))]
        assert request.all("Transfer-Encoding") == []


def _read(one: Gateway, **asked: Any) -> tuple[str, list[str]]:
    with openai.OpenAI(base_url=f"{one.url}/v1", api_key="k", max_retries=0) as client:
        chunks = list(client.chat.completions.create(**body(**asked)))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    return text, [choice.finish_reason for choice in choices if choice.finish_reason]


def test_openai_loses_nothing_to_a_bom_or_to_odd_line_ends(plain: Gateway, upstream: Upstream) -> None:
    bom = Send(b"\xef\xbb\xbf")
    first = [Send(step.data.replace(b"\n", b"\r\n")) for step in started(VLLM, [], ["some "])]
    second = [Send(step.data.replace(b"data: ", b"data:")) for step in LEG2.steps if isinstance(step, Send)]
    upstream.script(Reply([bom, *first, Cut()]), Reply([bom, *second]))
    assert _read(plain) == ("some text", ["stop"])


def test_openai_reads_past_comments_of_the_gateway_between_events_with_ids(
    gateway: GatewayFor, upstream: Upstream
) -> None:
    """Once there was an id it takes a block without data for an event."""
    numbered = [Send(b"id: %d\n" % n + step.data) for n, step in enumerate(started(VLLM, [], ["so", "me "]))]
    slow: list[Step] = [part for step in numbered for part in (step, Pause(0.35))]
    upstream.script(Reply([*slow, Cut()]), Reply(LEG2.steps, before=[Pause(0.5)]))
    assert _read(gateway(KEEPALIVE_SECONDS="0.1")) == ("some text", ["stop"])


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


# -- the token route, with tokens that are bytes ------------------------------------------------------

OPENING, CLOSING, END, BYTE = 1, 2, 0, 1000
PROMPT = [900, OPENING]
THOUGHT, SAID = "Süß: 樱桃 🍌.", "\n\n渐😀 done"
WORDS = {"<think>": OPENING, "</think>": CLOSING}


def ids_of(text: str) -> list[int]:
    ids: list[int] = []
    while text:
        word = next((word for word in WORDS if text.startswith(word)), "")
        ids += [WORDS[word]] if word else [BYTE + byte for byte in text[0].encode()]
        text = text[len(word) or 1 :]
    return ids


EVERYTHING = [*ids_of(f"{THOUGHT}</think>{SAID}"), END]


def shown_of(ids: list[int]) -> tuple[str, str]:
    """Reasoning and content as an engine shows them: the bytes of a character that is not whole yet are withheld."""
    parts = [bytearray(), bytearray()]
    closed = False
    for one in ids:
        closed = closed or one == CLOSING
        if one >= BYTE:
            parts[closed].append(one - BYTE)
    reasoning, content = (codecs.getincrementaldecoder("utf-8")().decode(bytes(part)) for part in parts)
    return reasoning, content


def raw_of(ids: list[int]) -> str:
    """Both as one text, with the closing token between them."""
    reasoning, content = shown_of(ids)
    return reasoning + ("</think>" if CLOSING in ids else "") + content


class ByteServer:
    """The endpoints of the token route. `missing` are paths that are answered with `status`."""

    def __init__(self, leg1: list[Step]) -> None:
        self.leg1 = leg1
        self.missing: dict[str, int] = {}
        self.broken: dict[str, Reply] = {}
        self.batches: list[list[int]] = []
        self.leg2_by_chat: Reply | None = None

    def __call__(self, request: Request) -> Reply:
        path, asked = request.target, request.json()
        if path in self.missing:
            return json_reply({"detail": "Not Found"}, f"{self.missing[path]} No")
        if path in self.broken:
            return self.broken[path]
        match path:
            case "/v1/chat/completions":
                continued = asked.get("continue_final_message") and self.leg2_by_chat
                return continued or Reply(self.leg1)
            case "/v1/chat/completions/render":
                return json_reply({"token_ids": PROMPT, "sampling_params": {}, "reasoning_ended": False})
            case "/tokenize" if "messages" in asked:
                return json_reply({"tokens": PROMPT, "max_model_len": 4096})
            case "/tokenize":
                return json_reply({"tokens": ids_of(asked["prompt"])})
            case "/v1/completions":
                return Reply(self._completed(asked["prompt"][len(PROMPT) :]))
            case "/inference/v1/generate":
                return Reply(self._generated(asked["token_ids"][len(PROMPT) :]))
            case "/v1/chat/completions/derender":
                return json_reply(self._derendered(asked))
        raise AssertionError(path)

    def _generated(self, prefix: list[int]) -> list[Step]:
        assert EVERYTHING[: len(prefix)] == prefix, "the prefix is not what was delivered"
        steps: list[Step] = []
        for one in EVERYTHING[len(prefix) :]:
            finish = "stop" if one == END else None
            choice = {"index": 0, "finish_reason": finish, "stop_reason": None, "token_ids": [one]}
            steps.append(event({"request_id": "g", "usage": None, "choices": [choice]}))
        counts = {"prompt_tokens": len(PROMPT) + len(prefix), "completion_tokens": len(steps)}
        return [*steps, event({"request_id": "g", "usage": counts, "choices": []}), DONE]

    def _completed(self, prefix: list[int]) -> list[Step]:
        """As vLLM does: ids that end inside a character bring the text of the whole prompt with the rest of it."""
        assert EVERYTHING[: len(prefix)] == prefix, "the prefix is not what was delivered"
        told = raw_of(prefix)
        shown = told if ids_of(told) == prefix else ""
        steps: list[Step] = []
        for size in range(len(prefix) + 1, len(EVERYTHING)):
            now = raw_of(EVERYTHING[:size])
            steps.append(event({"choices": [{"index": 0, "text": now[len(shown) :], "finish_reason": None}]}))
            shown = now
        steps.append(event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}))
        counts = {"prompt_tokens": len(PROMPT) + len(prefix), "completion_tokens": len(steps)}
        return [*steps, event({"choices": [], "usage": counts}), DONE]

    def _derendered(self, asked: dict[str, Any]) -> dict[str, Any]:
        (choice,) = asked["generate_chunk"]["choices"]
        self.batches.append(choice["token_ids"])
        state = asked["stream_state"] or {"output_token_ids": []}
        before = asked["prompt_token_ids"][len(PROMPT) :] + state["output_token_ids"]
        told, all_told = shown_of(before), shown_of(before + choice["token_ids"])
        delta = {
            "reasoning": all_told[0][len(told[0]) :] or None,
            "content": all_told[1][len(told[1]) :] or None,
        }
        shown = {"index": 0, "delta": delta, "finish_reason": choice["finish_reason"]}
        state = {"output_token_ids": state["output_token_ids"] + choice["token_ids"]}
        return {"chunk": {"id": "x", "choices": [shown]}, "stream_state": state}


@pytest.mark.parametrize("batch", ["1", "2", "3", "7"])
@pytest.mark.parametrize("told", [(THOUGHT[:6], ""), (THOUGHT, SAID[:1])], ids=["thinking", "content"])
def test_characters_that_are_split_over_batches_of_tokens_come_out_whole(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, batch: str, told: tuple[str, str]
) -> None:
    reasoning, content = told
    server = ByteServer([*started(VLLM, [reasoning], [content] if content else []), Cut()])
    upstream.respond(server)
    one = gateway(**TOKEN_ROUTE, DERENDER_BATCH_CHUNKS=batch)
    stream = chat(one, body()).read_rest()
    one_whole_answer(stream, reasoning=THOUGHT, content=SAID, like=VLLM)
    assert "\N{REPLACEMENT CHARACTER}" not in stream.body.decode()
    assert any(0x80 <= ids[0] - BYTE < 0xC0 for ids in server.batches if ids)  # begins inside a character


def _reporting_ids(ids: list[int], size: int = 1) -> list[Step]:
    """Leg 1 with the ids of its tokens, `size` to a chunk, also of those that show no text yet."""
    steps: list[Step] = [VLLM.role(usage=VLLM.counts(len(PROMPT), 0), prompt_token_ids=PROMPT)]
    for start in range(0, len(ids), size):
        number = min(start + size, len(ids))
        before, now = shown_of(ids[:start]), shown_of(ids[:number])
        delta = {"reasoning": now[0][len(before[0]) :], "content": now[1][len(before[1]) :]}
        delta = {name: text for name, text in delta.items() if text}
        choice = {"index": 0, "delta": delta, "finish_reason": None, "token_ids": ids[start:number]}
        steps.append(VLLM._event([choice], {"usage": VLLM.counts(len(PROMPT), number)}))
    return steps


def test_a_cut_inside_a_character_is_continued_inside_it_where_ids_are_carried(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway(**TOKEN_ROUTE, STRATEGY_REFRESH_SECONDS="0.1")
    rows_edited(one, "token_exact = 1")
    try:
        banana = len(ids_of(THOUGHT[: THOUGHT.index("🍌")]))
        for cut in range(banana, banana + 5):
            upstream.respond(ByteServer([*_reporting_ids(EVERYTHING[:cut]), Cut()]))
            stream = chat(one, asking_usage()).read_rest()
            answer = one_whole_answer(stream, reasoning=THOUGHT, content=SAID, like=VLLM, usage=True)
            assert answer.usage["completion_tokens"] == len(EVERYTHING)
            assert one.event(stream.request_id)["route"] == "carried-ids"
    finally:
        rows_edited(one, "token_exact = 0")


@pytest.mark.parametrize("size", [1, 2, 3], ids=lambda size: f"{size} tokens to an event")
def test_ids_that_end_inside_a_character_do_not_bring_the_prompt_into_the_answer_on_the_last_resort(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, size: int
) -> None:
    one = gateway(**TOKEN_ROUTE, STRATEGY_REFRESH_SECONDS="0.1", CONNECT_TIMEOUT_SECONDS="198")
    rows_edited(one, "token_exact = 1, without_scale_out = 'completions'")
    try:
        banana = len(ids_of(THOUGHT[: THOUGHT.index("🍌")]))
        for cut in range(banana - 1, banana + 5):
            server = ByteServer([*_reporting_ids(EVERYTHING[:cut], size), Cut()])
            server.missing = {"/v1/chat/completions/render": 403}
            upstream.respond(server)
            stream = chat(one, asking_usage(max_tokens=200)).read_rest()
            answer = one_whole_answer(stream, reasoning=THOUGHT, content=SAID, like=VLLM, usage=True)
            if size == 1:
                assert answer.usage["completion_tokens"] == len(EVERYTHING)
    finally:
        rows_edited(one, "token_exact = 0, without_scale_out = 'none'")


@pytest.mark.parametrize("status", [403, 404, 405])
def test_a_server_without_render_is_named_and_its_refusal_is_not_shown(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, status: int
) -> None:
    server = ByteServer([*started(VLLM, [THOUGHT[:6]]), Cut()])
    server.missing = {"/v1/chat/completions/render": status}
    upstream.respond(server)
    one = gateway(
        **TOKEN_ROUTE, CONNECT_TIMEOUT_SECONDS=str(200 + status)
    )  # a process of its own: it remembers
    stream = chat(one, body()).read_rest()
    one_failed_ending(stream, reasoning=THOUGHT[:6], code={"scale_out_missing"})
    assert b"Not Found" not in stream.body
    row = one.event(stream.request_id)
    assert row["leg2_message"] == f"/v1/chat/completions/render answered {status}"


def test_a_server_without_render_is_asked_by_chat_where_the_strategy_says_so(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway(**TOKEN_ROUTE, STRATEGY_REFRESH_SECONDS="0.1", CONNECT_TIMEOUT_SECONDS="199")
    rows_edited(one, "without_scale_out = 'chat-continue'")
    try:
        server = ByteServer([*started(VLLM, [THOUGHT[:6]]), Cut()])
        server.missing = {"/v1/chat/completions/render": 404}
        server.leg2_by_chat = Reply(
            [VLLM_LEG2.reasoning(THOUGHT[6:]), VLLM_LEG2.content(SAID), *ended(VLLM_LEG2)]
        )
        upstream.respond(server)
        for _ in range(2):  # the second time it is known to be without
            stream = chat(one, body()).read_rest()
            one_whole_answer(stream, reasoning=THOUGHT, content=SAID, like=VLLM)
            row = one.event(stream.request_id)
            assert (row["route"], row["outcome"]) == ("chat-continue", "rescued")
        targets = [request.target for request in upstream.requests]
        assert targets.count("/v1/chat/completions/render") == 1
    finally:
        rows_edited(one, "without_scale_out = 'none'")


BROKEN_ENDPOINTS: dict[str, tuple[str, Reply]] = {
    "a parser that derender cannot stream": (
        "/v1/chat/completions/derender",
        json_reply({"error": {"message": "parser does not stream", "code": 400}}, "400 Bad Request"),
    ),
    "a derender without a chunk": ("/v1/chat/completions/derender", json_reply({"stream_state": {}})),
    "a derender that is no JSON": ("/v1/chat/completions/derender", whole(b"<html>")),
    "a render without sampling parameters": (
        "/v1/chat/completions/render",
        json_reply({"token_ids": PROMPT, "sampling_params": None}),
    ),
    "a tokenize that fails": ("/tokenize", json_reply({"error": {"message": "no"}}, "500 Oops")),
    "a generate that is overloaded": (
        "/inference/v1/generate",
        json_reply({"error": {"message": "busy", "code": 503}}, "503 Busy"),
    ),
}


@pytest.mark.parametrize("name", BROKEN_ENDPOINTS)
def test_an_endpoint_of_the_token_route_that_fails_ends_the_stream_once(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, name: str
) -> None:
    path, reply = BROKEN_ENDPOINTS[name]
    server = ByteServer([*started(VLLM, [THOUGHT[:6]]), Cut()])
    server.broken = {path: reply}
    upstream.respond(server)
    one = gateway(**TOKEN_ROUTE, DERENDER_BATCH_CHUNKS="5")
    stream = chat(one, body()).read_rest()
    one_failed_ending(stream, reasoning=THOUGHT[:6], code={"disconnect"})
    row = one.event(stream.request_id)
    assert (row["reason"], row["outcome"]) == ("leg2_refused", "failed")
    assert QUESTION["content"] not in row["leg2_message"]
