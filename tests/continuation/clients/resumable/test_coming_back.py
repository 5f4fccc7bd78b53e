"""Over a real socket: each event comes once and in order, wherever the connection breaks."""

import asyncio
import gzip
import random
import time
from dataclasses import replace

import httpx
import pytest

from continuation.clients.resumable import (
    AsyncChatStream,
    BadCursor,
    Disconnected,
    Event,
    Failed,
    GaveUp,
    Gone,
    NotFound,
    NotUnderstood,
    Position,
    Refused,
    Retries,
    aresume,
    astream_chat,
    resume,
    stream_chat,
)
from tests.continuation.clients.resumable.scripted import (
    BODY,
    RECORDED,
    STREAM_ID,
    TEXTS,
    Clock,
    Reader,
    aread,
    at,
    block,
    chunk,
    cut,
    last_id,
    names,
    read_sync,
    refusal,
    resumed_whole,
    whole,
)
from tests.continuation.resume.streams import until
from tests.harness.upstream import (
    EVENT_STREAM,
    Close,
    Cut,
    HoldOpen,
    Pause,
    Reply,
    Request,
    Reset,
    Send,
    SendRaw,
    Upstream,
)
from tests.harness.upstream import (
    whole as whole_body,
)

BYTES = b"".join(RECORDED)
LAST = len(RECORDED)


def breaking_at_each_offset(request: Request) -> Reply:
    """The first answer is cut at the offset that its header names."""
    if request.method == "GET":
        return resumed_whole(request)
    offset = int(request.header("X-Offset") or "")
    return cut(BYTES[:offset], [Cut(), Reset(), Close()][offset % 3])


# -- wherever it breaks ----------------------------------------------------------------------------


def test_a_break_at_each_byte_loses_nothing_and_doubles_nothing(upstream: Upstream) -> None:
    upstream.respond(breaking_at_each_offset)
    with httpx.Client() as client:
        for offset in range(len(BYTES) + 1):
            read_sync(upstream.url, client=client, headers={"X-Offset": str(offset)}).is_whole()


def test_so_does_none_for_the_asynchronous_client(upstream: Upstream) -> None:
    upstream.respond(breaking_at_each_offset)

    async def all_offsets() -> None:
        async with httpx.AsyncClient() as client:
            for first in range(0, len(BYTES) + 1, 8):
                offsets = range(first, min(first + 8, len(BYTES) + 1))
                reading = [aread(upstream.url, client=client, headers={"X-Offset": str(n)}) for n in offsets]
                for read in await asyncio.gather(*reading):
                    read.is_whole()

    asyncio.run(all_offsets())


def test_a_connection_that_breaks_behind_each_event_is_come_back_to_each_time(
    upstream: Upstream, read: Reader
) -> None:
    def one_event_and_a_half(request: Request) -> Reply:
        cursor = max(0, last_id(request))
        newest = None if request.method == "POST" else LAST
        data = RECORDED[cursor] + b"".join(RECORDED[cursor + 1 : cursor + 2])[:20]
        return cut(data, headers=names(f"token-{cursor}", newest))

    upstream.respond(one_event_and_a_half)
    found = read(upstream.url)
    found.is_whole()
    assert [event.replayed for event in found.events] == [False] + [True] * (len(TEXTS) - 1)
    asked = upstream.requests
    assert [request.method for request in asked] == ["POST"] + ["GET"] * (LAST - 1)
    assert [last_id(request) for request in asked[1:]] == list(range(1, LAST))
    tokens = [request.header("X-Resume-Token") for request in asked[1:]]
    assert tokens == [f"token-{n}" for n in range(LAST - 1)]
    assert {request.target for request in asked[1:]} == {f"/v1/streams/{STREAM_ID}"}


def test_what_is_sent_again_is_handed_out_once(upstream: Upstream, read: Reader) -> None:
    upstream.script(
        cut(b"".join(RECORDED[:5]) + b"".join(RECORDED[2:6])),
        lambda request: whole(*RECORDED, headers=names("token-2", 8)),
    )
    found = read(upstream.url)
    found.is_whole()
    assert [event.id for event in found.events if event.replayed] == [7, 8]


