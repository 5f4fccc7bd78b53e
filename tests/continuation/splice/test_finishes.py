"""Finish reasons, and ends that are none."""

from typing import Any

import pytest

from continuation.splice.course import Phase
from continuation.vocabulary import Failure
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
    usage,
)
from tests.continuation.splice.plays import ASKS, broken, of_choice, prefix_of, untouched


@pytest.mark.parametrize("end", [[], [DONE], [chunk({}, "")], [usage(9, 1)]])
def test_an_end_without_a_finish_never_passes_for_one(end: list[bytes]) -> None:
    play = Play().reads(role(), content("a"), *end)
    play = play if play.legs else play.ends()
    answer = play.leg2(role(ID2), content("b", ID2), *end, ended=Failure.EOF).failed()
    assert answer.content == "ab"
    assert len(play.legs) == 1


def test_what_one_leg_has_seen_proves_nothing_for_the_other() -> None:
    play = Play().reads(role(), content("a"), DONE).leg2(role(ID2), content("b", ID2), ended=Failure.EOF)
    assert play.failed().content == "ab"
    assert Play().reads(DONE).legs == []
    aborted = Play().reads(content("a"), chunk({"content": "x"}, "abort"))
    assert aborted.leg2(role(ID2), content("b", ID2), ended=Failure.EOF).failed().content == "ab"


@pytest.mark.parametrize("none", ["", "null", None, False, 0])
def test_a_finish_reason_that_is_none_on_all_chunks_finishes_nothing(none: Any) -> None:
    def said(text: str, ident: dict[str, Any] = ID) -> bytes:
        return of_choice(ident, delta={"content": text}, finish_reason=none)

    untouched(said("a"), said("b"), chunk({}, "stop"), DONE)
    play = Play().reads(said("a"), said("b"), DONE)
    assert play.splice.phase is Phase.LEG2
    assert prefix_of(play) == "ab"
    play.leg2(said("c", ID2), said("d", ID2), DONE)
    assert play.failed().content == "abcd"
    assert (play.record.failure, play.record.reason, len(play.legs)) == ("eof", "leg2_broken", 1)
    whole = Play().reads(said("a")).ends().leg2(said("b", ID2), chunk({}, "length", ident=ID2), DONE).whole()
    assert (whole.content, whole.finishes) == ("ab", ["length"])


EMPTY_STOPS: dict[str, list[bytes]] = {
    "role and stop": [role(ID2), chunk({}, "stop", ident=ID2), DONE],
    "stop alone": [chunk({}, "stop", ident=ID2), DONE],
    "stop in the first chunk": [chunk({"role": "assistant", "content": ""}, "stop", ident=ID2), DONE],
    "stop without an end": [role(ID2), chunk({}, "stop", ident=ID2)],
    "stop and usage of nothing": [chunk({"content": None}, "stop", ident=ID2), usage(50, 0, ID2), DONE],
}


@pytest.mark.parametrize("name", EMPTY_STOPS)
def test_a_leg_2_that_stops_at_once_follows_one_rule(name: str) -> None:
    play = broken(role(), content("a")).leg2(*EMPTY_STOPS[name])
    play = play if play.splice.ended else play.ends()
    assert play.whole().content == "a"
    play = broken(role(), reasoning("r")).leg2(*EMPTY_STOPS[name])
    assert play.failed().reasoning == "r"
    assert (play.record.reason, len(play.legs)) == ("leg2_empty", 1)


def test_two_finishes_or_two_dones_of_leg_2_are_one() -> None:
    ending = [chunk({}, "stop", ident=ID2), chunk({}, "length", ident=ID2), usage(50, 7, ID2), DONE, DONE]
    play = Play(ASKS).reads(content("a"), event({"error": {"message": "x"}}), DONE)
    answer = play.leg2(role(ID2), content("b", ID2), *ending).whole()
    assert (answer.finishes, len(answer.usages)) == (["stop"], 1)


