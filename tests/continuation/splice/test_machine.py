"""The splice, told what happened: each failure, each row of the decision, each ending."""

import json
from typing import Any

import pytest

from continuation.splice.course import NEXT, Phase
from continuation.vocabulary import Failure
from strategies.types import CompiledStrategy
from tests.continuation.splice.playbook import (
    DONE,
    ID,
    ID2,
    QUESTION,
    Play,
    chunk,
    content,
    event,
    finished,
    reasoning,
    role,
    tokens,
    usage,
)

ASKS = {"stream_options": {"include_usage": True}}
ALWAYS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
ERROR = event(
    {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}
)
IN_BAND = {
    "error": (ERROR, Failure.ERROR_EVENT),
    "error-as-text": (event({"error": "boom"}), Failure.ERROR_EVENT),
    "error-by-name": (b'event: error\ndata: {"message": "x"}\n\n', Failure.ERROR_EVENT),
    "error-by-name-alone": (b"event: error\n\n", Failure.ERROR_EVENT),
    "error-by-object": (event({"object": "error", "message": "late", "code": 503}), Failure.ERROR_EVENT),
    "abort": (chunk({"content": "?"}, "abort"), Failure.ABORTED),
    "finish-error": (chunk({}, "error"), Failure.ABORTED),
    "no-resource": (chunk({"content": ""}, "insufficient_system_resource"), Failure.ABORTED),
    "no-network": (chunk({}, "network_error"), Failure.ABORTED),
    "error-in-capitals": (chunk({}, "ERROR"), Failure.ABORTED),
    "malformed": (b'data: {"choices":[{"delta":{"content":"he\n\n', Failure.MALFORMED),
    "done-without-finish": (DONE, Failure.EOF),
    "empty-finish-then-done": (chunk({}, "") + DONE, Failure.EOF),
}


@pytest.mark.parametrize("name", IN_BAND)
def test_a_failure_in_band_is_held_back_and_the_answer_continued(name: str) -> None:
    trouble, failure = IN_BAND[name]
    play = Play().reads(role(), content("Hello"), trouble, usage(9, 9), DONE)
    answer = play.leg2(*finished(content(" world", ID2))).whole()
    assert answer.content == "Hello world"
    assert (play.record.failure, play.record.outcome) == (failure, "rescued")
    assert b"EngineCore" not in play.sent


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter", "repetition", "eos_token", "aborted"])
def test_a_finish_that_is_not_named_a_failure_is_an_ending(finish: str) -> None:
    stream = role() + content("a b") + chunk({}, finish) + usage(9, 2) + DONE
    play = Play(ASKS).reads(stream)
    assert (play.sent, play.splice.record()) == (stream, None)


def test_the_operator_says_which_finishes_are_failures() -> None:
    said = [role(), content("Hello"), chunk({}, "gpu-lost")]
    assert Play().reads(*said).splice.phase is Phase.LEG1
    failed = {"failed_finishes": frozenset({"gpu-lost"})}
    play = Play(**failed).reads(*said)
    assert play.leg2(*finished(content(" world", ID2))).whole().content == "Hello world"
    assert Play(**failed).reads(content("x"), chunk({}, "abort"), DONE).splice.phase is Phase.DONE
    broken = (
        Play(**failed).reads(content("x")).ends().leg2(content("y", ID2), chunk({}, "gpu-lost", ident=ID2))
    )
    assert broken.failed().content == "xy"


@pytest.mark.parametrize("failure", [Failure.EOF, Failure.DISCONNECT])
def test_a_lost_connection_is_continued(failure: Failure) -> None:
    play = Play().reads(role(), reasoning("thin"), b'data: {"choices":[{"delta":{"conte').ends(failure)
    answer = play.leg2(*finished(reasoning("king", ID2), content("Yes", ID2))).whole()
    assert (answer.reasoning, answer.content) == ("thinking", "Yes")
    assert (play.record.failure, play.record.case) == (failure, "thinking-partial")


def test_leg_2_is_asked_for_with_the_prefix_and_what_is_left_of_the_budget() -> None:
    body = {"max_tokens": 100, "temperature": 0.5, "add_generation_prompt": True, "tools": [{"x": 1}]}
    play = Play(body).reads(role(), reasoning("abcd"), content("efgh")).ends()
    assert play.legs == [
        {
            "model": "m",
            "stream": True,
            "temperature": 0.5,
            "tools": [{"x": 1}],
            "messages": [QUESTION, {"role": "assistant", "content": "<think>abcd</think>efgh"}],
            "max_tokens": 98,
            "continue_final_message": True,
            "add_generation_prompt": False,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"thinking": False},
        }
    ]


def test_numbers_of_the_request_stay_exact() -> None:
    play = Play({"seed": 2**70, "temperature": 0.1}).reads(content("x")).ends()
    assert play.legs[0]["seed"] == 2**70


