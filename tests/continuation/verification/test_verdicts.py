"""Where an answer is cut, whether two answers are equal, and which settings are recommended: values only."""

import json
from dataclasses import replace
from typing import Any

import pytest

from continuation.verification.cuts import Cut, Place, choose, cuts_of, events_at, place_of, spread
from continuation.verification.heard import Extent, HeardAnswer, ToolCall, events_of, heard_answer, steps_of
from continuation.verification.knowledge import Knowledge
from continuation.verification.ranking import Measured, finalists, percent, recommend
from continuation.verification.variants import CARRIED_IDS, CHAT, COMPLETIONS, TEXT_IDS, Variant, variants
from continuation.verification.verdicts import Finding, Likeness, Tally, first_difference, judge
from strategies.engines import Engine
from strategies.types import CompiledStrategy, Fallback

REASONING = "Think of 杭州 now.\n"
CONTENT = "\n\nHello there 杭州, goodbye for now.\n"
WHOLE = HeardAnswer(REASONING, CONTENT, finish="stop")
ROW = CompiledStrategy("row", "row", Engine.VLLM)
VLLM = Knowledge(Engine.VLLM, "0.32.0", scale_out=True, ids=True, honours_flag=True, trims=False)


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, **rest: Any) -> bytes:
    ids = {"token_ids": rest.pop("token_ids")} if "token_ids" in rest else {}
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **ids}
    return event({"id": "a", "choices": [choice], **rest})


def after(reasoning: str, content: str | None = None, *, calls: int = 0, withheld: bool = False) -> Extent:
    return Extent(1, len(reasoning), len(content or ""), calls, withheld)


# -- places ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step, place",
    [
        (after("Think"), Place.REASONING_WORD),
        (after("Thi"), Place.REASONING_MID_WORD),
        (after("Think "), Place.REASONING_SPACE),
        (after("Think of 杭"), Place.REASONING_CHARACTER),
        (after("Think", withheld=True), Place.REASONING_CHARACTER),
        (after(REASONING), Place.REASONING_END),
        (after(REASONING, withheld=True), Place.REASONING_END),
        (after(REASONING, "\n\n"), Place.CONTENT_BLANK),
        (after(REASONING, "\n\nH"), Place.CONTENT_START),
        (after(REASONING, "\n\nHello"), Place.CONTENT_WORD),
        (after(REASONING, "\n\nHel"), Place.CONTENT_MID_WORD),
        (after(REASONING, "\n\nHello "), Place.CONTENT_SPACE),
        (after(REASONING, "\n\nHello there 杭"), Place.CONTENT_CHARACTER),
        (after(REASONING, "\n\nHello there 杭州"), Place.CONTENT_WORD),
        (after(REASONING, CONTENT[:-3]), Place.CONTENT_END),
        (after(REASONING, CONTENT), Place.CONTENT_END),
        (after(REASONING, "\n\n", calls=5), Place.TOOL_CALL),
    ],
)
def test_a_cut_place_has_a_kind(step: Extent, place: Place) -> None:
    assert place_of(step, WHOLE) is place


def test_content_that_a_tool_call_follows_ends_at_the_call() -> None:
    whole = replace(WHOLE, calls=(ToolCall("x", "f", "{}"),))
    assert place_of(after(REASONING, CONTENT), whole) is Place.TOOL_CALL


def test_where_no_event_tells_one_character_the_first_with_content_is_the_first() -> None:
    steps = [after(REASONING), after(REASONING, "\n\nHello"), after(REASONING, "\n\nHello there")]
    places = [cut.place for cut in cuts_of(0, steps, WHOLE)]
    assert places == [Place.REASONING_END, Place.CONTENT_START, Place.CONTENT_WORD]


def test_steps_follow_the_stream_up_to_its_finish() -> None:
    stream = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning": "Hm"}, token_ids=[1]),
        chunk({}, token_ids=[2]),
        chunk({"content": "Hi"}, token_ids=[3]),
        chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]}),
        chunk({}, "tool_calls"),
        event(b"[DONE]"),
    ]
    steps = steps_of(events_of(b"".join(stream)))
    found = [(step.events, step.position, step.withheld) for step in steps]
    assert found == [
        (2, (2, 0, 0), False),
        (3, (2, 0, 0), True),
        (4, (2, 2, 0), False),
        (5, (2, 2, 2), False),
    ]


