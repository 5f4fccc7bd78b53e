"""A stream goes on from its log in another process as it would have gone on in its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuation import lifecycle
from continuation.http.headers import RawHeaders
from continuation.lifecycle import Process
from continuation.resume import takeover
from continuation.resume.log import Entry, Held, Limits, Standing, State, StoreAway, Taken
from continuation.resume.numbering import Numbering
from continuation.resume.store.hot import HotLog
from continuation.resume.store.memory import MemoryStore, MemoryWriter
from continuation.resume.takeover import packed, unpacked
from continuation.splice.course import Phase
from continuation.splice.machine import Splice
from continuation.splice.record import StreamRecord
from continuation.vocabulary import Failure, Reason
from continuation.wiring import Origin
from strategies.engines import Engine
from strategies.types import CompiledStrategy
from tests.continuation.resume.eventsource import blocks_without_data, dispatched
from tests.continuation.resume.streams import DEADLINE, until
from tests.continuation.splice.playbook import (
    DONE,
    ID,
    ID2,
    QUESTION,
    Play,
    Told,
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
from tests.continuation.splice.test_recorded import WHOLE, request_of
from tests.harness.upstream import Gate, HoldOpen, Pause, Reply, Reset, Send, Upstream, json_reply

LIMIT = 2**20
ASKS = {"stream_options": {"include_usage": True}}
ALWAYS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
EXACT = CompiledStrategy("e", "e", Engine.VLLM, token_exact=True)
RENDERED = CompiledStrategy("r", "r", Engine.VLLM, render_generate=True)


def entries_of(sent: bytes, limit: int = LIMIT) -> list[Entry]:
    entries, _ = Numbering(limit).feed(sent)
    return entries


def log_of(sent: bytes) -> bytes:
    """What a log holds of these bytes."""
    return b"".join(entry.data for entry in entries_of(sent))


def like(play: Play) -> Play:
    """The same stream in another process, of which it has seen nothing."""
    return Play(json.loads(play.plan.body), play.plan.strategy, **_options(play))


def _options(play: Play) -> dict[str, Any]:
    options = play.splice.options
    return {name: getattr(options, name) for name in options.__slots__}


def taken_over(of: Play, log: bytes | None = None, *, whole: bool = True, continued: bool = False) -> Play:
    """By another process, from the log of what `of` has sent, or from `log`."""
    other = like(of)
    delivered = log_of(of.sent) if log is None else log
    other.splice.was_delivered(delivered, other.now)
    return other.does(other.splice.taken_over(other.now, whole=whole, continued=continued))


def together(of: Play, other: Play, before: bytes) -> Told:
    """What a client reads that is sent `before` by one process and the rest by the other."""
    answer = told(log_of(before + other.sent))
    assert blocks_without_data(log_of(before + other.sent)) == 0
    return answer


def agrees(play: Play) -> Play:
    """A takeover of it does what it does itself when its leg breaks now; the other process's play."""
    before, other = play.sent, taken_over(play)
    play.ends(Failure.DISCONNECT)
    assert other.legs == play.legs
    assert other.sent == play.sent[len(before) :]
    assert other.splice.phase is play.splice.phase
    return other


def is_recorded_alike(other: Play, play: Play) -> None:
    """But for the times, which begin anew, and for what it says of the failure itself."""
    theirs, ours = other.record, play.record
    assert theirs.failure == "disconnect"
    said = {"taken_over": True, "failure_detail": "the gateway process that ran the stream is gone"}
    assert theirs.extra == ours.extra | said
    timeless: dict[str, Any] = {name: None for name in theirs.__slots__ if name.endswith("_seconds")}
    assert replace(theirs, extra={}, **timeless) == replace(ours, extra={}, **timeless)


# -- as if the leg had broken -----------------------------------------------------------------------


@pytest.mark.parametrize("recording", WHOLE, ids=str)
def test_a_recorded_stream_goes_on_the_same_wherever_it_was_left(recording: Any) -> None:
    blocks = recording.stream.split(b"\n\n")[:-1]
    decided = set()
    for cut in range(len(blocks)):
        play = Play(request_of(recording)).reads(*[block + b"\n\n" for block in blocks[:cut]])
        before = play.sent
        other = agrees(play)
        if play.legs:
            rest = finished(content(" and so on", ID2))
            assert other.leg2(*rest).sent == play.leg2(*rest).sent[len(before) :]
        is_recorded_alike(other, play)
        decided.add(other.record.decision)
        if play.splice.phase is Phase.DONE:
            answer = together(play, other, before)
            assert (answer.done, len(answer.finishes), answer.errors) == (1, 1, [])
            assert play.plan.asks_usage_always or len(answer.usages) == play.plan.asks_usage
    assert "continue" in decided
    play = Play(request_of(recording)).reads(recording.stream)
    other = taken_over(play)
    assert (other.splice.phase, other.sent, other.legs) == (Phase.DONE, b"", [])
    assert other.splice.record() is None


