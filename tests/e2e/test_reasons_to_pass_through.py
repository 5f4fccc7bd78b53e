"""Each reason to pass a request through, and what such an answer is."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from continuation.vocabulary import PassReason
from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.scenes import LEG1, LEG2, SMALL
from tests.harness.client import Stream, one_whole_answer
from tests.harness.gateway import Gateway
from tests.harness.shapes import VLLM, joined, started
from tests.harness.upstream import EVENT_STREAM, Cut, Gate, Headers, Pause, Reply, Send, Upstream, event


def test_a_client_that_opted_out_gets_the_engines_own_error_from_one_request(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    error = event({"error": {"message": "EngineCore encountered an issue.", "code": 500}})
    steps = [*started(VLLM, [], ["a"]), error, event("[DONE]")]
    upstream.script(Reply(steps))
    stream = chat(gateway(), body(), [("X-Continuation", "off")]).read_rest()
    assert stream.body == b"".join(step.data for step in steps)
    assert len(upstream.requests) == 1


ODD = b'\xef\xbb\xbfdata: {"x"\r\r\n: \xff\n\ndata:[DONE]\n\nevent: error\ndata: no end'


GZIP = [*EVENT_STREAM, ("Content-Encoding", "gzip")]


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