def test_events_that_come_in_any_pieces_are_the_same(upstream: Upstream, read: Reader) -> None:
    chance = random.Random(5)
    at_byte, steps = 0, []
    while at_byte < len(BYTES):
        size = chance.choice([1, 1, 2, 3, 7, 40])
        steps.append(Send(BYTES[at_byte : at_byte + size]))
        at_byte += size
    upstream.script(Reply(steps, headers=names()))
    read(upstream.url).is_whole()


def test_what_the_gateway_is_asked(upstream: Upstream, read: Reader) -> None:
    upstream.script(cut(RECORDED[0]), resumed_whole)
    read(
        f"{upstream.url}/v1/", headers={"authorization": "Bearer k", "X-Own": "o"}, checkpoints=True
    ).is_whole()
    first, second = upstream.requests
    assert (first.method, first.target) == ("POST", "/v1/chat/completions")
    assert first.json() == {**BODY, "stream": True}
    assert first.all("X-Resumable") == ["1"]
    assert first.all("Content-Type") == ["application/json"]
    assert first.header("X-Resume-Token") is None
    assert (second.method, second.target, second.body) == ("GET", f"/v1/streams/{STREAM_ID}", b"")
    for request in (first, second):
        assert request.all("Authorization") == ["Bearer k"]
        assert request.all("X-Own") == ["o"]
        assert request.all("X-Resume-Events") == ["1"]
        assert request.all("Accept") == ["text/event-stream"]


def test_tokens_inside_the_stream_are_used_and_not_handed_out(upstream: Upstream, read: Reader) -> None:
    inside = b'event: resume_token\ndata: {"token": "inside", "last_event_id": 2}\n\n'
    upstream.script(cut(b"".join(RECORDED[:2]) + inside + RECORDED[2]), resumed_whole)
    read(upstream.url, checkpoints=True).is_whole()
    assert upstream.requests[1].header("X-Resume-Token") == "inside"
    assert last_id(upstream.requests[1]) == 3


def test_a_silent_connection_counts_as_broken(upstream: Upstream, read: Reader) -> None:
    upstream.script(Reply([Send(RECORDED[0]), HoldOpen()], headers=names()), resumed_whole)
    read(upstream.url, read_timeout=0.2).is_whole()


# -- how an answer ends ----------------------------------------------------------------------------


def test_what_comes_behind_done_is_not_read(upstream: Upstream, read: Reader) -> None:
    upstream.script(Reply([Send(BYTES + block(LAST + 1, chunk("more"))), HoldOpen()], headers=names()))
    read(upstream.url).is_whole()


def test_a_failed_ending_raises_behind_the_events_before_it(upstream: Upstream, read: Reader) -> None:
    error = {"message": "It was interrupted.", "type": "stream_interrupted", "code": "eof"}
    upstream.script(whole(*RECORDED[:3], block(4, {"error": error})))
    found = read(upstream.url)
    assert found.ids == [1, 2, 3]
    assert found.error is not None
    assert (type(found.error).__name__, str(found.error)) == ("Failed", "eof: It was interrupted.")
    assert (found.error.code, found.error.type, found.error.error) == ("eof", "stream_interrupted", error)  # type: ignore[attr-defined]
    assert found.error.position == found.position
    assert len(upstream.requests) == 1


def test_an_error_without_a_number_ends_the_stream_too(upstream: Upstream, read: Reader) -> None:
    error = {"error": {"message": "the line is down", "code": "of_a_proxy"}}
    upstream.script(cut(RECORDED[0]), whole(RECORDED[1], whole_event(error)))
    found = read(upstream.url)
    assert (found.ids, getattr(found.error, "code", None)) == ([1, 2], "of_a_proxy")
    assert found.position is not None
    assert found.position.last_id == 2


def whole_event(data: object) -> bytes:
    return block(0, data).partition(b"\n")[2]


GAP = whole_event({"error": {"message": "not kept", "code": "resume_gap"}})


