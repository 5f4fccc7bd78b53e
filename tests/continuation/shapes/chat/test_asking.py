"""What only the gateway asked of leg 1 is kept from the client; the rest is as it would have been."""

import json
from typing import Any

import pytest

from continuation.shapes.chat.asking import Unasked, asking_for_ids
from continuation.splice.actions import OpenLeg, OpenTokens
from continuation.vocabulary import Failure
from strategies.engines import Engine
from strategies.types import CompiledStrategy, Fallback
from tests.continuation.splice.playbook import DONE, ID, Play, chunk, content, event, role, tokens, told
from tests.continuation.splice.recorded import recorded

EXACT = CompiledStrategy("e", "e", Engine.VLLM, render_generate=True, token_exact=True)
ASKS = {"stream_options": {"include_usage": True}}


def test_ids_and_running_usage_are_asked_for() -> None:
    asked = json.loads(
        asking_for_ids(
            b'{"model": "m", "seed": %d, "stream_options": {"x": 1, "include_usage": false}}' % (2**70)
        )
    )
    assert asked == {
        "model": "m",
        "seed": 2**70,
        "return_token_ids": True,
        "stream_options": {"x": 1, "include_usage": True, "continuous_usage_stats": True},
    }
    assert json.loads(asking_for_ids(b'{"stream_options": []}'))["stream_options"]["include_usage"]


def with_ids(delta: dict[str, Any], ids: list[int], used: int, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": ids, **more}
    return event({**ID, "choices": [choice], "usage": tokens(9, used)})


def first() -> bytes:
    delta = {"role": "assistant", "content": ""}
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]
    return event({**ID, "choices": choices, "prompt_token_ids": [1, 2, 3], "usage": tokens(9, 0)})


STREAM = [
    first(),
    with_ids({"content": "ab"}, [11], 1),
    with_ids({}, [12], 2),
    with_ids({"content": "杭"}, [13], 3),
    with_ids({}, [14], 4, finish_reason="stop"),
    event({**ID, "choices": [], "usage": tokens(9, 4)}),
    DONE,
]


@pytest.mark.parametrize("body", [{}, ASKS])
def test_the_client_sees_a_stream_without_them(body: dict[str, Any]) -> None:
    play = Play(body, EXACT).reads(*STREAM)
    answer = play.whole()
    assert (answer.content, answer.finishes) == ("ab杭", ["stop"])
    assert answer.usages == ([tokens(9, 4)] if body else [])
    assert b"[11]" not in play.sent
    assert b'"prompt_token_ids":null' in play.sent
    assert play.sent.count(b"data: ") == (6 if body else 5)  # half a character has no event of its own
    assert play.splice.record() is None


def test_a_client_that_asked_for_them_gets_them() -> None:
    everything = {
        "return_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    play = Play(everything, EXACT).reads(*STREAM)
    assert [json.loads(e[6:]) for e in play.sent.split(b"\n\n")[:-2]] == [
        json.loads(e[6:]) for e in STREAM[:-1]
    ]


def test_comments_and_what_is_no_chunk_pass_as_received() -> None:
    play = Play({}, EXACT).reads(b": ping\n\n", event([1]), b"data: 7\n\n", event({"odd": 1}))
    assert play.sent == b": ping\n\n" + event([1]) + b"data: 7\n\n" + b'data: {"odd":1}\n\n'


def test_the_log_probabilities_of_half_a_character_are_shown() -> None:
    half = {"index": 0, "delta": {}, "logprobs": {"content": [1]}, "finish_reason": None, "token_ids": [5]}
    shown = Unasked(ids=False, usage=False, running_usage=False).shown({"choices": [half]})
    assert shown is not None
    assert json.loads(shown[6:])["choices"][0]["token_ids"] is None


def opened(play: Play) -> OpenTokens | OpenLeg:
    actions = play.splice.leg_ended(Failure.DISCONNECT, 0)
    (found,) = [action for action in actions if isinstance(action, OpenTokens | OpenLeg)]
    return found


def test_the_ids_are_carried_also_where_their_text_was_withheld() -> None:
    job = opened(Play({"max_tokens": 50}, EXACT).reads(*STREAM[:3]))
    assert isinstance(job, OpenTokens)
    assert (job.carried_prompt, job.carried_ids) == ((1, 2, 3), (11, 12))
    assert job.request["max_tokens"] == 50
    assert "return_token_ids" not in job.request


def test_ids_that_do_not_agree_with_the_count_are_not_carried() -> None:
    play = Play({}, EXACT).reads(first(), with_ids({"content": "ab"}, [11], 2))
    job = opened(play)
    assert isinstance(job, OpenTokens)
    assert job.carried_ids is None
    play.splice.client_gone(1)
    assert "do not agree" in play.record.extra["ids"]


def test_with_stop_strings_ids_are_not_even_asked_for() -> None:
    play = Play({"stop": "END"}, EXACT)
    assert play.plan.leg1_body == play.plan.body
    job = opened(play.reads(role(), content("ab")))
    assert isinstance(job, OpenTokens)
    assert job.carried_ids is None
    play.splice.client_gone(1)
    assert "stop strings" in play.record.extra["ids"]


def test_a_cut_inside_a_tool_call_is_continued_where_ids_are_carried() -> None:
    call = {"tool_calls": [{"index": 0, "id": "call-1", "function": {"name": "f"}}]}
    job = opened(Play({}, EXACT).reads(first(), with_ids(call, [20, 21], 2)))
    assert isinstance(job, OpenTokens)
    assert job.tool_ids == ("call-1",)
    play = Play({}, EXACT).reads(first(), with_ids(call, [20, 21], 5)).ends()
    assert play.failed().errors[0]["code"] == "tool_call_seen"


@pytest.mark.parametrize("fallback", list(Fallback))
def test_without_the_endpoints_the_strategy_says_what_is_done(fallback: Fallback) -> None:
    strategy = CompiledStrategy("k", "k", Engine.VLLM, render_generate=True, without_scale_out=fallback)
    play = Play({}, strategy).reads(role(), content("ab"))
    opened(play)
    play.open = 0
    play.does(play.splice.scale_out_missing("/v1/chat/completions/render answered 403", 1))
    if fallback is Fallback.CHAT:
        assert play.legs[0]["messages"][-1] == {"role": "assistant", "content": "ab"}
        play.leg2(content("cd"), chunk(finish="stop"), DONE).whole()
        assert play.record.route == "chat-continue"
    else:
        assert play.failed().errors[0]["code"] == "scale_out_missing"
        assert (play.record.reason, play.record.leg2_message) == (
            "scale_out_missing",
            "/v1/chat/completions/render answered 403",
        )


def test_a_recorded_stream_with_ids_is_shown_as_one_without() -> None:
    stream = recorded("vllm/rg0_original_with_token_ids.sse")
    request = {key: value for key, value in stream.request.items() if key != "return_token_ids"}
    play = Play(request, EXACT).reads(stream.stream)
    assert play.whole().reasoning == told(stream.stream).reasoning
    assert play.told.tool_calls == told(stream.stream).tool_calls
    assert b'"token_ids":[' not in play.sent
    assert b'"delta":{},"logprobs":null,"finish_reason":null' not in play.sent
