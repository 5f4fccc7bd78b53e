"""Each token of leg 2 that is shown has its log-probabilities and its id, whatever the seam does with its text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from continuation.vocabulary import Failure
from strategies.types import GENERIC, CompiledStrategy
from tests.continuation.splice.playbook import DONE, ID2, Play, chunk, content, event, reasoning, role, usage

TRIMS = CompiledStrategy("t", "t", template_trims=True)
LONG = "The sea is wide and deep, and nobody knows all of it. "
SAYS_SO = {"logprobs": True, "return_token_ids": True}


def spoken(names: list[str], ids: list[int] | None, finish: str | None = None, **delta: Any) -> bytes:
    """A chunk of leg 2 whose tokens are `names`; their ids where leg 2 tells them."""
    entries = [
        {"token": name, "logprob": -0.5, "bytes": [*name.encode()], "top_logprobs": []} for name in names
    ]
    choice = {"index": 0, "delta": delta, "logprobs": {"content": entries}, "finish_reason": finish}
    return event({**ID2, "choices": [choice | ({"token_ids": ids} if ids is not None else {})]})


def words(*names: str, begin: int = 1) -> list[bytes]:
    """One chunk of content for each token."""
    return [spoken([name], [number], content=name) for number, name in enumerate(names, begin)]


def continued(delivered: bytes, *leg2: bytes, strategy: CompiledStrategy = GENERIC, **body: Any) -> Play:
    return Play({**SAYS_SO, **body}, strategy).reads(role(), delivered).ends(Failure.DISCONNECT).leg2(*leg2)


def shown(play: Play) -> list[tuple[str, list[str], list[int]]]:
    """(text, names of tokens, ids) of each event of leg 2 that has any of them."""
    play.whole()
    blocks = [json.loads(block[6:]) for block in play.sent.split(b"\n\n") if block.startswith(b"data: {")]
    choices = [choice for block in blocks for choice in block["choices"]][2:]
    found = [
        (
            "".join(choice["delta"].get(name) or "" for name in ("reasoning", "content")),
            [entry["token"] for entry in (choice.get("logprobs") or {}).get("content") or []],
            choice.get("token_ids") or [],
        )
        for choice in choices
    ]
    return [one for one in found if any(one)]


END = (chunk({}, "stop", ident=ID2), DONE)


def test_text_that_was_held_because_it_may_repeat_the_partial_has_its_tokens() -> None:
    play = continued(content("The cat sat. "), *words("The", " dog", " ran."), *END)
    assert shown(play) == [("The", ["The"], [1]), (" dog", [" dog"], [2]), (" ran.", [" ran."], [3])]


def test_text_that_was_swallowed_takes_its_tokens_with_it() -> None:
    told = [LONG[at : at + 9] for at in range(0, len(LONG), 9)]
    play = continued(content(LONG), *words(*told), *words("And", " on", begin=70), *END)
    assert shown(play) == [("And", ["And"], [70]), (" on", [" on"], [71])]


def test_a_token_of_which_a_part_was_swallowed_is_shown_with_the_other_part() -> None:
    several = spoken(["sat. ", " More", "."], [7, 8, 9], content="sat.  More.")
    play = continued(content("The cat sat. "), *words("The ", "cat "), several, *END)
    assert shown(play) == [(" More.", [" More", "."], [8, 9])]
    play = continued(
        content("A line.\n"), spoken(["\n\n", "Next"], [4, 5], content="\n\nNext"), *END, strategy=TRIMS
    )
    assert shown(play) == [("\nNext", ["\n\n", "Next"], [4, 5])]


def test_white_space_that_was_trimmed_and_written_again_is_swallowed_with_its_tokens() -> None:
    play = continued(content("A line and more.\n\n"), *words("\n", "\n", "Next"), *END, strategy=TRIMS)
    assert shown(play) == [("Next", ["Next"], [3])]
    play = continued(content("A line and more.\n\n"), *words(" ", "Next"), *END, strategy=TRIMS)
    assert shown(play) == [(" ", [" "], [1]), ("Next", ["Next"], [2])]


def test_tokens_on_both_sides_of_a_closing_token_go_with_their_side() -> None:
    thought = spoken(["ink", "</think>", "Yes"], [1, 2, 3], reasoning="ink</think>Yes")
    play = continued(reasoning("I th"), thought, *words("!", begin=4), *END)
    assert shown(play) == [("ink", ["ink"], [1]), ("Yes", ["Yes"], [3]), ("!", ["!"], [4])]
    pieces = [
        spoken([name], [number], reasoning=name) for number, name in enumerate(("so</th", "ink>Yes", "!"), 1)
    ]
    play = continued(reasoning("I think "), *pieces, *END)
    assert shown(play) == [("so", ["so</th"], [1]), ("Yes", ["ink>Yes"], [2]), ("!", ["!"], [3])]


def test_an_opening_token_is_swallowed_with_its_tokens() -> None:
    pieces = [
        spoken([name], [number], reasoning=name) for number, name in enumerate(("<think>", "\n", "ink"), 1)
    ]
    assert shown(continued(reasoning("I th"), *pieces, *END)) == [("ink", ["ink"], [3])]


def test_reasoning_that_is_filed_under_content_keeps_its_tokens() -> None:
    play = continued(content("It is "), spoken(["so"], [1], reasoning="so"), *END)
    assert shown(play) == [("so", ["so"], [1])]
    assert play.told.content == "It is so"


@pytest.mark.parametrize("included", [False, True])
def test_a_stop_string_over_the_seam_is_shown_with_its_tokens_or_without_both(included: bool) -> None:
    play = continued(
        content("a #E"), *words("N", "D", " more"), stop="#END", include_stop_str_in_output=included
    )
    assert shown(play) == ([("N", ["N"], [1]), ("D", ["D"], [2])] if included else [])
    play = continued(content("a #E"), *words("N", "ough"), *END, stop="#END")
    assert shown(play) == [("N", ["N"], [1]), ("ough", ["ough"], [2])]


def test_text_that_is_held_until_the_finish_or_a_tool_call_has_its_tokens_once() -> None:
    last = spoken([" dog", ""], [2, 99], "stop", content=" dog")
    play = continued(
        content("The cat sat. The dog too. "), *words("The"), spoken(["cat"[:0]], [5]), last, DONE
    )
    assert shown(play) == [("The", ["The"], [1]), (" dog", ["", " dog"], [5, 2]), ("", [""], [99])]
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    called = spoken(["{}"], [7], tool_calls=[call])
    play = continued(
        content("The cat sat. "), *words("The"), called, chunk({}, "tool_calls", ident=ID2), DONE
    )
    assert shown(play) == [("The", ["The"], [1]), ("", ["{}"], [7])]


def test_tokens_that_show_nothing_yet_do_not_overtake_text_that_is_held() -> None:
    halves = [spoken([""], [2]), spoken(["樱"], [3], content="樱")]
    play = continued(content("The cat sat. "), *words("The"), *halves, *END)
    assert shown(play) == [("The", ["The"], [1]), ("樱", ["", "樱"], [2, 3])]


def test_tokens_that_show_nothing_yet_pass_as_received_where_nothing_is_held() -> None:
    play = continued(content("It "), spoken([""], [2]), *words("is", begin=3), *END)
    assert shown(play) == [("", [""], [2]), ("is", ["is"], [3])]


def test_text_that_is_still_held_when_leg_2_breaks_has_its_tokens() -> None:
    play = Play(SAYS_SO).reads(role(), content("The cat sat. ")).ends(Failure.DISCONNECT)
    play.leg2(*words("The"), ended=Failure.EOF).failed()
    assert b'"token":"The"' in play.sent
    assert b'"token_ids":[1]' in play.sent


def test_ids_of_several_tokens_without_their_texts_go_with_the_first_part_that_is_shown() -> None:
    several = {"index": 0, "delta": {"reasoning": "ink</think>Yes"}, "token_ids": [1, 2, 3]}
    play = continued(reasoning("I th"), event({**ID2, "choices": [several]}), *END)
    assert shown(play) == [("ink", [], [1, 2, 3]), ("Yes", [], [])]


def test_log_probabilities_in_another_form_are_shown_once_with_the_first_part() -> None:
    odd = {"index": 0, "delta": {"reasoning": "ink</think>Yes"}, "logprobs": {"tokens": ["ink", "Yes"]}}
    play = continued(reasoning("I th"), event({**ID2, "choices": [odd]}), *END)
    play.whole()
    assert play.sent.count(b'"tokens":["ink","Yes"]') == 1


def test_a_client_that_did_not_ask_is_told_of_no_tokens() -> None:
    play = Play({}).reads(role(), content("The cat sat. ")).ends(Failure.DISCONNECT)
    play.leg2(content("The", ID2), reasoning(" dog", ID2), *END).whole()
    assert b'"logprobs":{' not in play.sent
    assert b"token_ids" not in play.sent


def test_running_usage_goes_on_where_text_was_held() -> None:
    counted = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    play = continued(
        content("The cat sat. "),
        *words("The", " dog"),
        chunk({}, "stop", ident=ID2),
        usage(9, 3),
        DONE,
        **counted,
    )
    assert shown(play) == [("The", ["The"], [1]), (" dog", [" dog"], [2])]
