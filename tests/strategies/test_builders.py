"""The continuation request, value by value."""

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies.builders import (
    continuation_body,
    final_message,
    prefix,
    remaining_budget,
    truth,
    whole_number,
    without_lone_surrogates,
)
from strategies.builtin import builtin_rows
from strategies.types import GENERIC, CompiledStrategy, Partial

KIMI = CompiledStrategy(
    name="kimi-k3-sglang",
    model="kimi-k3*",
    open="<|open|>think<|sep|>",
    close="<|close|>think<|sep|>",
    content_open="<|open|>response<|sep|>",
)
PROMPT_OPENS = CompiledStrategy(
    name="t", model="t", open="<think>\n", prompt_opens_thinking=True, thinking_key="enable_thinking"
)
STRUCTURED = CompiledStrategy(name="s", model="s", structured=True, thinking_key="enable_thinking")
NO_SWITCH = CompiledStrategy(name="n", model="n", thinking_key="")
BOTH = Partial("Let me see.\n", "\n\nThe answer")
THINKING = Partial("Let me see.\n")
CONTENT = Partial("", "The answer")


@pytest.mark.parametrize(
    "strategy, partial, expected",
    [
        (GENERIC, BOTH, "<think>Let me see.\n</think>\n\nThe answer"),
        (GENERIC, THINKING, "<think>Let me see.\n"),
        (GENERIC, CONTENT, "The answer"),
        (GENERIC, Partial(" ", " "), "<think> </think> "),
        (GENERIC, Partial(), ""),
        (
            KIMI,
            Partial("R", "C"),
            "<|open|>think<|sep|>R<|close|>think<|sep|><|open|>response<|sep|>C",
        ),
        (KIMI, Partial("R"), "<|open|>think<|sep|>R"),
        (KIMI, Partial("", "C"), "C"),
        (PROMPT_OPENS, BOTH, "Let me see.\n</think>\n\nThe answer"),
        (PROMPT_OPENS, THINKING, "Let me see.\n"),
        (PROMPT_OPENS, CONTENT, "The answer"),
        (GENERIC, Partial("a\ud83d", "\ude00b"), "<think>a</think>b"),  # halves in two fields are no pair
        (GENERIC, Partial("a", "\ud83d"), "<think>a</think>"),  # content had begun
        (GENERIC, Partial("\ud83d", "b"), "b"),
    ],
)
def test_the_prefix_is_the_partial_in_the_control_tokens(strategy, partial, expected):
    assert prefix(strategy, partial) == expected
    if not strategy.structured:
        assert final_message(strategy, partial) == {"role": "assistant", "content": expected}


@pytest.mark.parametrize(
    "partial, expected",
    [
        (BOTH, {"role": "assistant", "reasoning": "Let me see.\n", "content": "\n\nThe answer"}),
        (THINKING, {"role": "assistant", "content": "<think>Let me see.\n"}),
        (CONTENT, {"role": "assistant", "content": "The answer"}),
        (Partial("a\ud83d\ude00", "\ud83d"), {"role": "assistant", "reasoning": "a😀", "content": ""}),
    ],
)
def test_a_structured_message_has_its_reasoning_apart_once_content_has_begun(partial, expected):
    assert final_message(STRUCTURED, partial) == expected


@pytest.mark.parametrize(
    "structured, partial, expected",
    [
        (True, Partial("Let me see.\n"), {"role": "assistant", "reasoning": "Let me see.\n", "content": ""}),
        (True, Partial("Let me see."), {"role": "assistant", "content": "<think>Let me see."}),
        (True, Partial("", "Hi\n"), {"role": "assistant", "content": "Hi\n"}),
        (False, Partial("So.\n"), {"role": "assistant", "content": "<think>So.\n</think>"}),
        (False, Partial("So.\nAnd"), {"role": "assistant", "content": "<think>So.\nAnd"}),
        (False, Partial("So.", "Hi"), {"role": "assistant", "content": "<think>So.</think>Hi"}),
    ],
)
def test_a_reasoning_that_ends_as_the_strategy_says_is_closed_before_any_content(
    structured, partial, expected
):
    strategy = CompiledStrategy(name="s", model="s", structured=structured, reasoning_end="\n")
    assert final_message(strategy, partial) == expected
    body = continuation_body({"messages": []}, strategy, partial, 0)
    assert ("chat_template_kwargs" in body) == bool(partial.content)