def test_who_was_overtaken_is_told_what_there_is_still(upstream: Upstream, read: Reader) -> None:
    trimmed = refusal("410 Gone", "trimmed", available={"first": 5, "last": 9})
    upstream.script(cut(RECORDED[0]), whole(RECORDED[1], GAP), trimmed)
    found = read(upstream.url)
    assert (found.ids, getattr(found.error, "available", None)) == ([1, 2], (5, 9))
    assert found.position == at(upstream, 2)


def test_or_has_it_of_another_process(upstream: Upstream, read: Reader) -> None:
    upstream.script(whole(*RECORDED[:2], GAP), resumed_whole)
    read(upstream.url).is_whole()


def test_a_gap_that_stays_is_given_up(upstream: Upstream, read: Reader) -> None:
    upstream.script(*[whole(GAP)] * 4)
    found = read(at(upstream, 2), retries={"attempts": 3})
    assert isinstance(found.error, GaveUp)
    assert str(found.error) == "no way back within 3 attempts; the last trouble: resume_gap: not kept"


@pytest.mark.parametrize(
    "ending,code",
    [
        (b'data: {"object": "error", "message": "m", "code": 400}\n\n', 400),
        (b'event: error\ndata: {"message": "m", "code": "eof"}\n\n', "eof"),
        (b"event: error\ndata: out of memory\n\n", None),
    ],
)
@pytest.mark.parametrize("resumable", [True, False])
def test_each_form_of_an_error_ends_the_stream(
    upstream: Upstream, read: Reader, ending: bytes, code: object, resumable: bool
) -> None:
    """Engines have several, and the answer may be one that was passed through."""
    done = b"data: [DONE]\n\n"
    upstream.script(
        whole(RECORDED[0], b"id: 2\n" + ending) if resumable else Reply([Send(plain("a") + ending + done)])
    )
    found = read(upstream.url)
    assert isinstance(found.error, Failed)
    assert (len(found.events), found.error.code) == (1, code)
    assert found.error.message


# Of a stream that has ended, to one who has had its last event.
NOTHING_MORE = Reply(status="204 No Content", headers=(), framing="none")


def test_a_stream_that_was_read_to_its_end_has_no_more_events(upstream: Upstream, read: Reader) -> None:
    upstream.script(NOTHING_MORE, resumed_whole)
    found = read(at(upstream, LAST))
    assert (found.events, found.error) == ([], None)
    assert found.position is not None
    assert found.position.last_id == LAST
    assert [last_id(request) for request in upstream.requests] == [LAST, LAST - 1]


def test_if_it_failed_that_is_told_each_time(upstream: Upstream, read: Reader) -> None:
    """Its last event says how it ended."""
    failed = block(2, {"error": {"message": "It was stopped.", "code": "stopped"}})
    upstream.script(whole(RECORDED[0], failed), NOTHING_MORE, whole(failed))
    first = read(upstream.url)
    assert isinstance(first.error, Failed)
    assert first.error.position is not None
    again = read(first.error.position)
    assert isinstance(again.error, Failed)
    assert (again.events, again.error.code) == ([], "stopped")
    assert again.error.position == first.error.position


def test_a_server_that_has_nothing_at_all_is_asked_twice(upstream: Upstream, read: Reader) -> None:
    upstream.script(NOTHING_MORE, NOTHING_MORE)
    assert read(at(upstream, 3)).error is None
    assert len(upstream.requests) == 2


# -- another process -------------------------------------------------------------------------------


def test_another_process_goes_on_where_this_one_was(upstream: Upstream, read: Reader) -> None:
    upstream.script(Reply([Send(b"".join(RECORDED[:6])), HoldOpen()], headers=names()), resumed_whole)
    with stream_chat(upstream.url, BODY) as stream:
        for event in stream:
            if event.id == 4:
                break
        assert stream.position is not None
        saved = stream.position.to_json()
    found = read(Position.from_json(saved), headers={"Authorization": "Bearer k"})
    assert found.ids == list(range(5, LAST))
    assert all(event.replayed for event in found.events)
    assert upstream.requests[1].header("Authorization") == "Bearer k"
    assert found.position == replace(Position.from_json(saved), token="token-2", last_id=LAST)