LEG1 = [
    role(),
    reasoning("Let me see. "),
    reasoning("The sea."),
    content("It is "),
    event([]),
    content("wide, "),
    content("\ud83d"),
    content("\ude00"),
    chunk({}, "stop"),
    usage(9, 9),
]


@pytest.mark.parametrize("body", [{}, ASKS, {"max_tokens": 100}, {"max_tokens": 4} | ASKS, {"stop": ["END"]}])
@pytest.mark.parametrize("options", [{}, {"enabled": False}, {"partial_limit": 20}], ids=str)
def test_a_scripted_stream_goes_on_the_same_wherever_it_was_left(
    body: dict[str, Any], options: dict[str, Any]
) -> None:
    for cut in range(len(LEG1) + 1):
        agrees(Play(body, **options).reads(*LEG1[:cut]))


def test_what_the_engine_has_counted_is_what_is_left_of_the_budget() -> None:
    body = ALWAYS | {"max_tokens": 20}
    counted = [content(f"word{n} ", usage=tokens(5, 3 * (n + 1))) for n in range(6)]
    for cut in range(1, 7):
        other = agrees(Play(body).reads(role(), *counted[:cut]))
        assert other.legs[0]["max_tokens"] == 20 - 3 * cut
        other.leg2(*finished(content("end", ID2)))
        assert other.record.tokens_recovered == 3 * cut
        assert other.record.budget_after == 20 - 3 * cut
    spent = Play(ALWAYS | {"max_tokens": 6}).reads(role(), *counted[:2])
    other = agrees(spent)
    assert other.legs == []
    assert other.record.decision == "complete"
    assert together(spent, other, role() + b"".join(counted[:2])).finishes == ["length"]


def test_the_answer_goes_on_under_the_same_name() -> None:
    play = Play(ASKS).reads(role(), content("Hello"))
    other = taken_over(play).leg2(*finished(content(" world", ID2)))
    answer = together(play, other, play.sent)
    assert answer.content == "Hello world"
    assert len(answer.ids) == 1
    assert (answer.roles, answer.finishes, answer.done) == (1, ["stop"], 1)
    assert answer.usages == [tokens(answer.usages[0]["prompt_tokens"], 2 + 7)]
    record = other.record
    assert (record.outcome, record.failure, record.extra["taken_over"]) == ("rescued", "disconnect", True)
    assert (record.content_chars, record.completion_id) == (5, "chatcmpl-1")
    assert "taken_over" not in play.ends().leg2(*finished(content(" world", ID2))).record.extra


@pytest.mark.parametrize("strategy", [EXACT, RENDERED], ids=["token_exact", "render_generate"])
def test_the_token_route_goes_by_the_text_for_ids_are_in_no_log(strategy: CompiledStrategy) -> None:
    with_ids = [
        event(
            {
                **ID,
                "choices": [{"index": 0, "delta": {"content": text}, "token_ids": [number]}],
                "usage": tokens(3, number),
            }
            | ({"prompt_token_ids": [7, 8, 9]} if number == 1 else {})
        )
        for number, text in enumerate(["The ", "sea ", "is "], 1)
    ]
    play = Play({"max_tokens": 50}, strategy).reads(*with_ids)
    assert (b"[2]" in play.sent) is not strategy.token_exact
    other = taken_over(play)
    [job] = other.jobs
    [own] = play.ends(Failure.DISCONNECT).jobs
    assert (own.carried_ids is not None) is strategy.token_exact
    assert job.carried_ids is None
    assert job.carried_prompt == ()
    assert (job.partial, job.request, job.stops, job.strategy) == (
        own.partial,
        own.request,
        own.stops,
        strategy,
    )
    assert other.splice.phase is Phase.LEG2
    assert other.legs == []


def test_a_client_that_asks_for_ids_itself_has_them_in_its_log() -> None:
    def with_id(text: str, number: int) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "token_ids": [number]}
        return event({**ID, "choices": [choice], "prompt_token_ids": [7], "usage": tokens(1, number)})

    play = Play(ALWAYS | {"return_token_ids": True}, EXACT).reads(with_id("a", 1), with_id("b", 2))
    [job] = taken_over(play).jobs
    assert job.carried_ids == (1, 2)
    assert job == play.ends(Failure.DISCONNECT).jobs[0]


# -- what was whole already -------------------------------------------------------------------------


@pytest.mark.parametrize("told_usage", [False, True])
def test_a_finish_gets_its_ending_and_usage_once(told_usage: bool) -> None:
    reads = [role(), content("Hello"), chunk({}, "stop"), *([usage(9, 3)] if told_usage else [])]
    play = Play(ASKS).reads(*reads)
    other = agrees(play)
    answer = together(play, other, b"".join(reads))
    assert (answer.content, answer.finishes, answer.done, len(answer.usages)) == ("Hello", ["stop"], 1, 1)
    assert other.record.outcome == "completed"
    assert other.record.reason == "ending_lost"