def test_the_structured_message_uses_the_field_that_the_strategy_names():
    strategy = CompiledStrategy(name="s", model="s", structured=True, reasoning_field="reasoning_content")
    assert final_message(strategy, Partial("R", "C"))["reasoning_content"] == "R"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("plain", "plain"),
        ("渐😀", "渐😀"),
        ("\ud83d\ude00", "😀"),
        ("a\ud83d", "a"),
        ("\ude00b", "b"),
        ("\ude00\ud83d", ""),
        ("\ud83d\ud83d\ude00x\ude00", "😀x"),
        ("😀\ude00", "😀"),
    ],
)
def test_surrogate_halves_are_joined_or_dropped(text, expected):
    assert without_lone_surrogates(text) == expected


@given(st.text(st.characters(codec=None, categories=["Cs", "Ll", "So"])))
def test_what_is_sent_upstream_can_be_encoded(text):
    cleaned = without_lone_surrogates(text)
    cleaned.encode()
    assert without_lone_surrogates(cleaned) == cleaned
    assert [c for c in cleaned if ord(c) < 0xD800] == [c for c in text if ord(c) < 0xD800]


def test_a_body_is_the_clients_with_one_message_more():
    client = {
        "model": "any-name",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "temperature": 0.3,
        "stop": ["END"],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "x_unknown": {"nested": [1, None, "é"]},
    }
    before = copy.deepcopy(client)
    body = continuation_body(client, GENERIC, BOTH, 7)
    assert body == {
        **before,
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "<think>Let me see.\n</think>\n\nThe answer"},
        ],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"thinking": False},
    }
    assert client == before


def test_what_the_client_says_against_it_is_overruled():
    client = {
        "messages": [],
        "continue_final_message": False,
        "add_generation_prompt": True,
        "stream": "yes",
        "stream_options": {"include_usage": False, "continuous_usage_stats": True},
        "echo": True,
    }
    body = continuation_body(client, GENERIC, CONTENT, 0)
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body["echo"] is False
    assert client["stream_options"] == {"include_usage": False, "continuous_usage_stats": True}


@pytest.mark.parametrize("options", [None, [], "x", 3])
def test_stream_options_of_a_wrong_type_are_replaced(options):
    body = continuation_body({"messages": [], "stream_options": options}, GENERIC, CONTENT, 0)
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("messages", [None, "text", {"role": "user"}, 5])
def test_messages_of_a_wrong_type_raise_nothing(messages):
    body = continuation_body({"messages": messages}, GENERIC, CONTENT, 0)
    assert body["messages"] == [{"role": "assistant", "content": "The answer"}]


@pytest.mark.parametrize(
    "strategy, partial, sent, expected",
    [
        (GENERIC, BOTH, {}, {"thinking": False}),
        (GENERIC, CONTENT, {}, {"thinking": False}),
        (PROMPT_OPENS, BOTH, {"enable_thinking": True, "k": 1}, {"enable_thinking": False, "k": 1}),
        (GENERIC, BOTH, "wrong", {"thinking": False}),
        (GENERIC, BOTH, None, {"thinking": False}),
        (GENERIC, THINKING, {"thinking": True}, {"thinking": True}),
        (GENERIC, THINKING, "wrong", "wrong"),
        (NO_SWITCH, BOTH, {"k": 1}, {"k": 1}),
    ],
)
def test_the_thinking_key_is_switched_off_once_content_has_begun(strategy, partial, sent, expected):
    client = {"messages": [], "chat_template_kwargs": sent}
    before = copy.deepcopy(client)
    assert continuation_body(client, strategy, partial, 0)["chat_template_kwargs"] == expected
    assert client == before


def test_no_switch_is_added_while_thinking_or_without_a_key():
    assert "chat_template_kwargs" not in continuation_body({}, GENERIC, THINKING, 0)
    assert "chat_template_kwargs" not in continuation_body({}, NO_SWITCH, BOTH, 0)