def test_a_position_does_not_show_its_token() -> None:
    position = Position("http://gateway", STREAM_ID, "secret", 3)
    assert "secret" not in repr(position)
    assert Position.from_json(position.to_json()) == position


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "[]",
        '{"base_url": "http://g", "stream_id": "x", "token": "t"}',
        '{"base_url": "http://g", "stream_id": "x", "token": "t", "last_id": "3"}',
        '{"base_url": "http://g", "stream_id": "x", "token": "t", "last_id": true}',
        '{"base_url": "http://g", "stream_id": "x", "token": "t", "last_id": -1}',
        '{"base_url": "http://g", "stream_id": "x", "token": "t", "last_id": 1, "more": 1}',
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of JSON, or our own
        Position.from_json(text)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply,kind,code",
    [
        (refusal("400 Bad Request", "bad_cursor"), BadCursor, "bad_cursor"),
        (refusal("400 Bad Request", "invalid_header"), Refused, "invalid_header"),
        (refusal("401 Unauthorized", "no"), Refused, "no"),
        (refusal("404 Not Found", "not_found"), NotFound, "not_found"),
        (refusal("410 Gone", "expired", available=None), Gone, "expired"),
        (whole_body(b"<html>no</html>", "403 Forbidden"), Refused, ""),
        (whole_body(b'{"error": "short"}', "410 Gone"), Gone, ""),
    ],
)
def test_a_refusal_on_the_way_back_is_raised_at_once(
    upstream: Upstream, read: Reader, reply: Reply, kind: type[Refused], code: str
) -> None:
    upstream.script(cut(b"".join(RECORDED[:2])), reply)
    found = read(upstream.url)
    assert found.ids == [1, 2]
    assert type(found.error) is kind
    assert found.error.code == code
    assert found.error.status == int(reply.status[:3])
    assert found.error.position == at(upstream, 2)
    assert len(upstream.requests) == 2


def test_what_can_be_had_still_is_told(upstream: Upstream, read: Reader) -> None:
    upstream.script(refusal("410 Gone", "trimmed", available={"first": 40, "last": 90}))
    found = read(at(upstream, 3))
    assert isinstance(found.error, Gone)
    assert (found.error.code, found.error.message) == ("trimmed", "it is trimmed")
    assert found.error.available == (40, 90)


@pytest.mark.parametrize("available", [None, "none", {"first": "40", "last": 90}, {"first": 40}])
def test_nothing_can_be_had_where_nothing_is_told(upstream: Upstream, available: object) -> None:
    upstream.script(refusal("410 Gone", "trimmed", available=available))
    found = read_sync(at(upstream, 3))
    assert isinstance(found.error, Gone)
    assert found.error.available is None


def test_the_question_is_asked_once(upstream: Upstream, read: Reader) -> None:
    for status in ("400 Bad Request", "404 Not Found", "429 Too Many Requests", "503 Service Unavailable"):
        upstream.script(refusal(status, "no"))
        found = read(upstream.url)
        assert type(found.error) is Refused
        assert (found.error.status, found.error.position, found.waits) == (int(status[:3]), None, [])
        assert len(upstream.requests) == 1


def test_a_question_without_an_answer_is_not_asked_again(
    upstream: Upstream, read: Reader, refusing_url: str
) -> None:
    upstream.script(Reply(before=[Cut()]))
    for url in (upstream.url, refusing_url):
        found = read(url)
        assert type(found.error) is Disconnected
        assert isinstance(found.error.__cause__, httpx.TransportError)
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"])
def test_redirects_are_not_followed(upstream: Upstream, read: Reader, status: str) -> None:
    away = whole_body(b"", status, [("Location", f"{upstream.url}/elsewhere")])
    upstream.script(away, away)
    for where in (upstream.url, at(upstream, 1)):
        found = read(where)
        assert type(found.error) is Refused
        assert "redirect" in str(found.error)
    assert [request.target for request in upstream.requests] == [
        "/v1/chat/completions",
        f"/v1/streams/{STREAM_ID}",
    ]


def test_nor_are_they_where_the_given_client_would(upstream: Upstream) -> None:
    upstream.script(whole_body(b"", "302 Found", [("Location", f"{upstream.url}/elsewhere")]))
    with httpx.Client(follow_redirects=True) as client:
        assert type(read_sync(at(upstream, 1), client=client).error) is Refused
    assert len(upstream.requests) == 1