def test_cuts_are_spread_evenly_and_the_ends_are_among_them() -> None:
    cuts = [Cut(0, Place.CONTENT_WORD, after("", "x" * n)) for n in range(1, 12)]
    assert spread(cuts, 3) == [cuts[0], cuts[5], cuts[10]]
    assert spread(cuts, 1) == [cuts[5]]
    assert spread(cuts, 0) == cuts
    mixed = [*cuts, Cut(0, Place.CONTENT_END, after("", "y"))]
    assert [cut.place for cut in choose(mixed, 2)] == [
        Place.CONTENT_WORD,
        Place.CONTENT_WORD,
        Place.CONTENT_END,
    ]


def test_a_cut_is_found_again_in_a_coarser_recording() -> None:
    fine = Cut(0, Place.CONTENT_WORD, Extent(9, 5, 4, 0, False))
    coarse = [Extent(2, 3, 0, 0, False), Extent(3, 5, 2, 0, False), Extent(4, 5, 8, 0, False)]
    assert events_at(fine, coarse) == 3
    assert events_at(fine, [fine.step]) == 9
    assert events_at(Cut(0, Place.CONTENT_WORD, Extent(1, 1, 0, 0, False)), coarse) == 0


# -- comparing -------------------------------------------------------------------------------------

ANSWER = HeardAnswer(
    "Hm.\n", "\n\nThe answer.", (), "stop", {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
    None, 1, 1, 1,
)  # fmt: skip
CALLED = replace(ANSWER, calls=(ToolCall("c-1", "f", '{"a": 1}'),), finish="tool_calls")


def judged(
    got: HeardAnswer, want: HeardAnswer = ANSWER, before: HeardAnswer | None = None, **asked: Any
) -> Finding:
    asked = {"decided": True, "counts_exact": True, "reason": "", **asked}
    return judge(want, got, before or HeardAnswer(), **asked)


def test_an_equal_answer_is_exact() -> None:
    assert judged(ANSWER) == Finding(Likeness.EXACT, "", True)


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"reasoning": "Hm!\n"}, "reasoning, character 2: after 'Hm' wanted '.\\n', got '!\\n'"),
        (
            {"content": "\n\nThe answer"},
            "content, character 12: after '\\n\\nThe answer' wanted '.', got its end",
        ),
        ({"content": "\n\n\n\nThe answer."}, "content, character 2: after '\\n\\n' wanted 'The answer.'"),
        ({"finish": "length"}, "finish_reason: wanted 'stop', got 'length'"),
        ({"dones": 0}, "[DONE]: wanted once, got 0 times"),
        ({"roles": 2}, "role: wanted 1 times, got 2 times"),
        ({"ids": 2}, "id: 2 different ones in one answer"),
        ({"usage": {"prompt_tokens": 3}}, "usage: completion_tokens, total_tokens missing"),
        ({"usage": None}, "usage: completion_tokens, prompt_tokens, total_tokens missing"),
        ({"calls": (ToolCall("x", "f", "{}"),)}, "tool calls: wanted 0, got 1"),
    ],
)
def test_the_first_difference_is_shown(changed: dict[str, Any], says: str) -> None:
    found = judged(replace(ANSWER, **changed))
    assert found.verdict is Likeness.DIVERGED
    assert found.difference.startswith(says)


def test_other_counts_are_exact_text_with_other_usage() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    assert judged(replace(ANSWER, usage=usage)) == Finding(Likeness.EXACT, "", False)


def test_a_call_that_had_begun_keeps_its_id_and_a_later_one_may_have_any() -> None:
    other = replace(CALLED, calls=(replace(CALLED.calls[0], id="c-2"),))
    assert judged(other, CALLED).verdict is Likeness.EXACT
    assert judged(other, CALLED, CALLED).difference == "tool call 0, id: 'c-1' became 'c-2'"
    assert (
        "id is missing"
        in judged(replace(CALLED, calls=(replace(CALLED.calls[0], id=""),)), CALLED).difference
    )
    wrong = replace(CALLED, calls=(replace(CALLED.calls[0], arguments='{"a": 2}'),))
    assert judged(wrong, CALLED).difference.startswith("tool call 0, arguments, character 6")