def test_a_log_with_its_done_needs_nothing_whatever_else_it_lacks() -> None:
    stream = role() + content("Hello") + chunk({}, "stop") + DONE
    for log in (log_of(stream), log_of(stream)[-len(b"id: 4\n" + DONE) :]):
        for whole in (True, False):
            for continued in (True, False):
                other = taken_over(Play(ASKS), log, whole=whole, continued=continued)
                assert (other.sent, other.legs, other.splice.phase) == (b"", [], Phase.DONE)
                assert other.splice.record() is None


def test_a_log_with_a_failed_ending_needs_nothing() -> None:
    failing = Play().reads(role(), content("x"), chunk({"tool_calls": [{"index": 0, "id": "a"}]})).ends()
    in_band = Play({"max_tokens": 1}).reads(
        content("x" * 50), event({"error": {"message": "m", "code": 400}})
    )
    for play in (failing, in_band):
        play.failed()
        for continued in (True, False):
            other = taken_over(play, continued=continued)
            assert (other.sent, other.legs, other.splice.phase) == (b"", [], Phase.FAILED)
            assert other.record.outcome == "failed"


# -- what cannot be continued ------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "x"])
def test_a_tool_call_is_not_continued(text: str) -> None:
    call = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]})
    play = Play(ASKS).reads(role(), *([content(text)] if text else []), call)
    before = play.sent
    other = agrees(play)
    assert together(play, other, before).errors[0]["code"] == "tool_call_seen"
    assert other.record.reason == "tool_call_seen"


def test_nothing_delivered_is_nothing_to_continue() -> None:
    for reads in ([], [role()]):
        other = agrees(Play().reads(*reads))
        assert len(told(other.sent).errors) == 1
        assert other.record.reason == "no_recoverable_content"


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_log_that_lacks_its_beginning_is_not_continued(missing: int) -> None:
    stream = [role(), content("a"), content("b"), content("c"), content("d")]
    log = b"".join(entry.data for entry in entries_of(b"".join(stream))[missing:])
    other = taken_over(Play(ASKS), log, whole=False)
    assert other.legs == []
    [error] = told(other.sent).errors
    assert (error["type"], error["code"]) == ("stream_interrupted", "no_recoverable_content")
    assert (other.record.reason, other.record.decision) == ("no_recoverable_content", "refuse")
    other = taken_over(Play(ASKS), log + log_of(chunk({}, "stop")), whole=False)
    answer = told(other.sent)
    assert (answer.done, len(answer.usages), answer.errors) == (1, 1, [])


def test_a_log_that_begins_in_the_middle_of_an_event_is_not_continued() -> None:
    for piece in (b'ore","x":1}]}\n\n', b'data: {"half\n\n', b"data: x\n\n", b"\n", b"\n\n"):
        other = taken_over(Play(), piece + log_of(content("a")), whole=False)
        assert other.legs == []
        assert told(other.sent).errors[0]["code"] == "no_recoverable_content"


def second_leg(*reads: bytes, body: dict[str, Any] = ASKS) -> Play:
    return Play(body).reads(role(), content("Hello")).ends().leg2(role(ID2), *reads)


@pytest.mark.parametrize("reads", [[], [content(" wor", ID2)]])
def test_there_is_no_third_leg(reads: list[bytes]) -> None:
    play = second_leg(*reads)
    other = taken_over(play, continued=True)
    assert (other.legs, other.jobs) == ([], [])
    answer = together(play, other, play.sent)
    assert answer.content == "Hello" + " wor" * len(reads)
    assert (answer.finishes, answer.done) == ([], 0)
    [error] = answer.errors
    assert (error["type"], error["code"]) == ("stream_interrupted", "disconnect")
    record = other.record
    assert (record.outcome, record.reason, record.decision) == ("failed", "leg2_broken", "continue")
    assert record.extra["taken_over"] is True
    assert record.content_chars == len(answer.content)


@pytest.mark.parametrize("told_usage", [False, True])
def test_a_second_leg_that_had_finished_gets_its_ending(told_usage: bool) -> None:
    play = second_leg(content(" world", ID2), chunk({}, "stop", ident=ID2))
    if told_usage:
        play.reads(usage(9, 9, ident=ID2))
    other = taken_over(play, continued=True)
    answer = together(play, other, play.sent)
    assert (answer.content, answer.finishes, answer.done) == ("Hello world", ["stop"], 1)
    assert len(answer.usages) == 1
    assert answer.errors == []
    assert len(answer.ids) == 1
    assert other.record.outcome == "completed"


def test_a_second_leg_that_was_asked_for_and_said_nothing_is_none_that_may_be_asked_for_again() -> None:
    play = Play().reads(role(), content("Hello")).ends()
    other = taken_over(play, continued=True)
    assert (other.legs, other.splice.phase) == ([], Phase.FAILED)


# -- tool calls that were held -----------------------------------------------------------------------


CALL = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a"'}}]})
CALLED = chunk(finish="tool_calls")