# -- trouble that passes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status", ["408 Timeout", "425 Too Early", "429 Many", "500 No", "502 No", "503 No", "504 No"]
)
def test_trouble_that_may_pass_is_waited_for(upstream: Upstream, read: Reader, status: str) -> None:
    upstream.script(cut(RECORDED[0]), refusal(status, "resume_unavailable"), resumed_whole)
    found = read(upstream.url)
    found.is_whole()
    assert found.waits == [0.25, 0.5]


def test_so_is_what_answers_for_the_gateway(upstream: Upstream, read: Reader) -> None:
    """A page of a proxy, with the status of success."""
    page = whole_body(b"<html>please log in</html>", headers=[("Content-Type", "text/html")])
    upstream.script(cut(RECORDED[0]), page, Reply(before=[Reset()]), Reply(before=[Cut()]), resumed_whole)
    found = read(upstream.url)
    found.is_whole()
    assert found.waits == [0.25, 0.5, 1.0, 2.0]


def test_a_refusal_that_never_ends_is_not_read_for_ever(upstream: Upstream, read: Reader) -> None:
    flood = Reply([Send(b"x" * 65536)] * 3 + [HoldOpen()], "404 Not Found")
    upstream.script(flood)
    assert type(read(at(upstream, 1)).error) is NotFound


def test_the_server_says_how_long(upstream: Upstream, read: Reader) -> None:
    dated = [
        ("Date", "Tue, 30 Nov 2027 10:00:00 GMT"),
        ("Retry-After", "Tue, 30 Nov 2027 10:00:07 GMT"),
    ]
    upstream.script(
        cut(RECORDED[0]),
        refusal("503 No", "no", [("Retry-After", "3")]),
        refusal("503 No", "no", dated),
        refusal("503 No", "no", [("Retry-After", "soon")]),
        refusal("503 No", "no", [("Retry-After", "Wed, 21 Oct 2015 07:28:00 4999999999999")]),
        resumed_whole,
    )
    found = read(upstream.url)
    found.is_whole()
    assert found.waits == [0.25, 3.5, 8.0, 2.0, 4.0]


def test_no_server_is_waited_for_longer_than_a_day(upstream: Upstream, read: Reader) -> None:
    upstream.script(cut(RECORDED[0]), refusal("503 No", "no", [("Retry-After", "999999999")]), resumed_whole)
    found = read(upstream.url, retries={"seconds": float("inf")})
    found.is_whole()
    assert found.waits == [0.25, 86_400.0]


def test_waits_grow_to_a_limit_and_are_drawn_at_random(upstream: Upstream, read: Reader) -> None:
    steps = [refusal("503 No", "no")] * 5
    upstream.script(cut(RECORDED[0]), *steps, resumed_whole)
    found = read(upstream.url, clock=Clock(0.5), retries={"first": 1.0, "most": 5.0})
    found.is_whole()
    assert found.waits == [0.5, 1.0, 2.0, 2.5, 2.5, 2.5]


def test_the_whole_of_the_jitter_is_used() -> None:
    drawn = [Retries().uniform(0.0, 1.0) for _ in range(200)]
    assert 0.0 <= min(drawn) < 0.1 < 0.9 < max(drawn) <= 1.0


def test_attempts_are_limited(upstream: Upstream, read: Reader) -> None:
    upstream.script(cut(RECORDED[0]), *[refusal("503 No", "resume_unavailable")] * 3)
    found = read(upstream.url, retries={"attempts": 3})
    assert found.ids == [1]
    assert isinstance(found.error, GaveUp)
    assert found.error.attempts == 3
    assert "503 resume_unavailable" in str(found.error)
    assert found.error.position == at(upstream, 1)
    assert len(upstream.requests) == 4


def test_an_answer_that_brings_nothing_new_is_an_attempt_too(upstream: Upstream, read: Reader) -> None:
    stale = cut(b": keepalive\n\n" + RECORDED[0])
    upstream.script(cut(RECORDED[0]), stale, stale, stale)
    found = read(upstream.url, retries={"attempts": 3})
    assert isinstance(found.error, GaveUp)
    assert found.error.attempts == 3


