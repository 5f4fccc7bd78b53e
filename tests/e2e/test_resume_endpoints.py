"""What the endpoints of resuming answer: to those who may, to those who may not, and to those who ask wrongly."""

import json
import threading
from datetime import UTC, datetime, timedelta

import openai
import pytest

from continuation.clients.resumable import (
    BadCursor,
    Failed,
    NotFound,
    Position,
    Retries,
    aresume,
    astream_chat,
    resume,
    stream_chat,
)
from tests.e2e.asking import QUESTION, body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.resuming import (
    Ticket,
    about,
    ask,
    blocks,
    come_back,
    error_code,
    metric,
    read_to,
    rest,
    status,
    stop,
)
from tests.harness.client import Stream, call, one_failed_ending, one_whole_answer
from tests.harness.gateway import Gateway
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Cut, Gate, Headers, Pause, Reply, Upstream, event, json_reply

ORIGIN = "https://app.example.org"
OURS: Headers = [("Authorization", "Bearer ours")]
THEIRS: Headers = [("Authorization", "Bearer theirs")]
OPEN = {"RESUME_MODE": "always", "KEEPALIVE_SECONDS": "0.1", "CORS_ALLOWED_ORIGINS": ORIGIN}


@pytest.fixture
def one(gateway: GatewayFor) -> Gateway:
    return gateway()


@pytest.fixture
def ended_stream(one: Gateway, upstream: Upstream) -> Ticket:
    """Five events, read to the end by ours."""
    upstream.script(Reply([*started(VLLM, [], ["a", "b"]), *ended(VLLM)]))
    stream = ask(one, OURS)
    ticket = Ticket.of(stream, OURS)
    assert len(blocks(stream.read_rest().body)) == 5
    return ticket


# -- who may not -----------------------------------------------------------------------------------


def seen(
    one: Gateway, method: str, target: str, headers: Headers
) -> tuple[int, bytes, list[tuple[str, str]]]:
    answer = call(one.port, method, target, [("X-Request-Id", "same"), *headers])
    return answer.status, answer.body, sorted(pair for pair in answer.headers if pair[0].lower() != "date")


def test_unknown_foreign_and_forged_look_alike(
    one: Gateway, ended_stream: Ticket, upstream: Upstream
) -> None:
    upstream.script(Reply([*started(VLLM), *ended(VLLM)]))
    another = ask(one, OURS)
    other = Ticket.of(another, OURS)
    another.read_rest()
    token, address = ended_stream.token, ended_stream.address
    unknown = "/v1/streams/" + "0" * 32
    flipped = token[:-1] + ("A" if token[-1] != "A" else "B")
    tries: list[tuple[str, Headers]] = [
        (unknown, [("X-Resume-Token", token), *OURS]),
        (address, [("X-Resume-Token", token), *THEIRS]),
        (address, [("X-Resume-Token", token)]),
        (address, [("X-Resume-Token", flipped), *OURS]),
        (address + "?" + "a=1&" * 1100, OURS),
        (address, [("X-Resume-Token", other.token), *OURS]),
        (address, [("X-Resume-Token", "nonsense"), *OURS]),
        (address, [("X-Resume-Token", "x" * 4000), *OURS]),
        (address, [("X-Resume-Token", ""), *OURS]),
        (address, OURS),
        (f"{address}?token={flipped}", OURS),
        (f"{address}?token={token}", THEIRS),
        (unknown, OURS),
        ("/v1/streams/not-an-id", [("X-Resume-Token", token), *OURS]),
    ]
    for method, path in (("GET", ""), ("GET", "/status"), ("DELETE", "")):
        found = []
        for target, headers in tries:
            where, _, query = target.partition("?")
            found.append(seen(one, method, f"{where}{path}{'?' if query else ''}{query}", headers))
        first = found[0]
        assert first[0] == 404
        assert json.loads(first[1])["error"]["code"] == "not_found"
        assert [answer for answer in found if answer != first] == [], method
    posted = [
        seen(one, "POST", "/v1/chat/completions", headers)
        for target, headers in tries
        if target == address
        and any(name == "X-Resume-Token" and value for name, value in headers)
        and ("X-Resume-Token", other.token) not in headers
    ]
    assert len(posted) >= 4
    assert {answer[:2] for answer in posted} == {first[:2]}
    assert len(upstream.requests) == 1
    assert rest(one, ended_stream).status == 200