def test_calls_that_were_held_are_in_no_log_and_the_answer_goes_on_from_before_them() -> None:
    play = Play(buffer_tool_calls=True).reads(role(), content("Let me look."), CALL, CALL)
    assert CALL not in play.sent
    before = play.sent
    other = agrees(play)
    assert len(other.legs) == 1
    ident = {**ID2}
    call = chunk({"tool_calls": [{"index": 0, "id": "b", "function": {"name": "f"}}]}, ident=ident)
    other.leg2(content(" So:", ID2), call)
    assert b'"b"' not in other.sent
    other.reads(chunk(finish="tool_calls", ident=ID2), DONE)
    answer = together(play, other, before)
    assert answer.content == "Let me look. So:"
    assert len(answer.tool_calls) == 1
    assert (answer.finishes, answer.done) == (["tool_calls"], 1)


def test_calls_that_were_released_are_in_the_log_and_are_held_no_more() -> None:
    play = Play(buffer_tool_calls=True).reads(role(), content("Let me look."), CALL, CALLED)
    assert CALL in play.sent
    before = play.sent
    other = agrees(play)
    assert together(play, other, before).done == 1
    too_large = Play(buffer_tool_calls=True, buffer_limit=10).reads(role(), content("Let me look."), CALL)
    assert CALL in too_large.sent
    other = agrees(too_large)
    assert other.record.reason == "tool_call_seen"
    assert "held_leg1" not in other.record.extra


# -- events that are too large -----------------------------------------------------------------------


LARGE = content("y" * 500)


@pytest.mark.parametrize("after", [b"", content("more")])
def test_an_event_that_was_too_large_is_not_read_and_the_answer_not_continued(after: bytes) -> None:
    play = Play(event_limit=300).reads(role(), content("x"), LARGE, after)
    before = play.sent
    other = agrees(play)
    assert other.legs == []
    assert other.record.reason == "event_too_large"
    assert together(play, other, before).errors[0]["code"] == "event_too_large"


def test_a_finish_in_such_an_event_is_found() -> None:
    play = Play(ASKS, event_limit=300).reads(role(), content("x"), chunk({"content": "y" * 500}, "stop"))
    before = play.sent
    other = agrees(play)
    answer = together(play, other, before)
    assert (answer.finishes, answer.done, len(answer.usages)) == (["stop"], 1, 1)


def test_what_comes_behind_such_an_event_is_read() -> None:
    play = Play(event_limit=300).reads(role(), LARGE, chunk({}, "stop"), DONE)
    other = taken_over(play)
    assert (other.sent, other.splice.phase) == (b"", Phase.DONE)


# -- nobody wants the rest ---------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [Reason.CLIENT_GONE, Reason.STOPPED])
def test_a_stream_that_is_given_up_gets_the_failed_ending(reason: Any) -> None:
    for play in (Play().reads(role(), content("x")), second_leg(content("y", ID2), body={})):
        play.does(play.splice.given_up(reason, play.now))
        assert play.failed().errors[0]["code"] == reason
        assert (play.record.outcome, play.record.reason) == ("client_gone", reason)
        sent = play.sent
        assert play.does(play.splice.given_up(reason, play.now)).sent == sent


def test_several_choices_are_whole_after_a_takeover_only_where_each_had_its_finish() -> None:
    def of(index: int, finish: str | None = None) -> bytes:
        return event(
            {**ID, "choices": [{"index": index, "delta": {"content": "x"}, "finish_reason": finish}]}
        )

    play = Play({"n": 2}).reads(of(0), of(1), of(0, "stop"), b": ping\n\n")
    assert agrees(play).told.errors[0]["code"] == "multiple_choices"
    play = Play({"n": 2}).reads(of(0), of(1), of(0, "stop"), of(1, "length"))
    other = agrees(play)
    assert (other.sent, other.record.outcome) == (DONE, "completed")


def test_an_answer_with_its_finish_that_is_given_up_gets_its_ending() -> None:
    for play in (
        Play(ASKS).reads(role(), content("x"), chunk({}, "stop")),
        second_leg(content("y", ID2), chunk({}, "stop", ident=ID2)),
    ):
        play.does(play.splice.given_up(Reason.STOPPED, play.now))
        assert len(play.whole().usages) == 1
        assert play.record.outcome in ("completed", "rescued")


# -- the request as it is kept -----------------------------------------------------------------------


PERSONAL: RawHeaders = [
    (b"authorization", b"Bearer sk-one"),
    (b"cookie", b"a=1"),
    (b"proxy-authorization", b"Basic x"),
    (b"x-api-key", b"sk-two"),
    (b"api-key", b"sk-three"),
    (b"X-Goog-Api-Key", b"sk-four"),
    (b"x-auth-request-user", b"me"),
    (b"x-amz-security-token", b"sk-five"),
    (b"client-secret", b"sk-six"),
]
KEPT: RawHeaders = [(b"x-tenant", b"t"), (b"user-agent", b"caf\xe9"), (b"x-tenant", b"u")]
ORIGIN = Origin("request-1", b"/v1/chat/completions?x=%20\xff", [*KEPT[:1], *PERSONAL, *KEPT[1:]])
BODY = b'{"model": "m",\n"stream": true}\n\0\xff'