def test_a_failed_ending_is_refused_or_was_not_tried() -> None:
    failed = HeardAnswer(error={"message": "x"})
    assert judged(failed, reason="why") == Finding(Likeness.REFUSED, "why")
    assert judged(failed, reason="why", decided=False) == Finding(Likeness.NOT_TRIED, "why")


def test_an_answer_at_an_estimated_limit_may_end_elsewhere_but_not_differ() -> None:
    want = replace(ANSWER, finish="length")
    shorter = replace(want, content=want.content[:6])
    assert judged(shorter, want, counts_exact=False).verdict is Likeness.EXACT
    assert judged(shorter, want).verdict is Likeness.DIVERGED
    other = replace(want, content="\n\nAn answer of more words.")
    assert judged(other, want, counts_exact=False).verdict is Likeness.DIVERGED


def test_a_stream_is_told_as_a_client_understands_it() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
    rest = {"index": 0, "function": {"arguments": "{}"}}
    stream = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "Hm", "content": None}),
        chunk({"content": "Hi"}),
        chunk({"tool_calls": [call]}),
        chunk({"tool_calls": [rest]}, "tool_calls"),
        event({"id": "a", "choices": [], "usage": {"total_tokens": 3}}),
        event(b"[DONE]"),
    ]
    found = heard_answer(b"".join(stream))
    assert found == HeardAnswer(
        "Hm", "Hi", (ToolCall("c", "f", "{}"),), "tool_calls", {"total_tokens": 3}, None, 1, 1, 1
    )
    assert heard_answer(event({"error": {"message": "no"}})).error == {"message": "no"}
    assert not first_difference(found, found, found)


def test_an_event_that_cannot_be_read_tells_nothing_but_of_an_error() -> None:
    half = b"data: {half\n\n"
    assert heard_answer(chunk({"content": "Hi"}) + half).content == "Hi"
    assert steps_of(events_of(half)) == []
    assert heard_answer(b"event: error\ndata: out of memory\n\n").error is not None


# -- variants --------------------------------------------------------------------------------------


def test_the_configured_strategy_comes_first_and_no_two_variants_ask_the_same() -> None:
    found = variants(ROW, VLLM)
    assert found[0] == Variant("as configured", CHAT, ROW, configured=True)
    assert len({variant.name for variant in found}) == len(found)
    assert {variant.route for variant in found} == {CHAT, TEXT_IDS, CARRIED_IDS, COMPLETIONS}


def test_an_sglang_gets_neither_token_routes_nor_structured_messages_but_open_left_out() -> None:
    found = variants(replace(ROW, engine=Engine.SGLANG), Knowledge(Engine.SGLANG))[1:]
    assert {variant.route for variant in found} == {CHAT}
    assert not any(variant.strategy.structured for variant in found)
    assert any(variant.strategy.prompt_opens_thinking for variant in found)


def test_what_the_engine_writes_and_which_key_it_knows_is_tried() -> None:
    known = replace(VLLM, tokens=("[T]", "[/T]", "[C]"), thinking_switch="enable_thinking")
    found = [variant.strategy for variant in variants(ROW, known)]
    assert any((s.open, s.close, s.content_open) == ("[T]", "[/T]", "[C]") for s in found)
    assert {s.thinking_key for s in found} == {"thinking", "enable_thinking", ""}
    assert {s.open for s in found if s.close == "</think>"} == {"<think>", "<think>\n"}


def test_closing_a_reasoning_at_what_all_of_them_end_with_is_tried_on_vllm_only() -> None:
    found = [variant.strategy for variant in variants(ROW, replace(VLLM, reasoning_end="\n"))]
    assert {(s.reasoning_end, s.structured) for s in found if not s.takes_tokens} == {
        (end, structured) for end in ("", "\n") for structured in (False, True)
    }
    sglang = replace(ROW, engine=Engine.SGLANG)
    found = [v.strategy for v in variants(sglang, Knowledge(Engine.SGLANG, reasoning_end="\n"))]
    assert {s.reasoning_end for s in found} == {""}


