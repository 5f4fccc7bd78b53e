"""More neighbours of faults that are known of software of this kind; and every word that a stream is judged by."""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import pytest
from django.core.exceptions import SuspiciousOperation
from django.http import Http404
from django.test import AsyncClient

from continuation import views
from continuation.audit import rows
from continuation.splice.course import Phase
from continuation.token_route.ids import Batch, ChatChunks
from continuation.vocabulary import Case, Decision, Failure, Outcome, Reason, Route, failed_message
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
    told,
    usage,
)

ASKS = {"stream_options": {"include_usage": True}}
CALL = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]})
LONG = "It was the best of times, it was the worst of times, it was the age."


def broken(*events: bytes, body: dict[str, Any] | None = None, **options: Any) -> Play:
    return Play(body, **options).reads(*events).ends(Failure.DISCONNECT)


def choice(number: int, text: str = "", finish: str | None = None) -> bytes:
    delta = {"content": text} if text else {}
    return event({**ID, "choices": [{"index": number, "delta": delta, "finish_reason": finish}]})


# -- each word by which a stream is judged, from a stream that earns it -------------------------------


def refused(play: Play) -> Play:
    return play.does(play.splice.leg2_refused(503, b'{"error": {"message": "busy"}}', play.now))


def unreachable(play: Play) -> Play:
    return play.does(play.splice.leg2_unreachable("ConnectionRefusedError", play.now))


def without_endpoints() -> Play:
    play = Play({}, CompiledStrategy("t", "t", render_generate=True)).reads(content("a")).ends()
    return play.does(play.splice.scale_out_missing("/render answers 404", play.now))


