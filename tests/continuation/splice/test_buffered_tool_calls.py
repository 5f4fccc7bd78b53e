"""Tool calls that are held until they are whole: released, dropped, or too much to be held."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continuation.splice.course import Phase
from continuation.vocabulary import Failure
from strategies.engines import Engine
from strategies.types import CompiledStrategy
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
    tokens,
    usage,
)

ASKS = {"stream_options": {"include_usage": True}}
ALWAYS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
EXACT = CompiledStrategy("e", "e", Engine.VLLM, token_exact=True)
HELD: dict[str, Any] = {"buffer_tool_calls": True}


def call(part: str, ident: dict[str, Any] = ID, number: int = 0, **more: Any) -> bytes:
    return chunk({"tool_calls": [{"index": number, "function": {"arguments": part}}]}, ident=ident, **more)


def begun(name: str = "call-1", ident: dict[str, Any] = ID, number: int = 0, **more: Any) -> bytes:
    made = {"index": number, "id": name, "type": "function", "function": {"name": "f", "arguments": ""}}
    return chunk({"tool_calls": [made]}, ident=ident, **more)


SAID = role() + content("Let me look.")
CALLS = (
    begun() + call('{"a":') + b": ping\n\n" + call(" 1}") + begun("call-2", number=1) + call("{}", number=1)
)
ENDING = chunk(finish="tool_calls") + DONE
LEGACY = chunk({"function_call": {"name": "f", "arguments": ""}}) + chunk(
    {"function_call": {"arguments": "{"}}
)


@pytest.mark.parametrize("calls", [CALLS, LEGACY], ids=["tool_calls", "function_call"])
def test_they_are_held_until_the_finish_and_then_released_at_once_and_in_order(calls: bytes) -> None:
    play = Play(**HELD).reads(SAID, calls, content("text after a call"))
    assert play.sent == SAID
    play.reads(chunk(finish="tool_calls"))
    assert play.sent == SAID + calls + content("text after a call") + chunk(finish="tool_calls")
    play.reads(DONE).whole()
    assert play.splice.record() is None


def test_without_the_setting_they_go_out_as_they_come() -> None:
    assert Play().reads(SAID, CALLS).sent == SAID + CALLS


def test_where_nothing_could_be_done_about_a_failure_they_are_not_held() -> None:
    assert Play(enabled=False, **HELD).reads(SAID, CALLS).sent == SAID + CALLS


def test_a_call_that_comes_whole_with_its_finish_is_not_delayed() -> None:
    both = event(
        {
            **ID,
            "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}, "finish_reason": "tool_calls"}],
        }
    )
    assert Play(**HELD).reads(SAID, both).sent == SAID + both


FAILURES: dict[str, tuple[bytes, Failure | None, str]] = {
    "cut": (b"", Failure.DISCONNECT, "disconnect"),
    "eof": (b"", Failure.EOF, "eof"),
    "cut inside an event": (call("1")[:-9], Failure.DISCONNECT, "disconnect"),
    "error": (event({"error": {"message": "m", "code": 500}}), None, "error_event"),
    "abort": (chunk({}, "abort"), None, "aborted"),
    "abort in a call": (chunk({"tool_calls": [{"index": 0}]}, "abort"), None, "aborted"),
    "malformed": (b"data: {\n\n", None, "malformed"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_drops_them_and_the_answer_goes_on_from_before(name: str) -> None:
    trouble, ended, failure = FAILURES[name]
    play = Play(ASKS | {"max_tokens": 50}, **HELD).reads(SAID, CALLS, trouble)
    if ended:
        play.ends(ended)
    assert play.sent == SAID
    assert play.legs[0]["messages"][-1] == {"role": "assistant", "content": "Let me look."}
    assert play.legs[0]["max_tokens"] == 47  # what was dropped is not part of the answer
    answer = play.leg2(*finished(begun("call-9", ID2), call("{}", ID2), finish="tool_calls")).whole()
    assert [made.get("id") for made in answer.tool_calls] == ["call-9", None]
    assert (answer.content, answer.finishes) == ("Let me look.", ["tool_calls"])
    assert answer.usages == [tokens(50 - 3, 3 + 7)]
    record = play.record
    assert (record.failure, record.case, record.outcome) == (failure, "content-done", "rescued")
    assert record.content_chars == len("Let me look.")
    assert record.extra["held_leg1"].startswith("6 events with tool calls, ")
    assert record.extra["held_leg1"].endswith(f" {len(CALLS)} bytes: dropped")
    assert record.extra["held_leg2"].endswith("bytes: released")


def test_the_answer_may_go_on_without_a_call() -> None:
    play = Play(**HELD).reads(SAID, CALLS).ends()
    answer = play.leg2(*finished(content(" No need.", ID2))).whole()
    assert (answer.content, answer.tool_calls) == ("Let me look. No need.", [])


def test_text_behind_the_first_call_is_dropped_with_it() -> None:
    play = Play(**HELD).reads(role(), reasoning("Hm. "), begun(), reasoning("So."), content("There.")).ends()
    assert play.legs[0]["messages"][-1]["content"] == "<think>Hm. "
    play.splice.client_gone(1)
    assert play.record.reasoning_chars == 4


def test_counts_of_the_engine_are_those_from_before_the_call() -> None:
    play = Play(ALWAYS | {"max_tokens": 50}, **HELD)
    play.reads(role(), content("a", usage=tokens(9, 4)), begun(usage=tokens(9, 30))).ends()
    assert play.legs[0]["max_tokens"] == 46
    play.leg2(content("b", ID2, usage=tokens(12, 1)), chunk({}, "stop", ident=ID2), usage(12, 2, ID2), DONE)
    counts = [(told["prompt_tokens"], told["completion_tokens"]) for told in play.whole().usages]
    assert counts == [(9, 4), (9, 5), (9, 6)]


def test_the_prompt_is_as_leg_1_counted_it_also_where_only_a_held_event_said_so() -> None:
    play = Play(ASKS, **HELD).reads(SAID, begun(usage=tokens(33, 12))).ends()
    assert play.leg2(*finished(content("b", ID2))).whole().usages == [tokens(33, 3 + 7)]


@pytest.mark.parametrize("failure", [Failure.EOF, Failure.DISCONNECT])
def test_with_nothing_to_recover_they_are_released_unchanged_and_the_stream_fails(failure: Failure) -> None:
    play = Play(**HELD).reads(role(), CALLS)
    assert play.sent == role()
    play.ends(failure)
    assert play.sent.startswith(role() + CALLS)
    assert play.failed().errors[0]["code"] == "no_recoverable_content"
    assert play.record.reason == "no_recoverable_content"
    assert play.record.extra["held_leg1"].endswith("bytes: released")


@pytest.mark.parametrize(
    "body, trouble, reason",
    [
        ({"max_tokens": 1}, b"", "budget_exhausted"),
        ({}, event({"error": {"message": "m", "code": 400}}), "client_error"),
    ],
)
def test_where_nothing_goes_on_they_are_released(body: dict[str, Any], trouble: bytes, reason: str) -> None:
    play = Play(body, **HELD).reads(SAID, CALLS, trouble).ends()
    assert play.sent.startswith(SAID + CALLS)
    play.failed()
    assert play.record.reason == reason
    assert play.record.case == "tool-call-seen"


def test_done_without_a_finish_releases_them_for_they_are_as_whole_as_they_will_be() -> None:
    for stream in (DONE, DONE.strip()):
        play = Play(**HELD).reads(SAID, CALLS, stream).ends()
        assert play.sent.startswith(SAID + CALLS)
        assert play.failed().errors[0]["code"] == "tool_call_seen"


def test_a_last_event_without_its_blank_line_releases_them_too() -> None:
    play = Play(**HELD).reads(SAID, CALLS, chunk(finish="tool_calls").strip()).ends()
    assert play.sent == SAID + CALLS + ENDING
    play.whole()


def test_up_to_the_limit_they_are_held_and_beyond_it_released_and_from_then_on_not_held() -> None:
    at = Play(buffer_limit=len(CALLS), **HELD).reads(SAID, CALLS)
    assert at.sent == SAID
    at.ends().leg2(*finished(content("x", ID2))).whole()
    over = Play(buffer_limit=len(CALLS) - 1, **HELD).reads(SAID, CALLS)
    assert over.sent == SAID + CALLS
    over.reads(call("x"))
    assert over.sent == SAID + CALLS + call("x")
    assert over.splice.idle_deadline() is None
    assert over.ends().failed().errors[0]["code"] == "tool_call_seen"
    assert over.record.extra["held_leg1"].endswith("released: more than the limit")


def test_a_limit_of_nothing_holds_nothing() -> None:
    assert Play(buffer_limit=0, **HELD).reads(SAID, CALLS).sent == SAID + CALLS


def test_silence_while_they_are_held_is_a_failure_for_none_has_been_delivered() -> None:
    play = Play(idle_timeout=3, **HELD).reads(SAID)
    play.now = 2
    play.reads(begun())  # something new, although the client does not see it
    assert play.splice.idle_deadline() == 5
    play.reads(b": ping\n\n")
    assert play.splice.idle_deadline() == 5
    play.waits(3).leg2(*finished(content(" And.", ID2)))
    assert play.whole().content == "Let me look. And."
    assert play.record.failure == "idle_timeout"


def test_silence_while_they_are_held_is_waited_out_where_there_is_nothing_else() -> None:
    assert Play(idle_timeout=3, **HELD).reads(role(), CALLS).splice.idle_deadline() is None


def test_usage_before_the_finish_is_told_once_and_after_them() -> None:
    play = Play(ASKS, **HELD).reads(SAID, CALLS, usage(9, 9), chunk(finish="tool_calls"), DONE)
    assert play.sent == SAID + CALLS + chunk(finish="tool_calls") + usage(9, 9) + DONE


def test_a_second_choice_that_only_a_held_event_has_is_dropped_with_it() -> None:
    other = event({**ID, "choices": [{"index": 1, "delta": {"content": "y"}}]})
    play = Play(**HELD).reads(SAID, begun(), other).ends()
    assert play.leg2(*finished(content("x", ID2))).whole().content == "Let me look.x"


def test_a_second_choice_from_before_is_not_continued_and_they_are_released() -> None:
    other = event({**ID, "choices": [{"index": 1, "delta": {"content": "y"}}]})
    play = Play(**HELD).reads(SAID, other, CALLS).ends()
    assert play.sent.startswith(SAID + other + CALLS)
    assert play.record.reason == "multiple_choices"


def test_a_role_that_was_dropped_with_them_is_told_by_leg_2() -> None:
    made = {"role": "assistant", "tool_calls": [{"index": 0, "id": "a"}]}
    play = Play(**HELD).reads(content("x"), chunk(made)).ends()
    assert play.leg2(*finished(content("y", ID2))).whole().roles == 1


def test_an_event_that_is_too_large_releases_them() -> None:
    large = b"data: " + b"y" * 9999 + b"\n\n"
    play = Play(event_limit=4999, **HELD).reads(SAID, CALLS, large)
    assert play.sent == SAID + CALLS + large
    assert play.reads(ENDING).sent == SAID + CALLS + large + ENDING


@pytest.mark.parametrize("ended", ["gone", "broke"])
def test_a_client_that_left_has_not_got_them_and_one_that_is_there_has(ended: str) -> None:
    play = Play(**HELD).reads(SAID, content("!"), CALLS)
    if ended == "gone":
        play.splice.client_gone(1)
        assert (play.record.case, play.record.content_chars) == ("content-done", 13)
        assert "dropped" in play.record.extra["held_leg1"]
    else:
        play.does(play.splice.broke(1))
        assert play.sent.startswith(SAID + content("!") + CALLS + b'data: {"error"')


# -- leg 2 -----------------------------------------------------------------------------------------


def test_calls_of_leg_2_are_held_as_well() -> None:
    play = Play(**HELD).reads(SAID).ends().leg2(role(ID2), content(" Now:", ID2), begun(ident=ID2))
    assert (play.told.content, play.told.tool_calls) == ("Let me look. Now:", [])
    play.reads(call("{}", ID2), chunk(finish="tool_calls", ident=ID2), DONE)
    assert len(play.whole().tool_calls) == 2


@pytest.mark.parametrize("failure", [Failure.EOF, Failure.DISCONNECT])
def test_calls_of_a_leg_2_that_breaks_are_dropped_and_the_stream_fails(failure: Failure) -> None:
    play = Play(**HELD).reads(SAID, CALLS).ends(Failure.DISCONNECT)
    play.leg2(content(" Now:", ID2), begun(ident=ID2), content("!", ID2), ended=failure)
    answer = play.failed()
    assert (answer.content, answer.tool_calls) == ("Let me look. Now:", [])
    assert play.record.extra["held_leg2"].startswith("2 events with tool calls, ")
    assert play.record.extra["held_leg2"].endswith(": dropped")


def test_text_that_the_seam_held_is_shown_before_the_calls_of_leg_2_are_held() -> None:
    play = Play({"stop": ["look. Not"]}, **HELD).reads(SAID).ends()
    play.leg2(content(" N", ID2))
    assert play.told.content == "Let me look."
    play.reads(begun(ident=ID2))
    assert play.told.content == "Let me look. N"
    assert play.ends().failed().tool_calls == []


def test_calls_of_leg_2_beyond_the_limit_are_released() -> None:
    play = Play(buffer_limit=500, **HELD).reads(SAID).ends().leg2(begun(ident=ID2), call("x" * 500, ID2))
    assert len(play.told.tool_calls) == 2
    assert len(play.ends().failed().tool_calls) == 2


# -- carried ids -----------------------------------------------------------------------------------


def with_ids(delta: dict[str, Any], ids: list[int], total: int, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, "token_ids": ids}
    return event({**ID, "choices": [choice], "usage": tokens(3, total), **more})


FIRST = with_ids({"role": "assistant", "content": ""}, [], 0, prompt_token_ids=[1, 2, 3])
MADE = {"tool_calls": [{"index": 0, "id": "call-1", "function": {"name": "f"}}]}


def test_the_ids_of_dropped_calls_are_dropped_and_those_before_carried_shown_or_not() -> None:
    play = Play({"max_tokens": 50}, EXACT, **HELD)
    play.reads(FIRST, with_ids({"content": "ab"}, [11], 1), with_ids({}, [77], 2))
    play.reads(with_ids(MADE, [20, 21], 4), with_ids({"tool_calls": [{"index": 0}]}, [22], 5)).ends()
    (job,) = play.jobs
    assert (job.carried_prompt, job.carried_ids, job.tool_ids) == ((1, 2, 3), (11, 77), ())
    assert job.partial.content == "ab"
    assert play.told.tool_calls == []
    play.leg2(*finished(chunk(MADE, ident=ID2), finish="tool_calls"))
    assert len(play.whole().tool_calls) == 1
    assert play.record.route == "carried-ids"
    assert (play.record.tokens_recovered, play.record.budget_after) == (2, 48)


def test_with_nothing_before_the_call_the_ids_go_on_inside_it() -> None:
    play = Play({}, EXACT, **HELD).reads(FIRST, with_ids({}, [77], 1), with_ids(MADE, [20], 2))
    assert play.told.tool_calls == []
    play.ends()
    (job,) = play.jobs
    assert (job.carried_ids, job.tool_ids) == ((77, 20), ("call-1",))
    assert len(play.told.tool_calls) == 1
    play.leg2(call("{", ID2))
    assert len(play.told.tool_calls) == 2  # the client has a part of it already
    play.reads(call("}", ID2), chunk(finish="tool_calls", ident=ID2), DONE).whole()


# -- any reads -------------------------------------------------------------------------------------

ENDS = [b"", ENDING, DONE, chunk({}, "abort"), b"data: {\n\n", usage(9, 9) + ENDING, ENDING.strip()]


@settings(max_examples=150)
@given(
    st.sampled_from(
        [SAID + CALLS, role() + CALLS, SAID + LEGACY, SAID + content("x") + CALLS + content("y")]
    ),
    st.sampled_from(ENDS),
    st.sampled_from([2**20, 1000, 700, 0]),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.data(),
)
def test_any_cutting_into_reads_gives_the_same_bytes(
    said: bytes, ending: bytes, limit: int, line_end: bytes, data: st.DataObject
) -> None:
    stream = (said + ending).replace(b"\n", line_end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reads = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    played = []
    for pieces in ([stream], reads):
        play = Play(ASKS, buffer_limit=limit, **HELD).reads(*pieces)
        if play.open and not play.asked:
            play.ends()
        if play.asked:
            play.leg2(*finished(content("z", ID2)))
        assert play.splice.phase in (Phase.DONE, Phase.FAILED)
        played.append((play.sent.rstrip(b"\r\n"), play.legs))
    assert played[0] == played[1]