def test_a_request_is_kept_whole_but_for_what_is_personal() -> None:
    kept = packed(ORIGIN, BODY)
    assert b"sk-one" not in kept
    assert b"a=1" not in kept
    assert b"Basic x" not in kept
    assert b"sk-" not in kept
    origin, body = unpacked(kept, [])
    assert origin == Origin(ORIGIN.request_id, ORIGIN.target, KEPT)
    assert body == BODY


def test_what_is_personal_comes_from_the_one_who_comes_back() -> None:
    back: RawHeaders = [
        (b"Authorization", b"Bearer sk-two"),
        (b"x-tenant", b"another"),
        (b"last-event-id", b"7"),
        (b"Cookie", b"b=2"),
        (b"X-Session-Token", b"sk-ten"),
        (b"X-Resume-Token", b"the gateway's own"),
    ]
    origin, _ = unpacked(packed(ORIGIN, BODY), back)
    assert origin.headers == [
        *KEPT,
        (b"Authorization", b"Bearer sk-two"),
        (b"Cookie", b"b=2"),
        (b"X-Session-Token", b"sk-ten"),
    ]


def test_which_headers_are_personal_can_be_set_but_for_three(settings: Any) -> None:
    settings.CREDENTIAL_HEADERS = ["x-tenant"]
    origin, _ = unpacked(packed(ORIGIN, BODY), [(b"X-Tenant", b"v"), (b"api-key", b"sk-eleven")])
    kept = [(name, value) for name, value in PERSONAL if name not in takeover.ALWAYS_PERSONAL]
    assert origin.headers == [*kept, (b"user-agent", b"caf\xe9"), (b"X-Tenant", b"v")]


def test_what_another_process_kept_gives_way_to_what_is_sent_again(settings: Any) -> None:
    settings.CREDENTIAL_HEADERS = ["x-none"]
    kept = packed(ORIGIN, BODY)
    settings.CREDENTIAL_HEADERS = ["*key*"]
    origin, _ = unpacked(kept, [(b"X-API-Key", b"sk-new")])
    assert [value for name, value in origin.headers if name.lower() == b"x-api-key"] == [b"sk-new"]
    assert (b"api-key", b"sk-three") in origin.headers


def test_leg_2_of_the_process_that_began_a_stream_has_every_header() -> None:
    assert set(PERSONAL) <= set(ORIGIN.leg2_headers)


@given(
    st.text(st.characters(max_codepoint=255)),
    st.binary(),
    st.lists(st.tuples(st.binary(min_size=1), st.binary())),
    st.binary(),
)
def test_any_request_comes_back_as_it_was(
    request_id: str, target: bytes, headers: RawHeaders, body: bytes
) -> None:
    headers = [(name, value) for name, value in headers if not takeover.is_personal(name)]
    assert unpacked(packed(Origin(request_id, target, headers), body), []) == (
        Origin(request_id, target, headers),
        body,
    )


SOUND: dict[str, Any] = {"v": 1, "id": "r", "target": "/v1", "headers": [["a", "b"]]}
UNREADABLE: list[Any] = [
    None,
    [],
    7,
    "x",
    {},
    {**SOUND, "v": 2},
    {**SOUND, "v": "1"},
    {**SOUND, "id": 7},
    {**SOUND, "id": None},
    {**SOUND, "target": ["/"]},
    {**SOUND, "target": "/\u2028"},
    {**SOUND, "headers": None},
    {**SOUND, "headers": {"a": "b"}},
    {**SOUND, "headers": "ab"},
    {**SOUND, "headers": ["ab"]},
    {**SOUND, "headers": [["a"]]},
    {**SOUND, "headers": [["a", "b", "c"]]},
    {**SOUND, "headers": [["a", 7]]},
    {**SOUND, "headers": [["a", "\u2028"]]},
    *[{key: value for key, value in SOUND.items() if key != missing} for missing in SOUND],
]


@pytest.mark.parametrize("head", UNREADABLE, ids=str)
def test_a_request_that_cannot_be_read_is_a_value_error(head: Any) -> None:
    assert unpacked(json.dumps(SOUND).encode() + b"\nx", [])[1] == b"x"
    with pytest.raises(ValueError):  # noqa: PT011
        unpacked(json.dumps(head).encode() + b"\n{}", [])


@given(st.binary() | st.sampled_from([packed(ORIGIN, BODY)[:n] for n in range(150)]))
def test_so_is_any_other(kept: bytes) -> None:
    try:
        unpacked(kept, [])
    except ValueError:
        return
    assert kept.startswith(b"{")


# -- the takeover ------------------------------------------------------------------------------------


@dataclass
class Orphans:
    """A store of which this process takes over one stream, and nobody else does."""

    taken: Taken | None
    inner: MemoryStore

    async def take_over(self, stream_id: str) -> Taken | None:
        taken, self.taken = self.taken, None
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


REQUEST = {"model": "m", "stream": True, "messages": [QUESTION]}