def by_ids(*, carried: bool) -> Play:
    strategy = CompiledStrategy("t", "t", render_generate=True, token_exact=carried)
    first = {**ID, "choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [5]}]}
    known = {"prompt_token_ids": [1, 2], "usage": tokens(2, 1)} if carried else {}
    play = Play({}, strategy).reads(event(first | known)).ends()
    return play.leg2(content("b", ID2), chunk({}, "stop", ident=ID2), DONE)


def left(play: Play) -> Play:
    play.splice.client_gone(play.now)
    return play


def rescued(play: Play) -> Play:
    return play.leg2(*finished(content("b", ID2)))


REASONS: dict[Reason, Callable[[], Play]] = {
    Reason.NONE: lambda: rescued(broken(content("a"))),
    Reason.TOOL_CALL_SEEN: lambda: broken(content("a"), CALL),
    Reason.NO_RECOVERABLE_CONTENT: lambda: broken(role()),
    Reason.CONTINUATION_DISABLED: lambda: broken(content("a"), enabled=False),
    Reason.BUDGET_EXHAUSTED: lambda: broken(content("four by four"), body={"max_tokens": 2}),
    Reason.CLIENT_ERROR: lambda: Play().reads(content("a"), event({"error": {"message": "m", "code": 400}})),
    Reason.CLIENT_GONE: lambda: left(Play().reads(content("a"))),
    Reason.MULTIPLE_CHOICES: lambda: broken(choice(0, "a"), choice(1, "b")),
    Reason.SCALE_OUT_MISSING: without_endpoints,
    Reason.ENDING_LOST: lambda: broken(content("a"), chunk({}, "stop")),
    Reason.EVENT_TOO_LARGE: lambda: broken(content("a"), content("x" * 999), event_limit=300),
    Reason.LEG2_UNREACHABLE: lambda: unreachable(broken(content("a"))),
    Reason.LEG2_REFUSED: lambda: refused(broken(content("a"))),
    Reason.LEG2_BROKEN: lambda: broken(content("a")).leg2(content("b", ID2), ended=Failure.EOF),
    Reason.LEG2_EMPTY: lambda: broken(reasoning("a")).leg2(role(ID2), chunk({}, "stop", ident=ID2)),
    Reason.LEG2_RESTARTED: lambda: broken(content(LONG)).leg2(content(LONG[:50], ID2), content("#", ID2)),
    Reason.INTERNAL_ERROR: lambda: (play := Play().reads(content("a"))).does(play.splice.broke(1)),
    Reason.SHUTTING_DOWN: lambda: (play := Play().reads(content("a"))).does(play.splice.shut_down(1)),
    Reason.STOPPED: lambda: (play := Play().reads(content("a"))).does(
        play.splice.given_up(Reason.STOPPED, 1)
    ),
}
FAILURES: dict[Failure, Callable[[], Play]] = {
    Failure.IDLE_TIMEOUT: lambda: rescued(Play(idle_timeout=5).reads(content("a")).waits(5)),
    Failure.DISCONNECT: lambda: rescued(broken(content("a"))),
    Failure.EOF: lambda: rescued(Play().reads(content("a")).ends()),
    Failure.ERROR_EVENT: lambda: rescued(Play().reads(content("a"), event({"error": {"message": "m"}}))),
    Failure.ABORTED: lambda: rescued(Play().reads(content("a"), chunk({}, "abort"))),
    Failure.MALFORMED: lambda: rescued(Play().reads(content("a"), b"data: {half\n\n")),
}
CASES: dict[Case, Callable[[], Play]] = {
    Case.CONTENT_DONE: lambda: rescued(broken(reasoning("r"), content("a"))),
    Case.THINKING_PARTIAL: lambda: rescued(broken(reasoning("r"))),
    Case.TOOL_CALL_SEEN: lambda: broken(content("a"), CALL),
    Case.EMPTY: lambda: broken(role()),
}
DECISIONS: dict[Decision, Callable[[], Play]] = {
    Decision.CONTINUE: lambda: rescued(broken(content("a"))),
    Decision.REFUSE: lambda: broken(role()),
    Decision.COMPLETE: lambda: broken(content("a"), chunk({}, "stop")),
    Decision.NONE: lambda: left(Play().reads(content("a"))),
}
ROUTES: dict[Route, Callable[[], Play]] = {
    Route.NONE: lambda: broken(role()),
    Route.CHAT_CONTINUE: lambda: rescued(broken(content("a"))),
    Route.RENDER_GENERATE: lambda: by_ids(carried=False),
    Route.CARRIED_IDS: lambda: by_ids(carried=True),
}
OUTCOMES: dict[Outcome, Callable[[], Play]] = {
    Outcome.RESCUED: lambda: rescued(broken(content("a"))),
    Outcome.COMPLETED: lambda: broken(content("a"), chunk({}, "stop")),
    Outcome.FAILED: lambda: broken(role()),
    Outcome.CLIENT_GONE: lambda: left(Play().reads(content("a"))),
}
WORDS: list[tuple[str, type[StrEnum], Mapping[Any, Callable[[], Play]]]] = [
    ("reason", Reason, REASONS),
    ("failure", Failure, FAILURES),
    ("case", Case, CASES),
    ("decision", Decision, DECISIONS),
    ("route", Route, ROUTES),
    ("outcome", Outcome, OUTCOMES),
]


@pytest.mark.parametrize("column,words,streams", WORDS, ids=[column for column, _, _ in WORDS])
def test_each_word_of_the_audit_is_earned_by_a_stream_and_is_in_its_row(
    column: str, words: type[StrEnum], streams: Mapping[Any, Callable[[], Play]]
) -> None:
    assert set(streams) == set(words)
    for word, stream in streams.items():
        row = rows.event_of(stream().record)
        assert getattr(row, column) == word
        row.clean_fields(exclude=["strategy"])  # a choice that the column knows


# Where no continuation was sent, and where the failure alone would not explain it.
TOLD_BY_THE_REASON = {
    Reason.TOOL_CALL_SEEN,
    Reason.NO_RECOVERABLE_CONTENT,
    Reason.CONTINUATION_DISABLED,
    Reason.BUDGET_EXHAUSTED,
    Reason.MULTIPLE_CHOICES,
    Reason.EVENT_TOO_LARGE,
    Reason.SCALE_OUT_MISSING,
    Reason.INTERNAL_ERROR,
    Reason.SHUTTING_DOWN,
    Reason.STOPPED,
}


def last_error(stream: bytes) -> dict[str, Any]:
    error = json.loads(stream.rstrip().split(b"data: ")[-1])["error"]
    assert isinstance(error, dict)
    return error


@pytest.mark.parametrize("reason", REASONS)
def test_what_a_client_is_told_of_a_failed_stream_is_the_failure_or_the_reason(reason: Reason) -> None:
    play = REASONS[reason]()
    if reason is Reason.STOPPED:  # its client is gone, and other readers must not take it for finished
        assert play.record.outcome == Outcome.CLIENT_GONE
    elif play.record.outcome != Outcome.FAILED:
        assert b'"error"' not in play.sent
        return
    if reason is Reason.CLIENT_ERROR:
        assert last_error(play.sent)["code"] == 400  # the engine's own
    else:
        expected = reason if reason in TOLD_BY_THE_REASON else play.record.failure
        assert last_error(play.sent)["code"] == expected


def test_each_failure_with_each_reason_has_words_of_its_own() -> None:
    said = {failed_message(failure, reason) for failure in Failure for reason in Reason}
    assert len(said) == len(Failure) * len(Reason)


# -- events ------------------------------------------------------------------------------------------

SEPARATORS = "\x00\x0b\x0c\x1c\x1d\x1e\x1f\x7f\u0085\u2028\u2029"


@pytest.mark.parametrize("raw", [False, True])
def test_nothing_but_line_ends_ends_a_line(raw: bool) -> None:
    """What Python takes for the end of a line, escaped and - as far as JSON allows it - raw."""
    text = f"a{SEPARATORS[7:] if raw else SEPARATORS}b"

    def said(ident: dict[str, Any]) -> bytes:
        value = {**ident, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
        return b"data: " + json.dumps(value, ensure_ascii=not raw).encode() + b"\n\n"

    play = broken(role(), said(ID), body=ASKS)
    assert play.legs[0]["messages"][-1]["content"] == text
    answer = play.leg2(*finished(content("|", ID2), said(ID2))).whole()
    assert answer.content == f"{text}|{text}"
    assert len(answer.usages) == 1


@pytest.mark.parametrize("name", [b"Data: ", b" data: ", b"data : ", b"xdata: ", b"\tdata: "])
def test_a_field_that_is_only_almost_data_is_none(name: bytes) -> None:
    almost = content("lost").replace(b"data: ", name)
    play = Play().reads(role(), almost, content("a"))
    assert play.sent == role() + almost + content("a")
    assert play.ends().leg2(*finished(almost, content("b", ID2))).whole().content == "ab"
    assert play.legs[0]["messages"][-1]["content"] == "a"


@pytest.mark.parametrize("start", [b": hello\n\n", b"\n", b"\r\n\r\n", b":\r", b"retry: 3000\n\n"])
def test_a_bom_before_something_that_is_no_event_is_dropped_too(start: bytes) -> None:
    bom = b"\xef\xbb\xbf"
    play = Play().reads(bom + start + role() + content("a")).ends()
    assert play.legs[0]["messages"][-1]["content"] == "a"
    assert bom not in play.sent
    play.leg2(bom + start + b"".join(finished(content("b", ID2))))
    assert play.whole().content == "ab"
    assert bom not in play.sent


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


NO_ERRORS: list[Any] = [None, {}, [], "", 0, False]


@pytest.mark.parametrize("nothing", NO_ERRORS, ids=repr)
def test_an_error_key_without_an_error_is_none_in_either_leg(nothing: Any) -> None:
    stream = role() + content("a", error=nothing) + chunk({}, "stop", error=nothing) + DONE
    assert Play().reads(stream).sent == stream
    play = Play().reads(role(), content("a", error=nothing)).ends()
    said = [content("b", ID2, error=nothing), chunk({}, "stop", ident=ID2, error=nothing), DONE]
    assert play.leg2(*said).whole().content == "ab"


PINGS = [
    b"event: ping\ndata: {}\n\n",
    b'event: ping\ndata: {"type": "ping"}\n\n',
    b"event: ping\ndata:\n\n",
    b"event: ping\n\n",
    b"event: message\ndata: null\n\n",
    b"id: 7\n\n",
]


@pytest.mark.parametrize("ping", PINGS)
def test_a_ping_in_the_form_of_an_event_is_neither_an_error_nor_progress(ping: bytes) -> None:
    play = Play(idle_timeout=5).reads(role(), ping, content("a"))
    play.now = 4
    play.reads(ping)
    assert play.sent == role() + ping + content("a") + ping
    play.waits(1)
    assert play.leg2(ping, content("b", ID2), ping, chunk({}, "stop", ident=ID2), ping, DONE).whole()
    assert (play.told.content, play.record.failure) == ("ab", "idle_timeout")


HOSTILE = 'data: [DONE]\n\ndata: {"choices": []}\r\n\r\nevent: x\u2028\u0085'


@pytest.mark.parametrize(
    "trouble",
    [
        event({"error": {"message": HOSTILE, "code": 400}}),
        event({"object": "error", "message": HOSTILE, "code": 400}),
        b"event: error\ndata: " + json.dumps({"message": HOSTILE, "code": 400}).encode() + b"\n\n",
        b"event: error\ndata: " + json.dumps(HOSTILE).encode() + b"\n\n",
        event({"error": HOSTILE}),
    ],
)
def test_an_error_message_that_looks_like_events_ends_the_stream_once(trouble: bytes) -> None:
    answer = broken(role(), CALL, trouble).failed()
    error = answer.errors[0]
    assert (error if isinstance(error, str) else error["message"]) == HOSTILE


def test_an_error_of_several_lines_is_told_in_one_event() -> None:
    answer = Play().reads(role(), b"event: error\ndata: out of\ndata: [DONE]\ndata: memory\n\n").failed()
    assert answer.errors[0]["message"] == "out of\n[DONE]\nmemory"


# -- ends --------------------------------------------------------------------------------------------

CALLED = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}
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


# -- shapes ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("buffered", [False, True])
def test_a_function_call_of_the_old_form_passes_through_leg_2(buffered: bool) -> None:
    parts = [{"name": "f", "arguments": ""}, {"arguments": '{"a":'}, {"arguments": "1}"}]
    play = Play({}, buffer_tool_calls=buffered).reads(role(), content("a")).ends()
    play.leg2(
        *finished(*(chunk({"function_call": part}, ident=ID2) for part in parts), finish="function_call")
    )
    said = [json.loads(line[6:]) for line in play.sent.split(b"\n\n") if b"function_call" in line]
    deltas = [value["choices"][0]["delta"].get("function_call") for value in said]
    assert [delta for delta in deltas if delta] == parts
    assert play.whole().finishes == ["function_call"]


def test_text_and_a_call_in_one_delta_of_leg_2_are_both_told() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    mixed = chunk({"content": "b", "tool_calls": [call]}, ident=ID2)
    answer = broken(role(), content("a")).leg2(*finished(mixed, finish="tool_calls")).whole()
    assert (answer.content, answer.tool_calls) == ("ab", [call])


ODD_USAGES: list[Any] = [
    {},
    {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None},
    {"prompt_tokens": 5.0, "completion_tokens": "7"},
    {"completion_tokens": True},
    {"completion_tokens": 7, "completion_tokens_details": []},
    {"completion_tokens": 7, "completion_tokens_details": {"reasoning_tokens": None}},
    {"completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": None}, "reasoning_tokens": None},
]