def test_a_cursor_that_is_wrong_tells_nothing_to_one_who_may_not(one: Gateway, ended_stream: Ticket) -> None:
    foreign = Ticket(ended_stream.stream_id, ended_stream.token, THEIRS)
    bodies = {rest(one, foreign, cursor).body for cursor in (1, "abc", 10**12, -1)}
    assert len(bodies) == 1


def test_another_caller_can_neither_stop_nor_look(one: Gateway, upstream: Upstream) -> None:
    gate = Gate()
    upstream.script(Reply([*started(VLLM, [], ["a"]), Pause(gate), *ended(VLLM)]))
    stream = ask(one, OURS)
    ticket = Ticket.of(stream, OURS)
    for headers in (THEIRS, ()):
        foreign = Ticket(ticket.stream_id, ticket.token, headers)
        assert stop(one, foreign).status == 404
        assert about(one, foreign).status == 404
    assert status(one, ticket)["state"] == "running"
    gate.open()
    one_whole_answer(stream.read_rest(), reasoning="", content="a", like=VLLM)


def test_who_sends_no_authorization_is_a_caller_too(one: Gateway, upstream: Upstream) -> None:
    upstream.script(Reply([*started(VLLM), *ended(VLLM)]))
    stream = ask(one)
    ticket = Ticket.of(stream)
    stream.read_rest()
    assert rest(one, ticket).status == 200
    assert rest(one, Ticket(ticket.stream_id, ticket.token, OURS)).status == 404


# -- the cursor ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cursor",
    ["abc", "-1", "1000000000000", "6", "1 2", "1.0", "1e0", "+1", "01", "0x1", "1,2", "٣", "9" * 400],
)
def test_a_cursor_that_is_none_is_refused_with_the_allowed_form(
    one: Gateway, ended_stream: Ticket, cursor: str
) -> None:
    if cursor.isascii():
        with come_back(one, ended_stream, cursor) as by_header:
            assert error_code(by_header) == (400, "bad_cursor")
            assert "a whole number from 0 to 5" in by_header.json()["error"]["message"]
        posted = call(
            one.port,
            "POST",
            "/v1/chat/completions",
            [("X-Resume-Token", ended_stream.token), ("Last-Event-ID", cursor), *OURS],
        )
        assert error_code(posted) == (400, "bad_cursor")
    encoded = "".join(f"%{byte:02x}" for byte in cursor.encode())
    query = f"{ended_stream.address}?token={ended_stream.token}&last_event_id={encoded}"
    assert error_code(call(one.port, "GET", query, OURS)) == (400, "bad_cursor")


def test_an_empty_cursor_is_none(one: Gateway, ended_stream: Ticket) -> None:
    """EventSource polyfills send one before they have seen an id."""
    whole = rest(one, ended_stream).body
    assert blocks(whole, 1)
    for empty in ("", " "):
        with come_back(one, ended_stream, empty) as by_header:
            assert by_header.read_rest().body == whole
    own = [("X-Resume-Token", ended_stream.token), ("Last-Event-ID", ""), *OURS]
    assert call(one.port, "POST", "/v1/chat/completions", own).body == whole
    for query in ("last_event_id=", "last_event_id"):
        target = f"{ended_stream.address}?token={ended_stream.token}&{query}"
        assert call(one.port, "GET", target, OURS).body == whole


def test_an_empty_header_leaves_the_query_its_cursor(one: Gateway, ended_stream: Ticket) -> None:
    target = f"{ended_stream.address}?token={ended_stream.token}&last_event_id=1"
    answer = call(one.port, "GET", target, [("Last-Event-ID", ""), *OURS])
    assert len(blocks(answer.body, 2)) == 4


def test_the_header_wins_over_the_query(one: Gateway, ended_stream: Ticket) -> None:
    """An EventSource comes back to its old address, with a new header."""
    target = f"{ended_stream.address}?token={ended_stream.token}&last_event_id=1"
    answer = call(one.port, "GET", target, [("Last-Event-ID", "3"), *OURS])
    assert len(blocks(answer.body, 4)) == 2
    wrong = call(one.port, "GET", target, [("Last-Event-ID", "no"), *OURS])
    assert error_code(wrong) == (400, "bad_cursor")
    other = call(one.port, "GET", target, [("X-Resume-Token", "no"), *OURS])
    assert error_code(other) == (404, "not_found")