@pytest.mark.parametrize(
    "sent, expected",
    [
        ({"max_tokens": 100}, {"max_tokens": 70}),
        ({"max_completion_tokens": 100}, {"max_completion_tokens": 70}),
        ({"max_tokens": 50, "max_completion_tokens": 100}, {"max_tokens": 20, "max_completion_tokens": 70}),
        ({"max_tokens": "100"}, {"max_tokens": 70}),
        ({"max_tokens": 100.0}, {"max_tokens": 70}),
        ({"max_tokens": None}, {"max_tokens": None}),
        ({"max_tokens": True}, {"max_tokens": True}),
        ({"max_tokens": "ten"}, {"max_tokens": "ten"}),
        ({"max_tokens": 1.5}, {"max_tokens": 1.5}),
        ({"max_tokens": [100]}, {"max_tokens": [100]}),
        ({"min_tokens": 40}, {"min_tokens": 10}),
        ({"min_tokens": 20}, {"min_tokens": 0}),
        ({"min_tokens": "40"}, {"min_tokens": 10}),
        ({}, {}),
    ],
)
def test_the_budget_is_what_the_client_gave_less_what_is_spent(sent, expected):
    body = continuation_body({**sent, "messages": []}, GENERIC, BOTH, 30)
    budget = {key: body[key] for key in ("max_tokens", "max_completion_tokens", "min_tokens") if key in body}
    assert budget == expected
    assert all(type(budget[key]) is type(expected[key]) for key in expected)


@pytest.mark.parametrize(
    "sent, expected",
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": "ten"}, None),
        ({"max_tokens": 30}, 0),
        ({"max_tokens": 10}, -20),
        ({"max_tokens": 100, "max_completion_tokens": 40}, 10),
        ({"max_tokens": 35, "max_completion_tokens": "40"}, 5),
    ],
)
def test_the_remaining_budget_is_the_smaller_of_the_two(sent, expected):
    assert remaining_budget(sent, 30) == expected


@pytest.mark.parametrize(
    "value, expected",
    [
        (5, 5),
        (0, 0),
        (-3, -3),
        (5.0, 5),
        ("5", 5),
        (" 5 ", 5),
        ("+5", 5),
        ("-5", -5),
        ("5.0", 5),
        (True, None),
        (False, None),
        (5.5, None),
        (float("nan"), None),
        (float("inf"), None),
        (1e300, None),
        (2**63, None),
        ("9" * 5000, None),
        ("5.5", None),
        ("٣", None),
        ("", None),
        ("five", None),
        (None, None),
        ([], None),
        ({}, None),
    ],
)
def test_whole_numbers_are_read_as_engines_read_them(value, expected):
    assert whole_number(value) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((True, 1, 1.0, "1", "true", "TRUE", "t", "yes", "Y", "on"), True),
        ((False, 0, 0.0, -0.0, "0", "false", "False", "f", "no", "N", "off"), False),
        ((None, 2, -1, 0.5, float("nan"), "", " true", "ja", "2", [], {}, [1]), None),
    ],
)
def test_booleans_are_read_as_engines_read_them(values, expected):
    assert [truth(value) for value in values] == [expected] * len(values)


@pytest.mark.parametrize("key", ["request_id", "rid"])
def test_the_second_request_has_an_id_of_its_own(key):
    assert continuation_body({key: "abc"}, GENERIC, CONTENT, 0)[key] == "abc-leg2"
    assert continuation_body({key: ["abc"]}, GENERIC, CONTENT, 0)[key] == ["abc"]
    assert key not in continuation_body({}, GENERIC, CONTENT, 0)


def test_echo_is_not_added():
    assert "echo" not in continuation_body({}, GENERIC, CONTENT, 0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
client_keys = st.sampled_from(
    [
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "stream_options",
        "chat_template_kwargs",
        "echo",
        "rid",
        "request_id",
        "other",
    ]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(client_keys, json_values), st.sampled_from([BOTH, THINKING, CONTENT]))
def test_no_client_body_raises_or_is_changed(client, partial):
    before = json.dumps(client)
    body = continuation_body(client, GENERIC, partial, 10)
    json.dumps(body)
    assert json.dumps(client) == before
    assert body["messages"][-1]["role"] == "assistant"


def test_the_built_in_rows_name_each_strategy_once_and_say_what_is_not_verified():
    rows = builtin_rows()
    assert [row["name"] for row in rows] == [
        "generic",
        "kimi-k3-sglang",
        "kimi-k3-vllm",
        "kimi-k2",
        "qwen3.6-sglang",
        "qwen3.6-vllm",
        "glm-5.3",
        "deepseek-v4-flash-sglang",
        "deepseek-v4-flash-vllm",
    ]
    assert all("Not verified" in row["notes"] or "Not known" in row["notes"] for row in rows)