def test_without_scale_out_only_completions_may_be_recommended_of_the_token_routes() -> None:
    found = {v.route: v for v in variants(ROW, replace(VLLM, scale_out=False))}
    assert set(found) == {CHAT, COMPLETIONS}
    assert found[COMPLETIONS].eligible
    with_it = {v.route: v for v in variants(ROW, VLLM)}
    assert not with_it[COMPLETIONS].eligible
    assert with_it[COMPLETIONS].hides_scale_out


def measured(
    row: CompiledStrategy, known: Knowledge, exact: dict[str, int], total: int = 10
) -> list[Measured]:
    """Each variant exact at so many places as `exact` says of its route; "" for the configured one."""
    found = []
    for variant in variants(row, known):
        one = Measured(variant, finalist=True)
        right = exact.get("" if variant.configured else variant.route, 0)
        one.tallies[Place.CONTENT_WORD] = Tally(exact=right, diverged=total - right)
        found.append(one)
    return found


def test_among_equals_chat_continue_comes_before_a_token_route_and_the_row_as_it_is() -> None:
    every = measured(ROW, VLLM, {"": 9, CHAT: 9, TEXT_IDS: 9, CARRIED_IDS: 9})
    found = recommend(every, ROW, VLLM)
    assert found.best is every[0]
    assert not found.changes
    token_row = replace(ROW, render_generate=True)
    found = recommend(measured(token_row, VLLM, {"": 9, CHAT: 9}), token_row, VLLM)
    assert found.changes["render_generate"] is False


def test_the_most_exact_wins_whatever_it_costs_but_only_what_can_be_set() -> None:
    every = measured(ROW, VLLM, {"": 5, CHAT: 7, TEXT_IDS: 8, CARRIED_IDS: 9, COMPLETIONS: 10})
    found = recommend(every, ROW, VLLM)
    assert dict(found.changes) == {"render_generate": True, "token_exact": True}
    assert "Change token exact from off to on." in found.says
    assert any("5 of 10" in sentence for sentence in found.says)
    assert any("cannot be had, the best is chat-continue: " in sentence for sentence in found.says)


def test_among_equals_the_one_that_agrees_with_the_engine_wins() -> None:
    known = replace(VLLM, scale_out=False, trims=True, tokens=("<think>\n", "</think>", ""))
    found = recommend(measured(ROW, known, {"": 5, CHAT: 7}), ROW, known)
    assert found.changes["template_trims"] is True
    assert found.changes["open_token"] == "<think>\n"


def test_a_refusal_is_better_than_wrong_text() -> None:
    every = measured(ROW, replace(VLLM, scale_out=False), {"": 5, CHAT: 5})
    every[3].tallies[Place.CONTENT_WORD] = Tally(exact=5, refused=5)
    assert recommend(every, ROW, VLLM).best is every[3]


def test_where_nothing_is_exact_nothing_is_recommended() -> None:
    known = replace(VLLM, honours_flag=False, scale_out=False)
    found = recommend(measured(ROW, known, {}), ROW, known)
    assert not found.changes
    assert "No way of continuing was exact" in found.says[0]
    assert any("ignores continue_final_message" in sentence for sentence in found.says)


def test_only_the_best_of_chat_continue_are_looked_at_more_closely() -> None:
    every = measured(ROW, VLLM, {"": 1, CHAT: 5, TEXT_IDS: 1})
    kept = finalists(every, ROW, VLLM)
    assert every[0] in kept
    assert sum(one.variant.route == CHAT for one in kept) == 7
    assert sum(one.variant.route != CHAT for one in kept) == sum(one.variant.route != CHAT for one in every)


def test_a_row_of_the_token_route_takes_its_fallback_where_scale_out_is_off() -> None:
    row = replace(ROW, render_generate=True, without_scale_out=Fallback.CHAT)
    assert variants(row, replace(VLLM, scale_out=False))[0].route == CHAT
    assert variants(row, VLLM)[0].route == TEXT_IDS


def test_per_cent_counts_what_was_tried() -> None:
    assert percent([Tally(exact=3, diverged=1, not_tried=6)]) == 75
    assert percent([Tally(not_tried=2)]) == 0
