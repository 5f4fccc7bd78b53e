"""Roles, reasoning and identity in the chunks of either leg."""

import pytest

from tests.continuation.splice.playbook import DONE, ID2, Play, chunk, content, finished, reasoning, role
from tests.continuation.splice.plays import broken, prefix_of, untouched


def test_a_role_that_is_null_or_told_again_is_told_once_by_leg_2() -> None:
    null = {"role": None, "content": "a"}
    untouched(role(), chunk(null), chunk(null), role(), chunk({}, "stop"), DONE)
    again = chunk({"role": "assistant", "content": "b"}, ident=ID2)
    play = Play().reads(role(), chunk(null)).ends()
    answer = play.leg2(*finished(again, again, chunk({"role": None, "content": "c"}, ident=ID2))).whole()
    assert (answer.roles, answer.content) == (1, "abbc")
    play = Play().reads(chunk(null)).ends()  # leg 1 never gave one
    assert play.leg2(*finished(again, again)).whole().roles == 1


def test_reasoning_under_both_names_is_told_once() -> None:
    both = chunk({"reasoning": "thin", "reasoning_content": "thin"})
    play = Play().reads(role(), both).ends()
    assert prefix_of(play) == "<think>thin"
    more = [reasoning("king", ID2), reasoning(" on", ID2, name="reasoning_content"), content("Yes", ID2)]
    answer = play.leg2(*finished(*more)).whole()
    assert (answer.reasoning, answer.content) == ("thinking on", "Yes")
    for line in play.sent.split(b"\n\n"):
        assert line.count(b'"reasoning"') == line.count(b'"reasoning_content"')  # a client may read either


def test_reasoning_under_two_names_with_different_text_does_no_harm() -> None:
    play = Play().reads(role(), chunk({"reasoning": "one", "reasoning_content": "two"})).ends()
    assert prefix_of(play) in ("<think>one", "<think>two")
    assert play.leg2(*finished(content("Yes", ID2))).whole().content == "Yes"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a_chunk_of_reasoning_alone_is_not_taken_for_empty(name: str) -> None:
    thought = {name: "t", "content": None}
    play = Play(idle_timeout=5).reads(role())
    for second in range(4):
        play.now = float(second)
        play.reads(chunk(thought))
    assert play.splice.idle_deadline() == 3 + 5
    leg2 = [chunk(thought | {"role": None}, ident=ID2), chunk(thought, ident=ID2)]
    assert play.ends().leg2(*finished(*leg2)).whole().reasoning == "t" * 6


def test_the_role_event_is_told_once_and_alone_is_nothing_to_recover() -> None:
    play = Play(idle_timeout=5).reads(role(), content("a")).waits(5).leg2(*finished(content("b", ID2)))
    assert (play.whole().roles, play.whole().content) == (1, "ab")
    alone = broken(role())
    assert (alone.legs, alone.failed().roles) == ([], 1)
