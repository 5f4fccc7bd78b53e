"""Faults that clients, proxies and engines are known for, and their neighbours, played without sockets."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from continuation.audit import rows
from continuation.shapes.chat.usage import Estimator
from continuation.splice.course import Phase
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
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BOM = b"\xef\xbb\xbf"
EST = Estimator()


def utf8(text: str, ident: dict[str, Any] = ID) -> bytes:
    """A content event whose text is UTF-8, as engines write it, rather than escaped."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({**ident, "choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


def of_choice(ident: dict[str, Any] = ID, **choice: Any) -> bytes:
    return event({**ident, "choices": [{"index": 0, **choice}]})


def in_reads_of(size: int, stream: bytes) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def prefix_of(play: Play) -> str:
    (body,) = play.legs
    text = body["messages"][-1]["content"]
    assert isinstance(text, str)
    return text


def untouched(*events: bytes, body: dict[str, Any] | None = None) -> Play:
    """A healthy stream: what comes in goes out, byte for byte, and nothing is recorded."""
    play = Play(body).reads(*events)
    assert play.sent == b"".join(events)
    assert play.splice.phase is Phase.DONE
    assert play.splice.record() is None
    return play


def broken(*events: bytes, body: dict[str, Any] | None = None, **options: Any) -> Play:
    """A stream that says `events` and loses its connection."""
    return Play(body, **options).reads(*events).ends(Failure.DISCONNECT)


# -- events ------------------------------------------------------------------------------------------

SEPARATED = "k\u2028v\u0085w\u2029 渐😀"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 4096])
def test_unicode_separators_end_no_line_in_either_leg(size: int) -> None:
    stream = role() + utf8(SEPARATED)
    play = Play(ASKS).reads(*in_reads_of(size, stream)).ends(Failure.DISCONNECT)
    assert prefix_of(play) == SEPARATED
    leg2 = b"".join(finished(utf8("!" + SEPARATED, ID2)))
    assert play.leg2(*in_reads_of(size, leg2)).whole().content == SEPARATED + "!" + SEPARATED
    assert len(play.told.usages) == 1


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


def test_a_bom_is_dropped_before_either_leg_and_kept_in_the_text() -> None:
    inside = "\ufeffx\ufeff"
    play = Play().reads(BOM[:1], BOM[1:] + role(), utf8(inside)).ends()
    assert prefix_of(play) == inside
    leg2 = b"".join(finished(utf8(inside, ID2)))
    assert play.leg2(BOM[:2], BOM[2:] + leg2[:1], leg2[1:]).whole().content == inside * 2
    assert not play.sent.startswith(BOM)
    assert (BOM + b"data") not in play.sent


@pytest.mark.parametrize("colon", [b"data:", b"data:  "])
def test_the_space_after_data_may_be_missing_or_double_in_either_leg(colon: bytes) -> None:
    def spaced(stream: bytes) -> bytes:
        return stream.replace(b"data: ", colon)

    play = Play().reads(spaced(role() + content("a"))).ends()
    play.leg2(spaced(b"".join(finished(content("b", ID2)))))
    assert play.whole().content == "ab"
    healthy = spaced(role() + content("a") + chunk({}, "stop")) + b"data:[DONE]\n\n"
    untouched(healthy)


COMMENTS = [
    b": WORKING\n\n",
    b":\n\n",
    b":data: [DONE]\n\n",
    b': {"error": {"message": "no error"}}\n\n',
    b": one\n: two\r\n\r\n",
    ": 渐\u2028\n\n".encode(),
]


@pytest.mark.parametrize("comment", COMMENTS)
def test_a_comment_is_never_data_in_either_leg(comment: bytes) -> None:
    play = Play(idle_timeout=5).reads(role(), comment, content("a"), comment)
    assert play.sent == role() + comment + content("a") + comment
    play.now = 4
    play.reads(comment).waits(1)  # a comment is no progress
    assert play.leg2(comment, *finished(comment, content("b", ID2), comment)).whole().content == "ab"
    assert play.record.failure == "idle_timeout"


def test_a_comment_beside_data_leaves_the_data_alone() -> None:
    play = Play().reads(b": note\n" + content("a")).ends()
    assert play.leg2(*finished(b": note\n" + content("b", ID2))).whole().content == "ab"