def orphan(
    sent: bytes = b"",
    request: bytes | None = None,
    *,
    entries: Sequence[Entry] | None = None,
    leg2_from: int = 0,
    whole: bool = True,
    body: dict[str, Any] | None = None,
) -> tuple[Orphans, MemoryWriter]:
    store = MemoryStore(Limits())
    entries = entries_of(sent) if entries is None else entries
    last = entries[-1].number if entries else 0
    standing = Standing(State.INTERRUPTED, 1, last, leg2_from, datetime.now(UTC).timestamp())
    log = HotLog("0" * 32, Limits(), Held())
    log.restore(entries, standing, entries[-1].cursor if entries else (0, 0))
    writer = MemoryWriter(log, store)
    kept = packed(ORIGIN, json.dumps(REQUEST | (body or {})).encode()) if request is None else request
    return Orphans(Taken(writer, tuple(entries), whole, standing, kept), store), writer


def logged(writer: MemoryWriter) -> bytes:
    return b"".join(entry.data for entry in writer.log.since((0, 0)))


def is_in_order(writer: MemoryWriter) -> Told:
    """Its events are numbered one by one and all complete; what they say."""
    stream = logged(writer)
    events = dispatched(stream)
    assert [one.id for one in events] == [b"%d" % number for number in range(1, len(events) + 1)]
    assert [one.told for one in events] == [1] * len(events)
    assert blocks_without_data(stream) == 0
    assert writer.log.last == len(events)
    return told(stream)


@pytest.fixture
def kept(process: Process, monkeypatch: pytest.MonkeyPatch) -> list[StreamRecord]:
    """What the audit is given."""
    records: list[StreamRecord] = []
    monkeypatch.setattr(process.audit, "record", records.append)
    return records


@pytest.fixture
async def engine(
    session_upstream: Upstream, settings: Any, kept: list[StreamRecord]
) -> AsyncIterator[Upstream]:
    """Where the continuation goes; when the test is over nothing runs and no connection is open."""
    settings.CONTINUATION_MODEL = "m"
    settings.CONTINUATION_URL = session_upstream.url
    settings.RESUME_GRACE_SECONDS = DEADLINE
    yield session_upstream
    await until(lambda: lifecycle.current().generations.running == 0)
    await lifecycle.current().downstream.close()
    assert await asyncio.to_thread(session_upstream.settle) == []


BACK: RawHeaders = [(b"authorization", b"Bearer sk-two")]


async def went_on(store: Orphans, writer: MemoryWriter) -> State:
    await lifecycle.current().takeovers.take_over(store, "0" * 32, BACK)
    await until(lambda: writer.log.ended_at is not None)
    assert lifecycle.current().generations.running == 0
    return writer.log.state


async def test_a_stream_is_continued_from_its_log(engine: Upstream, kept: list[StreamRecord]) -> None:
    engine.script(Reply([Send(one) for one in finished(content(" world", ID2))]))
    store, writer = orphan(role() + content("Hello"), body={"max_tokens": 100})
    assert await went_on(store, writer) is State.FINISHED
    answer = is_in_order(writer)
    assert (answer.content, answer.finishes, answer.done, len(answer.ids)) == ("Hello world", ["stop"], 1, 1)
    [request] = engine.requests
    assert request.json()["messages"] == [QUESTION, {"role": "assistant", "content": "Hello"}] or (
        request.json()["messages"][-1]["content"].endswith("Hello")
    )
    assert request.json()["max_tokens"] == 98
    assert request.target.startswith("/v1/chat/completions?x=%20")
    assert request.header("authorization") == "Bearer sk-two"
    assert request.header("x-request-id") == "request-1-leg2"
    assert request.all("x-tenant") == ["t", "u"]
    assert request.header("cookie") is None
    assert writer.log.leg2_from == 3
    [record] = kept
    assert (record.outcome, record.extra["taken_over"]) == ("rescued", True)


async def test_only_one_takes_it_over(engine: Upstream, kept: list[StreamRecord]) -> None:
    store, writer = orphan(role() + content("Hello"))
    store.taken = None
    await lifecycle.current().takeovers.take_over(store, "0" * 32, BACK)
    assert lifecycle.current().generations.running == 0
    assert kept == []
    assert writer.log.ended_at is None


async def test_what_needs_only_its_ending_asks_nobody(engine: Upstream) -> None:
    store, writer = orphan(role() + content("Hello") + chunk({}, "stop"))
    assert await went_on(store, writer) is State.FINISHED
    assert is_in_order(writer).done == 1


async def test_what_is_whole_gets_nothing(engine: Upstream, kept: list[StreamRecord]) -> None:
    stream = role() + content("Hello") + chunk({}, "stop") + DONE
    store, writer = orphan(stream)
    assert await went_on(store, writer) is State.FINISHED
    assert logged(writer) == log_of(stream)
    assert kept == []


async def test_what_has_failed_gets_nothing(engine: Upstream) -> None:
    stream = Play().reads(role(), content("x")).does(()).ends(Failure.DISCONNECT)
    stream.does(stream.splice.leg2_unreachable("m", 0.0))
    store, writer = orphan(stream.sent, leg2_from=3)
    assert await went_on(store, writer) is State.FAILED
    assert logged(writer) == log_of(stream.sent)