@pytest.mark.parametrize("odd", ODD_USAGES, ids=json.dumps)
@pytest.mark.parametrize("leg", [1, 2])
def test_odd_counts_are_told_as_whole_numbers_that_add_up(odd: dict[str, Any], leg: int) -> None:
    first = content("abcd", usage=odd) if leg == 1 else content("abcd")
    counted = event({**ID2, "choices": [], "usage": odd if leg == 2 else tokens(50, 7)})
    play = broken(role(), first, body=ASKS).leg2(
        content("b", ID2), chunk({}, "stop", ident=ID2), counted, DONE
    )
    last = play.whole().usages[-1]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    prompt, completion, total = (last[name] for name in names)
    assert [type(last[name]) for name in names] == [int, int, int]
    assert total == prompt + completion
    assert completion >= 1


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_call_by_derender_has_no_content_beside_it(nothing: str | None) -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    delta = {"role": None, "content": nothing, "reasoning": nothing, "tool_calls": [call]}
    shown = {"id": "g", "choices": [{"index": 0, "delta": delta, "finish_reason": None, "token_ids": None}]}
    chat = ChatChunks([], stop_shown=False, tool_call_seen=False)
    found = chat.of(shown, Batch({}, (), "stop", None))
    assert [(one["choices"][0]["delta"], one["choices"][0]["finish_reason"]) for one in found] == [
        ({"tool_calls": [call]}, "tool_calls")
    ]


