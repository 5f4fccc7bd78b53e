"""Several choices: asked for, or sent by an engine unasked."""

import json
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
    role,
    tokens,
    usage,
)
from tests.continuation.splice.plays import ALWAYS, ASKS, broken, choice, untouched

FIRST_EVENTS: list[dict[str, Any]] = [
    {**ID, "choices": []},
    {**ID},
    {**ID, "choices": None},
    {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": [{}]},
    {"object": "chat.completion.chunk", "choices": []},
    {"usage": None},
]


@pytest.mark.parametrize("first", FIRST_EVENTS, ids=json.dumps)
def test_a_first_event_without_choices_is_forwarded_and_leaves_the_identity_to_the_next(
    first: dict[str, Any],
) -> None:
    untouched(event(first), role(), content("a"), chunk({}, "stop"), DONE)
    play = Play(ASKS).reads(event(first), role(), content("a")).ends()
    told = json.loads(b"[" + play.leg2(*finished(content("b", ID2))).sent.split(b"data: ")[-3] + b"]")[0]
    assert (told["id"], told["created"], told["model"]) == (ID["id"], ID["created"], ID["model"])


def test_usage_without_choices_is_tolerated() -> None:
    bare = event({**ID, "usage": tokens(9, 1)})
    untouched(role(), content("a"), chunk({}, "stop"), bare, DONE, body=ASKS)
    play = Play(ASKS).reads(role(), content("a")).ends()
    play.leg2(content("b", ID2), chunk({}, "stop", ident=ID2), event({**ID2, "usage": tokens(50, 7)}), DONE)
    assert play.whole().usages[0]["completion_tokens"] == 1 + 7


def test_an_event_without_choices_or_usage_does_not_stand_for_the_usage() -> None:
    beat = event({**ID, "choices": []})
    play = broken(role(), content("a", usage=tokens(9, 4)), beat, chunk({}, "stop"), body=ALWAYS)
    assert play.whole().usages[-1] == tokens(9, 4)
    assert json.loads(play.sent.split(b"data: ")[-2])["choices"] == []


CALLED = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}


def test_choices_that_nobody_asked_for_keep_their_indexes_and_their_own_ends() -> None:
    stream = choice(0, "a") + choice(1, "b") + choice(1, "", "stop") + choice(0, "c") + choice(0, "", "stop")
    play = Play(ASKS).reads(stream, usage(9, 3), DONE)
    assert play.sent == stream + usage(9, 3) + DONE
    assert play.splice.record() is None


SEVERAL = {**ASKS, "n": 3}


ALL_BUT_ONE = (choice(0, "a"), choice(2, "c"), choice(1, "b", "stop"), choice(0, "", "length"))


@pytest.mark.parametrize("options", [{}, {"enabled": False}, {"buffer_tool_calls": True}], ids=str)
def test_several_choices_go_through_as_received_until_each_has_its_finish(options: dict[str, Any]) -> None:
    early = (
        *ALL_BUT_ONE,
        usage(9, 3),
        b": ping\n\n",
        event({**ID, "choices": [{"index": 2, "delta": CALLED}]}),
    )
    play = Play(SEVERAL, **options).reads(*early)
    assert play.waits(999).sent == b"".join(early)
    assert (play.splice.idle_deadline(), play.splice.phase) == (None, Phase.LEG1)
    play.reads(choice(2, "", "tool_calls"), usage(9, 5), DONE)
    assert play.sent == b"".join((*early, choice(2, "", "tool_calls"), usage(9, 5), DONE))
    assert (play.splice.phase, play.splice.record()) == (Phase.DONE, None)


@pytest.mark.parametrize("over", [DONE, usage(9, 3) + DONE, b""], ids=["done", "usage", "none"])
@pytest.mark.parametrize("failure", [Failure.EOF, Failure.DISCONNECT])
@pytest.mark.parametrize("count", range(1, 5))
def test_several_choices_of_which_one_has_no_finish_end_failed(
    over: bytes, failure: Failure, count: int
) -> None:
    play = Play(SEVERAL).reads(*ALL_BUT_ONE[:count], over)
    play = play if play.splice.ended else play.ends(failure)
    assert play.sent.startswith(b"".join((*ALL_BUT_ONE[:count], over.removesuffix(DONE))) + b'data: {"error"')
    assert (play.told.done, play.told.errors[0]["code"]) == (0, "multiple_choices")
    assert (play.record.outcome, play.record.reason, play.asked) == ("failed", "multiple_choices", 0)


def test_several_choices_of_which_one_is_aborted_end_failed_when_the_others_have_ended() -> None:
    said = (choice(0, "a"), choice(1, "b", "abort"), choice(0, "c", "stop"), choice(2, "d", "stop"))
    play = Play(SEVERAL).reads(*said)
    assert play.sent == b"".join(said)
    play.reads(DONE)
    assert (play.told.done, play.told.errors[0]["code"]) == (0, "multiple_choices")


def test_several_choices_that_have_ended_and_lose_their_ending_get_it() -> None:
    said = (*ALL_BUT_ONE, choice(2, "", "stop"))
    for play in (Play(SEVERAL).reads(*said).ends(), Play(SEVERAL, idle_timeout=5).reads(*said).waits(5)):
        assert play.sent.startswith(b"".join(said))
        assert (play.told.done, len(play.told.usages), play.told.errors) == (1, 1, [])
        assert (play.record.outcome, play.record.reason) == ("completed", "ending_lost")


def test_an_error_among_several_choices_is_handed_on() -> None:
    error = event({"error": {"message": "out of memory", "code": 500}})
    play = Play(SEVERAL).reads(*ALL_BUT_ONE, error, DONE)
    assert play.sent == b"".join((*ALL_BUT_ONE, error))
    assert play.record.reason == "multiple_choices"


def test_a_finish_of_another_choice_is_not_the_answers() -> None:
    play = Play().reads(choice(0, "a"), choice(1, "b", "stop"), DONE)
    answer = play.told
    assert (answer.done, answer.errors[0]["code"]) == (0, "multiple_choices")
    assert (play.record.failure, play.record.reason) == ("eof", "multiple_choices")


def test_one_choice_told_twice_in_a_chunk_of_leg_2_finishes_once() -> None:
    twice = [
        {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        for text, finish in (("b", None), ("c", "stop"), ("ghost", "stop"))
    ]
    play = broken(role(), content("a")).leg2(event({**ID2, "choices": twice}), DONE)
    assert play.whole().content == "abc"


@pytest.mark.parametrize("failure", [Failure.EOF, Failure.DISCONNECT])
def test_a_second_choice_that_nobody_asked_for_is_not_cut_off_and_called_whole(failure: Failure) -> None:
    play = Play().reads(choice(0, "a"), choice(1, "b"), chunk({}, "stop")).ends(failure)
    assert DONE not in play.sent
    assert (play.record.outcome, play.record.reason) == ("failed", "multiple_choices")
    over = event({**ID, "choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]})
    play = Play().reads(choice(0, "a"), choice(1, "b"), chunk({}, "stop"), over).ends(failure)
    assert play.sent.endswith(DONE)
    assert (play.record.outcome, play.record.reason) == ("completed", "ending_lost")