def test_a_new_event_begins_the_count_anew(upstream: Upstream, read: Reader) -> None:
    upstream.respond(lambda request: cut(RECORDED[max(0, last_id(request))], headers=names("token-2", LAST)))
    found = read(upstream.url, retries={"attempts": 1})
    found.is_whole()
    assert set(found.waits) == {0.25}


def test_the_time_of_an_outage_is_limited(upstream: Upstream, read: Reader) -> None:
    upstream.script(cut(RECORDED[0]), *[refusal("503 No", "no", [("Retry-After", "4")])] * 3)
    found = read(upstream.url, retries={"seconds": 9.0})
    assert isinstance(found.error, GaveUp)
    assert found.waits == [0.25, 4.5]
    assert "9 s" in str(found.error)


def test_nobody_waits_for_what_comes_too_late(upstream: Upstream, read: Reader) -> None:
    upstream.script(cut(RECORDED[0]), refusal("503 No", "no", [("Retry-After", "3600")]))
    found = read(upstream.url)
    assert isinstance(found.error, GaveUp)
    assert found.waits == [0.25]


def test_the_time_that_is_spent_reading_is_no_outage(upstream: Upstream) -> None:
    clock = Clock()

    def a_minute_later(request: Request) -> Reply:
        clock.now += 60.0
        return cut(b": nothing new\n", headers=names())

    upstream.script(cut(RECORDED[0]), a_minute_later, a_minute_later, a_minute_later, resumed_whole)
    read_sync(upstream.url, clock=clock, retries={"seconds": 61.0}).is_whole()


def test_no_attempt_is_made_where_none_is_allowed(upstream: Upstream, read: Reader) -> None:
    upstream.script(cut(RECORDED[0]))
    found = read(upstream.url, retries={"attempts": 0})
    assert isinstance(found.error, GaveUp)
    assert found.error.attempts == 0


def test_who_gave_up_goes_on_later(upstream: Upstream, read: Reader) -> None:
    upstream.script(cut(b"".join(RECORDED[:3])), refusal("503 No", "no"), resumed_whole)
    given_up = read(upstream.url, retries={"attempts": 1})
    assert given_up.error is not None
    assert given_up.error.position is not None
    later = read(given_up.error.position)
    assert given_up.ids + later.ids == list(range(1, LAST))


# -- answers that cannot be resumed, and such as are none ------------------------------------------


def plain(*texts: str) -> bytes:
    return b"".join(whole_event(chunk(text)) for text in texts)


def test_an_answer_without_names_is_read_as_it_is(upstream: Upstream, read: Reader) -> None:
    unavailable = [*EVENT_STREAM, ("X-Resume", "unavailable")]
    upstream.script(Reply([Send(plain("a", "b") + whole_event("[DONE]"))], headers=unavailable))
    found = read(upstream.url)
    assert (found.text, found.ids, found.error, found.position) == ("ab", [None, None], None, None)


@pytest.mark.parametrize("how", [Cut(), Reset(), Close()], ids=["cut", "reset", "end"])
def test_its_break_raises(upstream: Upstream, read: Reader, how: Cut | Reset | Close) -> None:
    upstream.script(Reply([Send(plain("a", "b")), Pause(0.05), how]))
    found = read(upstream.url)
    assert (found.text, type(found.error), found.waits) == ("ab", Disconnected, [])
    assert len(upstream.requests) == 1


def test_its_failed_ending_raises(upstream: Upstream, read: Reader) -> None:
    upstream.script(Reply([Send(plain("a") + whole_event({"error": {"message": "m", "code": "eof"}}))]))
    found = read(upstream.url)
    assert (found.text, getattr(found.error, "code", "")) == ("a", "eof")


def test_what_is_no_json_is_handed_out_as_text(upstream: Upstream, read: Reader) -> None:
    upstream.script(
        whole(block(1, "{not json"), b"id: 2\nevent: note\ndata: a\ndata: b\n\n", block(3, "[DONE]"))
    )
    found = read(upstream.url)
    assert [(event.data, event.name) for event in found.events] == [("{not json", ""), ("a\nb", "note")]


