"""Characters that an engine sends in two halves, and connections that die between them."""

from collections.abc import Callable

import pytest

from continuation.audit import rows
from continuation.splice.course import Phase
from continuation.vocabulary import Failure
from tests.continuation.splice.playbook import ID, ID2, Play, content, finished, reasoning, role
from tests.continuation.splice.plays import broken, prefix_of, utf8

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("write", [utf8, content], ids=["utf-8", "escaped"])
def test_a_connection_that_dies_inside_a_character_leaves_no_half_of_it(
    write: Callable[[str], bytes],
) -> None:
    first, second = role() + write("渐"), write("😀")
    for cut in range(len(second) + 1):
        play = broken(first + second[:cut])
        text = (
            "渐😀" if cut >= len(second) - 2 else "渐"
        )  # without its blank line an event counts if it parses
        assert prefix_of(play) == text, cut
        answer = play.leg2(*finished(content("!", ID2))).whole()
        assert answer.content == text + "!"
        assert REPLACEMENT not in play.sent.decode()


HIGH, LOW = "\ud83d", "\ude00"


def test_halves_in_two_deltas_of_leg_2_come_out_as_one_character() -> None:
    play = Play(store_text=True).reads(content("a")).ends()
    play.leg2(*finished(content("b" + HIGH, ID2), content(LOW, ID2)))
    answer = play.whole()
    assert answer.content.encode("utf-16", "surrogatepass").decode("utf-16") == "ab😀"


@pytest.mark.parametrize("last", [content(HIGH), content(LOW), reasoning(HIGH)])
def test_a_half_without_its_partner_is_not_sent_upstream(last: bytes) -> None:
    play = broken(role(), reasoning("r"), content("a" + HIGH), content("b"), last, store_text=True)
    assert prefix_of(play) == "<think>r</think>ab"
    play.leg2(*finished(content("c", ID2)))
    play.whole()


def test_halves_in_reasoning_and_content_are_no_pair() -> None:
    play = broken(role(), reasoning("r" + HIGH), content(LOW + "c"))
    assert prefix_of(play) == "<think>r</think>c"


def test_a_cut_between_halves_lets_leg_2_write_the_character_again() -> None:
    play = broken(role(), content("a" + HIGH))
    assert prefix_of(play) == "a"
    assert play.leg2(*finished(content("😀", ID2))).whole().content == "a" + HIGH + "😀"


@pytest.mark.parametrize("ends", ["broken", "continued", "left"])
def test_halves_do_no_harm_to_the_record(ends: str) -> None:
    ident = {**ID, "id": "c" + HIGH}
    play = Play({"model": "m" + LOW}, store_text=True).reads(content("a" + HIGH, ident))
    if ends == "left":
        play.splice.client_gone(1)
    else:
        play.ends(Failure.DISCONNECT)
    if ends == "continued":
        play.leg2(*finished(content("b" + HIGH, ID2)))
    elif ends == "broken":
        play.leg2(content("b" + HIGH, ID2), ended=Failure.EOF)
    row = rows.event_of(play.record)
    told = [row.requested_model, row.completion_id, row.partial_text, row.continued_text]
    assert all(text.encode() for text in told[:3])


def test_silence_after_half_a_character_alone_is_no_failure() -> None:
    """There is nothing that could be continued, so the gateway goes on waiting."""
    play = Play(idle_timeout=5).reads(role(), content(HIGH)).waits(60)
    assert play.splice.phase is Phase.LEG1
