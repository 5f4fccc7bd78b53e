"""Tokens: estimates, and the usage of a joined answer."""

from typing import Any

import pytest

from continuation.shapes.chat.usage import Delivered, Estimator, delivered, joined_usage

EST = Estimator()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("abcd", 1),
        ("abcde", 2),
        ("杭州", 2),
        ("杭州西湖" * 4, 10),
        ("杭a", 1),
        ("，。", 2),
        ("😀", 1),
    ],
)
def test_the_estimate(text: str, tokens: int) -> None:
    assert EST.tokens(text) == tokens


def test_the_estimate_of_many_round_numbers_is_not_one_too_many() -> None:
    assert all(EST.tokens("杭" * 8 * n) == 5 * n for n in range(1, 2000))


def test_the_prompt_is_messages_tool_calls_and_schemas() -> None:
    body = {
        "messages": [
            {"role": "user", "content": "abcd"},
            {"role": "user", "content": [{"type": "text", "text": "abcdefgh"}, {"type": "image_url"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
            },
        ],
        "tools": [{"a": 1}],
    }
    assert EST.prompt_tokens(body) == 1 + 2 + EST.tokens('{"name":"f","arguments":"{}"}') + EST.tokens(
        '{"a":1}'
    )


@pytest.mark.parametrize(
    "odd", [{}, {"messages": "x"}, {"messages": [1, None, {"content": 5, "tool_calls": 3}]}]
)
def test_odd_requests_are_counted_without_a_fault(odd: dict[str, Any]) -> None:
    assert EST.prompt_tokens(odd | {"tools": {}}) == 0


def test_counts_of_the_engine_come_before_estimates() -> None:
    told = {"prompt_tokens": 9, "completion_tokens": 12, "completion_tokens_details": {"reasoning_tokens": 5}}
    assert delivered(told, True, "abcd", "efgh", EST) == Delivered(12, 5, exact=True, prompt=9)
    assert delivered(None, False, "abcd", "efgh", EST) == Delivered(2, 1)
    assert delivered(told | {"completion_tokens": 0}, True, "abcd", "efgh", EST) == Delivered(2, 1, prompt=9)


def test_an_estimate_is_never_below_what_was_reported() -> None:
    assert delivered({"completion_tokens": 12}, False, "", "abcd", EST).completion == 12


def test_an_estimate_is_never_below_the_number_of_events_that_brought_text() -> None:
    assert delivered(None, False, "abcd", "efgh", EST, least=7, reasoning_events=3) == Delivered(7, 3)
    assert delivered(None, False, "abcd", "e" * 60, EST, least=7, reasoning_events=3) == Delivered(16, 1)
    assert delivered(None, False, "", "abcd", EST, others="efgh") == Delivered(2, 0)


BEFORE = Delivered(10, 4)


def test_legs_are_added_once_wherever_reasoning_tokens_stand() -> None:
    sglang = {
        "prompt_tokens": 50,
        "completion_tokens": 4,
        "total_tokens": 54,
        "prompt_tokens_details": None,
        "reasoning_tokens": 2,
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert joined_usage(BEFORE, sglang, 20, True, None) == {
        "prompt_tokens": 20,
        "completion_tokens": 14,
        "total_tokens": 34,
        "prompt_tokens_details": None,
        "reasoning_tokens": 6,
        "completion_tokens_details": {"reasoning_tokens": 6},
    }
    top = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "reasoning_tokens": 2}
    assert joined_usage(BEFORE, top, 20, True, None)["reasoning_tokens"] == 6
    assert "completion_tokens_details" not in joined_usage(BEFORE, top, 20, True, None)
    inner = {"completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 2, "audio_tokens": 0}}
    assert joined_usage(BEFORE, inner, 20, True, None)["completion_tokens_details"] == {
        "reasoning_tokens": 6,
        "audio_tokens": 0,
    }


def test_a_continued_content_that_is_counted_as_reasoning_is_not() -> None:
    usage = {"completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 4}}
    assert joined_usage(BEFORE, usage, 20, False, None)["completion_tokens_details"] == {
        "reasoning_tokens": 4
    }
    assert joined_usage(BEFORE, usage, 20, True, None)["completion_tokens_details"] == {"reasoning_tokens": 8}


def test_exact_counts_of_leg_1_replace_estimates() -> None:
    usage = joined_usage(
        Delivered(12, 5, exact=True, prompt=9), {"prompt_tokens": 50, "completion_tokens": 3}, 99, False, None
    )
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (9, 15, 24)


@pytest.mark.parametrize(("cached", "told"), [(48, 19), (5, 5), (0, 0)])
def test_cached_tokens_stay_below_the_prompt(cached: int, told: int) -> None:
    leg2 = {"prompt_tokens": 50, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
    assert joined_usage(BEFORE, leg2, 20, False, None)["prompt_tokens_details"] == {"cached_tokens": told}


def test_unknown_fields_of_a_usage_survive() -> None:
    assert joined_usage(BEFORE, {"completion_tokens": 1, "cost": 3}, 20, False, {"tier": "x"}) | {
        "cost": 3,
        "tier": "x",
    } == (joined_usage(BEFORE, {"completion_tokens": 1, "cost": 3}, 20, False, {"tier": "x"}))