async def test_a_second_leg_that_was_lost_fails(engine: Upstream) -> None:
    store, writer = orphan(role() + content("Hello") + content(" wor"), leg2_from=3)
    assert await went_on(store, writer) is State.FAILED
    answer = is_in_order(writer)
    assert answer.errors[0]["code"] == "disconnect"
    assert answer.content == "Hello wor"


async def test_a_leg_that_breaks_after_the_takeover_fails(engine: Upstream) -> None:
    engine.script(Reply([Send(content(" wor", ID2)), Reset()]))
    store, writer = orphan(role() + content("Hello"))
    assert await went_on(store, writer) is State.FAILED
    answer = is_in_order(writer)
    assert (answer.content, len(answer.errors), answer.done) == ("Hello wor", 1, 0)
    engine.script(json_reply({"error": {"message": "no"}}, "400 Bad Request"))
    store, writer = orphan(role() + content("Hello"))
    assert await went_on(store, writer) is State.FAILED
    assert len(is_in_order(writer).errors) == 1


@pytest.mark.parametrize("body", [{"n": 2}, {"stream": False}, {"response_format": {"type": "json_object"}}])
async def test_a_request_that_would_be_passed_through_now_fails(
    engine: Upstream, body: dict[str, Any]
) -> None:
    store, writer = orphan(role() + content("Hello"), body=body)
    assert await went_on(store, writer) is State.FAILED
    answer = is_in_order(writer)
    assert (answer.content, len(answer.errors)) == ("Hello", 1)
    assert answer.errors[0]["type"] == "stream_interrupted"


async def test_so_does_one_without_a_strategy(engine: Upstream, settings: Any) -> None:
    settings.CONTINUATION_MODEL = ""
    store, writer = orphan(role() + content("Hello"))
    assert await went_on(store, writer) is State.FAILED
    assert len(is_in_order(writer).errors) == 1


UNKNOWN = [b"", b"x", b"{}\n{}", b'{"v": 1}\n{}', b"[]", b'{"v": 2}\n{}']


@pytest.mark.parametrize("request_", UNKNOWN)
async def test_so_does_one_of_which_only_the_events_are_known(engine: Upstream, request_: bytes) -> None:
    store, writer = orphan(role() + content("Hello"), request_)
    assert await went_on(store, writer) is State.FAILED
    answer = is_in_order(writer)
    assert (answer.content, len(answer.errors)) == ("Hello", 1)


@pytest.mark.parametrize("request_", UNKNOWN)
async def test_but_an_ending_that_is_there_is_the_only_one(engine: Upstream, request_: bytes) -> None:
    whole = role() + content("Hello") + chunk({}, "stop") + DONE
    store, writer = orphan(whole, request_)
    assert await went_on(store, writer) is State.FINISHED
    assert logged(writer) == log_of(whole)
    failed = role() + event({"error": {"message": "m"}})
    store, writer = orphan(failed, request_)
    assert await went_on(store, writer) is State.FAILED
    assert logged(writer) == log_of(failed)


def left_open() -> list[Entry]:
    """The process died in the middle of an event that was too large to be kept whole."""
    numbering = Numbering(300)
    entries, _ = numbering.feed(role() + content("x") + LARGE[:400])
    more, _ = numbering.feed(LARGE[400:450])
    entries += more
    assert entries[-1].open
    return entries


@pytest.mark.parametrize("request_", [None, b"x"])
async def test_an_event_that_was_left_open_is_ended_before_the_ending(
    engine: Upstream, request_: bytes | None
) -> None:
    store, writer = orphan(request=request_, entries=left_open())
    assert await went_on(store, writer) is State.FAILED
    events = dispatched(logged(writer))
    assert [one.id for one in events] == [b"1", b"2", b"3", b"4"]
    assert json.loads(events[3].data)["error"]["type"] == "stream_interrupted"
    assert blocks_without_data(logged(writer)) == 0
    assert [entry.part for entry in writer.log.since((2, 9))] == [0, 1, 2, 0]


# -- orphans that are stopped --------------------------------------------------------------------------


async def test_an_orphan_is_stopped_and_says_so() -> None:
    store, writer = orphan(role() + content("Hello"))
    await lifecycle.current().takeovers.stop_orphan(store, "0" * 32)
    assert writer.log.state is State.STOPPED
    assert is_in_order(writer).errors[0]["code"] == "stopped"
    await lifecycle.current().takeovers.stop_orphan(store, "0" * 32)  # by another one, who comes too late
    assert len(is_in_order(writer).errors) == 1


async def test_one_that_was_whole_is_finished() -> None:
    stream = role() + content("Hello") + chunk({}, "stop") + DONE
    store, writer = orphan(stream)
    await lifecycle.current().takeovers.stop_orphan(store, "0" * 32)
    assert (writer.log.state, logged(writer)) == (State.FINISHED, log_of(stream))


