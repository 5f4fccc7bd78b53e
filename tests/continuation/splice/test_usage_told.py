"""The usage that a client gets, over both legs."""

import json
from typing import Any

import pytest

from continuation.shapes.chat.usage import Estimator
from tests.continuation.splice.playbook import (
    DONE,
    ID,
    ID2,
    Play,
    chunk,
    content,
    event,
    finished,
    reasoning,
    role,
    tokens,
    usage,
)
from tests.continuation.splice.plays import ALWAYS, ASKS, broken, of_choice, prefix_of, untouched


@pytest.mark.parametrize("more", [{"delta": None}, {}, {"delta": {}}, {"delta": []}, {"delta": "x"}])
def test_a_finish_counts_whatever_its_delta_is(more: dict[str, Any]) -> None:
    finish = {"finish_reason": "stop", **more}
    untouched(role(), content("a"), of_choice(**finish), DONE)
    play = Play().reads(role(), content("a")).ends()
    play.leg2(content("b", ID2), of_choice(ID2, **finish), DONE)
    assert play.whole().content == "ab"


def test_log_probabilities_and_ids_are_no_token_counts() -> None:
    one = {"token": "a", "logprob": -1.0, "top_logprobs": []}
    spoken = {"index": 0, "delta": {"content": "abcdefgh"}, "logprobs": {"content": [one] * 50}}
    thought = {"index": 0, "delta": {"reasoning": "abcd"}, "logprobs": None, "token_ids": [1] * 50}
    events = [
        event({**ID, "choices": [choice], "prompt_token_ids": [1] * 90}) for choice in (thought, spoken)
    ]
    play = broken(role(), *events, body={"max_tokens": 100, "logprobs": True, **ASKS})
    assert play.legs[0]["max_tokens"] == 100 - 3
    ids = {"prompt_token_ids": [7, 7], "prompt_logprobs": [None]}
    play.leg2(*finished(content("b", ID2, **ids), ident=ID2))
    assert play.whole().usages[0]["completion_tokens"] == 3 + 7
    assert b"[7,7]" not in play.sent.replace(b" ", b"")
    assert not play.record.tokens_exact


@pytest.mark.parametrize("start", [None, {"prompt_tokens": 9}, {}])
def test_usage_on_every_chunk_is_no_end(start: Any) -> None:
    counted = [content("x", usage={**(start or {}), **tokens(9, n)}) for n in range(12)]
    play = untouched(
        role(), *counted, chunk({}, "stop", usage=tokens(9, 12)), usage(9, 12), DONE, body=ALWAYS
    )
    assert len(play.told.usages) == 14
    play = broken(role(), *counted, body=ASKS)
    assert prefix_of(play) == "x" * 12


DETAILS = {"completion_tokens_details": {"reasoning_tokens": 2}}


TOP = {"prompt_tokens_details": None, "reasoning_tokens": 2}


