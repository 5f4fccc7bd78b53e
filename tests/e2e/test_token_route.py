"""The token route over sockets, against a scripted server whose tokens are characters."""

import json
import math
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest

from tests.e2e.asking import asking_usage, body
from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.client import Answer, one_failed_ending, one_whole_answer
from tests.harness.gateway import PATIENCE, Gateway
from tests.harness.shapes import VLLM, started
from tests.harness.upstream import (
    Cut,
    Gate,
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

OPENING, CLOSING, END = 1, 2, 0
PROMPT = [900, 901, OPENING]
REASONING, CONTENT = "Let me see: 樱桃.", "\n\nThree fruits 🍌, and a word more."
ANSWER = f"{REASONING}</think>{CONTENT}"
TOKEN_ROUTE = {"CONTINUATION_MODEL": "DeepSeek-V4-Flash", "CONTINUATION_ENGINE": "vllm"}
MISSING = json_reply(
    {"error": {"message": "Scale-out endpoints are disabled.", "code": 403}}, status="403 Forbidden"
)


def tokens(text: str) -> list[int]:
    ids: list[int] = []
    while text:
        marker = next((m for m in ("<think>", "</think>") if text.startswith(m)), "")
        ids.append({"<think>": OPENING, "</think>": CLOSING}.get(marker) or ord(text[0]))
        text = text[len(marker) or 1 :]
    return ids


def text(ids: list[int]) -> str:
    return "".join(
        {OPENING: "<think>", CLOSING: "</think>", END: "<|end|>"}.get(one) or chr(one) for one in ids
    )


class Server:
    """Answers the four endpoints; `asked` are the paths in order, `leg1` the steps of the chat stream."""

    def __init__(self, leg1: list[Step]) -> None:
        self.leg1 = leg1
        self.asked: list[str] = []
        self.bodies: dict[str, dict[str, Any]] = {}
        self.tokenized: list[str] = []
        self.missing: set[str] = set()
        self.before_generate: list[Step] = []
        self.derender_fails = False
        self.finish = "stop"
        self.stop = ""  # ends the generation, with all that came in its last token

    def __call__(self, request: Request) -> Reply:
        path, asked = request.target, request.json()
        if path != "/v1/chat/completions":
            self.asked.append(path)
            self.bodies[path] = asked
        if path in self.missing:
            return MISSING
        match path:
            case "/v1/chat/completions":
                return Reply(self.leg1)
            case "/v1/chat/completions/render":
                sampling = {"max_tokens": asked.get("max_tokens", 1000), "temperature": 0.0}
                return json_reply(
                    {"token_ids": PROMPT, "sampling_params": sampling, "reasoning_ended": False}
                )
            case "/tokenize" | "/v1/tokenize":
                self.tokenized.append(asked["prompt"])
                return json_reply({"tokens": tokens(asked["prompt"])})
            case "/inference/v1/generate":
                return Reply(self._generated(asked), before=self.before_generate)
            case "/v1/chat/completions/derender":
                if asked["chat_request"].get("stop"):  # as vLLM does from 0.33 on
                    return whole(
                        b'{"error": {"message": "stop strings are not supported", "code": 400}}',
                        "400 Bad Request",
                    )
                if self.derender_fails:
                    return whole(
                        b'{"error": {"message": "invalid stream_state", "code": 400}}', "400 Bad Request"
                    )
                return json_reply(self._derendered(asked))
        raise AssertionError(path)

    def _generated(self, asked: dict[str, Any]) -> list[Step]:
        prefix = asked["token_ids"][len(PROMPT) :]
        rest = [*tokens(ANSWER), END][len(prefix) :]
        assert tokens(ANSWER)[: len(prefix)] == prefix, "the prefix is not what was delivered"
        if self.stop:
            rest = rest[: text(rest).index(self.stop) + len(self.stop)]
        steps: list[Step] = []
        for number, one in enumerate(rest):
            last = number == len(rest) - 1
            choice = {"index": 0, "finish_reason": self.finish if last else None, "token_ids": [one]}
            steps.append(_generate_chunk([{**choice, "stop_reason": self.stop or None if last else None}]))
        usage = {"prompt_tokens": len(asked["token_ids"]), "completion_tokens": len(rest)}
        return [*steps, _generate_chunk([], usage), event("[DONE]")]

    def _derendered(self, asked: dict[str, Any]) -> dict[str, Any]:
        (choice,) = asked["generate_chunk"]["choices"]
        state = asked["stream_state"] or {"output_token_ids": []}
        before = asked["prompt_token_ids"][len(PROMPT) :] + state["output_token_ids"]
        told, all_told = _split(before), _split(before + choice["token_ids"])
        delta = {
            "role": None,
            "reasoning": all_told[0][len(told[0]) :] or None,
            "content": all_told[1][len(told[1]) :] or None,
        }
        shown = {"index": 0, "delta": delta, "finish_reason": choice["finish_reason"], "token_ids": None}
        state = {"output_token_ids": state["output_token_ids"] + choice["token_ids"]}
        return {"chunk": {"id": "x", "choices": [shown], "usage": None}, "stream_state": state}


def _generate_chunk(choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> Send:
    return event(json.dumps({"request_id": "g", "usage": usage, "output_mode": "tokens", "choices": choices}))


def _split(ids: list[int]) -> tuple[str, str]:
    reasoning, _, content = text(ids).partition("</think>")
    return reasoning, content


def rows_edited(one: Gateway, sql: str) -> None:
    """As an edit in another process, which the gateway polls for."""
    with closing(sqlite3.connect(one.database, timeout=20)) as db, db:
        db.execute(f"UPDATE strategies_strategy SET {sql} WHERE name = 'deepseek-v4-flash-vllm'")
        db.execute("UPDATE strategies_strategyrevision SET counter = counter + 1")
        ((revision,),) = db.execute("SELECT counter FROM strategies_strategyrevision").fetchall()
    until = time.monotonic() + PATIENCE
    while f"strategies are read again, revision {revision}\n" not in one.log:
        assert time.monotonic() < until, one.log
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("reasoning", "content"),
    [(REASONING[:6], ""), (REASONING, ""), (REASONING, "\n"), (REASONING, CONTENT[:15])],
)
def test_the_texts_ids_are_continued_exactly(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, reasoning: str, content: str
) -> None:
    server = Server([*started(VLLM, [reasoning], [content] if content else []), Cut()])
    upstream.respond(server)
    stream = chat(gateway(**TOKEN_ROUTE), asking_usage(max_tokens=500)).read_rest()
    answer = one_whole_answer(stream, reasoning=REASONING, content=CONTENT, like=VLLM, usage=True)
    assert server.asked[0] == "/v1/chat/completions/render"
    assert {"/tokenize", "/inference/v1/generate"} <= set(server.asked)
    told = reasoning + ("</think>" + content if content else "")
    generate = server.bodies["/inference/v1/generate"]
    assert generate["sampling_params"]["max_tokens"] == 500 - len(tokens(told))
    everything = len(tokens(ANSWER)) + 1
    assert answer.usages == [
        {
            "prompt_tokens": len(PROMPT),
            "completion_tokens": everything,
            "total_tokens": len(PROMPT) + everything,
            "completion_tokens_details": {"reasoning_tokens": len(tokens(REASONING))},
        }
    ]
    derendered = server.asked.count("/v1/chat/completions/derender")
    assert derendered <= math.ceil((everything - len(tokens(told))) / 8) + 3


@pytest.mark.parametrize("stop", ["and a", ["never", "and a"]], ids=["one", "several"])
@pytest.mark.parametrize("shown", [False, True], ids=["not shown", "shown"])
def test_a_stop_string_ends_the_answer_and_is_not_sent_to_a_derender_that_refuses_it(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, stop: Any, shown: bool
) -> None:
    server = Server([*started(VLLM, [REASONING], [CONTENT[:8]]), Cut()])
    server.stop = "and a"
    upstream.respond(server)
    asked = body(stop=stop, include_stop_str_in_output=shown)
    stream = chat(gateway(**TOKEN_ROUTE), asked).read_rest()
    until = CONTENT.index("and a") + (len("and a") if shown else 0)
    one_whole_answer(stream, reasoning=REASONING, content=CONTENT[:until], like=VLLM)
    assert server.bodies["/v1/chat/completions/render"]["stop"] == stop


def test_carried_ids_need_no_tokenizing_of_the_text(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway(**TOKEN_ROUTE, STRATEGY_REFRESH_SECONDS="0.1")
    rows_edited(one, "token_exact = 1")
    try:
        server = Server([*with_ids(REASONING[:6]), Cut()])
        upstream.respond(server)
        stream = chat(one, asking_usage()).read_rest()
        one_whole_answer(stream, reasoning=REASONING, content=CONTENT, like=VLLM, usage=True)
        asked = upstream.requests[0].json()
        assert asked["return_token_ids"] is True
        assert asked["stream_options"]["continuous_usage_stats"] is True
        assert b'token_ids":[' not in stream.body
        assert one.event(stream.request_id)["route"] == "carried-ids"
        assert not any(REASONING[:6] in prompt for prompt in server.tokenized)  # control tokens at most
    finally:
        rows_edited(one, "token_exact = 0")


def with_ids(told: str) -> list[Send]:
    counts = VLLM.counts(len(PROMPT), 0)
    role = VLLM.role(usage=counts, prompt_token_ids=PROMPT)
    steps = [role]
    for number, one in enumerate(tokens(told), 1):
        choice = {
            "index": 0,
            "delta": {"reasoning": chr(one)},
            "logprobs": None,
            "finish_reason": None,
            "token_ids": [one],
        }
        steps.append(VLLM._event([choice], {"usage": VLLM.counts(len(PROMPT), number, number)}))
    return steps


def test_a_tokenize_that_is_only_at_v1_is_found(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    server = Server([*started(VLLM, [REASONING[:6]], []), Cut()])
    server.missing = {"/tokenize"}
    upstream.respond(server)
    one = gateway(**TOKEN_ROUTE, DERENDER_BATCH_CHUNKS="3")
    one_whole_answer(chat(one, body()).read_rest(), reasoning=REASONING, content=CONTENT, like=VLLM)
    assert "/v1/tokenize" in server.asked


@pytest.mark.parametrize("missing", ["/v1/chat/completions/render", "/inference/v1/generate"])
def test_a_missing_endpoint_fails_the_stream_and_is_remembered(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, missing: str
) -> None:
    server = Server([*started(VLLM, [REASONING[:6]], []), Cut()])
    server.missing = {missing}
    upstream.respond(server)
    one = gateway(**TOKEN_ROUTE, CONNECT_TIMEOUT_SECONDS=str(20 + len(missing)))  # a process of its own
    stream = chat(one, body()).read_rest()
    one_failed_ending(stream, reasoning=REASONING[:6], code={"scale_out_missing"})
    row = one.event(stream.request_id)
    assert (row["outcome"], row["reason"], row["route"]) == ("failed", "scale_out_missing", "render-generate")
    assert missing in row["leg2_message"]
    server.asked.clear()
    one_failed_ending(chat(one, body()).read_rest(), reasoning=REASONING[:6], code={"scale_out_missing"})
    assert server.asked == []


def test_a_derender_that_fails_fails_the_stream(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    server = Server([*started(VLLM, [REASONING[:6]], []), Cut()])
    server.derender_fails = True
    upstream.respond(server)
    one = gateway(**TOKEN_ROUTE)
    stream = chat(one, body()).read_rest()
    one_failed_ending(stream, reasoning=REASONING[:6])
    row = one.event(stream.request_id)
    assert (row["reason"], row["leg2_message"]) == ("leg2_refused", "invalid stream_state")


def test_a_generation_whose_finish_is_a_failure_fails_the_stream(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    server = Server([*started(VLLM, [REASONING[:6]], []), Cut()])
    server.finish = "network_error"
    upstream.respond(server)
    one = gateway(**TOKEN_ROUTE)
    stream = chat(one, asking_usage()).read_rest()
    answer = Answer.of(stream.body)
    assert (answer.finish_reasons, answer.done, len(answer.errors)) == ([], 0, 1)
    row = one.event(stream.request_id)
    assert (row["outcome"], row["reason"]) == ("failed", "leg2_broken")


def test_a_client_that_leaves_releases_generate(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    gate = Gate()
    server = Server([*started(VLLM, [REASONING[:6]], []), Cut()])
    server.before_generate = [Pause(gate)]
    upstream.respond(server)
    stream = chat(gateway(**TOKEN_ROUTE), body())
    gate.wait_reached()
    stream.drop()
    upstream.wait_until_idle()
    gate.open()


def test_what_is_sent_reads_as_one_stream(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    upstream.respond(Server([*started(VLLM, [REASONING[:6]], []), Cut()]))
    everything = body(stream_options={"include_usage": True, "continuous_usage_stats": True})
    answer = Answer.of(chat(gateway(**TOKEN_ROUTE), everything).read_rest().body)
    assert (answer.reasoning, answer.content) == (REASONING, CONTENT)
    counts = [usage["completion_tokens"] for usage in answer.usages]
    assert len(counts) > 1
    assert counts == sorted(counts)