def test_three_megabytes_in_one_line_pass_in_small_reads_on_both_legs() -> None:
    text = "x" * (3 * 2**20)
    play = Play().reads(*in_reads_of(1024, role() + content(text))).ends()
    assert prefix_of(play) == text
    leg2 = b"".join(finished(content("y" + text, ID2)))
    assert play.leg2(*in_reads_of(1024, leg2)).whole().content == text + "y" + text


def test_an_event_of_leg_2_without_end_fails_the_stream() -> None:
    play = Play(event_limit=1000).reads(role(), content("a")).ends()
    play.leg2(role(ID2), content("b", ID2), b"data: " + b"y" * 1001)
    assert play.failed().content == "ab"
    assert play.record.reason == "leg2_broken"


ERROR_EVENTS: dict[str, tuple[bytes, str]] = {
    "an object": (b'event: error\ndata: {"message":"out of memory"}\n\n', "out of memory"),
    "a string": (b'event: error\ndata: "out of memory"\n\n', "out of memory"),
    "bare text": (b"event: error\ndata: out of memory\n\n", "out of memory"),
    "a list": (b'event: error\ndata: ["out of memory"]\n\n', "out of memory"),
    "no space": (b'event:error\ndata:{"message":"out of memory"}\n\n', "out of memory"),
    "name after data": (b'data: {"message":"out of memory"}\nevent: error\n\n', "out of memory"),
    "nulls": (b'event: error\ndata: {"message":null,"code":null,"type":null}\n\n', "error"),
    "a chunk with an error": (
        event({**ID, "choices": [], "error": {"message": "out of memory"}}),
        "out of memory",
    ),
}


@pytest.mark.parametrize("name", ERROR_EVENTS)
def test_an_error_event_is_one_in_whatever_form_its_data_are(name: str) -> None:
    trouble, message = ERROR_EVENTS[name]
    refused = Play().reads(role(), trouble).failed()  # nothing to be recovered: the client reads it
    assert message in json.dumps(refused.errors[0])
    play = Play().reads(role(), content("a"), trouble)
    assert play.leg2(*finished(content("b", ID2))).whole().content == "ab"
    assert play.record.failure == "error_event"
    assert b"memory" not in play.sent


@pytest.mark.parametrize("name", ERROR_EVENTS)
def test_an_error_event_ends_leg_2_in_whatever_form_it_comes(name: str) -> None:
    play = Play().reads(role(), content("a")).ends().leg2(role(ID2), content("b", ID2), ERROR_EVENTS[name][0])
    answer = play.failed()
    assert (answer.content, answer.errors[0]["code"]) == ("ab", "eof")
    assert b"memory" not in play.sent


@pytest.mark.parametrize(
    "code", ["²", "④", "9" * 5000, "-1", "1e3", 1e300, [], {}, True], ids=lambda code: str(code)[:9]
)
def test_a_code_that_is_no_number_is_no_trouble(code: Any) -> None:
    play = Play().reads(content("a"), event({"error": {"message": "m", "code": code}}))
    assert play.leg2(*finished(content("b", ID2))).whole().content == "ab"
    assert play.record.failure == "error_event"


def test_text_that_looks_like_an_event_is_text_in_either_leg() -> None:
    text = "data: [DONE]\n\ndata: x\n\nevent: error\n\n: y\r\r"
    play = Play().reads(role(), content(text)).ends()
    assert prefix_of(play) == text
    assert play.leg2(*finished(content("z" + text, ID2))).whole().content == text + "z" + text


# -- halves of characters ----------------------------------------------------------------------------

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


# -- ends, errors, silence ---------------------------------------------------------------------------


@pytest.mark.parametrize("end", [[], [DONE], [chunk({}, "")], [usage(9, 1)]])
def test_an_end_without_a_finish_never_passes_for_one(end: list[bytes]) -> None:
    play = Play().reads(role(), content("a"), *end)
    play = play if play.legs else play.ends()
    answer = play.leg2(role(ID2), content("b", ID2), *end, ended=Failure.EOF).failed()
    assert answer.content == "ab"
    assert len(play.legs) == 1


def test_what_one_leg_has_seen_proves_nothing_for_the_other() -> None:
    play = Play().reads(role(), content("a"), DONE).leg2(role(ID2), content("b", ID2), ended=Failure.EOF)
    assert play.failed().content == "ab"
    assert Play().reads(DONE).legs == []
    aborted = Play().reads(content("a"), chunk({"content": "x"}, "abort"))
    assert aborted.leg2(role(ID2), content("b", ID2), ended=Failure.EOF).failed().content == "ab"