def test_silence_is_a_failure_only_where_it_can_be_mended() -> None:
    assert Play().reads(role()).splice.idle_deadline() is None  # nothing to recover
    assert Play(enabled=False).reads(content("x")).splice.idle_deadline() is None
    assert Play().reads(content("x"), chunk({"tool_calls": [{"index": 0}]})).splice.idle_deadline() is None
    assert (
        Play().reads(content("\ud83d"), content("\ud83d")).splice.idle_deadline() is None
    )  # half characters
    assert Play().reads(content("\ud83d"), content("\ude00")).splice.idle_deadline() is not None
    assert Play(idle_timeout=3).reads(content("x")).splice.idle_deadline() == 3
    play = Play(idle_timeout=3).reads(content("x")).waits(2.9)
    assert play.legs == []
    play.waits(0.1).leg2(*finished(content("y", ID2))).whole()
    assert play.record.failure == "idle_timeout"


CALL = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]})
PINGS = (b": ping\n\n", chunk({}), chunk({"content": ""}), b"data\n\n", event({**ID, "choices": []}))


@pytest.mark.parametrize("options", [{}, {"enabled": False}, {"buffer_tool_calls": True}], ids=str)
@pytest.mark.parametrize(
    "said", [(content("yes"),), (content("yes"), CALL), (CALL,)], ids=["text", "both", "call"]
)
def test_silence_after_the_finish_ends_the_answer_as_a_lost_ending_does(
    options: dict[str, Any], said: tuple[bytes, ...]
) -> None:
    leg1 = (role(), *said, chunk({}, "stop"))
    play = Play(ASKS, idle_timeout=5, **options).reads(*leg1).waits(2).reads(*PINGS).waits(2.9)
    assert play.sent == b"".join((*leg1, *PINGS))
    answer = play.waits(0.1).whole()
    assert (len(answer.usages), play.asked) == (1, 0)
    assert (play.record.failure, play.record.outcome, play.record.reason) == (
        "idle_timeout",
        "completed",
        "ending_lost",
    )


def test_silence_after_the_finish_is_counted_from_the_last_news() -> None:
    play = Play(ASKS, idle_timeout=5).reads(content("yes"), chunk({}, "stop")).waits(4)
    play.reads(usage(9, 2)).waits(4)
    assert not play.splice.ended
    assert play.waits(1).whole().usages == [tokens(9, 2)]
    bare = Play(ASKS, idle_timeout=5).reads(content("yes"), chunk({}, "stop"), usage(9, 2)[:-1]).waits(5)
    assert bare.whole().usages == [tokens(9, 2)]  # its blank line has not come


@pytest.mark.parametrize("pings", [(), PINGS], ids=["silence", "pings"])
def test_silence_after_the_finish_of_leg_2_ends_the_answer_too(pings: tuple[bytes, ...]) -> None:
    play = Play(ASKS, idle_timeout=5).reads(content("a")).ends()
    play.leg2(role(ID2), content("b", ID2)).waits(60)
    assert not play.splice.ended  # before the finish there is no idle limit
    play.reads(chunk({}, "stop", ident=ID2), *pings).waits(4).reads(*pings).waits(0.9)
    assert not play.splice.ended
    answer = play.waits(0.1).whole()
    assert (answer.content, len(answer.usages), play.record.outcome) == ("ab", 1, "rescued")
    counted = Play(ASKS, idle_timeout=5).reads(content("a")).ends().leg2(*finished(content("b", ID2))[:-1])
    assert counted.waits(5).whole().usages == [tokens(50 - 1, 1 + 7)]


def test_silence_in_a_large_event_behind_the_finish_ends_the_answer() -> None:
    finish = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"x":"'
    play = Play(event_limit=300, idle_timeout=5).reads(content("x"), finish + b"y" * 400).waits(4)
    play.reads(b"y" * 400).waits(4.9)
    assert not play.splice.ended
    assert play.waits(0.1).sent.endswith(b"y\n\n" + DONE)


def test_only_what_brings_something_new_resets_the_clock() -> None:
    play = Play(idle_timeout=10).reads(content("x"))
    play.now = 4
    play.reads(
        b": ping\n\n", chunk({}), chunk({"content": ""}), chunk({"role": "assistant"}), event([]), event(7)
    )
    assert play.splice.idle_deadline() == 10
    for number, new in enumerate(
        [
            content("y"),
            reasoning("y"),
            chunk({"refusal": "no"}),
            event({**ID, "choices": [{"index": 0, "delta": {}, "token_ids": [3]}]}),
            event({**ID, "choices": [], "usage": tokens(1, 5)}),
        ]
    ):
        play.now = 5 + number
        play.reads(new)
        assert play.splice.idle_deadline() == 15 + number, new


def test_the_clock_stands_still_while_the_client_is_waited_for() -> None:
    play = Play(idle_timeout=10).reads(content("x"))
    play.splice.waited_for_client(60)
    assert play.waits(69).legs == []
    assert len(play.waits(1).legs) == 1


REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], list[bytes], str, str]] = {
    "tool call": (
        {},
        {},
        [content("x"), chunk({"tool_calls": [{"index": 0, "id": "a"}]})],
        "tool_call_seen",
        "eof",
    ),
    "function call": (
        {},
        {},
        [content("x"), chunk({"function_call": {"name": "f"}})],
        "tool_call_seen",
        "eof",
    ),
    "nothing delivered": ({}, {}, [role()], "no_recoverable_content", "eof"),
    "half a character": ({}, {}, [content("\ud83d")], "no_recoverable_content", "eof"),
    "parts, not text": (
        {},
        {},
        [content("x"), chunk({"content": [{"type": "text"}]})],
        "no_recoverable_content",
        "eof",
    ),
    "switched off": ({}, {"enabled": False}, [content("x")], "continuation_disabled", "eof"),
    "budget": ({"max_tokens": 1}, {}, [content("four by four")], "budget_exhausted", "eof"),
    "at fault": (
        {},
        {},
        [content("x"), event({"error": {"message": "m", "code": 400}})],
        "client_error",
        "error_event",
    ),
    "too large": ({}, {"partial_limit": 5}, [content("x" * 6)], "no_recoverable_content", "eof"),
    "second choice": (
        {},
        {},
        [content("x"), event({**ID, "choices": [{"index": 1, "delta": {"content": "y"}}]})],
        "multiple_choices",
        "eof",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_has_a_reason_and_fails_the_stream(name: str) -> None:
    body, options, reads, reason, failure = REFUSALS[name]
    play = Play(body, **options).reads(*reads).ends()
    answer = play.failed()
    assert play.legs == []
    assert (play.record.decision, play.record.reason, play.record.failure) == ("refuse", reason, failure)
    if failure == "eof":
        assert answer.errors[0]["type"] == "stream_interrupted"
        assert answer.errors[0]["code"] == reason


@pytest.mark.parametrize("code", [408, 409, 425, 429, 500, 503, "500", None, "context_length"])
def test_an_error_that_another_try_may_answer_is_continued(code: Any) -> None:
    play = Play().reads(content("x"), event({"error": {"message": "m", "code": code}}))
    assert len(play.legs) == 1


@pytest.mark.parametrize("code", [400, 404, 422, "400"])
def test_an_error_of_the_client_is_forwarded_as_it_came(code: Any) -> None:
    error = event({"error": {"message": "m", "code": code}})
    play = Play().reads(content("x"), error, DONE)
    assert play.sent.endswith(error)
    play.failed()


def test_before_the_first_event_nothing_is_continued() -> None:
    for failure in (Failure.EOF, Failure.DISCONNECT):
        play = Play().reads(b": hello\n\n").ends(failure)
        assert play.failed().errors[0]["code"] == failure
    play = Play().reads(ERROR)
    assert play.sent == ERROR


@pytest.mark.parametrize("name", ["error-by-name", "error-by-object", "error-by-name-alone"])
def test_an_error_that_clients_overlook_is_put_into_their_form(name: str) -> None:
    answer = Play().reads(role(), IN_BAND[name][0]).failed()
    assert answer.errors[0]["message"]
    assert set(answer.errors[0]) >= {"message", "type", "code"}


def test_a_held_error_is_what_the_client_gets_when_leg_2_fails() -> None:
    play = Play().reads(content("x"), ERROR)
    play.does(play.splice.leg2_refused(503, b"", 0)).failed()
    assert play.sent.endswith(ERROR)


def test_an_exact_budget_that_is_used_up_is_an_answer_at_its_limit() -> None:
    play = Play({"max_tokens": 5} | ALWAYS).reads(role(), content("a b c", usage=tokens(9, 5))).ends()
    answer = play.whole()
    assert (answer.finishes, answer.usages[-1]) == (["length"], tokens(9, 5))
    assert (play.legs, play.record.outcome, play.record.reason) == ([], "completed", "budget_exhausted")


def test_after_the_finish_only_the_missing_ending_is_added() -> None:
    play = Play(ASKS).reads(role(), content("abcdefgh"), chunk({}, "stop")).ends(Failure.DISCONNECT)
    answer = play.whole()
    assert answer.usages == [tokens(5, 2)]
    assert (play.legs, play.record.reason) == ([], "ending_lost")


@pytest.mark.parametrize("trouble", [ERROR, b"data: {oops\n\n", chunk({}, "abort")])
def test_trouble_after_the_finish_spoils_nothing(trouble: bytes) -> None:
    play = Play(ASKS).reads(content("ab"), chunk({}, "stop"), usage(3, 1), trouble)
    assert play.whole().usages == [tokens(3, 1)]


def test_a_last_event_without_its_blank_line_counts() -> None:
    play = Play().reads(content("ab"), chunk({}, "stop"), b"data: [DONE]").ends()
    play.whole()
    assert play.splice.record() is None
    half = Play().reads(content("ab"), content("cd")[:-1]).ends(Failure.DISCONNECT)
    assert half.leg2(*finished(content("ef", ID2))).whole().content == "abcdef"


def test_a_healthy_stream_is_forwarded_untouched_and_leaves_no_record() -> None:
    stream = role() + b": ping\r\n\r\n" + content("hi") + chunk({}, "stop") + usage(1, 1) + DONE
    play = Play().reads(stream)
    assert play.sent == stream
    assert play.splice.record() is None


def test_leg_2_is_told_under_the_identity_of_leg_1() -> None:
    other = {**ID2, "system_fingerprint": "fp-2"}
    play = Play(ASKS).reads(role(), reasoning("a", name="reasoning_content"), content("b")).ends()
    play.leg2(event({**other, "choices": []}), *finished(content("c", other), ident=other)).whole()
    assert b"fp-2" not in play.sent
    assert b"chatcmpl-2" not in play.sent


def test_the_fingerprint_of_leg_1_is_kept() -> None:
    first, other = {**ID, "system_fingerprint": "fp-1"}, {**ID2, "system_fingerprint": "fp-2"}
    play = Play().reads(role(), content("b", first)).ends().leg2(*finished(content("c", other), ident=other))
    assert b"fp-2" not in play.sent
    assert play.sent.count(b"fp-1") == 3


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_goes_on_under_the_name_of_leg_1(name: str) -> None:
    other = {"reasoning": "reasoning_content", "reasoning_content": "reasoning"}[name]
    both = chunk({"reasoning": "ng", "reasoning_content": "ng"}, ident=ID2)
    play = Play().reads(reasoning("thi", name=name)).ends()
    play.leg2(*finished(reasoning("nki", ID2, name=other), both, content("x", ID2)))
    assert play.whole().reasoning == "thinking"
    assert f'"{other}"'.encode() not in play.sent.replace(b"_tokens", b"")


def test_the_role_is_told_once_even_if_only_leg_2_has_it() -> None:
    play = Play().reads(content("a")).ends().leg2(*finished(content("b", ID2)))
    assert play.whole().roles == 1


def test_usage_is_told_only_where_it_was_asked_for() -> None:
    assert Play().reads(content("abcd")).ends().leg2(*finished(content("b", ID2))).whole().usages == []
    play = Play(ASKS).reads(reasoning("abcd"), content("efghijkl")).ends()
    play.leg2(*finished(content("b", ID2, usage=tokens(50, 3))))
    details = {"completion_tokens_details": {"reasoning_tokens": 1}}
    assert play.whole().usages == [tokens(50 - 3, 1 + 2 + 7) | details]


def test_the_budget_is_reduced_by_at_least_a_token_for_each_event_with_text() -> None:
    said = [
        role(),
        *(reasoning("I") for _ in range(4)),
        *(content("a") for _ in range(6)),
        chunk({"content": ""}),
    ]
    play = Play({"max_tokens": 40, "min_tokens": 12} | ASKS).reads(*said).ends()
    assert (play.legs[0]["max_tokens"], play.legs[0]["min_tokens"]) == (30, 2)
    details = {"completion_tokens_details": {"reasoning_tokens": 4}}
    assert play.leg2(*finished(content("b", ID2))).whole().usages == [tokens(50 - 10, 10 + 7) | details]
    assert Play({"max_tokens": 10}).reads(*said).ends().failed().errors[0]["code"] == "budget_exhausted"


def test_events_after_the_engines_own_count_are_added_to_it() -> None:
    counted = content("a", usage=tokens(9, 20))
    play = Play({"max_tokens": 40} | ASKS).reads(role(), counted, *(content("b") for _ in range(3))).ends()
    assert play.legs[0]["max_tokens"] == 40 - 23
    assert play.leg2(*finished(content("c", ID2))).whole().usages[-1] == tokens(9, 23 + 7)


def test_the_prompt_is_that_of_leg_2_less_the_partial_with_media_too_and_never_negative() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    body = {"messages": [{"role": "user", "content": [image]}]} | ASKS
    said = [role(), *(content("a") for _ in range(6))]
    play = Play(body).reads(*said).ends().leg2(*finished(content("b", ID2)))
    assert play.whole().usages == [tokens(50 - 6, 6 + 7)]
    few = [role(ID2), content("b", ID2), chunk({}, "stop", ident=ID2), usage(4, 1, ID2), DONE]
    assert Play(body).reads(*said).ends().leg2(*few).whole().usages == [tokens(0, 6 + 1)]


def test_a_missing_usage_counts_the_text_of_every_choice() -> None:
    def of(index: int, text: str, finish: str | None = None) -> bytes:
        return event(
            {**ID, "choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]}
        )

    said = [of(0, "abcdefgh"), of(1, "ijklmnop"), of(0, "", "stop"), of(1, "", "stop")]
    assert Play({"n": 2} | ASKS).reads(*said).ends().told.usages == [tokens(5, 4)]


def test_running_usage_is_exact_and_never_goes_back_at_the_seam() -> None:
    play = (
        Play(ALWAYS).reads(role(), content("a", usage=tokens(9, 4)), content("b", usage=tokens(9, 6))).ends()
    )
    play.leg2(
        role(ID2),
        content("c", ID2, usage=tokens(15, 1)),
        chunk({}, "stop", ident=ID2),
        usage(15, 2, ID2),
        DONE,
    )
    counts = [u["completion_tokens"] for u in play.whole().usages]
    assert counts == [4, 6, 7, 8]
    assert {u["prompt_tokens"] for u in play.told.usages} == {9}


def test_a_missing_usage_of_leg_2_is_estimated() -> None:
    play = Play(ASKS).reads(content("abcd")).ends()
    play.leg2(content("efghijkl", ID2), chunk({}, "stop", ident=ID2), ended=Failure.DISCONNECT)
    assert play.whole().usages == [tokens(5, 3)]


def test_prompt_ids_of_leg_2_are_not_shown() -> None:
    play = Play({"return_token_ids": True}).reads(content("a")).ends()
    first = event(
        {
            **ID2,
            "choices": [{"index": 0, "delta": {"content": "b"}, "token_ids": [4]}],
            "prompt_token_ids": [1],
        }
    )
    play.leg2(first, chunk({}, "stop", ident=ID2), DONE).whole()
    assert b"prompt_token_ids" not in play.sent
    assert b'"token_ids":[4]' in play.sent


LEG2_FAILURES: dict[str, tuple[list[bytes], Failure | None, str]] = {
    "eof": ([content("b", ID2)], Failure.EOF, "leg2_broken"),
    "disconnect": ([content("b", ID2)], Failure.DISCONNECT, "leg2_broken"),
    "done": ([content("b", ID2), DONE], None, "leg2_broken"),
    "error": ([content("b", ID2), ERROR], None, "leg2_broken"),
    "abort": ([content("b", ID2), chunk({}, "abort", ident=ID2)], None, "leg2_broken"),
    "malformed": ([content("b", ID2), b"data: {\n\n"], None, "leg2_broken"),
    "nothing": ([], Failure.EOF, "leg2_broken"),
}


@pytest.mark.parametrize("name", LEG2_FAILURES)
def test_a_failed_leg_2_fails_the_stream_under_the_first_failure_and_there_is_no_third(name: str) -> None:
    reads, ended, reason = LEG2_FAILURES[name]
    play = Play().reads(role(), content("a")).ends(Failure.DISCONNECT).leg2(*reads, ended=ended)
    assert play.failed().errors[0]["code"] == "disconnect"
    assert (play.record.outcome, play.record.reason, len(play.legs)) == ("failed", reason, 1)


HELD_AT_THE_SEAM: dict[str, tuple[dict[str, Any], list[bytes], list[bytes], tuple[str, str]]] = {
    "a stop string begun": ({"stop": ["#END"]}, [content("text #")], [content("E", ID2)], ("", "text #E")),
    "a closing token begun": ({}, [reasoning("thi")], [reasoning("nk</th", ID2)], ("think</th", "")),
    "an opening token begun": ({}, [reasoning("thi")], [reasoning("<th", ID2)], ("thi<th", "")),
    "a start like the partial's": (
        {},
        [content("The sea is wide.")],
        [content("The sea", ID2)],
        ("", "The sea is wide.The sea"),
    ),
}


@pytest.mark.parametrize("name", HELD_AT_THE_SEAM)
@pytest.mark.parametrize("failure", [Failure.EOF, Failure.DISCONNECT])
def test_text_that_the_seam_held_belongs_to_the_client_when_leg_2_breaks(name: str, failure: Failure) -> None:
    body, before, reads, expected = HELD_AT_THE_SEAM[name]
    play = Play(body).reads(role(), *before).ends().leg2(role(ID2), *reads, ended=failure)
    answer = play.failed()
    assert (answer.reasoning, answer.content) == expected
    assert len(answer.ids) == 1


def test_white_space_that_is_dropped_at_the_seam_stays_dropped_when_leg_2_breaks() -> None:
    trims = CompiledStrategy("t", "t", template_trims=True)
    play = Play({}, trims).reads(content("- a\n\n")).ends().leg2(content("\n", ID2), ended=Failure.EOF)
    assert play.failed().content == "- a\n\n"


def test_a_repetition_that_is_being_swallowed_is_not_shown_when_leg_2_breaks() -> None:
    start = "The sea is wide and the ships are many, and so we sail."
    play = Play().reads(content(start)).ends().leg2(content(start[:45], ID2), ended=Failure.EOF)
    assert play.failed().content == start
    play = Play().reads(content(start)).ends().leg2(content(start[:45] + "#", ID2))
    assert play.failed().content == start


def test_a_stop_string_in_what_was_held_ends_the_answer_as_if_leg_2_had_not_broken() -> None:
    body = {"stop": ["look.Let"]} | ASKS
    play = Play(body).reads(content("Let me look.")).ends().leg2(content("Let me", ID2), ended=Failure.EOF)
    answer = play.whole()
    assert (answer.content, answer.finishes, len(answer.usages)) == ("Let me look.", ["stop"], 1)


LATE = {
    "error": ERROR,
    "malformed": b"data: {\n\n",
    "too large": b"data: " + b"y" * 999,
    "abort": chunk({}, "abort"),
}


@pytest.mark.parametrize("name", LATE)
def test_trouble_after_the_finish_of_leg_2_spoils_nothing(name: str) -> None:
    play = Play(ASKS, event_limit=500).reads(content("a")).ends()
    answer = play.leg2(content("b", ID2), chunk({}, "stop", ident=ID2), LATE[name]).whole()
    assert (answer.content, len(answer.usages)) == ("ab", 1)


def test_usage_that_comes_before_a_failure_is_told_once_and_corrected() -> None:
    play = Play(ASKS).reads(role(), content("abcd"), usage(9, 1)).ends()
    play.leg2(*finished(content("e", ID2)))
    assert play.whole().usages == [tokens(9, 1 + 7)]


def test_usage_that_comes_before_the_finish_of_a_healthy_stream_comes_after_it() -> None:
    said, finish = role() + content("abcd"), chunk({}, "stop")
    assert Play(ASKS).reads(said, usage(9, 1), finish, DONE).sent == said + finish + usage(9, 1) + DONE
    twice = Play(ASKS).reads(usage(9, 0), said, finish, usage(9, 1), DONE)
    assert twice.sent == said + finish + usage(9, 1) + DONE
    newer = chunk({}, "stop", usage=tokens(9, 1))
    assert Play(ASKS).reads(usage(9, 0), said, newer, DONE).sent == said + newer + DONE
    lost = Play(ASKS).reads(said, usage(9, 1), finish).ends()
    assert lost.whole().usages == [tokens(9, 1)]


@pytest.mark.parametrize("failure", [Failure.EOF, Failure.DISCONNECT])
def test_usage_in_the_chunk_of_the_finish_is_told_once(failure: Failure) -> None:
    told = chunk({}, "stop", usage=tokens(9, 1))
    assert Play(ASKS).reads(role(), content("abcd"), told).ends(failure).whole().usages == [tokens(9, 1)]
    behind = event({**ID, "choices": [{"index": 0, "delta": {}}], "usage": tokens(9, 1)})
    play = Play(ASKS).reads(role(), content("abcd"), chunk({}, "stop"), behind).ends(failure)
    assert play.whole().usages == [tokens(9, 1)]
    running = Play(ALWAYS).reads(role(), content("abcd"), told).ends(failure)
    assert running.whole().usages == [tokens(9, 1), tokens(9, 1)]  # as engines end a running count
    leg2 = Play(ASKS).reads(role(), content("abcd")).ends()
    leg2.leg2(content("b", ID2), chunk({}, "stop", ident=ID2, usage=tokens(10, 1)), ended=failure)
    assert len(leg2.whole().usages) == 1


def test_usage_that_nobody_will_tell_again_is_not_kept() -> None:
    for body in ({}, ALWAYS):
        assert Play(body).reads(content("abcd"), usage(9, 1)).sent == content("abcd") + usage(9, 1)
    refused = Play(ASKS).reads(role(), usage(9, 0)).ends()
    assert refused.failed().usages == [tokens(9, 0)]


def test_what_an_engine_says_of_a_refusal_is_kept_without_the_conversation() -> None:
    play = Play().reads(content("a secret of ours")).ends()
    message = "continue_final_message is set but ... compatible.Final message to continue: a secret of ours\nRendered"
    play.does(
        play.splice.leg2_refused(400, json.dumps({"error": {"message": message, "code": 400}}).encode(), 0)
    )
    answer = play.failed()
    assert (play.record.leg2_status, play.record.reason) == (400, "leg2_refused")
    assert play.record.leg2_message == "continue_final_message is set but ... compatible."
    assert "compatible" not in answer.errors[0]["message"]


@pytest.mark.parametrize(
    "body", [b"", b"<html>bad gateway</html>", b'"text"', b"[1]", b'{"detail":"Not Found"}', b"\xff"]
)
def test_any_refusal_is_taken(body: bytes) -> None:
    play = Play().reads(content("a")).ends()
    play.does(play.splice.leg2_refused(502, body, 0)).failed()


def test_leg_2_that_ends_without_a_word_finishes_a_content_and_fails_a_thinking() -> None:
    ending = [role(ID2), chunk({}, "stop", ident=ID2), DONE]
    assert Play().reads(content("all said")).ends().leg2(*ending).whole().content == "all said"
    play = Play().reads(reasoning("hm")).ends().leg2(*ending)
    play.failed()
    assert play.record.reason == "leg2_empty"


def test_an_exact_repetition_is_swallowed_and_one_that_departs_fails() -> None:
    start = "The sea is wide and the ships are many, and so "
    pieces = [content(start[:20], ID2), content(start[20:] + "we sail.", ID2)]
    play = Play(ASKS).reads(content(start)).ends().leg2(*finished(*pieces))
    assert play.whole().content == start + "we sail."
    assert play.told.usages[0]["completion_tokens"] == 7  # leg 2 wrote, and counted, all of it
    play = Play().reads(content(start)).ends().leg2(role(ID2), content(start[:42], ID2), content("BUT", ID2))
    assert play.failed().content == start
    assert play.record.reason == "leg2_restarted"


def test_a_stop_string_across_the_seam_ends_the_answer() -> None:
    play = Play({"stop": ["###"]} | ASKS).reads(content("text #")).ends()
    answer = play.leg2(role(ID2), content("#", ID2), content("# and more", ID2)).whole()
    assert (answer.content, answer.finishes) == ("text #", ["stop"])
    assert len(answer.usages) == 1


def test_tool_calls_of_leg_2_come_after_the_text_that_was_held() -> None:
    call = chunk({"content": None, "tool_calls": [{"index": 0, "id": "t"}]}, ident=ID2)
    play = Play({"stop": ["#END"]}).reads(content("text #")).ends()
    answer = play.leg2(*finished(content("E", ID2), call, finish="tool_calls")).whole()
    assert (answer.content, answer.tool_calls, answer.finishes) == (
        "text #E",
        [{"index": 0, "id": "t"}],
        ["tool_calls"],
    )


def test_a_choice_of_leg_2_that_nobody_asked_for_is_dropped() -> None:
    other = event({**ID2, "choices": [{"index": 1, "delta": {"content": "zzz"}}]})
    assert Play().reads(content("a")).ends().leg2(*finished(other, content("b", ID2))).whole().content == "ab"


ODD = [
    event({**ID, "choices": None}),
    event({**ID, "choices": [None, 3, "x"]}),
    event({**ID, "choices": {"index": 0}}),
    event({**ID, "choices": [{"delta": None, "index": None}]}),
    event({**ID, "choices": [{"delta": "text", "finish_reason": 0}]}),
    event({"usage": "many"}),
    event({"usage": {"completion_tokens": "x", "completion_tokens_details": 3}}),
    event(None),
    event("text"),
    event([]),
    b"data: NaN\n\n",
    b"data: " + b"[" * 300 + b"]" * 300 + b"\n\n",
    b"data:\n\n",
    b"id: 7\nretry: 3\n\n",
]


@pytest.mark.parametrize("odd", ODD)
def test_odd_events_are_forwarded_on_leg_1_and_survived_on_leg_2(odd: bytes) -> None:
    play = Play().reads(role(), odd, content("a"))
    assert play.sent == role() + odd + content("a")
    assert play.ends().leg2(*finished(odd, content("b", ID2))).whole().content == "ab"


@pytest.mark.parametrize("halves", [("\ud83d", "\ude00")])
def test_halves_of_a_character_are_joined_in_the_prefix(halves: tuple[str, str]) -> None:
    play = Play().reads(content("x"), *map(content, halves)).ends()
    assert play.legs[0]["messages"][-1]["content"] == "x😀"
    play = Play().reads(content("x"), content(halves[0])).ends()
    assert play.legs[0]["messages"][-1]["content"] == "x"


LARGE = b"data: " + b"y" * 400


def test_an_event_that_is_too_large_to_be_read_is_forwarded_and_what_follows_is_read_along() -> None:
    play = Play(event_limit=300).reads(role(), content("x"), LARGE)
    assert play.splice.phase is Phase.UNFRAMED
    play.reads(b"z", b"z\n\n")
    assert play.splice.phase is Phase.LEG1
    play.reads(content("y"), chunk({}, "stop"), DONE)
    assert play.sent == role() + content("x") + LARGE + b"zz\n\n" + content("y") + chunk({}, "stop") + DONE
    assert play.splice.phase is Phase.DONE
    assert play.splice.record() is None


@pytest.mark.parametrize("after", [b"", DONE, content("y"), content("y") + DONE])
def test_an_answer_with_such_an_event_and_without_a_finish_does_not_look_finished(after: bytes) -> None:
    play = Play(event_limit=300).reads(content("x"), LARGE + b"\n\n" + after).ends()
    assert DONE not in play.sent
    assert play.sent.startswith(content("x") + LARGE + b"\n\n" + after.removesuffix(DONE))
    assert (play.record.outcome, play.record.reason) == ("failed", "event_too_large")
    assert json.loads(play.sent.split(b"data: ")[-1])["error"]["code"] == "event_too_large"


@pytest.mark.parametrize("failure", [Failure.EOF, Failure.DISCONNECT])
def test_an_event_that_is_too_large_and_breaks_off_is_told(failure: Failure) -> None:
    play = Play(event_limit=100).reads(LARGE).ends(failure)
    assert play.sent.endswith(b"}}\n\n")
    assert (play.record.outcome, play.record.reason) == ("failed", "event_too_large")
    assert play.record.decision == "refuse"
    assert json.loads(play.sent.split(b"data: ")[-1])["error"]["code"] == "event_too_large"


@pytest.mark.parametrize(
    "end, finished",
    [
        (b'"}, "finish_reason": "stop"}]}', True),
        (b'"},"finish_reason":"length"}]}', True),
        (b'"},"finish_reason":"eos-token"}]}', True),
        (b'"},"finish_reason":"abort"}]}', False),
        (b'"},"finish_reason": "insufficient_system_resource"}]}', False),
        (b'"},"finish_reason":"network_error"}]}', False),
        (b'"},"finish_reason":"null"}]}', False),
        (b'"},"finish_reason":null}]}', False),
        (b'\\"finish_reason\\": \\"stop\\""},"finish_reason":null}]}', False),
    ],
)
def test_a_finish_in_an_event_that_is_too_large_is_found(end: bytes, finished: bool) -> None:
    large = b'data: {"choices":[{"delta":{"content":"' + b"y" * 400 + end + b"\n\n"
    for cut in range(300, len(large)):
        play = Play(event_limit=300).reads(large[:cut], large[cut:], DONE).ends()
        assert (play.splice.phase is Phase.DONE) is finished, cut
        assert play.sent.startswith(large)
        assert (DONE in play.sent) is finished
    lost = Play(event_limit=300).reads(large).ends(Failure.DISCONNECT)
    assert (lost.sent == large + DONE) is finished


def test_silence_after_an_event_that_was_lost_is_no_failure_for_it_could_not_be_continued() -> None:
    assert Play(event_limit=300).reads(content("x"), LARGE + b"\n\n").splice.idle_deadline() is None


def test_a_fault_of_our_own_leaves_leg_1_alone_and_ends_leg_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("continuation.splice.leg.Leg.absorb", broken)
    stream = role() + content("x") + chunk({}, "stop") + DONE
    play = Play().reads(stream)
    assert play.sent == stream
    monkeypatch.undo()
    play = Play().reads(content("x")).ends()
    monkeypatch.setattr("continuation.splice.rewrite.Rewriter.chunk", broken)
    play.leg2(content("y", ID2)).failed()
    assert play.record.reason == "internal_error"


@pytest.mark.parametrize("leg", [1, 2])
def test_a_fault_of_our_own_after_the_finish_takes_nothing_away(leg: int) -> None:
    play = Play(ASKS).reads(role(), content("abcd"))
    play = play.reads(chunk({}, "stop")) if leg == 1 else play.ends().leg2(*finished(content("b", ID2))[:3])
    play.does(play.splice.broke(1))
    assert len(play.whole().usages) == 1


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_line_end_that_the_reads_cut_in_two_goes_the_way_of_its_event(cut: int) -> None:
    """Dropped with an event that is held back, or written anew; else forwarded."""
    said = content("abcd").replace(b"\n", b"\r\n")
    counted, end = (one.replace(b"\n", b"\r\n") for one in (usage(9, 1), chunk({}, "stop") + DONE))
    stream = said + counted + end
    at = len(said + counted) - cut
    assert Play(ASKS).reads(stream[:at], stream[at:]).sent == Play(ASKS).reads(stream).sent
    again = content("b", ID2).replace(b"\n", b"\r\n")
    legs = [Play().reads(said).ends().leg2(*cuts) for cuts in ([again], [again[:-cut], again[-cut:]])]
    assert legs[0].sent == legs[1].sent


def test_a_body_that_cannot_be_built_ends_the_stream() -> None:
    play = Play().reads(content("x")).ends()
    play.does(play.splice.broke(1))
    assert play.failed().errors[0]["code"] == "internal_error"


@pytest.mark.parametrize("when", ["before", "leg1", "leg2"])
def test_a_client_that_left_is_recorded_with_what_it_got(when: str) -> None:
    play = Play()
    if when != "before":
        play.reads(role(), content("abcdefgh"))
    if when == "leg2":
        play.ends()
    play.splice.client_gone(3)
    record = play.record
    assert (record.outcome, record.reason) == ("client_gone", "client_gone")
    assert record.tokens_recovered == (0 if when == "before" else 2)
    assert record.decision == ("continue" if when == "leg2" else "none")


def test_a_splice_that_has_ended_does_nothing_more() -> None:
    play = Play().reads(content("a"), chunk({}, "stop"), DONE)
    sent = play.sent
    assert play.splice.received(content("b"), 1) == []
    play.ends()
    play.splice.client_gone(1)
    assert play.does(play.splice.broke(1)).sent == sent
    assert play.splice.record() is None


def test_every_phase_has_its_ways_and_no_others() -> None:
    assert set(NEXT) == set(Phase)
    play = Play()
    with pytest.raises(RuntimeError, match="no way from LEG1 to LEG2"):
        play.splice.course.enter(Phase.LEG2)


def test_text_is_recorded_only_where_that_is_asked_for() -> None:
    for store, kept in ((False, ("", "")), (True, ("ab", "cd"))):
        play = Play(store_text=store).reads(content("ab")).ends().leg2(*finished(content("cd", ID2)))
        assert (play.record.partial_text, play.record.continued_text) == kept


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "My secret diary entry of today"},
        {"role": "user", "content": [{"type": "text", "text": "My secret diary entry of today"}]},
        {"role": "assistant", "content": "", "reasoning": "My secret diary entry of today"},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "f", "arguments": "My secret diary entry of today"}}],
        },
    ],
)
def test_no_text_of_the_conversation_is_kept_of_a_refusal_wherever_it_stood(message: dict[str, Any]) -> None:
    play = Play({"messages": [message]}).reads(content("a")).ends()
    said = {"error": {"message": "no place for My secret diary entry of today in here"}}
    play.does(play.splice.leg2_refused(400, json.dumps(said).encode(), play.now))
    assert play.record.leg2_message == "no place for"


@pytest.mark.parametrize("end", ["broke", "too large"])
def test_the_row_of_a_stream_that_no_decision_was_made_for_says_what_was_delivered(end: str) -> None:
    play = Play(event_limit=300).reads(content("Hello there, sea"))
    if end == "broke":
        play.does(play.splice.broke(play.now))
    else:
        play.reads(b"data: " + b"x" * 500).ends()
    assert (play.record.case, play.record.content_chars, play.record.tokens_recovered) == (
        "content-done",
        16,
        4,
    )


def test_what_leg_1_sends_behind_its_failure_is_not_held_while_leg_2_runs() -> None:
    trouble = event({"error": {"message": "m", "code": 500}})
    play = Play().reads(content("a"), trouble + b"data: " + b"x" * 100_000)
    assert play.splice.phase is Phase.LEG2
    assert play.splice.course.first._decoder.pending == b""
