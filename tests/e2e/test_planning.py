"""Which chat requests are guarded, which are passed through, and what the client is told of it."""

import json
from typing import Any

import pytest

from tests.e2e.asking import QUESTION, body
from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.client import one_whole_answer
from tests.harness.gateway import Gateway
from tests.harness.shapes import VLLM, ended, started
from tests.harness.upstream import (
    EVENT_STREAM,
    Cut,
    Gate,
    Headers,
    Pause,
    Reply,
    Send,
    Step,
    Upstream,
    json_reply,
)

# Nothing that a reader of events would give back unchanged.
ODD_STREAM = b'\xef\xbb\xbfdata: {"x"\r\r\n: \xff\n\ndata:[DONE]\n\nevent: error\ndata: no end'

STRUCTURED: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
    {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
    {"structured_outputs": {"regex": "a+"}},
    {"guided_json": {"type": "object"}},
    {"guided_regex": "a+"},
    {"guided_choice": ["a", "b"]},
    {"guided_grammar": "root ::= x"},
    {"regex": "a+"},
    {"ebnf": "root ::= x"},
    {"json_schema": '{"type": "object"}'},
]
PASSED: list[tuple[str, Any, Headers]] = [
    ("not_json", b"{no json", ()),
    ("not_json", b"", ()),
    ("not_json", b"\xff\xfe", ()),
    ("not_json", b"[" * 100_000, ()),
    ("not_json", b'["a list", {"stream": true}]', ()),
    ("not_stream", {"messages": [QUESTION]}, ()),
    ("not_stream", body(stream=False), ()),
    ("not_stream", body(stream=None), ()),
    ("client_opt_out", body(), [("X-Continuation", "off")]),
    ("client_opt_out", body(), [("x-continuation", "OFF")]),
    ("client_continuation", body(continue_final_message=True), ()),
    ("client_continuation", body(add_generation_prompt=False), ()),
    *[("structured_output", body(**form), ()) for form in STRUCTURED],
]
GUARDED: list[dict[str, Any]] = [
    {},
    *({"stream": yes} for yes in (1, 1.0, "1", "true", "True", "yes", "on")),
    {"n": 1},
    {"n": None},
    {"add_generation_prompt": True},
    {"response_format": {"type": "text"}},
    {"response_format": None},
    {"guided_json": None},
    {"continue_final_message": False},
    {"max_tokens": "ten"},
    {"stream_options": []},
    {"messages": "no list"},
    {"model": 7},
    {"extra": {"deep": [[[[[[]]]]]]}},
    {"messages": [{"role": "user", "content": "\ud83d lone"}]},
]


def _odd(upstream: Upstream, *steps: Any) -> None:
    upstream.script(Reply(steps or [Send(ODD_STREAM)]))


@pytest.mark.parametrize("reason,asked,headers", PASSED)
def test_passed_through_by_reason_with_identical_bytes(
    plain: Gateway, upstream: Upstream, chat: Chat, reason: str, asked: Any, headers: Headers
) -> None:
    _odd(upstream)
    sent = asked if isinstance(asked, bytes) else json.dumps(asked, indent=1).encode()
    stream = chat(plain, sent, headers).read_rest()
    assert stream.all("X-Continuation") == [f"passthrough; reason={reason}"]
    assert (stream.status, stream.body, stream.complete) == (200, ODD_STREAM, True)
    assert upstream.requests[0].body == sent
    assert stream.all("X-Request-Id") == [stream.request_id]


def test_a_body_too_large_to_be_kept_is_passed_through(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    small = gateway(MAX_REQUEST_BODY_MB="2", MAX_CONTINUATION_BODY_MB="0.01")
    sent = json.dumps(body(filler="x" * 20_000)).encode()
    _odd(upstream)
    stream = chat(small, sent).read_rest()
    assert stream.all("X-Continuation") == ["passthrough; reason=body_too_large"]
    assert stream.body == ODD_STREAM
    assert upstream.requests[0].body == sent
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]))
    assert chat(small, body(filler="x" * 5_000)).read_rest().all("X-Continuation") == ["guarded"]