async def test_one_that_was_in_the_middle_of_an_event_ends_it_first() -> None:
    store, writer = orphan(entries=left_open())
    await lifecycle.current().takeovers.stop_orphan(store, "0" * 32)
    events = dispatched(logged(writer))
    assert json.loads(events[3].data)["error"]["code"] == "stopped"
    assert len(events) == 4


async def test_a_store_that_is_away_is_told() -> None:
    @dataclass
    class Away(Orphans):
        async def take_over(self, stream_id: str) -> Taken | None:
            raise StoreAway

    store = Away(None, MemoryStore(Limits()))
    with pytest.raises(StoreAway):
        await lifecycle.current().takeovers.stop_orphan(store, "0" * 32)
    with pytest.raises(StoreAway):
        await lifecycle.current().takeovers.take_over(store, "0" * 32, [])


async def test_who_brought_it_about_and_left_does_not_undo_it(
    engine: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a takeover would be a stream that nobody runs, and nobody takes."""
    engine.script(Reply([Send(one) for one in finished(content(" world", ID2))]))
    store, writer = orphan(role() + content("Hello"))
    planning, gate = threading.Event(), threading.Event()
    plan = takeover.plan

    def slow(*arguments: Any) -> Any:
        planning.set()
        gate.wait(DEADLINE)
        return plan(*arguments)

    monkeypatch.setattr(takeover, "plan", slow)
    reader = asyncio.create_task(lifecycle.current().takeovers.take_over(store, "0" * 32, BACK))
    await asyncio.to_thread(planning.wait, DEADLINE)
    stopping = asyncio.create_task(lifecycle.current().takeovers.stop_orphan(store, "0" * 32))
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    gate.set()
    assert await stopping is False  # it is not an orphan any more, and has to be told itself
    await until(lambda: writer.log.ended_at is not None)
    assert is_in_order(writer).content == "Hello world"
    assert lifecycle.current().takeovers._under_way == {}


async def test_a_process_that_ends_lets_go_of_what_it_has_claimed(
    engine: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, writer = orphan(role() + content("Hello"))
    planning, gate, handed = threading.Event(), threading.Event(), []
    monkeypatch.setattr(takeover, "plan", lambda *_: (planning.set(), gate.wait(DEADLINE)))
    monkeypatch.setattr(writer, "hand_over", lambda: handed.append("over"))
    reader = asyncio.create_task(lifecycle.current().takeovers.take_over(store, "0" * 32, BACK))
    await asyncio.to_thread(planning.wait, DEADLINE)
    await lifecycle.current().takeovers.put_away()
    gate.set()
    await reader
    assert handed == ["over"]
    assert lifecycle.current().generations.running == 0


async def test_a_long_log_is_read_where_it_holds_nobody_up(
    engine: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.script(Reply([Send(one) for one in finished(content(" world", ID2))]))
    threads: list[str] = []
    read = Splice.was_delivered

    def noted(self: Splice, delivered: bytes, now: float) -> None:
        threads.append(threading.current_thread().name)
        read(self, delivered, now)

    monkeypatch.setattr(Splice, "was_delivered", noted)
    long = "x" * takeover.AT_ONCE_BYTES
    for text in ("Hello", long):
        store, writer = orphan(role() + content(text))
        await went_on(store, writer)
        engine.script(Reply([Send(one) for one in finished(content(" world", ID2))]))
    assert is_in_order(writer).content == long + " world"
    assert threads[0] == threading.main_thread().name != threads[1]


# -- what is asked of it while it begins -----------------------------------------------------------------


async def test_one_that_is_stopped_as_it_is_taken_over_gets_one_ending(engine: Upstream) -> None:
    for stream, state in (
        (role() + content("Hello") + chunk({}, "stop") + DONE, State.FINISHED),
        (role() + chunk({"tool_calls": [{"index": 0, "id": "a"}]}), State.FAILED),
    ):
        store, writer = orphan(stream)
        await lifecycle.current().takeovers._take_over(
            store, "0" * 32, BACK
        )  # and not a turn of the loop later
        running = lifecycle.current().generations.find("0" * 32)
        assert running is not None
        running.stop()
        await until(lambda: lifecycle.current().generations.running == 0)
        assert is_in_order(writer).done + len(is_in_order(writer).errors) == 1
        assert writer.log.state in (state, State.STOPPED)


async def test_a_continuation_that_says_nothing_can_be_stopped(engine: Upstream) -> None:
    gate = Gate()
    engine.script(Reply([Send(role(ID2)), Pause(gate), HoldOpen()]))
    store, writer = orphan(role() + content("Hello"))
    await lifecycle.current().takeovers.take_over(store, "0" * 32, BACK)
    await asyncio.to_thread(gate.wait_reached)
    running = lifecycle.current().generations.find("0" * 32)
    assert running is not None
    running.stop()
    await until(lambda: lifecycle.current().generations.running == 0)
    assert writer.log.state is State.STOPPED
    assert is_in_order(writer).errors[0]["code"] == "stopped"
    await asyncio.to_thread(engine.wait_until_idle)
