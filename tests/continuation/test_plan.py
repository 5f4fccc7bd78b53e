"""A chat request is guarded, or passed through for a reason; nothing in a body raises."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continuation.plan import MOST_VALUES, Choice, Guarded, Passthrough, plan
from continuation.shapes.chat.usage import Conversation, Estimator
from strategies.types import GENERIC, CompiledStrategy, StrategyBook

BASE: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
CONFIGURED = Choice("some-model", "", 10_000)


def planned(body: Any, opted_out: bool = False, choice: Choice = CONFIGURED) -> Guarded | Passthrough:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return plan(raw, opted_out, StrategyBook(), choice)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"stream": False}, "not_stream"),
        ({"stream": None}, "not_stream"),
        *(
            ({"stream": no}, "not_stream")
            for no in (0, 0.0, "0", "false", "No", "off", 2, "2", "", "truth", [], {})
        ),
        ({"continue_final_message": "true"}, "client_continuation"),
        ({"add_generation_prompt": 0}, "client_continuation"),
        ({"add_generation_prompt": "False"}, "client_continuation"),
        ({"continue_final_message": True}, "client_continuation"),
        ({"add_generation_prompt": False}, "client_continuation"),
        ({"response_format": {"type": "json_object"}}, "structured_output"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "structured_output"),
        ({"response_format": {"type": "structural_tag"}}, "structured_output"),
        ({"structured_outputs": {"regex": "a"}}, "structured_output"),
        ({"guided_json": {}}, "structured_output"),
        ({"guided_regex": "a+"}, "structured_output"),
        ({"regex": "a+"}, "structured_output"),
        ({"ebnf": "root"}, "structured_output"),
        ({"json_schema": "{}"}, "structured_output"),
        ({"messages": [{"content": "x" * 10_000}]}, "body_too_large"),
    ],
)
def test_a_reason_to_pass_through(more: dict[str, Any], reason: str) -> None:
    assert planned(BASE | more) == Passthrough(reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "more",
    [
        {"n": 1},
        {"n": None},
        {"n": "many"},
        {"n": 2},
        {"n": 2, "best_of": 4},
        {"response_format": {"type": "text"}},
        {"response_format": None},
        {"response_format": "json_object"},
        {"guided_json": None},
        {"continue_final_message": False, "add_generation_prompt": True},
        {"continue_final_message": "false", "add_generation_prompt": "true"},
        {"stream_options": {"include_usage": "off"}, "return_token_ids": "no"},
        *({"stream": yes} for yes in (1, 1.0, "1", "true", "TRUE", "t", "yes", "Y", "on", "On")),
        {"max_tokens": "ten", "stream_options": [], "messages": {"a": 1}, "stop": {"x": 1}, "model": 7},
    ],
)
def test_guarded(more: dict[str, Any]) -> None:
    found = planned(BASE | more)
    assert isinstance(found, Guarded)
    assert (found.strategy, found.asks_usage, found.stops) == (GENERIC, False, ())


@pytest.mark.parametrize(
    ("n", "choices"),
    [(1, 1), (None, 1), ("many", 1), (0, 1), (-2, 1), (2, 2), ("2", 2), (3.0, 3), (True, 1), ([2], 1)],
)
def test_the_number_of_choices_is_read_as_engines_read_it(n: Any, choices: int) -> None:
    found = planned(BASE | {"n": n})
    assert isinstance(found, Guarded)
    assert found.choices == choices


def test_several_choices_are_asked_for_with_the_bytes_as_received() -> None:
    row = CompiledStrategy("row", "m", served_names=("m",), token_exact=True)
    body = json.dumps(BASE | {"n": 2}).encode()
    found = plan(body, False, StrategyBook((row,)), CONFIGURED)
    assert isinstance(found, Guarded)
    assert (found.carries_ids, found.leg1_body) == (False, body)


def test_the_client_can_opt_out() -> None:
    assert planned(BASE, opted_out=True) == Passthrough("client_opt_out")  # type: ignore[arg-type]


def test_without_a_model_only_served_names_select() -> None:
    nothing = Choice("", "", 10_000)
    assert planned(BASE, choice=nothing) == Passthrough("no_strategy")  # type: ignore[arg-type]
    row = CompiledStrategy("row", "qwen*", served_names=("m",))
    found = plan(json.dumps(BASE).encode(), False, StrategyBook((row,)), nothing)
    assert isinstance(found, Guarded)
    assert found.strategy is row


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"3", b'"x"', b"null", b"\xff\xfe", b"[" * 100_000, b"{" * 5000, b'{"a":' * 3000],
)
def test_no_json_object(body: bytes) -> None:
    assert planned(body, choice=Choice("m", "", 10**7)) == Passthrough("not_json")  # type: ignore[arg-type]


def test_json_as_engines_read_it_is_json() -> None:
    for body in (
        b'{"stream": true, "temperature": NaN}',
        b'{"stream": true, "messages": ["\\ud83d"]}',
        b'{"stream": true, "seed": 123456789012345678901234567890}',
    ):
        assert isinstance(planned(body), Guarded), body


def test_stops_and_usage_options_are_read() -> None:
    found = planned(BASE | {"stop": "END", "stream_options": {"include_usage": True}, "no_stop_trim": True})
    assert isinstance(found, Guarded)
    assert (found.stops, found.asks_usage, found.asks_usage_always, found.stop_shown) == (
        ("END",),
        True,
        False,
        True,
    )
    found = planned(BASE | {"stop": "x", "stream_options": {"include_usage": 1}, "no_stop_trim": "false"})
    assert isinstance(found, Guarded)
    assert (found.asks_usage, found.stop_shown) == (True, False)
    found = planned(BASE | {"stop": ["a", "", None, "b"], "stream_options": {"continuous_usage_stats": True}})
    assert isinstance(found, Guarded)
    assert (found.stops, found.asks_usage, found.asks_usage_always) == (("a", "b"), False, True)


KEYS = st.sampled_from(
    ["n", "stop", "stream_options", "messages", "max_tokens", "response_format", "model", "regex"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda v: st.lists(v, max_size=4) | st.dictionaries(KEYS, v, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100)  # no fuzzer does this
@given(st.dictionaries(KEYS, VALUES))
def test_nothing_in_a_body_raises(body: dict[str, Any]) -> None:
    found = planned(BASE | body)
    if isinstance(found, Guarded):
        assert isinstance(found.model, str)
        assert all(isinstance(stop, str) for stop in found.stops)
        assert not found.asks_usage or json.loads(found.body)["stream_options"]


def test_of_a_guarded_request_little_more_than_its_bytes_is_in_memory() -> None:
    """Parsed it takes 24 times as much."""
    body = b'{"stream":true,"messages":[' + b"{}," * 49_000 + b"{}]}"
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = planned(body, choice=Choice("m", "", 10**6))
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()
    assert isinstance(found, Guarded)
    assert found.body is body


def test_the_conversation_of_a_large_body_is_read_with_its_plan_and_is_that_of_a_small_one() -> None:
    said = ["Tell me of the sea. " * 4000, "杭州西湖" * 3000, " \n", "a\nb"]
    request = BASE | {"messages": [{"role": "user", "content": text} for text in said]}
    large = planned(request, choice=Choice("m", "", 10**6))
    assert isinstance(large, Guarded)
    assert large.conversation == Conversation.of(request, Estimator())
    assert large.conversation is not None
    assert large.conversation.openings == "Tell me of t\n" + "杭州西湖" * 3
    small = planned(BASE)
    assert isinstance(small, Guarded)
    assert small.conversation is None
    assert small.read_conversation(Estimator()) == Conversation.of(BASE, Estimator())


@pytest.mark.parametrize("one", [b"{}", b"[]", b"1", b'"a"', b'{"role":"user","content":"a"}'])
def test_a_request_of_too_many_values_is_passed_through(one: bytes) -> None:
    values = {b"{}": 2, b"[]": 2, b'{"role":"user","content":"a"}': 3}.get(one, 1)
    most = (MOST_VALUES - 4) // values
    for count, reason in ((most, None), (most + 3, "body_too_large")):
        body = b'{"stream":true,"messages":[' + b",".join([one] * count) + b"]}"
        found = planned(body, choice=Choice("m", "", 10**7))
        assert (found.reason if isinstance(found, Passthrough) else None) == reason


@pytest.mark.parametrize("text", [b"a,b\\n" * 400_000, b'{\\"a\\": [1, 2]}, ' * 100_000, b"QUJD" * 500_000])
def test_what_is_in_a_text_counts_as_one_value(text: bytes) -> None:
    body = b'{"stream":true,"messages":[{"role":"user","content":"' + text + b'"}]}'
    assert isinstance(planned(body, choice=Choice("m", "", 10**7)), Guarded)