def test_without_a_strategy_it_is_passed_through(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    _odd(upstream)
    stream = chat(gateway(CONTINUATION_MODEL=""), body()).read_rest()
    assert stream.all("X-Continuation") == ["passthrough; reason=no_strategy"]
    assert stream.body == ODD_STREAM


def test_a_passed_through_stream_comes_piece_by_piece(plain: Gateway, upstream: Upstream, chat: Chat) -> None:
    gate = Gate()
    upstream.script(Reply([Send(b"data: half an ev"), Pause(gate), Send(b"ent\n\n")]))
    stream = chat(plain, body(continue_final_message=True))
    assert stream.read_until(b"half an ev") == b"data: half an ev"
    gate.open()
    assert stream.read_rest().body == b"data: half an event\n\n"


def test_a_passed_through_stream_that_is_cut_is_not_mended(
    plain: Gateway, upstream: Upstream, chat: Chat
) -> None:
    gate = Gate()
    upstream.script(Reply([*started(VLLM, [], ["some"]), Pause(gate), Cut()]))
    stream = chat(plain, body(), [("X-Continuation", "off")])
    stream.read_until("some")
    gate.open()
    stream.read_rest()
    assert not stream.complete
    assert b"error" not in stream.body
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("changes", GUARDED)
def test_guarded_with_the_body_unchanged(
    plain: Gateway, upstream: Upstream, chat: Chat, changes: dict[str, Any]
) -> None:
    steps = [*started(VLLM, ["so"], ["yes"]), *ended(VLLM)]
    upstream.script(Reply(steps))
    sent = json.dumps(body(**changes), indent=1).encode()
    stream = chat(plain, sent, [("Accept-Encoding", "gzip, br"), ("Authorization", "Bearer k")]).read_rest()
    assert stream.all("X-Continuation") == ["guarded"]
    assert stream.all("Cache-Control") == ["no-cache"]
    assert stream.all("X-Accel-Buffering") == ["no"]
    assert stream.all("Content-Length") == []
    assert stream.all("Content-Encoding") == []
    assert stream.all("X-Request-Id") == [stream.request_id]
    assert (stream.header("Content-Type") or "").startswith("text/event-stream")
    (request,) = upstream.requests
    assert request.body == sent
    assert request.all("Accept-Encoding") == ["identity"]
    assert request.all("Authorization") == ["Bearer k"]
    assert request.all("Content-Length") == [str(len(sent))]
    assert stream.body == b"".join(step.data for step in steps)


def test_a_guarded_answer_keeps_the_upstreams_other_headers(
    plain: Gateway, upstream: Upstream, chat: Chat
) -> None:
    headers = [
        *EVENT_STREAM,
        ("X-Router", "a"),
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("X-Accel-Buffering", "yes"),
    ]
    upstream.script(
        Reply([*started(VLLM, [], ["a"]), *ended(VLLM)], headers=[*headers, ("Cache-Control", "public")])
    )
    stream = chat(plain, body()).read_rest()
    assert stream.all("X-Router") == ["a"]
    assert stream.all("Set-Cookie") == ["a=1", "b=2"]
    assert stream.all("Cache-Control") == ["no-cache"]
    assert stream.all("X-Accel-Buffering") == ["no"]


@pytest.mark.parametrize(
    "reply",
    [
        json_reply(
            {"error": {"message": "no such model", "type": "NotFoundError", "param": None, "code": 404}},
            "404 No",
        ),
        json_reply({"object": "error", "message": "x", "type": "BadRequest", "code": 400}, "400 Bad Request"),
        json_reply({"detail": "away"}, "503 Service Unavailable"),
        json_reply({"object": "chat.completion", "choices": []}),
        Reply([Send(ODD_STREAM)], status="500 Oops"),
        Reply([Send(ODD_STREAM)], headers=[("Content-Type", "application/x-ndjson")]),
    ],
)
def test_an_answer_that_is_no_event_stream_is_left_alone(
    plain: Gateway, upstream: Upstream, chat: Chat, reply: Reply
) -> None:
    upstream.script(reply)
    stream = chat(plain, body()).read_rest()
    assert stream.status == int(reply.status[:3])
    assert stream.body == b"".join(step.data for step in reply.steps if isinstance(step, Send))
    assert stream.all("Content-Type") == [dict(reply.headers)["Content-Type"]]
    assert stream.complete
    assert len(upstream.requests) == 1


def test_headers_come_before_the_first_event(plain: Gateway, upstream: Upstream, chat: Chat) -> None:
    gate = Gate()
    upstream.script(Reply([Pause(gate), *started(VLLM, [], ["a"]), *ended(VLLM)]))
    stream = chat(plain, body()).read_head()
    assert (stream.status, stream.all("X-Continuation")) == (200, ["guarded"])
    gate.open()
    one_whole_answer(stream.read_rest(), reasoning="", content="a", like=VLLM)


def test_each_event_is_forwarded_when_it_is_complete_and_not_before(
    plain: Gateway, upstream: Upstream, chat: Chat
) -> None:
    whole, half = Gate(), Gate()
    event = VLLM.content("two").data
    start: list[Step] = [
        *started(VLLM, [], ["one"]),
        Pause(whole),
        Send(event[:-1]),
        Pause(half),
        Send(event[-1:]),
    ]
    upstream.script(Reply([*start, *ended(VLLM)]))
    stream = chat(plain, body())
    seen = stream.read_until("one")
    assert seen.endswith(VLLM.content("one").data)
    whole.open()
    half.wait_reached()
    half.open()
    stream.read_until("two")
    pieces = [piece for _at, piece in stream.pieces if b"two" in piece]
    assert pieces[0].startswith(event)
    one_whole_answer(stream.read_rest(), reasoning="", content="onetwo", like=VLLM)


@pytest.mark.parametrize(
    "kind", ["text/event-stream", "text/event-stream; charset=iso-8859-1", "Text/Event-Stream"]
)
def test_text_is_utf_8_whatever_the_charset_says(
    plain: Gateway, upstream: Upstream, chat: Chat, kind: str
) -> None:
    text = "✅ k\u2028v\u0085w\u2029 渐😀 data: [DONE]\n\ndata: x"
    steps = [*started(VLLM, [], [text]), *ended(VLLM)]
    upstream.script(Reply(steps, headers=[("Content-Type", kind)]))
    stream = chat(plain, body()).read_rest()
    one_whole_answer(stream, reasoning="", content=text, like=VLLM)
    assert stream.body == b"".join(step.data for step in steps)