@pytest.mark.parametrize("first,second", [(TOP, DETAILS), (DETAILS, TOP), (TOP, TOP), (DETAILS, DETAILS)])
def test_reasoning_tokens_of_both_legs_are_added_wherever_they_stand(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    counts, more = {**tokens(9, 4), **first}, {**tokens(13, 4), **second}
    play = broken(role(), reasoning("abcd", usage=counts), body=ALWAYS)
    said = [reasoning("efgh", ID2), content("x", ID2), chunk({}, "stop", ident=ID2)]
    play.leg2(role(ID2), *said, event({**ID2, "choices": [], "usage": more}), DONE)
    last = play.whole().usages[-1]
    assert (last["prompt_tokens"], last["completion_tokens"], last["total_tokens"]) == (9, 8, 17)
    told = [
        last.get("reasoning_tokens"),
        (last.get("completion_tokens_details") or {}).get("reasoning_tokens"),
    ]
    assert set(told) <= {4, None}
    assert 4 in told


def test_tokens_of_leg_1_are_counted_and_marked_as_an_estimate() -> None:
    text = "x" * 28  # seven tokens
    play = broken(role(), content(text), body=ASKS)
    play.leg2(role(ID2), content("y", ID2), chunk({}, "stop", ident=ID2), usage(67, 20, ID2), DONE)
    (counts,) = play.whole().usages
    assert counts == tokens(60, 27)
    record = play.record
    assert (record.tokens_recovered, record.tokens_exact, record.usage_after) == (7, False, counts)


LEG2_COUNTS: dict[str, list[bytes]] = {
    "once": [chunk({}, "stop", ident=ID2), usage(50, 7, ID2)],
    "twice": [chunk({}, "stop", ident=ID2), usage(50, 7, ID2), usage(50, 7, ID2)],
    "with the finish": [chunk({}, "stop", ident=ID2, usage=tokens(50, 7))],
    "with the finish and after": [chunk({}, "stop", ident=ID2, usage=tokens(50, 7)), usage(50, 7, ID2)],
    "before the finish": [usage(50, 7, ID2), chunk({}, "stop", ident=ID2)],
    "null afterwards": [chunk({}, "stop", ident=ID2), usage(50, 7, ID2), event({**ID2, "usage": None})],
}


@pytest.mark.parametrize("name", LEG2_COUNTS)
def test_usage_comes_once_if_asked_and_else_not_at_all(name: str) -> None:
    said = [content("b", ID2, usage=tokens(50, 1)), *LEG2_COUNTS[name], DONE]
    for asked, times in ((ASKS, 1), ({}, 0), ({"stream_options": {"include_usage": False}}, 0)):
        play = broken(role(), content("abcd"), body=asked).leg2(role(ID2), *said)
        assert [counts["completion_tokens"] for counts in play.whole().usages] == [1 + 7] * times
        assert play.sent.count(b'"usage"') == times


def test_running_usage_without_the_usage_event_is_not_made_up_for_leg_2() -> None:
    """Engines give none then: the gateway's own include_usage must not make them begin."""
    asked = {"stream_options": {"continuous_usage_stats": True}}
    play = broken(role(), content("a"), body=asked)
    play.leg2(role(ID2), content("b", ID2, usage=tokens(50, 1)), chunk({}, "stop", ident=ID2), DONE)
    assert play.whole().usages == []


def test_the_tokens_of_a_long_conversation_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    count = Estimator.prompt_tokens
    monkeypatch.setattr(Estimator, "prompt_tokens", lambda *told: counted.append(1) or count(*told))
    asked = {**ALWAYS, "messages": [{"role": "user", "content": "杭州 abc " * 100_000}]}
    play = broken(role(), content("a"), body=asked)
    said = [content("b", ID2, usage={"completion_tokens": n}) for n in range(100)]
    play.leg2(role(ID2), *said)
    assert len(counted) == 1


ODD_USAGES: list[Any] = [
    {},
    {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None},
    {"prompt_tokens": 5.0, "completion_tokens": "7"},
    {"completion_tokens": True},
    {"completion_tokens": 7, "completion_tokens_details": []},
    {"completion_tokens": 7, "completion_tokens_details": {"reasoning_tokens": None}},
    {"completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": None}, "reasoning_tokens": None},
]


@pytest.mark.parametrize("odd", ODD_USAGES, ids=json.dumps)
@pytest.mark.parametrize("leg", [1, 2])
def test_odd_counts_are_told_as_whole_numbers_that_add_up(odd: dict[str, Any], leg: int) -> None:
    first = content("abcd", usage=odd) if leg == 1 else content("abcd")
    counted = event({**ID2, "choices": [], "usage": odd if leg == 2 else tokens(50, 7)})
    play = broken(role(), first, body=ASKS).leg2(
        content("b", ID2), chunk({}, "stop", ident=ID2), counted, DONE
    )
    last = play.whole().usages[-1]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    prompt, completion, total = (last[name] for name in names)
    assert [type(last[name]) for name in names] == [int, int, int]
    assert total == prompt + completion
    assert completion >= 1
