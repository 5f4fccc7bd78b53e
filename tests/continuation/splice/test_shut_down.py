"""The gateway stops and waits no longer: the ending that a stream gets, wherever it stands."""

from typing import Any

import pytest

from continuation.splice.course import Phase
from continuation.vocabulary import Failure
from tests.continuation.splice.playbook import ID2, Play, chunk, content, role, usage

WITH_USAGE = {"stream_options": {"include_usage": True}}


def shut_down(play: Play) -> Play:
    return play.does(play.splice.shut_down(play.now))


def test_a_stream_in_its_first_leg_fails_and_says_why() -> None:
    play = shut_down(Play().reads(role(), content("Salt")))
    answer = play.failed()
    assert answer.content == "Salt"
    assert answer.errors == [
        {
            "message": "The stream was interrupted: the gateway is shutting down.",
            "type": "stream_interrupted",
            "code": "shutting_down",
        }
    ]
    record = play.record
    assert (record.failure, record.decision, record.outcome) == ("", "none", "failed")
    assert (record.reason, record.content_chars) == ("shutting_down", 4)


def test_nothing_is_sent_after_it() -> None:
    play = shut_down(Play().reads(role(), content("Salt")))
    sent = play.sent
    assert shut_down(play).reads(content("y")).ends().sent == sent
    play.splice.client_gone(play.now)
    assert play.record.outcome == "failed"


def test_an_event_that_has_not_come_whole_is_not_sent() -> None:
    assert shut_down(Play().reads(role(), content("Salt"), content("y")[:20])).failed().content == "Salt"


@pytest.mark.parametrize("reads", [[], [role(ID2), content("y", ID2)]])
def test_a_stream_in_its_second_leg_fails_with_what_it_has(reads: list[bytes]) -> None:
    play = Play().reads(role(), content("Salt")).ends(Failure.DISCONNECT)
    if reads:
        play.leg2(*reads)
    answer = shut_down(play).failed()
    assert answer.content == ("Salty" if reads else "Salt")
    assert answer.errors[0]["code"] == "shutting_down"
    assert (play.record.failure, play.record.reason) == ("disconnect", "shutting_down")


def test_an_answer_with_its_finish_gets_its_ending() -> None:
    play = shut_down(Play(WITH_USAGE).reads(role(), content("Salt"), chunk({}, "stop")))
    answer = play.whole()
    assert (answer.content, len(answer.usages)) == ("Salt", 1)
    assert play.record.outcome == "completed"


def test_a_continued_answer_with_its_finish_gets_its_ending() -> None:
    play = Play(WITH_USAGE).reads(role(), content("Salt")).ends()
    play.leg2(role(ID2), content("y", ID2), chunk({}, "stop", ident=ID2))
    assert play.splice.phase is Phase.LEG2  # its usage may still come
    answer = shut_down(play).whole()
    assert (answer.content, len(answer.usages)) == ("Salty", 1)
    assert play.record.outcome == "rescued"


def test_one_that_is_over_already_stays_as_it_is() -> None:
    whole: list[Any] = [role(), content("Salt"), chunk({}, "stop"), usage(1, 1), b"data: [DONE]\n\n"]
    play = Play(WITH_USAGE).reads(*whole)
    assert shut_down(play).sent == b"".join(whole)
    assert play.splice.record() is None


def test_in_the_middle_of_an_event_that_is_too_large_the_ending_is_an_event_of_its_own() -> None:
    play = Play(event_limit=500).reads(role(), content("Salt"), b"data: " + b"x" * 2000)
    assert play.splice.phase is Phase.UNFRAMED
    sent = shut_down(play).sent
    assert sent.rpartition(b"\n\ndata: ")[2].startswith(b'{"error":')


def test_a_usage_that_was_held_for_the_ending_comes_before_the_error() -> None:
    sent = shut_down(Play(WITH_USAGE).reads(role(), content("Salt"), usage(1, 1))).sent
    assert sent.startswith(role() + content("Salt") + usage(1, 1) + b'data: {"error":')
    assert sent.count(b'"usage"') == 1