@pytest.mark.parametrize(
    "garbage",
    [
        block(9, chunk("far")),
        whole_event(chunk("unnumbered")),
        RECORDED[1].replace(b"id: 2", b"id: two"),
        RECORDED[1].replace(b"id: 2", b"id: -2"),
        RECORDED[1].replace(b"id: 2", b"id: 02"),
        RECORDED[1].replace(b"id: 2", b"id: 0"),
    ],
    ids=["gap", "no-id", "word", "negative", "leading-zero", "zero"],
)
def test_numbers_that_cannot_be_are_no_stream_of_a_gateway(
    upstream: Upstream, read: Reader, garbage: bytes
) -> None:
    upstream.script(whole(RECORDED[0], garbage, *RECORDED[2:]))
    found = read(upstream.url)
    assert (found.ids, type(found.error)) == ([1], NotUnderstood)
    assert found.position == at(upstream, 1)


def test_garbage_that_means_nothing_is_passed_over(upstream: Upstream, read: Reader) -> None:
    garbage = b"\0\xff\xfe\nretry: soon\nfoo: bar\nid\n\n: \xff\n\r\n\rid: 1\n\n"
    upstream.script(whole(garbage, *RECORDED))
    read(upstream.url).is_whole()


def test_bytes_that_are_no_http_are_a_broken_connection(upstream: Upstream, read: Reader) -> None:
    mad = Reply([Send(RECORDED[0]), SendRaw(b"zz\r\nnot a chunk"), HoldOpen()], headers=names())
    upstream.script(mad, Reply(before=[SendRaw(b"\0\1\2 garbage\r\n\r\n"), Cut()]), resumed_whole)
    read(upstream.url).is_whole()


def test_another_stream_is_not_taken_for_ours(upstream: Upstream, read: Reader) -> None:
    other = [("X-Stream-Id", "f" * 32) if name == "X-Stream-Id" else (name, value) for name, value in names()]
    upstream.script(cut(RECORDED[0]), whole(*RECORDED[1:], headers=other))
    found = read(upstream.url)
    assert (found.ids, type(found.error)) == ([1], NotUnderstood)


def test_an_answer_that_is_no_event_stream_is_told_as_such(upstream: Upstream, read: Reader) -> None:
    upstream.script(whole_body(b'{"object": "chat.completion"}'))
    found = read(upstream.url)
    assert type(found.error) is NotUnderstood
    assert "application/json" in str(found.error)


def test_a_compressed_answer_is_read_too(upstream: Upstream, read: Reader) -> None:
    """It was not asked for, but proxies do as they like."""
    headers = [*names(), ("Content-Encoding", "gzip")]
    packed = gzip.compress(BYTES)
    broken = Reply([Send(packed[:60] + b"\0" * 60), Cut()], headers=headers)
    upstream.script(broken, Reply([Send(packed)], headers=headers))
    read(upstream.url).is_whole()


# -- stop, status, leaving -------------------------------------------------------------------------


def test_stop_and_status_are_asked_of_the_stream(upstream: Upstream) -> None:
    stopped = block(2, {"error": {"message": "m", "code": "stopped"}})
    upstream.script(
        whole(RECORDED[0], stopped),
        whole_body(b'{"state": "running", "readers": 1}'),
        whole_body(b'{"state": "stopped"}'),
        refusal("404 Not Found", "not_found"),
    )
    with stream_chat(upstream.url, BODY, headers={"Authorization": "Bearer k"}) as stream:
        assert next(stream).id == 1
        assert stream.status() == {"state": "running", "readers": 1}
        assert stream.stop() == {"state": "stopped"}
        with pytest.raises(NotFound):
            stream.status()
    asked = [(request.method, request.target) for request in upstream.requests[1:]]
    address = f"/v1/streams/{STREAM_ID}"
    assert asked == [("GET", f"{address}/status"), ("DELETE", address), ("GET", f"{address}/status")]
    for request in upstream.requests[1:]:
        assert request.header("Authorization") == "Bearer k"
        assert request.header("X-Resume-Token") == "token-1"