@pytest.mark.parametrize(
    "said", [[], [b": ping\n\n"], [b"id: 1\n\n"], [role()], [event({**ID, "choices": []})]]
)
def test_silence_before_there_is_text_is_waited_out(said: list[bytes]) -> None:
    play = Play(idle_timeout=1).reads(*said).waits(100_000)
    assert not play.splice.ended
    assert play.reads(content("a"), chunk({}, "stop"), DONE).splice.phase is Phase.DONE


def test_the_clock_starts_with_the_text_however_late_it_comes() -> None:
    play = Play(idle_timeout=5).reads(role()).waits(1000).reads(content("a")).waits(4.9)
    assert play.legs == []
    assert len(play.waits(0.2).legs) == 1


HALF_EVENTS = [
    b'data: {"choices":[{"delta":{"content":"he\n\n',
    b'data: {"choices":[{"delta":{"content":"he"}}]}}\n\n',
    b'data: {"choices":[{"delta":{"content":"he"}}]}{"choices":[]}\n\n',
    b"data: <html>502 Bad Gateway: he</html>\n\n",
    b"data: [DONE\n\n",
    b"data: he\n\n",
    b'data: {"choices":[{"delta":\ndata: {"content":"he\n\n',
    b"data: \x00\n\n",
]


@pytest.mark.parametrize("half", HALF_EVENTS)
def test_an_event_that_is_no_json_is_neither_shown_nor_continued_from(half: bytes) -> None:
    play = Play().reads(role() + content("one ") + half + content("lost") + chunk({}, "stop") + DONE)
    assert prefix_of(play) == "one "
    answer = play.leg2(*finished(content("two", ID2))).whole()
    assert answer.content == "one two"
    assert play.record.failure == "malformed"
    assert play.sent.startswith(role() + content("one ") + b"data: {")


# -- shapes of chunks --------------------------------------------------------------------------------


@pytest.mark.parametrize("none", ["", "null", None, False, 0])
def test_a_finish_reason_that_is_none_on_all_chunks_finishes_nothing(none: Any) -> None:
    def said(text: str, ident: dict[str, Any] = ID) -> bytes:
        return of_choice(ident, delta={"content": text}, finish_reason=none)

    untouched(said("a"), said("b"), chunk({}, "stop"), DONE)
    play = Play().reads(said("a"), said("b"), DONE)
    assert play.splice.phase is Phase.LEG2
    assert prefix_of(play) == "ab"
    play.leg2(said("c", ID2), said("d", ID2), DONE)
    assert play.failed().content == "abcd"
    assert (play.record.failure, play.record.reason, len(play.legs)) == ("eof", "leg2_broken", 1)
    whole = Play().reads(said("a")).ends().leg2(said("b", ID2), chunk({}, "length", ident=ID2), DONE).whole()
    assert (whole.content, whole.finishes) == ("ab", ["length"])


def test_a_role_that_is_null_or_told_again_is_told_once_by_leg_2() -> None:
    null = {"role": None, "content": "a"}
    untouched(role(), chunk(null), chunk(null), role(), chunk({}, "stop"), DONE)
    again = chunk({"role": "assistant", "content": "b"}, ident=ID2)
    play = Play().reads(role(), chunk(null)).ends()
    answer = play.leg2(*finished(again, again, chunk({"role": None, "content": "c"}, ident=ID2))).whole()
    assert (answer.roles, answer.content) == (1, "abbc")
    play = Play().reads(chunk(null)).ends()  # leg 1 never gave one
    assert play.leg2(*finished(again, again)).whole().roles == 1


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


@pytest.mark.parametrize("more", [{"delta": None}, {}, {"delta": {}}, {"delta": []}, {"delta": "x"}])
def test_a_finish_counts_whatever_its_delta_is(more: dict[str, Any]) -> None:
    finish = {"finish_reason": "stop", **more}
    untouched(role(), content("a"), of_choice(**finish), DONE)
    play = Play().reads(role(), content("a")).ends()
    play.leg2(content("b", ID2), of_choice(ID2, **finish), DONE)
    assert play.whole().content == "ab"


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