def test_an_event_source_at_the_end_of_an_ended_stream_is_told_to_come_no_more(
    one: Gateway, ended_stream: Ticket
) -> None:
    accepts = [("Accept", "text/event-stream")]
    at_end = rest(one, ended_stream, 5, accepts)
    assert (at_end.status, at_end.body) == (204, b"")
    assert at_end.all("Cache-Control") == ["no-store"]
    assert len(blocks(rest(one, ended_stream, 4, accepts).body, 5)) == 1
    others = rest(one, ended_stream, 5)
    assert (others.status, others.body, others.complete) == (200, b"", True)


def test_it_is_not_while_the_stream_runs(one: Gateway, upstream: Upstream) -> None:
    gate = Gate()
    upstream.script(Reply([*started(VLLM, [], ["a"]), Pause(gate), *ended(VLLM)]))
    stream = ask(one)
    read_to(stream, 2)
    back = come_back(one, Ticket.of(stream), 2, [("Accept", "text/event-stream")]).read_head()
    gate.open()
    assert len(blocks(back.read_rest().body, 3)) == 2


# -- where it stands -------------------------------------------------------------------------------


def test_the_status_tells_where_a_stream_stands(one: Gateway, upstream: Upstream) -> None:
    gate, second = Gate(), Gate()
    upstream.script(
        Reply([*started(VLLM, [], ["a"]), Pause(gate), Cut()]),
        Reply([*started(VLLM_LEG2, [], ["b"]), Pause(second), *ended(VLLM_LEG2)]),
    )
    stream = ask(one)
    ticket = Ticket.of(stream)
    read_to(stream, 2)
    running = status(one, ticket)
    began = datetime.fromisoformat(running.pop("started_at"))
    assert timedelta(0) <= datetime.now(UTC) - began < timedelta(seconds=30)
    assert running == {
        "stream_id": ticket.stream_id,
        "state": "running",
        "available": {"first": 1, "last": 2},
        "last_event_id": 2,
        "leg2_from": None,
        "readers": 1,
        "ended_at": None,
        "expires_in": None,
    }
    gate.open()
    read_to(stream, 3)
    assert status(one, ticket)["leg2_from"] == 3
    with come_back(one, ticket).read_head():
        assert status(one, ticket)["readers"] == 2
    second.open()
    stream.read_rest()
    ended_one = status(one, ticket)
    assert (ended_one["state"], ended_one["last_event_id"], ended_one["leg2_from"]) == ("finished", 5, 3)
    assert ended_one["available"] == {"first": 1, "last": 5}
    assert 0 < ended_one["expires_in"] <= 300
    assert began <= datetime.fromisoformat(ended_one["ended_at"]) <= datetime.now(UTC)


def test_a_stream_that_failed_says_so(one: Gateway, upstream: Upstream) -> None:
    upstream.script(
        Reply([*started(VLLM, [], ["a"]), Cut()]), json_reply({"error": {"message": "no"}}, "400 Bad Request")
    )
    stream = ask(one)
    ticket = Ticket.of(stream)
    one_failed_ending(stream.read_rest(), content="a", code={"disconnect"})
    assert status(one, ticket)["state"] == "failed"
    assert rest(one, ticket).body == stream.body


@pytest.mark.parametrize(
    "method,path,allowed",
    [("PUT", "", "GET, DELETE"), ("POST", "", "GET, DELETE"), ("POST", "/status", "GET, HEAD")],
)
def test_other_methods_are_named_and_go_nowhere(
    one: Gateway, ended_stream: Ticket, upstream: Upstream, method: str, path: str, allowed: str
) -> None:
    answer = about(one, ended_stream, method, path)
    assert error_code(answer) == (405, "method_not_allowed")
    assert answer.header("Allow") == allowed
    assert answer.all("Cache-Control") == ["no-store"]
    assert len(upstream.requests) == 1


def test_what_is_below_the_streams_goes_nowhere(one: Gateway, upstream: Upstream) -> None:
    upstream.script()
    for target in ("/v1/streams/", "/v1/streams/x/y/z", "/v1/streams/" + "0" * 32 + "/more"):
        answer = call(one.port, "GET", target)
        assert (answer.status, answer.all("Cache-Control")) == (404, ["no-store"])
    assert upstream.requests == []


