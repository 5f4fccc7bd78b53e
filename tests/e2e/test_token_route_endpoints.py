"""Token-route endpoints that are missing, or fail."""

import pytest

from tests.e2e.asking import QUESTION, body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.scenes import PROMPT, SAID, THOUGHT, ByteServer
from tests.e2e.test_token_route import TOKEN_ROUTE, rows_edited
from tests.harness.client import one_failed_ending, one_whole_answer
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Cut, Reply, Upstream, json_reply, whole


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