CALLS: list[dict[str, Any]] = [
    {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}},
    {"index": 0, "function": {"arguments": '{"city":'}},
    {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": ' "Pa'}},
    {"index": 0, "id": "", "function": {"name": "", "arguments": 'ris"}'}},
    {"index": 1, "id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    {"id": "c", "type": "function", "function": {"name": "g", "arguments": {"city": "Rome"}}},
    {"index": 2, "id": "d", "function": None},
    {"index": 0, "id": "a", "function": {"name": "f", "arguments": None}},
]


def test_tool_calls_of_any_form_pass_through_either_leg() -> None:
    for calls in ([[call] for call in CALLS], [CALLS]):
        untouched(role(), *(chunk({"tool_calls": c}) for c in calls), chunk({}, "tool_calls"), DONE)
        play = Play().reads(role(), reasoning("hm")).ends()
        told = [chunk({"content": None, "tool_calls": c}, ident=ID2) for c in calls]
        assert play.leg2(*finished(*told, finish="tool_calls")).whole().tool_calls == CALLS


@pytest.mark.parametrize("none", [[], None, {}, ""])
def test_an_empty_list_of_tool_calls_is_no_tool_call(none: Any) -> None:
    play = broken(role(), chunk({"content": "a", "tool_calls": none, "function_call": None}))
    more = chunk({"content": "b", "tool_calls": none}, ident=ID2)
    assert play.leg2(*finished(more)).whole().content == "ab"


def test_a_tool_call_cut_in_its_arguments_is_neither_continued_nor_mended() -> None:
    calls = [chunk({"tool_calls": [call]}) for call in CALLS[:3]]
    play = broken(role(), content("a"), *calls)
    assert play.failed().tool_calls == CALLS[:3]
    assert play.legs == []
    play = broken(role(), content("a"))
    play.leg2(role(ID2), *(chunk({"tool_calls": [c]}, ident=ID2) for c in CALLS[:2]), ended=Failure.EOF)
    assert play.failed().tool_calls == CALLS[:2]
    assert len(play.legs) == 1


def test_log_probabilities_and_ids_are_no_token_counts() -> None:
    one = {"token": "a", "logprob": -1.0, "top_logprobs": []}
    spoken = {"index": 0, "delta": {"content": "abcdefgh"}, "logprobs": {"content": [one] * 50}}
    thought = {"index": 0, "delta": {"reasoning": "abcd"}, "logprobs": None, "token_ids": [1] * 50}
    events = [
        event({**ID, "choices": [choice], "prompt_token_ids": [1] * 90}) for choice in (thought, spoken)
    ]
    play = broken(role(), *events, body={"max_tokens": 100, "logprobs": True, **ASKS})
    assert play.legs[0]["max_tokens"] == 100 - 3
    ids = {"prompt_token_ids": [7, 7], "prompt_logprobs": [None]}
    play.leg2(*finished(content("b", ID2, **ids), ident=ID2))
    assert play.whole().usages[0]["completion_tokens"] == 3 + 7
    assert b"[7,7]" not in play.sent.replace(b" ", b"")
    assert not play.record.tokens_exact


@pytest.mark.parametrize("start", [None, {"prompt_tokens": 9}, {}])
def test_usage_on_every_chunk_is_no_end(start: Any) -> None:
    counted = [content("x", usage={**(start or {}), **tokens(9, n)}) for n in range(12)]
    play = untouched(
        role(), *counted, chunk({}, "stop", usage=tokens(9, 12)), usage(9, 12), DONE, body=ALWAYS
    )
    assert len(play.told.usages) == 14
    play = broken(role(), *counted, body=ASKS)
    assert prefix_of(play) == "x" * 12


def test_an_event_without_choices_or_usage_does_not_stand_for_the_usage() -> None:
    beat = event({**ID, "choices": []})
    play = broken(role(), content("a", usage=tokens(9, 4)), beat, chunk({}, "stop"), body=ALWAYS)
    assert play.whole().usages[-1] == tokens(9, 4)
    assert json.loads(play.sent.split(b"data: ")[-2])["choices"] == []


DETAILS = {"completion_tokens_details": {"reasoning_tokens": 2}}
TOP = {"prompt_tokens_details": None, "reasoning_tokens": 2}


@pytest.mark.parametrize("first,second", [(TOP, DETAILS), (DETAILS, TOP), (TOP, TOP), (DETAILS, DETAILS)])
def test_reasoning_tokens_of_both_legs_are_added_wherever_they_stand(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    counts, more = {**tokens(9, 4), **first}, {**tokens(13, 4), **second}
    play = broken(role(), reasoning("abcd", usage=counts), body=ALWAYS)
    said = [reasoning("efgh", ID2), content("x", ID2), chunk({}, "stop", ident=ID2)]
    play.leg2(role(ID2), *said, event({**ID2, "choices": [], "usage": more}), DONE)
    last = play.whole().usages[-1]
    assert (last["prompt_tokens"], last["completion_tokens"], last["total_tokens"]) == (9, 8, 17)
    told = [
        last.get("reasoning_tokens"),
        (last.get("completion_tokens_details") or {}).get("reasoning_tokens"),
    ]
    assert set(told) <= {4, None}
    assert 4 in told


# -- the continuation request ------------------------------------------------------------------------

QWEN = CompiledStrategy(
    "qwen", "qwen", open="<think>\n", thinking_key="enable_thinking", structured=True, template_trims=True
)


@pytest.mark.parametrize("strategy", [None, QWEN], ids=["generic", "structured"])
def test_a_cut_right_after_the_reasoning_leaves_it_open_and_a_refusal_ends_it_cleanly(
    strategy: CompiledStrategy | None,
) -> None:
    body = {"chat_template_kwargs": {"enable_thinking": True}}
    play = Play(body, strategy) if strategy else Play(body)
    play.reads(role(), reasoning("so.\n"), chunk({"content": ""})).ends(Failure.DISCONNECT)
    message = play.legs[0]["messages"][-1]
    assert message == {"role": "assistant", "content": f"{strategy.open if strategy else '<think>'}so.\n"}
    assert play.legs[0]["chat_template_kwargs"] == {"enable_thinking": True}
    play.does(play.splice.leg2_refused(400, b'{"error": {"message": "no such text", "code": 400}}', 0))
    error = play.failed().errors[0]
    assert (error["code"], error["type"]) == ("disconnect", "stream_interrupted")
    assert "no such text" not in error["message"]


def test_a_prefix_that_equals_earlier_text_is_continued_at_its_own_place() -> None:
    asked = [{"role": "user", "content": "OK"}, {"role": "assistant", "content": "OK"}, QUESTION]
    play = broken(role(), content("OK"), body={"messages": asked})
    assert play.legs[0]["messages"] == [*asked, {"role": "assistant", "content": "OK"}]
    assert play.leg2(*finished(content("OK", ID2), content("!", ID2))).whole().content == "OKOK!"


@pytest.mark.parametrize("flags", [{"add_generation_prompt": True}, {"continue_final_message": False}, {}])
def test_leg_2_asks_for_a_continuation_whatever_flags_the_client_sent(flags: dict[str, bool]) -> None:
    play = broken(role(), content("a"), body=flags)
    sent = play.legs[0]
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
    added = {"continue_final_message", "add_generation_prompt", "stream_options", "chat_template_kwargs"}
    assert set(sent) == {"model", "stream", "messages", *added}
    assert sent["messages"] == [QUESTION, {"role": "assistant", "content": "a"}]


TALE = "The sea is wide and the ships are many, and so we sail on. "


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("thought", ["", "I think so. "])
def test_an_echo_of_all_that_was_told_is_trimmed(size: int, thought: str) -> None:
    said = [reasoning(thought)] if thought else []
    play = broken(role(), *said, content(TALE))
    echo = [reasoning(thought, ID2)] if thought else []
    text = TALE + "Ahoy!"
    echo += [content(text[at : at + size], ID2) for at in range(0, len(text), size)]
    answer = play.leg2(*finished(*echo)).whole()
    assert (answer.reasoning, answer.content) == (thought, text)


def test_an_echo_and_nothing_more_is_an_answer_that_was_whole() -> None:
    play = broken(role(), content(TALE))
    leg2 = [chunk({"role": "assistant", "content": TALE}, "stop", ident=ID2), DONE]
    assert play.leg2(*leg2).whole().content == TALE


@pytest.mark.parametrize("cut", [40, 45, len(TALE) - 1])
@pytest.mark.parametrize("then", ["Another tale", ""])
def test_an_answer_that_begins_again_and_departs_is_never_appended(cut: int, then: str) -> None:
    play = broken(role(), content(TALE), body=ASKS)
    play.leg2(*finished(content(TALE[:cut], ID2), *([content(then, ID2)] if then else [])))
    assert play.failed().content == TALE
    assert play.record.reason == "leg2_restarted"


@pytest.mark.parametrize("word", ["The", "The sea", " and so we sail on.", TALE[:20], "\n"])
def test_text_that_only_repeats_some_words_is_not_trimmed(word: str) -> None:
    play = broken(role(), content(TALE))
    assert (
        play.leg2(*finished(content(word, ID2), content("# new", ID2))).whole().content
        == TALE + word + "# new"
    )


@pytest.mark.parametrize("switch", [True, False])
@pytest.mark.parametrize("tag", [["<think>\n"], ["<thi", "nk>", "\n"], ["<think>\nand"], ["<think>"]])
def test_thinking_that_is_opened_again_goes_on_without_a_second_tag(switch: bool, tag: list[str]) -> None:
    body = {"chat_template_kwargs": {"enable_thinking": switch, "other": 1}}
    play = broken(role(), reasoning("first, "), body=body)
    assert play.legs[0]["chat_template_kwargs"] == body["chat_template_kwargs"]
    more = [*(reasoning(part, ID2) for part in tag), reasoning(" then", ID2), content("Yes", ID2)]
    answer = play.leg2(*finished(*more)).whole()
    assert (answer.reasoning.replace("and", ""), answer.content) == ("first,  then", "Yes")
    assert b"<think>" not in play.sent


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
def test_the_last_message_has_a_string_for_content_whatever_came_before(message: dict[str, Any]) -> None:
    asked = [QUESTION, message | {"tool_calls": []}, QUESTION]
    for strategy in (CompiledStrategy("plain", "plain"), QWEN):
        for said in ([reasoning("r")], [content("c")], [reasoning("r"), content("c")]):
            play = Play({"messages": asked}, strategy).reads(role(), *said).ends()
            assert play.legs[0]["messages"][:-1] == asked
            assert isinstance(play.legs[0]["messages"][-1]["content"], str)


EMPTY_STOPS: dict[str, list[bytes]] = {
    "role and stop": [role(ID2), chunk({}, "stop", ident=ID2), DONE],
    "stop alone": [chunk({}, "stop", ident=ID2), DONE],
    "stop in the first chunk": [chunk({"role": "assistant", "content": ""}, "stop", ident=ID2), DONE],
    "stop without an end": [role(ID2), chunk({}, "stop", ident=ID2)],
    "stop and usage of nothing": [chunk({"content": None}, "stop", ident=ID2), usage(50, 0, ID2), DONE],
}


@pytest.mark.parametrize("name", EMPTY_STOPS)
def test_a_leg_2_that_stops_at_once_follows_one_rule(name: str) -> None:
    play = broken(role(), content("a")).leg2(*EMPTY_STOPS[name])
    play = play if play.splice.ended else play.ends()
    assert play.whole().content == "a"
    play = broken(role(), reasoning("r")).leg2(*EMPTY_STOPS[name])
    assert play.failed().reasoning == "r"
    assert (play.record.reason, len(play.legs)) == ("leg2_empty", 1)


# -- usage -------------------------------------------------------------------------------------------


def test_tokens_of_leg_1_are_counted_and_marked_as_an_estimate() -> None:
    text = "x" * 28  # seven tokens
    play = broken(role(), content(text), body=ASKS)
    play.leg2(role(ID2), content("y", ID2), chunk({}, "stop", ident=ID2), usage(67, 20, ID2), DONE)
    (counts,) = play.whole().usages
    assert counts == tokens(60, 27)
    record = play.record
    assert (record.tokens_recovered, record.tokens_exact, record.usage_after) == (7, False, counts)


LEG2_COUNTS: dict[str, list[bytes]] = {
    "once": [chunk({}, "stop", ident=ID2), usage(50, 7, ID2)],
    "twice": [chunk({}, "stop", ident=ID2), usage(50, 7, ID2), usage(50, 7, ID2)],
    "with the finish": [chunk({}, "stop", ident=ID2, usage=tokens(50, 7))],
    "with the finish and after": [chunk({}, "stop", ident=ID2, usage=tokens(50, 7)), usage(50, 7, ID2)],
    "before the finish": [usage(50, 7, ID2), chunk({}, "stop", ident=ID2)],
    "null afterwards": [chunk({}, "stop", ident=ID2), usage(50, 7, ID2), event({**ID2, "usage": None})],
}


@pytest.mark.parametrize("name", LEG2_COUNTS)
def test_usage_comes_once_if_asked_and_else_not_at_all(name: str) -> None:
    said = [content("b", ID2, usage=tokens(50, 1)), *LEG2_COUNTS[name], DONE]
    for asked, times in ((ASKS, 1), ({}, 0), ({"stream_options": {"include_usage": False}}, 0)):
        play = broken(role(), content("abcd"), body=asked).leg2(role(ID2), *said)
        assert [counts["completion_tokens"] for counts in play.whole().usages] == [1 + 7] * times
        assert play.sent.count(b'"usage"') == times


def test_running_usage_without_the_usage_event_is_not_made_up_for_leg_2() -> None:
    """Engines give none then: the gateway's own include_usage must not make them begin."""
    asked = {"stream_options": {"continuous_usage_stats": True}}
    play = broken(role(), content("a"), body=asked)
    play.leg2(role(ID2), content("b", ID2, usage=tokens(50, 1)), chunk({}, "stop", ident=ID2), DONE)
    assert play.whole().usages == []


def test_the_tokens_of_a_long_conversation_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    count = Estimator.prompt_tokens
    monkeypatch.setattr(Estimator, "prompt_tokens", lambda *told: counted.append(1) or count(*told))
    asked = {**ALWAYS, "messages": [{"role": "user", "content": "杭州 abc " * 100_000}]}
    play = broken(role(), content("a"), body=asked)
    said = [content("b", ID2, usage={"completion_tokens": n}) for n in range(100)]
    play.leg2(role(ID2), *said)
    assert len(counted) == 1


def test_a_long_stop_string_holds_nobody_up() -> None:
    text = "ab" * 100_000
    play = broken(role(), content(text), body={"stop": [text + "c"]})
    assert play.leg2(*finished(content("d", ID2))).whole().content == text + "d"  # in linear work: it ends


# -- one answer of two legs --------------------------------------------------------------------------


def test_the_role_event_is_told_once_and_alone_is_nothing_to_recover() -> None:
    play = Play(idle_timeout=5).reads(role(), content("a")).waits(5).leg2(*finished(content("b", ID2)))
    assert (play.whole().roles, play.whole().content) == (1, "ab")
    alone = broken(role())
    assert (alone.legs, alone.failed().roles) == ([], 1)


def test_two_finishes_or_two_dones_of_leg_2_are_one() -> None:
    ending = [chunk({}, "stop", ident=ID2), chunk({}, "length", ident=ID2), usage(50, 7, ID2), DONE, DONE]
    play = Play(ASKS).reads(content("a"), event({"error": {"message": "x"}}), DONE)
    answer = play.leg2(role(ID2), content("b", ID2), *ending).whole()
    assert (answer.finishes, len(answer.usages)) == (["stop"], 1)


def test_text_after_the_finish_of_leg_2_is_not_shown() -> None:
    play = broken(role(), content("a"))
    play.leg2(content("b", ID2), chunk({}, "stop", ident=ID2), content("ghost", ID2), DONE)
    assert play.whole().content == "ab"


ODD_STARTS: list[dict[str, Any]] = [
    {"choices": []},
    {"id": None, "created": None, "model": None, "choices": [{"index": 0, "delta": {"content": "b"}}]},
    {"id": 7, "created": "x", "system_fingerprint": "other", "choices": [{"delta": {"content": "b"}}]},
    {**ID2, "service_tier": "x", "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": None}]},
    {**ID2, "choices": [{"index": 0, "text": "b"}]},
    {**ID2, "choices": [{"index": "0", "delta": {"content": "b"}}]},
]


@pytest.mark.parametrize("odd", ODD_STARTS, ids=json.dumps)
def test_an_odd_first_chunk_of_leg_2_is_told_under_the_identity_of_leg_1(odd: dict[str, Any]) -> None:
    play = broken(role(), content("a"), body=ASKS).leg2(event(odd), *finished(content("c", ID2)))
    assert play.whole().content in ("ac", "abc")
    assert b"other" not in play.sent