# -- the continuation request -------------------------------------------------------------------------

CONVERSATIONS: dict[str, list[Any]] = {
    "an answer begun by the client": [QUESTION, {"role": "assistant", "content": "a"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}],
    "tools": [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "12 degrees"},
    ],
    "thoughts": [QUESTION, {"role": "assistant", "reasoning": "hm", "content": "a"}, QUESTION],
    "fields of their own": [{"role": "user", "content": "a", "name": "n", "cache_control": {"x": 1}}],
    "none": [],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_leg_2_gets_the_conversation_unchanged_and_one_message_more(name: str) -> None:
    asked = CONVERSATIONS[name]
    play = broken(role(), content("a"), body={"messages": asked})
    assert play.legs[0]["messages"] == [*asked, {"role": "assistant", "content": "a"}]


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


# -- a fault of the gateway's own ---------------------------------------------------------------------


RAISED: list[tuple[Exception, int, str]] = [
    (ZeroDivisionError(), 500, "internal_error"),
    (SuspiciousOperation(), 400, "bad_request"),
    (Http404(), 404, "not_found"),
]


@pytest.mark.parametrize("fault,status,code", RAISED, ids=[code for _, _, code in RAISED])
async def test_what_a_view_raises_is_answered_in_json_with_the_request_id(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int, code: str
) -> None:
    def broken_view(*args: object) -> None:
        raise fault

    monkeypatch.setattr(views, "body_size", broken_view)
    client = AsyncClient(raise_request_exception=False)
    answer = await client.get("/v1/models", headers={"X-Request-Id": "mine"})
    assert (answer.status_code, answer.headers["X-Request-Id"]) == (status, "mine")
    assert json.loads(answer.content)["error"]["code"] == code


def test_the_strict_reader_of_these_tests_is_strict() -> None:
    with pytest.raises(AssertionError):
        told(DONE + content("a"))
    with pytest.raises(AssertionError):
        told(content("a")[:-1])


@pytest.mark.parametrize("failure", [Failure.EOF, Failure.DISCONNECT])
def test_a_second_choice_that_nobody_asked_for_is_not_cut_off_and_called_whole(failure: Failure) -> None:
    play = Play().reads(choice(0, "a"), choice(1, "b"), chunk({}, "stop")).ends(failure)
    assert DONE not in play.sent
    assert (play.record.outcome, play.record.reason) == ("failed", "multiple_choices")
    over = event({**ID, "choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]})
    play = Play().reads(choice(0, "a"), choice(1, "b"), chunk({}, "stop"), over).ends(failure)
    assert play.sent.endswith(DONE)
    assert (play.record.outcome, play.record.reason) == ("completed", "ending_lost")