# -- what is resumable -----------------------------------------------------------------------------


def names(stream: Stream) -> dict[str, str | None]:
    stream.read_head()
    return {name: stream.header(name) for name in ("X-Stream-Id", "X-Resume-Token", "X-Resume")}


NONE = {"X-Stream-Id": None, "X-Resume-Token": None, "X-Resume": None}
UNAVAILABLE = NONE | {"X-Resume": "unavailable"}


def test_who_does_not_ask_gets_the_stream_as_it_was(one: Gateway, chat: Chat, upstream: Upstream) -> None:
    steps = [*started(VLLM, ["r"], ["a"]), *ended(VLLM)]
    upstream.script(Reply(steps))
    stream = chat(one, body())
    assert names(stream) == NONE
    assert stream.read_rest().body == b"".join(step.data for step in steps)


def test_an_answer_with_a_token_is_in_no_cache(
    one: Gateway, chat: Chat, upstream: Upstream, ended_stream: Ticket
) -> None:
    upstream.script(Reply([*started(VLLM), *ended(VLLM)]))
    with ask(one) as stream:
        assert stream.read_rest().all("Cache-Control") == ["no-store"]
        assert stream.header("X-Resume-Token")
    by_post = chat(one, body(), [*OURS, ("X-Resume-Token", ended_stream.token)]).read_rest()
    for answer in (by_post, rest(one, ended_stream), about(one, ended_stream, "GET", "/status")):
        assert (answer.status, answer.all("Cache-Control")) == (200, ["no-store"])


@pytest.mark.parametrize("word", ["0", "false", "no", ""])
def test_a_header_that_says_no_is_no_wish(one: Gateway, chat: Chat, upstream: Upstream, word: str) -> None:
    upstream.script(Reply([*started(VLLM), *ended(VLLM)]))
    assert names(chat(one, body(), [("X-Resumable", word)]).read_rest()) == NONE


@pytest.mark.parametrize(
    "changes,headers",
    [
        ({"add_generation_prompt": False}, ()),
        ({"response_format": {"type": "json_object"}}, ()),
        ({}, [("X-Continuation", "off")]),
    ],
)
def test_what_is_passed_through_is_not_resumable_and_says_so(
    one: Gateway, upstream: Upstream, changes: dict[str, object], headers: Headers
) -> None:
    upstream.script(Reply([*started(VLLM), *ended(VLLM)]))
    stream = ask(one, headers, **changes)
    assert names(stream.read_rest()) == UNAVAILABLE
    assert b"id:" not in stream.body.replace(b'"id":', b"")


def test_where_there_is_no_place_the_stream_runs_as_ever(gateway: GatewayFor, upstream: Upstream) -> None:
    full = gateway(RESUME_MAX_STREAMS="0")
    upstream.script(
        Reply([*started(VLLM, [], ["a"]), Cut()]), Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2)])
    )
    stream = ask(full)
    assert names(stream) == UNAVAILABLE
    one_whole_answer(stream.read_rest(), reasoning="", content="ab", like=VLLM)
    assert b"\nid:" not in stream.body


def test_an_answer_that_is_no_stream_leaves_no_log(one: Gateway, upstream: Upstream) -> None:
    kept = metric(one, "continuation_log_streams")
    for reply in (json_reply({"error": {"message": "no"}}, "400 Bad Request"), json_reply({"object": "x"})):
        upstream.script(reply)
        stream = ask(one).read_rest()
        assert names(stream) == NONE
    upstream.script(Reply(before=[Cut()]))
    assert names(ask(one).read_rest()) == NONE
    assert metric(one, "continuation_log_streams") == kept


def test_switched_off_there_is_nothing(gateway: GatewayFor, upstream: Upstream, one: Gateway) -> None:
    upstream.script(Reply([*started(VLLM), *ended(VLLM)]))
    ticket = Ticket.of(ask(one).read_rest())
    off = gateway(RESUME_MODE="off")
    steps = [*started(VLLM, [], ["a"]), *ended(VLLM)]
    upstream.script(Reply(steps))
    stream = ask(off, [("X-Resume-Token", "t")]).read_rest()
    assert names(stream) == NONE
    assert stream.body == b"".join(step.data for step in steps)
    assert rest(off, ticket).status == 404
    assert about(off, ticket).status == 404
    assert stop(off, ticket).status == 404
    assert len(upstream.requests) == 1


