"""Right answers are found right, and every way in which one can be wrong is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from continuation.testbed.drill.flights import Flight
from continuation.testbed.drill.judging import DrillOutcome, due_to, judge
from continuation.testbed.drill.plans import Plan, Strike
from continuation.testbed.drill.reading import difference, read, text_difference
from continuation.testbed.drill.wire import Head
from tests.continuation.testbed.drill.streams import (
    DONE,
    ROLE,
    STOP,
    THOUGHT,
    TOOL,
    WHOLE,
    WORDS,
    chunk,
    engine_error,
    event,
    failed,
    flight,
    leg,
    reference,
    usage,
)

IDLE = 4.0
CUT = WHOLE[:5]
REST = WHOLE[5:]


def outcome(one: Flight, events: list[bytes] = WHOLE) -> DrillOutcome:
    finding = judge(one, reference(events), IDLE)
    assert bool(finding.troubles) == (finding.outcome is DrillOutcome.WRONG)
    return finding.outcome


def troubles(one: Flight, events: list[bytes] = WHOLE) -> str:
    return "\n".join(judge(one, reference(events), IDLE).troubles)


def broken(name: str = "disconnect", **more: object) -> Plan:
    return Plan(0, name, 0, leg1=Strike(name, 5), **more)  # type: ignore[arg-type]


def rescued(heard: list[bytes] | None = None, plan: Plan | None = None) -> Flight:
    legs = [leg(1, CUT), leg(2, REST, ended="clean", struck=False)]
    return flight(plan or broken(), legs, WHOLE if heard is None else heard)


# -- what is due -----------------------------------------------------------------------------------


def test_an_answer_without_a_fault_must_come_through_byte_for_byte() -> None:
    whole = flight(Plan(0, "none", 0), [leg(1, WHOLE, ended="clean", struck=False)], WHOLE)
    assert outcome(whole) is DrillOutcome.WHOLE
    whole.heard.raw = bytearray(b"".join(WHOLE).replace(b'"created":5', b'"created": 5'))
    assert "byte" in troubles(whole)


def test_a_broken_answer_must_be_rescued() -> None:
    assert outcome(rescued()) is DrillOutcome.RESCUED
    row = judge(rescued(), reference(), IDLE).due.row
    assert row == {
        "outcome": "rescued",
        "decision": "continue",
        "reason": "",
        "failure": "disconnect",
        "reasoning_chars": 13,
        "content_chars": 15,
        "leg2_status": 200,
    }


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ([1, 2, 3, 4], ""),
        ([1, 2, 2, 4], "event 2 was followed by 2"),
        ([1, 2, 4, 5], "event 2 was followed by 4"),
        ([2, 3, 4, 5], "event 0 was followed by 2"),
        ([1, 2, None, 3], "event 2 was followed by b': a comment"),
    ],
)
def test_each_event_of_one_who_comes_back_has_the_next_number(numbers: list[int | None], wrong: str) -> None:
    one = rescued([])
    last = numbers[-1] or 0
    for number, block in zip([*numbers, *range(last + 1, last + 7)], WHOLE, strict=True):
        one.take_numbered((f"id: {number}\n".encode() if number else b"") + b": a comment\n" + block)
    assert bytes(one.heard.raw) == b"".join(WHOLE)
    assert outcome(one) is (DrillOutcome.WRONG if wrong else DrillOutcome.RESCUED)
    assert wrong in troubles(one)


def test_a_break_before_any_text_must_fail() -> None:
    early = flight(broken(), [leg(1, [ROLE])], [ROLE, failed("no_recoverable_content")])
    assert outcome(early) is DrillOutcome.FAILED
    assert judge(early, reference(), IDLE).due.reason == "no_recoverable_content"


def test_a_break_in_a_tool_call_must_fail() -> None:
    begun = TOOL[:3]
    one = flight(broken(), [leg(1, begun)], [*begun, failed("tool_call_seen")])
    assert outcome(one, TOOL) is DrillOutcome.FAILED


def test_a_break_after_the_finish_is_completed() -> None:
    plan = Plan(0, "ending_lost", 0, leg1=Strike("ending_lost", 0, "reset"))
    one = flight(plan, [leg(1, WHOLE[:8])], WHOLE)
    assert outcome(one) is DrillOutcome.COMPLETED
    one.heard.raw = bytearray(b"".join(WHOLE[:8]))
    assert "[DONE] 0 times" in troubles(one)


@pytest.mark.parametrize(
    ("strike", "reason"),
    [
        (Strike("refused", how="500"), "leg2_refused"),
        (Strike("unreachable"), "leg2_unreachable"),
        (Strike("eof"), "leg2_broken"),
        (Strike("depart"), "leg2_restarted"),
        (Strike("restart"), ""),
        (Strike("empty_stop"), ""),
        (Strike("rename"), ""),
    ],
)
def test_what_is_due_depends_on_leg_2(strike: Strike, reason: str) -> None:
    one = flight(broken(leg2=strike), [leg(1, CUT), leg(2, [])], CUT)
    assert due_to(one).reason == reason


def test_an_empty_leg_2_ends_content_and_fails_a_thinking() -> None:
    plan = broken(leg2=Strike("empty_stop"))
    legs = [leg(1, CUT), leg(2, [])]
    assert outcome(flight(plan, legs, [*CUT, STOP, usage(), DONE])) is DrillOutcome.RESCUED
    thinking = [ROLE, *THOUGHT]
    one = flight(plan, [leg(1, thinking), leg(2, [])], [*thinking, failed()])
    assert outcome(one) is DrillOutcome.FAILED
    assert due_to(one).reason == "leg2_empty"


def test_a_silence_must_be_acted_on_only_where_it_can_be_continued() -> None:
    plan = broken("stall")
    waited = leg(1, WHOLE, ended="clean", went_on=True)
    assert "silence was not acted on" in troubles(flight(plan, [waited], WHOLE))
    early = Plan(0, "stall", 0, leg1=Strike("stall", 1))
    assert outcome(flight(early, [waited], WHOLE)) is DrillOutcome.WHOLE


def starved(heard: list[bytes], plan: Plan | None = None, silence: float = IDLE) -> Flight:
    legs = [
        leg(1, CUT, ended="left", struck=False, silence=silence),
        leg(2, REST, ended="clean", struck=False),
    ]
    return flight(plan or Plan(0, "none", 0), legs, heard)


def test_a_gateway_that_gives_up_an_engine_which_starves_is_not_wrong_and_its_answer_must_be_sound() -> None:
    assert outcome(starved(WHOLE)) is DrillOutcome.UNCLEAR
    assert outcome(starved([*CUT, failed("idle_timeout")])) is DrillOutcome.UNCLEAR
    assert not judge(starved(WHOLE), reference(), IDLE).row_is_certain
    assert "requests that reached the engine" in troubles(starved(WHOLE, silence=0.1))
    for change in ("a token is missing", "[DONE] is missing", "a second id", "usage twice"):
        changed = starved(WRONG[change](WHOLE))
        assert (outcome(changed) is DrillOutcome.WRONG) is (change != "usage twice")
    assert outcome(starved([*CUT[:4], WORDS[2], failed("idle_timeout")])) is DrillOutcome.WRONG


def test_a_starved_engine_may_be_given_up_before_its_fault() -> None:
    one = rescued()
    one.legs[1].asked_at = one.legs[0].handed_at + IDLE
    assert outcome(one) is DrillOutcome.RESCUED
    assert not judge(one, reference(), IDLE).row_is_certain
    assert judge(rescued(), reference(), IDLE).row_is_certain


def test_a_stall_is_no_starving() -> None:
    one = rescued(plan=broken("stall"))
    one.legs[1].asked_at = one.legs[0].handed_at + 2 * IDLE
    assert judge(one, reference(), IDLE).row_is_certain


# -- what can be wrong with a rescued answer ---------------------------------------------------------

WRONG: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a token is missing": lambda events: events[:5] + events[6:],
    "a token comes twice": lambda events: [*events[:6], events[5], *events[6:]],
    "two tokens change places": lambda events: [*events[:5], events[6], events[5], *events[7:]],
    "a space is lost": lambda events: [*events[:5], chunk({"content": "dear"}), *events[6:]],
    "content comes as reasoning": lambda events: [*events[:5], chunk({"reasoning": "dear "}), *events[6:]],
    "the end is missing": lambda events: events[:5],
    "[DONE] is missing": lambda events: events[:-1],
    "[DONE] comes twice": lambda events: [*events, DONE],
    "something comes after [DONE]": lambda events: [*events, ROLE],
    "no finish_reason": lambda events: [*events[:7], *events[8:]],
    "two finish_reasons": lambda events: [*events[:8], events[7], *events[8:]],
    "another finish_reason": lambda events: [*events[:7], chunk(finish="length"), *events[8:]],
    "no usage": lambda events: [*events[:8], DONE],
    "usage twice": lambda events: [*events[:8], usage(), usage(), DONE],
    "a total that is no sum": lambda events: [*events[:8], usage(total_tokens=99), DONE],
    "a second role": lambda events: [*events[:5], ROLE, *events[5:]],
    "a second id": lambda events: [*events[:5], events[5].replace(b"c-1", b"c-2"), *events[6:]],
    "another model": lambda events: [*events[:5], events[5].replace(b'"m"', b'"n"'), *events[6:]],
    "an error event": lambda events: [*events[:5], engine_error(), *events[5:]],
    "it fails": lambda events: [*events[:5], failed()],
    "an event is no JSON": lambda events: [*events[:5], b"data: {oops\n\n", *events[5:]],
    "leg 1 was changed": lambda events: [events[0].replace(b'"content":""', b'"content":null'), *events[1:]],
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_a_rescued_answer_is_wrong_if(change: Callable[[list[bytes]], list[bytes]]) -> None:
    assert outcome(rescued(change(WHOLE))) is DrillOutcome.WRONG


def test_the_first_difference_is_told_with_its_place() -> None:
    told = troubles(rescued(WRONG["a token is missing"](WHOLE)))
    assert "content, character 15: after '\\n\\nHello there, ' wanted 'dear world.', got 'world.'" in told


def test_reasoning_under_two_names_is_wrong() -> None:
    renamed = [ROLE, THOUGHT[0], chunk({"reasoning_content": "think."}), *WHOLE[3:]]
    legs = [leg(1, WHOLE[:2]), leg(2, WHOLE[2:], ended="clean", struck=False)]
    assert "reasoning under two names" in troubles(flight(broken(), legs, renamed))


@pytest.mark.parametrize(
    ("wanted", "ending", "right"),
    [("none", [DONE], True), ("none", [usage(), DONE], False), ("asked", [DONE], False)],
)
def test_usage_comes_only_where_it_was_asked_for(wanted: str, ending: list[bytes], right: bool) -> None:
    one = rescued([*WHOLE[:8], *ending], broken(usage=wanted))
    assert (outcome(one) is DrillOutcome.RESCUED) is right


def test_running_usage_never_goes_backwards_and_ends_exactly() -> None:
    def counted(*counts: int) -> list[bytes]:
        words = [
            chunk({"content": text}, usage={"completion_tokens": count})
            for text, count in zip(("\n\nHello ", "there, ", "dear ", "world."), counts, strict=True)
        ]
        return [ROLE, *THOUGHT, *words, STOP, usage(), DONE]

    def told(events: list[bytes]) -> str:
        return troubles(rescued(events, broken(usage="running")))

    assert "go backwards" not in told(counted(1, 2, 3, 4))
    assert "go backwards" in told(counted(1, 2, 1, 2))
    assert "usage: wanted (7, 6, 13)" in told(
        [*WHOLE[:8], usage(completion_tokens=60, total_tokens=67), DONE]
    )


def test_another_number_of_requests_is_wrong() -> None:
    once, thrice = rescued(), rescued()
    del once.legs[1]
    thrice.legs.append(leg(4, []))
    assert "wanted [1, 2], got [1]" in troubles(once)
    assert "wanted [1, 2], got [1, 2, 4]" in troubles(thrice)


def test_headers_and_the_end_of_the_body_count() -> None:
    one = rescued()
    one.heard.fields["x-continuation"] = "passthrough; reason=no_strategy"
    assert "X-Continuation" in troubles(one)
    two = rescued()
    two.heard.ended = "broken"
    assert "end: " in troubles(two)
    three = rescued()
    three.heard.ended, three.heard.trouble = "late", "no end within 180 s"
    assert troubles(three) == "no end within 180 s"


def test_an_answer_with_a_resume_token_is_for_no_cache() -> None:
    one = rescued()
    one.heard.fields["x-resume-token"] = "t"
    assert troubles(one) == "Cache-Control: wanted 'no-store', got 'no-cache'"
    one.heard.fields["cache-control"] = "no-store"
    assert troubles(one) == ""
    del one.heard.fields["x-resume-token"]
    assert troubles(one) == "Cache-Control: wanted 'no-cache', got 'no-store'"


def test_a_body_that_was_changed_is_wrong() -> None:
    one = rescued()
    one.sent = b'{"x": 1}'
    assert "another body" in troubles(one)


# -- what can be wrong with a failed one -------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "right"),
    [
        ([failed("disconnect")], True),
        ([failed("no_recoverable_content")], True),
        ([failed("eof")], False),
        ([failed(), DONE], False),
        ([failed(), failed()], False),
        ([], False),
        ([STOP, DONE], False),
        ([STOP, failed()], False),
        ([THOUGHT[0], failed()], False),
        ([event({"error": {"message": "x", "type": "server_error", "code": "disconnect"}})], False),
    ],
)
def test_the_failed_ending_is_one_error_event_that_says_why(ending: list[bytes], right: bool) -> None:
    one = flight(broken(), [leg(1, [ROLE])], [ROLE, *ending])
    assert (outcome(one) is DrillOutcome.FAILED) is right


def test_the_engines_own_error_event_is_forwarded() -> None:
    plan = Plan(0, "client_error_event", 0, leg1=Strike("client_error_event", 5, "openai"))
    legs = [leg(1, CUT, ended="clean")]
    assert outcome(flight(plan, legs, [*CUT, engine_error()])) is DrillOutcome.FAILED
    assert "did not come through" in troubles(flight(plan, legs, [*CUT, failed("error_event")]))


def test_what_a_failed_leg_2_said_must_be_the_answers_next_words() -> None:
    plan = broken(leg2=Strike("reset"))
    legs = [leg(1, CUT), leg(2, WORDS[2:3])]
    assert outcome(flight(plan, legs, [*CUT, WORDS[2], failed()])) is DrillOutcome.FAILED
    assert "content, character 15" in troubles(flight(plan, legs, [*CUT, WORDS[3], failed()]))
    assert "content of leg 1" in troubles(flight(plan, legs, [*CUT[:4], failed()]))


# -- what is passed on -------------------------------------------------------------------------------


def passed(heard: bytes, ended: str, sent: bytes = b"half an ev", how: str = "broken") -> Flight:
    plan = Plan(0, "client_opts_out", 0, leg1=Strike("disconnect", 5))
    one = flight(plan, [leg(1, CUT, ended=how, body=bytearray(b"".join(CUT) + sent))], heard, ended)
    one.heard.fields["x-continuation"] = "passthrough; reason=client_opt_out"
    return one


def test_who_opts_out_gets_every_byte_and_the_break() -> None:
    raw = b"".join(CUT) + b"half an ev"
    assert outcome(passed(raw, "broken")) is DrillOutcome.PASSED
    assert "end: " in troubles(passed(raw, "clean"))
    assert "byte" in troubles(passed(raw[:-1], "broken"))
    rescued_all_the_same = passed(raw, "broken")
    rescued_all_the_same.legs.append(leg(2, REST))
    assert "requests that reached the engine" in troubles(rescued_all_the_same)


def test_a_refusal_is_passed_on_as_it_is() -> None:
    def refused(status: int, body: bytes) -> Flight:
        plan = Plan(0, "refused", 0, leg1=Strike("refused", how="503"))
        told = leg(1, [], ended="clean", status=503, body=bytearray(b'{"error": 1}'))
        one = flight(plan, [told], body)
        one.heard.status = status
        return one

    assert outcome(refused(503, b'{"error": 1}')) is DrillOutcome.PASSED
    assert "status" in troubles(refused(502, b'{"error": 1}'))
    assert "byte" in troubles(refused(503, b'{"error": 2}'))


def test_an_engine_that_answers_nothing_is_a_502() -> None:
    plan = Plan(0, "unreachable", 0, leg1=Strike("unreachable", how="close"))
    one = flight(plan, [leg(1, [], status=0)], b'{"error": {"code": "downstream_unreachable"}}')
    assert "status: wanted 502, got 200" in troubles(one)
    one.heard.raw = bytearray(b'{"error":{"code":"downstream_unreachable"}}')
    one.heard.status = 502
    assert outcome(one) is DrillOutcome.PASSED


def test_the_engine_must_be_let_go_of_when_the_client_leaves() -> None:
    plan = Plan(0, "client_leaves", 0, leg1=Strike("hold", 5, "silent close"))
    one = flight(plan, [leg(1, CUT, ended="left")], CUT, ended="left")
    assert outcome(one) is DrillOutcome.PASSED
    assert judge(one, reference(), IDLE).due.row == {"outcome": "client_gone", "decision": "none"}
    one.legs[0].ended = ""
    assert "not let go of" in troubles(one)


def test_what_is_no_http_must_not_reach_the_engine() -> None:
    plan = Plan(0, "client_garbage", 0, leg1=Strike("none", how="not_http"))
    assert outcome(flight(plan, [], b"", ended="left")) is DrillOutcome.PASSED
    assert outcome(flight(plan, [], b"HTTP/1.1 400 Bad Request\r\n\r\n", ended="left")) is DrillOutcome.PASSED
    assert outcome(flight(plan, [], b"HTTP/1.1 200 OK\r\n\r\n", ended="left")) is DrillOutcome.WRONG
    assert outcome(flight(plan, [leg(1, [])], b"", ended="left")) is DrillOutcome.WRONG


# -- reading -----------------------------------------------------------------------------------------


def test_text_that_looks_like_an_ending_is_text() -> None:
    told = read(chunk({"content": 'data: [DONE]\n\n"finish_reason":"stop"'}) + STOP + DONE)
    assert told.kinds == ["content", "finish", "done"]


@pytest.mark.parametrize(
    ("stream", "errors"),
    [
        (b'data: {"error": "words"}\n\n', [{"message": "words"}]),
        (b'event: error\ndata: {"message": "m"}\n\n', [{"message": "m"}]),
        (b'data: {"object": "error", "message": "m"}\n\n', [{"object": "error", "message": "m"}]),
        (b"data: [1]\n\n", [{"message": [1]}]),
    ],
)
def test_errors_are_read_in_all_their_forms(stream: bytes, errors: list[object]) -> None:
    assert read(stream).errors == errors


def test_texts_part_at_a_place_and_other_things_are_shown_whole() -> None:
    assert difference("status", 200, 502) == "status: wanted 200, got 502"
    assert difference("status", 200, 200) == text_difference("text", "a", "a") == ""
    assert text_difference("text", "ab", "abc") == "text, character 2: after 'ab' wanted its end, got 'c'"


def test_a_request_line_and_a_status_line_are_read() -> None:
    assert Head("GET /a?b HTTP/1.1", ()).target == "/a?b"
    assert Head("HTTP/1.1 502 Bad Gateway", ()).status == 502