async def test_they_are_by_the_asynchronous_client_too(upstream: Upstream) -> None:
    upstream.script(
        whole(RECORDED[0]), whole_body(b'{"state": "running"}'), whole_body(b'{"state": "stopped"}')
    )
    async with aresume(at(upstream)) as stream:
        assert (await anext(stream)).id == 1
        assert await stream.status() == {"state": "running"}
        assert await stream.stop() == {"state": "stopped"}
    assert upstream.requests[2].method == "DELETE"


async def test_they_are_behind_the_block_as_well(upstream: Upstream) -> None:
    upstream.script(cut(RECORDED[0]), whole_body(b'{"state": "stopped"}'))
    with stream_chat(upstream.url, BODY) as stream:
        next(stream)
    assert stream.stop() == {"state": "stopped"}
    upstream.script(cut(RECORDED[0]), whole_body(b'{"state": "stopped"}'))
    async with astream_chat(upstream.url, BODY) as other:
        await anext(other)
    assert await other.stop() == {"state": "stopped"}


@pytest.mark.parametrize("url", ["", "gateway:8000", "ftp://gateway", "http://", "http://gateway:x"])
def test_what_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        stream_chat(url, BODY)


async def test_closing_ends_the_wait_of_another_task(upstream: Upstream) -> None:
    upstream.script(Reply([Send(RECORDED[0]), HoldOpen()], headers=names()))
    async with astream_chat(upstream.url, BODY) as stream:
        assert (await anext(stream)).id == 1
        rest = asyncio.create_task(all_of(stream))
        await until(lambda: stream._reads and stream._reads.ag_running)
        connection = upstream.requests[0].connection
        await stream.aclose()
        assert await asyncio.wait_for(rest, 10) == []
    await asyncio.to_thread(connection.wait_closed_by_peer)
    assert len(upstream.requests) == 1


async def all_of(stream: AsyncChatStream) -> list[Event]:
    return [event async for event in stream]


def test_leaving_closes_the_connection_and_asks_for_nothing(upstream: Upstream) -> None:
    upstream.script(Reply([Send(RECORDED[0]), HoldOpen()], headers=names()))
    with stream_chat(upstream.url, BODY) as stream:
        assert next(stream).id == 1
        connection = upstream.requests[0].connection
    connection.wait_closed_by_peer()
    assert list(stream) == []
    assert len(upstream.requests) == 1


def test_the_given_client_is_left_open(upstream: Upstream) -> None:
    upstream.script(whole(*RECORDED), whole(*RECORDED))
    with httpx.Client() as client:
        for _ in range(2):
            read_sync(upstream.url, client=client).is_whole()
        assert not client.is_closed


async def test_a_wait_that_was_cancelled_is_gone_on_with(upstream: Upstream) -> None:
    upstream.script(Reply([Send(RECORDED[0]), HoldOpen()], headers=names()), resumed_whole)
    async with astream_chat(upstream.url, BODY) as stream:
        assert (await anext(stream)).id == 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.1)
        rest = [event.id async for event in stream]
    assert rest == list(range(2, LAST))


async def test_where_there_is_no_coming_back_it_raises(upstream: Upstream) -> None:
    upstream.script(Reply([Send(plain("a")), HoldOpen()]))
    async with astream_chat(upstream.url, BODY) as stream:
        assert (await anext(stream)).id is None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.1)
        with pytest.raises(Disconnected):
            await anext(stream)


async def test_a_task_that_is_cancelled_leaves_no_connection(upstream: Upstream) -> None:
    upstream.script(Reply([Send(RECORDED[0]), HoldOpen()], headers=names()))
    task = asyncio.create_task(aread(upstream.url))
    await asyncio.to_thread(upstream.wait_for_requests, 1)
    connection = upstream.requests[0].connection
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(connection.wait_closed_by_peer)


def test_time_is_real_where_none_is_given(upstream: Upstream) -> None:
    upstream.script(cut(RECORDED[0]), refusal("503 No", "no", [("Retry-After", "1")]), resumed_whole)
    began = time.monotonic()
    with resume(at(upstream), retries=Retries(first=0.01)) as stream:
        assert [event.id for event in stream] == list(range(1, LAST))
    assert 1.0 <= time.monotonic() - began < 10.0