def test_always_is_for_all_who_stream(gateway: GatewayFor, chat: Chat, upstream: Upstream) -> None:
    always = gateway(**OPEN)
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]), Reply([*started(VLLM), *ended(VLLM)]))
    stream = chat(always, body()).read_rest()
    assert rest(always, Ticket.of(stream)).body == stream.body
    assert len(blocks(stream.body)) == 4
    assert names(chat(always, body(), [("X-Continuation", "off")]).read_rest()) == NONE


# -- browsers --------------------------------------------------------------------------------------


def test_a_browser_of_an_allowed_origin_may_ask_and_may_read_the_headers(
    gateway: GatewayFor, upstream: Upstream
) -> None:
    public = gateway(**OPEN)
    asked = [
        "authorization",
        "content-type",
        "last-event-id",
        "x-resumable",
        "x-resume-events",
        "x-resume-token",
    ]
    for target, method in (
        ("/v1/chat/completions", "POST"),
        ("/v1/streams/x", "GET"),
        ("/v1/streams/x", "DELETE"),
    ):
        wishes = [
            ("Access-Control-Request-Method", method),
            ("Access-Control-Request-Headers", ",".join(asked)),
        ]
        preflight = call(public.port, "OPTIONS", target, [("Origin", ORIGIN), *wishes])
        assert preflight.status in (200, 204)
        assert preflight.header("Access-Control-Allow-Origin") == ORIGIN
        assert method in (preflight.header("Access-Control-Allow-Methods") or "")
        allowed = (preflight.header("Access-Control-Allow-Headers") or "").lower()
        assert all(name in allowed for name in asked)
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]))
    stream = ask(public, [("Origin", ORIGIN)]).read_rest()
    ticket = Ticket.of(stream)
    answers = [
        stream,
        rest(public, ticket, 1, [("Origin", ORIGIN)]),
        rest(public, ticket, "no", [("Origin", ORIGIN)]),
        call(public.port, "GET", "/v1/streams/x", [("Origin", ORIGIN)]),
    ]
    for answer in answers:
        assert answer.header("Access-Control-Allow-Origin") == ORIGIN
        exposed = (answer.header("Access-Control-Expose-Headers") or "").lower()
        for name in ("x-stream-id", "x-resume-token", "x-resume", "x-last-event-id", "retry-after"):
            assert name in exposed
    assert (
        rest(public, ticket, 1, [("Origin", "https://evil.example")]).header("Access-Control-Allow-Origin")
        is None
    )
    assert len(upstream.requests) == 1


def test_without_the_setting_no_origin_is_allowed(one: Gateway, ended_stream: Ticket) -> None:
    answer = rest(one, ended_stream, 1, [("Origin", ORIGIN)])
    assert answer.status == 200
    assert answer.header("Access-Control-Allow-Origin") is None


# -- clients ---------------------------------------------------------------------------------------


def with_comments(text: str) -> list[Reply]:
    """Two legs, with silences in which comments are sent."""
    first = [*started(VLLM, ["so "], [text]), Pause(0.3), VLLM.content(" und"), Cut()]
    second = [*started(VLLM_LEG2, [], [" Welt"]), Pause(0.3), *ended(VLLM_LEG2, usage=(9, 4, 0))]
    return [Reply(first), Reply(second, before=[Pause(0.3)])]


def test_openai_reads_a_resumable_stream_with_comments_and_numbers_to_its_end(
    gateway: GatewayFor, upstream: Upstream
) -> None:
    public = gateway(**OPEN)
    upstream.script(*with_comments("Hallo"))
    with openai.OpenAI(
        base_url=f"{public.url}/v1", api_key="k", max_retries=0, default_headers={"X-Resumable": "1"}
    ) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="any-name",
            messages=[QUESTION],
            stream=True,
            stream_options={"include_usage": True},  # type: ignore[list-item]
        )
        ticket = Ticket(
            raw.headers["X-Stream-Id"], raw.headers["X-Resume-Token"], [("Authorization", "Bearer k")]
        )
        chunks = list(raw.parse())
    assert (
        "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        == "Hallo und Welt"
    )
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == [
        "stop"
    ]
    assert len([chunk for chunk in chunks if chunk.usage]) == 1
    body = rest(public, ticket).body
    assert len(blocks(body)) == len(chunks) + 1
    assert b"keepalive" not in body


