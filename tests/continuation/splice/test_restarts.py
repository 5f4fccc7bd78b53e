"""Leg 2 that writes again what leg 1 has written: echoes, restarts, a second thinking, stop strings."""

import json
from typing import Any

import pytest

from tests.continuation.splice.playbook import (
    DONE,
    ID2,
    QUESTION,
    Play,
    chunk,
    content,
    event,
    finished,
    reasoning,
    role,
)
from tests.continuation.splice.plays import ASKS, broken


def test_a_prefix_that_equals_earlier_text_is_continued_at_its_own_place() -> None:
    asked = [{"role": "user", "content": "OK"}, {"role": "assistant", "content": "OK"}, QUESTION]
    play = broken(role(), content("OK"), body={"messages": asked})
    assert play.legs[0]["messages"] == [*asked, {"role": "assistant", "content": "OK"}]
    assert play.leg2(*finished(content("OK", ID2), content("!", ID2))).whole().content == "OKOK!"


TALE = "The sea is wide and the ships are many, and so we sail on. "


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("thought", ["", "I think so. "])
def test_an_echo_of_all_that_was_told_is_trimmed(size: int, thought: str) -> None:
    said = [reasoning(thought)] if thought else []
    play = broken(role(), *said, content(TALE))
    echo = [reasoning(thought, ID2)] if thought else []
    text = TALE + "Ahoy!"
    echo += [content(text[at : at + size], ID2) for at in range(0, len(text), size)]
    answer = play.leg2(*finished(*echo)).whole()
    assert (answer.reasoning, answer.content) == (thought, text)


def test_an_echo_and_nothing_more_is_an_answer_that_was_whole() -> None:
    play = broken(role(), content(TALE))
    leg2 = [chunk({"role": "assistant", "content": TALE}, "stop", ident=ID2), DONE]
    assert play.leg2(*leg2).whole().content == TALE


@pytest.mark.parametrize("cut", [40, 45, len(TALE) - 1])
@pytest.mark.parametrize("then", ["Another tale", ""])
def test_an_answer_that_begins_again_and_departs_is_never_appended(cut: int, then: str) -> None:
    play = broken(role(), content(TALE), body=ASKS)
    play.leg2(*finished(content(TALE[:cut], ID2), *([content(then, ID2)] if then else [])))
    assert play.failed().content == TALE
    assert play.record.reason == "leg2_restarted"


@pytest.mark.parametrize("word", ["The", "The sea", " and so we sail on.", TALE[:20], "\n"])
def test_text_that_only_repeats_some_words_is_not_trimmed(word: str) -> None:
    play = broken(role(), content(TALE))
    assert (
        play.leg2(*finished(content(word, ID2), content("# new", ID2))).whole().content
        == TALE + word + "# new"
    )


@pytest.mark.parametrize("switch", [True, False])
@pytest.mark.parametrize("tag", [["<think>\n"], ["<thi", "nk>", "\n"], ["<think>\nand"], ["<think>"]])
def test_thinking_that_is_opened_again_goes_on_without_a_second_tag(switch: bool, tag: list[str]) -> None:
    body = {"chat_template_kwargs": {"enable_thinking": switch, "other": 1}}
    play = broken(role(), reasoning("first, "), body=body)
    assert play.legs[0]["chat_template_kwargs"] == body["chat_template_kwargs"]
    more = [*(reasoning(part, ID2) for part in tag), reasoning(" then", ID2), content("Yes", ID2)]
    answer = play.leg2(*finished(*more)).whole()
    assert (answer.reasoning.replace("and", ""), answer.content) == ("first,  then", "Yes")
    assert b"<think>" not in play.sent


def test_a_long_stop_string_holds_nobody_up() -> None:
    text = "ab" * 100_000
    play = broken(role(), content(text), body={"stop": [text + "c"]})
    assert play.leg2(*finished(content("d", ID2))).whole().content == text + "d"  # in linear work: it ends


ODD_STARTS: list[dict[str, Any]] = [
    {"choices": []},
    {"id": None, "created": None, "model": None, "choices": [{"index": 0, "delta": {"content": "b"}}]},
    {"id": 7, "created": "x", "system_fingerprint": "other", "choices": [{"delta": {"content": "b"}}]},
    {**ID2, "service_tier": "x", "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": None}]},
    {**ID2, "choices": [{"index": 0, "text": "b"}]},
    {**ID2, "choices": [{"index": "0", "delta": {"content": "b"}}]},
]


@pytest.mark.parametrize("odd", ODD_STARTS, ids=json.dumps)
def test_an_odd_first_chunk_of_leg_2_is_told_under_the_identity_of_leg_1(odd: dict[str, Any]) -> None:
    play = broken(role(), content("a"), body=ASKS).leg2(event(odd), *finished(content("c", ID2)))
    assert play.whole().content in ("ac", "abc")
    assert b"other" not in play.sent


JOINTS = [
    ('{"a":1,', '"b":2}'),
    ('{"a": "x\\', 'n"}'),
    ("```json\n", '{"a":1}\n```'),
    ("1", "1"),
    ("ab", "ab"),
]


@pytest.mark.parametrize("before,after", JOINTS)
def test_text_that_looks_structured_is_joined_as_it_came(before: str, after: str) -> None:
    assert broken(content(before)).leg2(*finished(content(after, ID2))).whole().content == before + after


@pytest.mark.parametrize("trouble", [event({"error": {"message": "m", "code": 500}}), chunk({}, "abort")])
def test_an_answer_that_is_told_again_from_its_start_is_never_appended(trouble: bytes) -> None:
    play = Play(ASKS).reads(role(), content("Hello "), content("world "), trouble)
    answer = play.leg2(*finished(content("Hello world and ", ID2), content("all", ID2))).whole()
    assert answer.content == "Hello world and all"


def test_a_thinking_that_starts_again_under_the_other_name_goes_on_as_one() -> None:
    play = broken(role(), reasoning("first, ", name="reasoning_content"))
    again = [reasoning("<think>", ID2), reasoning("\nthen", ID2), content("Yes", ID2)]
    answer = play.leg2(*finished(*again)).whole()
    assert (answer.reasoning, answer.content) == ("first, then", "Yes")
    assert b'"reasoning"' not in play.sent
