"""Tool calls of any form, in either leg."""

import json
from typing import Any

import pytest

from continuation.token_route.ids import Batch, ChatChunks
from continuation.vocabulary import Failure
from tests.continuation.splice.playbook import (
    DONE,
    ID2,
    Play,
    chunk,
    content,
    finished,
    reasoning,
    role,
)
from tests.continuation.splice.plays import broken, untouched

CALLS: list[dict[str, Any]] = [
    {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}},
    {"index": 0, "function": {"arguments": '{"city":'}},
    {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": ' "Pa'}},
    {"index": 0, "id": "", "function": {"name": "", "arguments": 'ris"}'}},
    {"index": 1, "id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    {"id": "c", "type": "function", "function": {"name": "g", "arguments": {"city": "Rome"}}},
    {"index": 2, "id": "d", "function": None},
    {"index": 0, "id": "a", "function": {"name": "f", "arguments": None}},
]


def test_tool_calls_of_any_form_pass_through_either_leg() -> None:
    for calls in ([[call] for call in CALLS], [CALLS]):
        untouched(role(), *(chunk({"tool_calls": c}) for c in calls), chunk({}, "tool_calls"), DONE)
        play = Play().reads(role(), reasoning("hm")).ends()
        told = [chunk({"content": None, "tool_calls": c}, ident=ID2) for c in calls]
        assert play.leg2(*finished(*told, finish="tool_calls")).whole().tool_calls == CALLS


@pytest.mark.parametrize("none", [[], None, {}, ""])
def test_an_empty_list_of_tool_calls_is_no_tool_call(none: Any) -> None:
    play = broken(role(), chunk({"content": "a", "tool_calls": none, "function_call": None}))
    more = chunk({"content": "b", "tool_calls": none}, ident=ID2)
    assert play.leg2(*finished(more)).whole().content == "ab"


def test_a_tool_call_cut_in_its_arguments_is_neither_continued_nor_mended() -> None:
    calls = [chunk({"tool_calls": [call]}) for call in CALLS[:3]]
    play = broken(role(), content("a"), *calls)
    assert play.failed().tool_calls == CALLS[:3]
    assert play.legs == []
    play = broken(role(), content("a"))
    play.leg2(role(ID2), *(chunk({"tool_calls": [c]}, ident=ID2) for c in CALLS[:2]), ended=Failure.EOF)
    assert play.failed().tool_calls == CALLS[:2]
    assert len(play.legs) == 1


@pytest.mark.parametrize("buffered", [False, True])
def test_a_function_call_of_the_old_form_passes_through_leg_2(buffered: bool) -> None:
    parts = [{"name": "f", "arguments": ""}, {"arguments": '{"a":'}, {"arguments": "1}"}]
    play = Play({}, buffer_tool_calls=buffered).reads(role(), content("a")).ends()
    play.leg2(
        *finished(*(chunk({"function_call": part}, ident=ID2) for part in parts), finish="function_call")
    )
    said = [json.loads(line[6:]) for line in play.sent.split(b"\n\n") if b"function_call" in line]
    deltas = [value["choices"][0]["delta"].get("function_call") for value in said]
    assert [delta for delta in deltas if delta] == parts
    assert play.whole().finishes == ["function_call"]


def test_text_and_a_call_in_one_delta_of_leg_2_are_both_told() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    mixed = chunk({"content": "b", "tool_calls": [call]}, ident=ID2)
    answer = broken(role(), content("a")).leg2(*finished(mixed, finish="tool_calls")).whole()
    assert (answer.content, answer.tool_calls) == ("ab", [call])


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_call_by_derender_has_no_content_beside_it(nothing: str | None) -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    delta = {"role": None, "content": nothing, "reasoning": nothing, "tool_calls": [call]}
    shown = {"id": "g", "choices": [{"index": 0, "delta": delta, "finish_reason": None, "token_ids": None}]}
    chat = ChatChunks([], stop_shown=False, tool_call_seen=False)
    found = chat.of(shown, Batch({}, (), "stop", None))
    assert [(one["choices"][0]["delta"], one["choices"][0]["finish_reason"]) for one in found] == [
        ({"tool_calls": [call]}, "tool_calls")
    ]
