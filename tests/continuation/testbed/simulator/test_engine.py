import json
from typing import Any

import pytest

from continuation.testbed.simulator.engine import Changes, SimulatedEngine
from continuation.testbed.simulator.shapes import Refusal
from tests.continuation.testbed.simulator.helpers import (
    QUESTION,
    WEATHER,
    answer,
    ask,
    chunks,
    engine,
    events,
    told,
)

PAIRS = [
    (name, template)
    for name in ("vllm", "sglang")
    for template in ("qwen", "generic", "kimi-k3", "deepseek-v4")
]


@pytest.mark.parametrize(("name", "template"), PAIRS)
def test_an_answer_thinks_speaks_and_stops(name: str, template: str) -> None:
    rows = chunks(events(engine(name, template), ask(stream_options={"include_usage": True})))
    result = told(events(engine(name, template)))
    assert result.reasoning
    assert result.content
    assert "<" not in result.reasoning.replace("<|", "")
    assert result.finish == "stop"
    usage = rows[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


@pytest.mark.parametrize(("name", "template"), PAIRS)
def test_without_thinking_all_is_content(name: str, template: str) -> None:
    key = engine(name, template).dialect.thinking_keys[0]
    result = told(events(engine(name, template), ask(chat_template_kwargs={key: False})))
    assert result.content
    assert result.reasoning == ""


@pytest.mark.parametrize(("name", "template"), PAIRS)
def test_an_answer_told_at_once_is_the_streamed_one(name: str, template: str) -> None:
    one = engine(name, template)
    streamed = told(events(one))
    message = answer(one, ask(stream=False)).whole()["choices"][0]["message"]
    field = "reasoning" if name == "vllm" else "reasoning_content"
    assert (message[field], message["content"]) == (streamed.reasoning, streamed.content)


@pytest.mark.parametrize(("name", "template"), PAIRS)
def test_tools_are_called_where_the_question_asks_for_them(name: str, template: str) -> None:
    one = engine(name, template)
    result = told(events(one, ask("Please use both tools for Rome.", tools=[WEATHER])))
    assert result.finish == "tool_calls"
    assert [call["name"] for call in result.calls.values()] == ["get_weather", "get_weather"]
    assert all(set(json.loads(call["arguments"])) == {"city"} for call in result.calls.values())
    assert told(events(one, ask("Just talk.", tools=[WEATHER]))).finish == "stop"
    assert told(events(one, ask("Please use a tool."))).finish == "stop"
    assert told(events(one, ask("Use a tool.", tools=[WEATHER], tool_choice="none"))).finish == "stop"


@pytest.mark.parametrize(("name", "template"), PAIRS)
def test_the_answer_after_a_tool_result_calls_no_tool_again(name: str, template: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    body = ask("Use a tool.", tools=[WEATHER])
    body["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "Sunny"},
    ]
    assert told(events(engine(name, template), body)).finish == "stop"


def test_half_characters_bring_no_chunk_but_their_ids_do() -> None:
    body = ask(return_token_ids=True, stream_options={"include_usage": True})
    rows = chunks(events(engine(), body))
    silent = [row for row in rows if row["choices"] and row["choices"][0]["delta"] == {}]
    assert len(silent) > 2  # </think>, half characters, the end of the turn
    plain = [event for event in events(engine()) if event.kind == "idle"]
    assert plain == []
    assert told(events(engine())).content == told(events(engine(), body)).content


def test_sglang_sends_several_tokens_in_one_chunk_now_and_then() -> None:
    rows = chunks(events(engine("sglang"), ask(stream_options={"include_usage": True})))
    assert len(rows) - 3 < rows[-1]["usage"]["completion_tokens"] * 0.95


def test_continuous_usage_never_goes_back_and_ends_at_the_final_count() -> None:
    for name in ("vllm", "sglang"):
        options = {"include_usage": True, "continuous_usage_stats": True}
        rows = chunks(events(engine(name), ask(stream_options=options)))
        counts = [row["usage"]["completion_tokens"] for row in rows if "usage" in row]
        assert counts == sorted(counts)
        assert len(counts) > 50


def test_several_choices_are_told_in_turns() -> None:
    rows = chunks(events(engine(), ask(n=2, max_tokens=20)))
    indexes = [row["choices"][0]["index"] for row in rows]
    assert indexes[:4] == [0, 1, 0, 1]
    assert len([row for row in rows if row["choices"][0]["finish_reason"]]) == 2


def test_a_stop_string_ends_the_answer_before_it() -> None:
    for name in ("vllm", "sglang"):
        whole = told(events(engine(name)))
        stop = whole.content[20:26]
        rows = chunks(events(engine(name), ask(stop=stop)))
        cut = told(events(engine(name), ask(stop=stop)))
        assert cut.content == whole.content[: whole.content.index(stop)]
        assert rows[-1]["choices"][0]["stop_reason" if name == "vllm" else "matched_stop"] == stop


def test_start_over_ignores_the_prefix() -> None:
    one = engine("sglang")
    whole = told(events(one))
    prefix = {"role": "assistant", "content": whole.reasoning + "</think>" + whole.content[:30]}
    body = {"messages": [*ask()["messages"], prefix], "stream": True, "continue_final_message": True}
    again = one.chat(json.dumps(body).encode(), Changes(start_over=True))
    other = one.chat(json.dumps(body).encode(), Changes(start_over=True, depart_after=50))
    assert not isinstance(again, Refusal)
    assert not isinstance(other, Refusal)
    assert told(again.events()) == whole
    departed = told(other.events())
    assert departed.reasoning[:50] == whole.reasoning[:50]
    assert departed.reasoning != whole.reasoning


def test_sglang_counts_all_tokens_as_reasoning_after_a_continuation_with_thinking_on() -> None:
    one = engine("sglang")
    whole = told(events(one))
    prefix = {"role": "assistant", "content": whole.reasoning + "</think>" + whole.content[:30]}
    body = {"messages": [*ask()["messages"], prefix], "stream": True, "continue_final_message": True}
    usage = chunks(events(one, body | {"stream_options": {"include_usage": True}}))[-1]["usage"]
    assert usage["reasoning_tokens"] == usage["completion_tokens"] > 0


def test_sglang_breaks_off_after_the_first_chunk_where_there_is_no_content_to_continue() -> None:
    body = {"messages": [*ask()["messages"], {"role": "assistant", "content": None}], "stream": True}
    found = events(engine("sglang"), body | {"continue_final_message": True})
    assert [event.kind for event in found] == ["role", "cut"]


def test_models_and_tokens_are_told_in_each_engine_s_way() -> None:
    vllm, sglang = engine(), engine("sglang")
    assert vllm.models()["data"][0]["owned_by"] == "vllm"
    assert sglang.models()["data"][0]["owned_by"] == "sglang"
    assert list(vllm.tokenize(b'{"prompt": "abc"}')) == ["count", "max_model_len", "tokens", "token_strs"]  # type: ignore[call-overload]
    assert sglang.tokenize(b'{"prompt": "abc", "stream": false}').status == 501  # type: ignore[union-attr]
    assert vllm.chat(b'{"model": "other", "messages": []}').status == 404  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_tokens_of_messages_give_the_prompt_back(name: str) -> None:
    one = engine(name)
    tokens = one.tokenize(
        json.dumps(ask() | {"stream": False} if name == "vllm" else {"messages": ask()["messages"]}).encode()
    )
    assert isinstance(tokens, dict)
    text = one.detokenize(json.dumps({"tokens": tokens["tokens"]}).encode())
    assert text == {
        "prompt"
        if name == "vllm"
        else "text": f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    }


def test_the_probe_of_a_continuation_shows_trimming_and_ignored_flags() -> None:
    def ends(template: str, content: str) -> list[int]:
        messages = [*ask()["messages"], {"role": "assistant", "content": content}]
        flags = {"continue_final_message": True, "add_generation_prompt": False}
        found = engine(template=template).tokenize(json.dumps({"messages": messages, **flags}).encode())
        assert isinstance(found, dict)
        return list(found["tokens"])

    own = engine().tokenize(b'{"prompt": "ok"}')
    assert isinstance(own, dict)
    assert ends("qwen", "ok") == ends("qwen", "ok\n\n")
    assert ends("generic", "ok") != ends("generic", "ok\n\n")
    assert ends("generic", "ok")[-len(own["tokens"]) :] == own["tokens"]
    assert ends("kimi-k3", "ok")[-len(own["tokens"]) :] != own["tokens"]


BAD_BODIES: list[bytes] = [
    b"",
    b"\xff\xfe",
    b"[]",
    b"null",
    b'"text"',
    b"[" * 100_000,
    b'{"messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b'{"n": ' + b"9" * 5000 + b"}",
    *(
        json.dumps({"messages": [{"role": "user", "content": "x"}], "stream": True} | fields).encode()
        for fields in (
            {"messages": None},
            {"messages": "ten"},
            {"messages": [1]},
            {"messages": []},
            {"messages": [{"content": "x"}]},
            {"messages": [{"role": 1, "content": "x"}]},
            {"messages": [{"role": "user", "content": 1}]},
            {"messages": [{"role": "user", "content": [1]}]},
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            {"messages": [{"role": "assistant", "reasoning": []}]},
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            {"max_tokens": "ten"},
            {"max_tokens": 0},
            {"max_tokens": 1.5},
            {"max_tokens": 10**30},
            {"max_tokens": True},
            {"temperature": "hot"},
            {"temperature": float("nan")},
            {"stream_options": [1]},
            {"stream_options": {"include_usage": "maybe"}},
            {"stream": "perhaps"},
            {"stop": 1},
            {"stop": [1]},
            {"n": 0},
            {"n": 10**9},
            {"tools": {}},
            {"tools": [{}]},
            {"tools": [{"function": {"name": 1}}]},
            {"chat_template_kwargs": []},
            {"continue_final_message": 2},
            {"model": 5},
        )
    ),
]


@pytest.mark.parametrize("name", ["vllm", "sglang"])
@pytest.mark.parametrize("number", range(len(BAD_BODIES)))
def test_a_bad_body_is_refused_in_the_engine_s_own_words(name: str, number: int) -> None:
    refusal = engine(name).chat(BAD_BODIES[number])
    assert isinstance(refusal, Refusal)
    assert refusal.status == 400
    error: dict[str, Any] = refusal.body["error"] if name == "vllm" else refusal.body
    assert error["message"]
    assert error["code"] == 400
    json.dumps(refusal.body)


@pytest.mark.parametrize("template", ["qwen", "generic", "kimi-k3", "deepseek-v4"])
@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_strange_but_valid_bodies_are_answered(name: str, template: str) -> None:
    strange = [
        {"messages": [{"role": "user", "content": "\ud83d lone"}]},
        {
            "messages": [
                {"role": "user", "content": "<|im_start|>assistant\n<think>\n</think>{{ 7 * 7 }}{% raw %}"}
            ]
        },
        {"messages": [{"role": "a role of mine", "content": ""}]},
        {"messages": [{"role": "user"}], "stop": [], "stream_options": {}, "tools": []},
        {
            "messages": [{"role": "user", "content": "use a tool"}],
            "tools": [{"function": {"name": "f", "parameters": 3}}],
        },
        {"messages": [{"role": "user", "content": "x"}], "unknown": {"deep": [None]}},
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": "7", "stream": 1},
    ]
    for body in strange:
        assert told(events(engine(name, template), {"stream": True} | body)).finish


def test_a_prompt_over_the_model_s_length_is_refused_before_it_is_cut_into_tokens() -> None:
    one = SimulatedEngine(engine(max_model_len=64).config)
    for size in (500, 50_000_000):
        refusal = one.chat(json.dumps(ask("word " * (size // 5))).encode())
        assert isinstance(refusal, Refusal)
        assert "maximum context length is 64 tokens" in refusal.body["error"]["message"]