def test_text_after_the_finish_of_leg_2_is_not_shown() -> None:
    play = broken(role(), content("a"))
    play.leg2(content("b", ID2), chunk({}, "stop", ident=ID2), content("ghost", ID2), DONE)
    assert play.whole().content == "ab"


@pytest.mark.parametrize("done", [b"data: [DONE] \n\n", b"data:  [DONE]\n\n", b"data: [DONE]\ndata: \n\n"])
def test_a_done_with_white_space_proves_nothing_and_does_no_harm(done: bytes) -> None:
    cut = Play(ASKS).reads(role(), content("a"), done)
    assert cut.leg2(*finished(content("b", ID2))).whole().content == "ab"
    whole = Play(ASKS).reads(role(), content("a"), chunk({}, "stop"), usage(9, 1), done)
    whole = whole if whole.splice.ended else whole.ends()
    assert (whole.whole().content, len(whole.told.usages)) == ("a", 1)
    again = Play(ASKS).reads(content("a")).ends()
    again.leg2(content("b", ID2), chunk({}, "stop", ident=ID2), usage(9, 1, ID2), done)
    again = again if again.splice.ended else again.ends()
    assert (again.whole().content, len(again.told.usages)) == ("ab", 1)


FINISHES = ["content_filter", "function_call", "STOP", "eos", "insufficient_quota", "null "]


@pytest.mark.parametrize("word", FINISHES)
def test_a_finish_of_a_word_that_nobody_knows_is_one_in_either_leg(word: str) -> None:
    stream = role() + chunk({"content": "a"}, word) + DONE
    play = Play().reads(stream)
    assert (play.sent, play.splice.phase, play.splice.record()) == (stream, Phase.DONE, None)
    play = broken(content("a")).leg2(chunk({"content": "b"}, word, ident=ID2), DONE)
    assert (play.whole().content, play.told.finishes) == ("ab", [word])


@pytest.mark.parametrize("word", [{"type": "abort"}, ["stop"], 1, True, "", "null", None, False])
def test_a_finish_that_is_no_word_finishes_nothing(word: Any) -> None:
    odd = event({**ID, "choices": [{"index": 0, "delta": {}, "finish_reason": word}]})
    assert Play().reads(role(), content("a"), odd, DONE).splice.phase is Phase.LEG2


AFTER_THE_FINISH = [
    event({"error": {"message": "late", "code": 500}}),
    event({"error": {"message": "late", "code": 400}}),
    b"event: error\n\n",
    b"data: {half\n\n",
    chunk({}, "abort", ident=ID2),
    chunk({}, "error", ident=ID2),
    b"data: <html>\n\n",
    chunk({"tool_calls": [{"index": 0}]}, ident=ID2),
]


@pytest.mark.parametrize("trouble", AFTER_THE_FINISH)
def test_trouble_after_the_finish_of_leg_2_spoils_nothing(trouble: bytes) -> None:
    play = Play(ASKS).reads(role(), content("a")).ends()
    play.leg2(content("b", ID2), chunk({}, "stop", ident=ID2), usage(50, 7, ID2), trouble)
    answer = (play if play.splice.ended else play.ends(Failure.DISCONNECT)).whole()
    assert (answer.content, answer.tool_calls, play.record.outcome) == ("ab", [], "rescued")
    assert [counts["completion_tokens"] for counts in answer.usages] == [1 + 7]


@pytest.mark.parametrize("early", [b"", usage(9, 0), event({**ID, "choices": []}), role() + usage(9, 0)])
def test_without_text_an_end_is_a_failure_whatever_else_was_said(early: bytes) -> None:
    for end in ([], [DONE], [chunk({}, ""), DONE]):
        play = Play(ASKS).reads(early, *end)
        answer = (play if play.splice.ended else play.ends()).failed()
        assert (play.asked, answer.content) == (0, "")