def test_the_comments_were_there(gateway: GatewayFor, upstream: Upstream) -> None:
    upstream.script(*with_comments("Hallo"))
    stream = ask(gateway(**OPEN)).read_rest()
    assert stream.body.count(b": keepalive\n") >= 3
    assert len(blocks(stream.body)) == 7


def test_openai_raises_at_a_failed_ending(gateway: GatewayFor, upstream: Upstream) -> None:
    upstream.script(
        Reply([*started(VLLM, [], ["a"]), event({"error": {"message": "too long", "code": 400}}), Cut()])
    )
    with openai.OpenAI(base_url=f"{gateway(**OPEN).url}/v1", api_key="k", max_retries=0) as client:
        with pytest.raises(openai.APIError, match="too long"):
            list(client.chat.completions.create(model="m", messages=[QUESTION], stream=True))  # type: ignore[list-item]


def test_our_client_comes_back_by_itself(one: Gateway, upstream: Upstream) -> None:
    """It takes a silence for a broken connection."""
    gates = [Gate() for _ in range(3)]
    steps = [step for n, gate in enumerate(gates) for step in (Pause(gate), VLLM.content(str(n)))]
    upstream.script(Reply([VLLM.role(), *steps, *ended(VLLM)]))
    opening = [threading.Timer(0.5 * n, gate.open) for n, gate in enumerate(gates, 1)]
    for timer in opening:
        timer.start()
    resumes = metric(one, "continuation_resumes_total", '{outcome="ok"}')
    with stream_chat(
        f"{one.url}/v1",
        body(),
        headers={"Authorization": "Bearer k"},
        read_timeout=0.15,
        retries=Retries(first=0.01),
    ) as stream:
        assert stream.resumable
        events = list(stream)
    assert [event.id for event in events] == [1, 2, 3, 4, 5]
    assert "".join(event.data["choices"][0]["delta"].get("content") or "" for event in events) == "012"
    assert metric(one, "continuation_resumes_total", '{outcome="ok"}') - resumes >= 3
    assert len(upstream.requests) == 1


def test_it_goes_on_elsewhere_stops_and_is_told_why(one: Gateway, upstream: Upstream) -> None:
    gate = Gate()
    upstream.script(Reply([*started(VLLM, [], ["a"]), Pause(gate), *ended(VLLM)]))
    headers = {"Authorization": "Bearer k"}
    with stream_chat(one.url, body(), headers=headers, checkpoints=True) as stream:
        assert [next(stream).id, next(stream).id] == [1, 2]
        assert stream.position is not None
        saved = stream.position.to_json()
        assert stream.status()["readers"] == 1
    position = Position.from_json(saved)
    with resume(position, headers=headers) as again:
        assert again.status()["last_event_id"] == 2
        assert again.stop()["state"] == "stopped"
        with pytest.raises(Failed) as failed:
            next(again)
    assert failed.value.code == "stopped"
    with pytest.raises(NotFound), resume(position):
        pass
    beyond = Position(position.base_url, position.stream_id, position.token, 99)
    with pytest.raises(BadCursor), resume(beyond, headers=headers):
        pass
    assert failed.value.position is not None
    with resume(failed.value.position, headers=headers) as at_the_end, pytest.raises(Failed) as again_failed:
        next(at_the_end)
    assert again_failed.value.code == "stopped"


async def test_the_asynchronous_one_does_so_too(one: Gateway, upstream: Upstream) -> None:
    gate = Gate()
    upstream.script(Reply([*started(VLLM, [], ["a"]), Pause(gate), *ended(VLLM)]))
    async with astream_chat(one.url, body()) as stream:
        assert [(await anext(stream)).id, (await anext(stream)).id] == [1, 2]
        assert stream.position is not None
        async with aresume(stream.position) as again:
            gate.open()
            rest_of_both = [[event.id async for event in each] for each in (stream, again)]
    assert rest_of_both == [[3], [3]]


def test_a_stream_that_cannot_be_resumed_is_read_as_it_is(one: Gateway, upstream: Upstream) -> None:
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]))
    with stream_chat(one.url, body(continue_final_message=True)) as stream:
        assert not stream.resumable
        assert stream.headers["X-Resume"] == "unavailable"
        assert [event.id for event in stream] == [None] * 3
