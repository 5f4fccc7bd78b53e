"""A client that comes back gets every event behind its last one, once and in order, wherever the line broke and
whatever the stream is doing meanwhile; by the process that runs the stream, and by another one."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.e2e.conftest import GatewayFor
from tests.e2e.resuming import (
    Places,
    Ticket,
    about,
    answer_of,
    ask,
    at_once,
    blocks,
    come_back,
    error_code,
    metric,
    newest,
    read_to,
    rest,
    status,
    stop,
    tasks,
    wait_for_state,
    wait_until,
    whole_events,
)
from tests.harness.client import Answer, Stream, one_failed_ending, one_whole_answer
from tests.harness.gateway import TROUBLE, Database, Gateway
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Cut, Gate, HoldOpen, Pause, Reply, Send, Step, Upstream

# Of what the texts consist: each piece another, some with what could be taken for a line's end.
PIECES = [f"{n} {'渐😀 ' if n % 7 == 0 else ''}{chr(0x2028) if n % 11 == 0 else ''}\n" for n in range(296)]
REASONING, CONTENT = PIECES[:60], PIECES[60:]
EVENTS = 1 + len(PIECES) + 3  # the role; finish, usage, [DONE]
WITH_USAGE = {"stream_options": {"include_usage": True}}
BATCH = 20


GRACE, TTL, KEPT = 1.0, 5.0, 200
HASTY = {
    "RESUME_GRACE_SECONDS": str(GRACE),
    "RESUME_TTL_SECONDS": str(TTL),
    "RESUME_MAX_EVENTS": str(KEPT),
    "RESUME_CHECKPOINT_SECONDS": "0.1",
}
ANOTHER = {"STRATEGY_REFRESH_SECONDS": "4"}  # which makes it another process


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings."""
    if request.param == "memory":
        return {}
    return {"REDIS_URL": request.getfixturevalue("redis").url}


def both(gateway: GatewayFor, store: dict[str, str], **settings: str) -> Places:
    if not store:
        return Places(gateway(**settings), gateway(**settings))
    return Places(gateway(**settings, **store), gateway(**settings, **store, **ANOTHER))


@pytest.fixture
def places(gateway: GatewayFor, store: dict[str, str]) -> Places:
    return both(gateway, store)


@pytest.fixture
def hasty(gateway: GatewayFor, store: dict[str, str]) -> Places:
    """They wait and keep for seconds only, and no more than some events."""
    return both(gateway, store, **HASTY)


@pytest.fixture(scope="module")
def serving(
    session_upstream: Upstream, migrated: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """Under `serve`: only there a reader that takes nothing holds its stream up."""
    settings = {
        "DOWNSTREAM_URL": session_upstream.url,
        "CONTINUATION_MODEL": "house-model",
        "RESUME_MAX_BYTES": str(2**24),
        "RESUME_MAX_EVENTS": "600",
    }
    one = Gateway(settings, migrated, tmp_path_factory.mktemp("serving"), "serve")
    yield one
    assert one.stop() == 0
    assert not TROUBLE.search(one.log), one.log


# -- at every event --------------------------------------------------------------------------------


def gated(steps: list[Send], gates: list[Gate]) -> list[Step]:
    """A gate before each batch of events."""
    found: list[Step] = []
    for number, step in enumerate(steps):
        if number % BATCH == 0:
            gates.append(Gate())
            found.append(Pause(gates[-1]))
        found.append(step)
    return found


def legs(gates: list[Gate], breaks: bool) -> list[Reply]:
    """300 events from one leg, or from two; an extra gate stands before the break."""
    steps = [*started(VLLM, REASONING, CONTENT), *ended(VLLM, usage=(20, 296, 60))]
    assert len(steps) == EVENTS == 300
    if not breaks:
        return [Reply(gated(steps, gates))]
    first = [*gated(steps[:160], gates), Cut()]
    second = [VLLM_LEG2.content(text) for text in CONTENT[99:]]
    return [
        Reply(first),
        Reply([VLLM_LEG2.role(), *gated([*second, *ended(VLLM_LEG2, usage=(80, 197, 0))], gates)]),
    ]


@pytest.mark.parametrize("breaks", [False, True], ids=["one-leg", "two-legs"])
def test_coming_back_at_every_event_gives_the_rest_and_nothing_else(
    places: Places, upstream: Upstream, breaks: bool
) -> None:
    """Readers drop while the stream runs, each behind another event, and come back at once; then once more from every
    event when it is over."""
    gates: list[Gate] = []
    upstream.script(*legs(gates, breaks))
    first = ask(places.runs, **WITH_USAGE)
    ticket = Ticket.of(first)
    with ThreadPoolExecutor(3 * BATCH) as pool:
        futures: list[Future[tuple[int, bytes]]] = []
        for number, gate in enumerate(gates):
            gate.wait_reached()
            begin = number * BATCH
            if begin:
                read_to(first, begin)
            dropping = [come_back(places.serves, ticket, begin).read_head() for _ in range(BATCH)]
            assert {stream.header("X-Last-Event-Id") for stream in dropping} == {str(begin)}
            gate.open()
            for k, stream in enumerate(dropping, begin + 1):
                futures.append(pool.submit(dropped_and_back, places.serves, ticket, stream, begin, k))
        whole = blocks(first.read_rest().body)
        live = [future.result() for future in futures]
    assert len(whole) == EVENTS
    one_whole_answer(first, reasoning="".join(REASONING), content="".join(CONTENT), like=VLLM, usage=True)
    assert sorted(k for k, _ in live) == list(range(1, EVENTS + 1))
    for k, received in live:
        begin = (k - 1) // BATCH * BATCH
        assert received == b"".join(whole[begin : begin + len(blocks(received, begin + 1))]), k
        assert len(blocks(received, begin + 1)) >= min(k + 1, EVENTS) - begin
    after = at_once(partial(rest, places.serves, ticket, k) for k in range(EVENTS + 1))
    for k, stream in enumerate(after):
        assert (stream.status, stream.complete) == (200, True)
        assert stream.body == b"".join(whole[k:]), k
        assert stream.header("X-Last-Event-Id") == str(EVENTS)
    assert len(upstream.requests) == 1 + breaks


def dropped_and_back(to: Gateway, ticket: Ticket, stream: Stream, begin: int, k: int) -> tuple[int, bytes]:
    """One who leaves when event k is there, and comes back for what comes behind it: some events more, or all."""
    before = read_to(stream, k)
    stream.drop()
    with come_back(to, ticket, k) as back:
        if k == EVENTS:
            return k, before + back.read_rest().body
        read_to(back, k + 1)
        return k, before + whole_events(back.body)


# -- the ways to come back -------------------------------------------------------------------------


def held(gate: Gate) -> Reply:
    """Six events: the role and a, a gate, b, the finish, usage and [DONE]."""
    return Reply([*started(VLLM, [], ["a"]), Pause(gate), VLLM.content("b"), *ended(VLLM, usage=(3, 2, 0))])


WAYS: dict[str, Callable[[Gateway, Ticket, int], Stream]] = {
    "GET": come_back,
    "GET-with-query": lambda to, ticket, cursor: Stream(
        to.port, "GET", f"{ticket.address}?token={ticket.token}&last_event_id={cursor}", ticket.headers
    ),
    "POST": lambda to, ticket, cursor: Stream(
        to.port,
        "POST",
        "/v1/chat/completions",
        [("X-Resume-Token", ticket.token), ("Last-Event-ID", str(cursor)), *ticket.headers],
        b"what stands here says nothing",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_come_back_gives_the_same(places: Places, upstream: Upstream, way: str) -> None:
    gate = Gate()
    upstream.script(held(gate))
    first = ask(places.runs, [("Authorization", "Bearer k")], **WITH_USAGE)
    ticket = Ticket.of(first, [("Authorization", "Bearer k")])
    read_to(first, 2)
    first.drop()
    live = [WAYS[way](places.serves, ticket, k) for k in range(3)]
    for stream in live:
        stream.read_head()
    gate.open()
    whole = blocks(live[0].read_rest().body)
    assert len(whole) == 6
    for k, stream in enumerate(live):
        assert stream.read_rest().body == b"".join(whole[k:])
        assert stream.complete
        stream.drop()
    for k in range(7):
        with WAYS[way](places.serves, ticket, k) as later:
            assert later.read_rest().body == b"".join(whole[k:])
    assert len(upstream.requests) == 1


def test_the_headers_of_one_who_comes_back(places: Places, upstream: Upstream) -> None:
    gate = Gate()
    upstream.script(held(gate))
    with ask(places.runs, **WITH_USAGE) as first:
        ticket = Ticket.of(first)
        read_to(first, 2)
        back = come_back(places.serves, ticket, 1, [("X-Request-Id", "mine")]).read_head()
        gate.open()
        back.read_rest().drop()
        first.read_rest()
    assert back.header("Content-Type") == "text/event-stream; charset=utf-8"
    assert back.all("Cache-Control") == first.all("Cache-Control") == ["no-store"]
    assert back.header("X-Accel-Buffering") == "no"
    assert back.header("X-Stream-Id") == ticket.stream_id
    assert back.header("X-Last-Event-Id") == "2"
    assert back.header("X-Request-Id") == "mine"
    again = Ticket.of(back)
    assert blocks(rest(places.serves, again, 3).body, 4)


def test_a_token_from_inside_the_stream_resumes_at_its_place_by_itself(
    hasty: Places, upstream: Upstream
) -> None:
    one = hasty.serves
    slowly = [step for text in CONTENT[:20] for step in (Pause(0.04), VLLM.content(text))]
    upstream.script(Reply([VLLM.role(), *slowly, *ended(VLLM)]))
    with ask(hasty.runs, [("X-Resume-Events", "1")]) as stream:
        ticket = Ticket.of(stream)
        body = stream.read_rest().body
    before, *parts = body.split(b"event: resume_token\ndata: ")
    tokens = [json.loads(part.partition(b"\n\n")[0]) for part in parts]
    between = [part.partition(b"\n\n")[2] for part in parts]
    whole = blocks(b"".join([before, *between]))
    assert len(tokens) > 3
    for told, seen in zip(tokens, accumulate([before, *between]), strict=False):
        at = newest(seen)
        assert told == {"token": told["token"], "last_event_id": at}
        alone = Ticket(ticket.stream_id, told["token"])
        behind = b"".join(whole[at:])
        assert rest(one, alone).body == behind
        assert rest(one, alone, 1).body == b"".join(whole[1:])
        with Stream(one.port, "GET", f"{ticket.address}?token={told['token']}") as by_query:
            assert by_query.read_rest().body == behind
        with Stream(one.port, "POST", "/v1/chat/completions", [("X-Resume-Token", told["token"])]) as posted:
            assert posted.read_rest().body == behind
    assert b"resume_token" not in rest(one, ticket).body
    with come_back(one, ticket, 0, [("X-Resume-Events", "1")]) as replayed:
        assert blocks(replayed.read_rest().body) == whole  # told within a moment, so no token was due


# -- several at once, and the seam -----------------------------------------------------------------


def test_two_who_come_back_at_once_each_get_all(places: Places, upstream: Upstream) -> None:
    gate = Gate()
    upstream.script(held(gate))
    first = ask(places.runs, **WITH_USAGE)
    ticket = Ticket.of(first)
    read_to(first, 2)
    first.drop()
    both = at_once([lambda: come_back(places.serves, ticket, 1).read_head()] * 8)
    gate.open()
    found = {stream.read_rest().body for stream in both}
    assert len(found) == 1
    assert len(blocks(found.pop(), 2)) == 5
    for stream in both:
        stream.drop()
    assert len(upstream.requests) == 1


def test_who_drops_while_leg_2_connects_comes_back_to_one_answer(places: Places, upstream: Upstream) -> None:
    gate = Gate()
    upstream.script(
        Reply([*started(VLLM, ["so "], ["Hallo"]), Cut()]),
        Reply([*started(VLLM_LEG2, [], [" Welt"]), *ended(VLLM_LEG2, usage=(9, 3, 0))], before=[Pause(gate)]),
    )
    first = ask(places.runs, **WITH_USAGE)
    ticket = Ticket.of(first)
    before = read_to(first, 3)
    gate.wait_reached()
    first.drop()
    with come_back(places.serves, ticket, 2) as earlier, come_back(places.serves, ticket, 3) as back:
        for stream in (earlier, back):
            stream.read_head()
        gate.open()
        after = back.read_rest().body
        assert blocks(earlier.read_rest().body, 3)[1:] == blocks(after, 4)
    answer = answer_of(before, after)
    assert (answer.reasoning, answer.content, answer.done) == ("so ", "Hallo Welt", 1)
    assert (answer.finish_reasons, len(answer.usages), answer.ids) == (["stop"], 1, {VLLM.id})
    assert len(upstream.requests) == 2
    assert status(places.serves, ticket)["leg2_from"] == 4


def test_who_drops_while_leg_2_is_on_its_way_comes_back_to_one_answer(
    places: Places, upstream: Upstream
) -> None:
    gate = Gate()
    upstream.script(
        Reply([*started(VLLM, [], ["a"]), Cut()]),
        Reply([*started(VLLM_LEG2, [], ["b"]), Pause(gate), VLLM_LEG2.content("c"), *ended(VLLM_LEG2)]),
    )
    first = ask(places.runs)
    ticket = Ticket.of(first)
    before = read_to(first, 3)
    first.drop()
    with come_back(places.serves, ticket, 3) as back:
        back.read_head()
        gate.open()
        answer = answer_of(before, back.read_rest().body)
    assert (answer.content, answer.done, answer.errors) == ("abc", 1, [])


def test_two_streams_have_numbers_and_tokens_of_their_own(places: Places, upstream: Upstream) -> None:
    upstream.script(*[Reply([*started(VLLM, [], [text]), *ended(VLLM)]) for text in ("a", "b")])
    streams = [ask(places.runs) for _ in range(2)]
    one, other = (Ticket.of(stream) for stream in streams)
    bodies = [stream.read_rest().body for stream in streams]
    assert one.stream_id != other.stream_id
    assert [len(blocks(body)) for body in bodies] == [4, 4]
    assert rest(places.serves, one).body == bodies[0]
    assert rest(places.serves, other).body == bodies[1]
    crossed = Ticket(one.stream_id, other.token)
    assert error_code(come_back(places.serves, crossed, 1)) == (404, "not_found")


# -- leaving, and stopping -------------------------------------------------------------------------

BUSY: list[Step] = [step for n in range(2000) for step in (Pause(0.01), VLLM.content(f"{n} "))]


def test_the_generation_goes_on_without_a_reader_until_the_grace_is_over(
    hasty: Places, upstream: Upstream
) -> None:
    upstream.script(Reply([VLLM.role(), *BUSY]))
    first = ask(hasty.runs)
    ticket = Ticket.of(first)
    read_to(first, 5)
    connection = upstream.requests[0].connection
    left = first.drop()
    ended_at = connection.wait_closed_by_peer(30)
    assert ended_at - left >= GRACE
    assert wait_for_state(hasty.serves, ticket, "abandoned")["last_event_id"] > 50
    body = rest(hasty.serves, ticket, 5).body
    whole = blocks(body, 6)
    answer = Answer.of(body)
    assert answer.content == "".join(f"{n} " for n in range(4, 4 + len(whole) - 1))
    assert [error["code"] for error in answer.errors] == ["client_gone"]
    assert answer.done == 0


def test_a_reader_who_comes_back_within_the_grace_keeps_it_going(hasty: Places, upstream: Upstream) -> None:
    gate = Gate()
    upstream.script(held(gate))
    first = ask(hasty.runs, **WITH_USAGE)
    ticket = Ticket.of(first)
    before = read_to(first, 2)
    first.drop()
    back = come_back(hasty.serves, ticket, 2).read_head()
    time.sleep(2 * GRACE)  # what must not happen has its time to happen
    assert upstream.requests[0].connection.peer_closed_at is None
    gate.open()
    assert answer_of(before, back.read_rest().body).content == "ab"
    back.drop()


def test_a_stop_releases_downstream_and_ends_the_log_for_all(places: Places, upstream: Upstream) -> None:
    upstream.script(Reply([VLLM.role(), *BUSY]))
    first = ask(places.runs)
    ticket = Ticket.of(first)
    read_to(first, 3)
    second = come_back(places.serves, ticket, 1)
    read_to(second, 5)
    connection = upstream.requests[0].connection
    asked = time.monotonic()
    stopped = stop(places.serves, ticket)
    assert connection.wait_closed_by_peer() - asked < 2.0
    told = stopped.json()
    assert (stopped.status, told["state"], told["stream_id"]) == (200, "stopped", ticket.stream_id)
    bodies = [first.read_rest().body, blocks_before(2, second.read_rest().body)]
    for stream in (first, second):
        stream.drop()
    assert blocks(bodies[0])[1:] == blocks(bodies[1], 2)
    answer = Answer.of(bodies[0])
    assert [error["code"] for error in answer.errors] == ["stopped"]
    assert blocks(rest(places.serves, ticket, 3).body, 4) == blocks(bodies[0])[3:]
    again = stop(places.serves, ticket)
    assert (again.status, again.json()["state"]) == (200, "stopped")
    assert again.json()["last_event_id"] == len(blocks(bodies[0]))


def blocks_before(first: int, body: bytes) -> bytes:
    """The body, whose first block has that number."""
    blocks(body, first)
    return body


def test_a_stop_while_leg_2_is_awaited_ends_both(places: Places, upstream: Upstream) -> None:
    upstream.script(Reply([*started(VLLM, [], ["a"]), Cut()]), Reply(before=[HoldOpen()]))
    first = ask(places.runs)
    ticket = Ticket.of(first)
    requests = upstream.wait_for_requests(2)
    assert stop(places.serves, ticket).json()["state"] == "stopped"
    requests[1].connection.wait_closed_by_peer()
    one_failed_ending(first.read_rest(), content="a", code={"stopped"})
    first.drop()


def test_a_stop_after_the_end_changes_nothing(places: Places, upstream: Upstream) -> None:
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]))
    with ask(places.runs) as first:
        ticket = Ticket.of(first)
        body = first.read_rest().body
    stopped = stop(places.serves, ticket)
    assert (stopped.status, stopped.json()["state"]) == (200, "finished")
    assert rest(places.serves, ticket).body == body


# -- limits ----------------------------------------------------------------------------------------


def test_what_has_expired_is_told_and_nothing_is_asked_anew(hasty: Places, upstream: Upstream) -> None:
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]))
    with ask(hasty.runs) as first:
        ticket = Ticket.of(first)
        first.read_rest()
    assert 0 < status(hasty.serves, ticket)["expires_in"] <= TTL
    wait_until(lambda: about(hasty.serves, ticket).status == 410)
    for way in WAYS.values():
        with way(hasty.serves, ticket, 1) as late:
            assert error_code(late) == (410, "expired")
            assert late.json()["error"]["available"] is None
    assert error_code(stop(hasty.serves, ticket)) == (410, "expired")
    assert len(upstream.requests) == 1


def test_a_trimmed_log_says_so_and_what_there_is_still(hasty: Places, upstream: Upstream) -> None:
    small = hasty
    upstream.script(Reply([*started(VLLM, REASONING, CONTENT), *ended(VLLM)]))
    with ask(small.runs) as first:
        ticket = Ticket.of(first)
        whole = blocks(first.read_rest().body)
    with come_back(small.serves, ticket, 10) as late:
        assert error_code(late) == (410, "trimmed")
        available = late.json()["error"]["available"]
    assert available == {"first": len(whole) - KEPT + 1, "last": len(whole)}
    assert status(small.serves, ticket)["available"] == available
    oldest = available["first"] - 1
    assert rest(small.serves, ticket, oldest).body == b"".join(whole[oldest:])
    assert error_code(come_back(small.serves, ticket, oldest - 1)) == (410, "trimmed")
    assert error_code(come_back(small.serves, ticket)) == (410, "trimmed")


def test_a_reader_that_is_overtaken_is_told_of_the_gap(serving: Gateway, upstream: Upstream) -> None:
    """One reads all; the other nothing, until what it would read next is not kept any more."""
    text = "x" * 20000
    upstream.script(Reply([VLLM.role(), *[VLLM.content(text) for _ in range(1500)], *ended(VLLM)]))
    first = ask(serving, timeout=60.0)
    ticket = Ticket.of(first)
    read_to(first, 1)
    with come_back(serving, ticket, 0, timeout=60.0) as slow:
        slow.read_head()
        read_all(first, 1503)
        first.drop()
        numbers, error = ending_in_a_gap(slow)
    assert len(numbers) < 1000
    assert error["code"] == "resume_gap"


def test_a_log_that_expires_under_a_slow_reader_ends_with_a_gap(
    upstream: Upstream, migrated: Database, tmp_path: Path
) -> None:
    """It has got what was on its way, in order, and is told that the rest is not there any more."""
    settings = {
        "DOWNSTREAM_URL": upstream.url,
        "CONTINUATION_MODEL": "house-model",
        "RESUME_MAX_BYTES": str(2**24),
        "RESUME_TTL_SECONDS": "0.5",
    }
    one = Gateway(settings, migrated, tmp_path, "serve")
    try:
        text = "x" * 20000
        upstream.script(Reply([VLLM.role(), *[VLLM.content(text) for _ in range(700)], *ended(VLLM)]))
        first = ask(one, timeout=60.0)
        ticket = Ticket.of(first)
        read_to(first, 1)
        with come_back(one, ticket, 0, timeout=60.0) as slow:
            slow.read_head()
            read_all(first, 703)
            wait_until(lambda: about(one, ticket).status == 410)
            numbers, error = ending_in_a_gap(slow)
        assert 0 < len(numbers) < 700
        assert error["code"] == "resume_gap"
    finally:
        assert one.stop() == 0
    assert not TROUBLE.search(one.log), one.log


def ending_in_a_gap(stream: Stream) -> tuple[list[int], dict[str, Any]]:
    """The numbers of a long answer's events, and the error behind them."""
    body = stream.read_rest().body
    assert stream.complete
    at = body.rfind(b"data: ", 0, -1)
    numbers = [int(line[4:]) for line in body[:at].split(b"\n") if line.startswith(b"id: ")]
    assert numbers == list(range(1, len(numbers) + 1))
    return numbers, json.loads(body[at + 6 :])["error"]


def read_all(stream: Stream, events: int) -> None:
    """Of a long answer: its numbers are looked at, and nothing is kept."""
    numbers: list[bytes] = []
    left = b""
    while stream.body or stream.read_piece():
        *lines, left = (left + stream.body).split(b"\n")
        numbers += [line[4:] for line in lines if line.startswith(b"id: ")]
        stream.pieces.clear()
    assert numbers == [b"%d" % n for n in range(1, events + 1)]


def test_a_long_backlog_comes_in_pieces_as_the_reader_takes_them(
    serving: Gateway, upstream: Upstream
) -> None:
    """20 readers that take nothing of 10 MB each cost the process less than one of them."""
    one = serving
    text = "x" * 20000
    upstream.script(Reply([VLLM.role(), *[VLLM.content(text) for _ in range(520)], *ended(VLLM)]))
    with ask(one, timeout=60.0) as first:
        ticket = Ticket.of(first)
        whole = first.read_rest().body
    assert len(whole) > 10_000_000
    before = one.memory_bytes()
    readers = [come_back(one, ticket, 0, timeout=60.0).read_head() for _ in range(20)]
    assert one.memory_bytes() - before < len(whole)
    for stream in readers[:3]:
        assert stream.read_rest().body == whole
        assert max(len(piece) for _at, piece in stream.pieces) < 2**17
    for stream in readers:
        stream.drop()


# -- nothing stays ---------------------------------------------------------------------------------


def test_200_who_come_and_go_leave_nothing_behind(
    hasty: Places, store: dict[str, str], upstream: Upstream
) -> None:
    """Some leave at once, some come back and leave, some come back twice at once, some read to the end."""
    upstream.respond(lambda request: Reply([*started(VLLM, [], ["a", "b"]), Pause(0.05), *ended(VLLM)]))
    at_once([partial(cycle, hasty, n) for n in range(8)])
    nothing_is_kept(hasty)
    before = {one: (fewest_tasks(one), len(sockets(one))) for one in pair(hasty)}
    clients = clients_of_redis(store)
    ids = at_once([partial(cycle, hasty, n) for n in range(200)], workers=16)
    nothing_is_kept(hasty)
    # That another process has had a reader is remembered for 10 s.
    wait_until(lambda: not keys_of(ids, store), lambda: keys_of(ids, store), every=0.2)
    assert upstream.busy == []
    for one in pair(hasty):
        tasks_then, sockets_then = before[one]
        wait_until(lambda one=one, most=tasks_then: tasks(one) <= most, every=0.5)
        # Some connections to downstream, and some to Redis, are kept for those who ask next.
        wait_until(lambda one=one, most=sockets_then + 8: len(sockets(one)) <= most, one.open_files)
    wait_until(lambda: clients_of_redis(store) <= clients + 8, lambda: (clients_of_redis(store), clients))


def cycle(places: Places, n: int) -> str:
    """The stream's id."""
    with ask(places.runs) as first:
        ticket = Ticket.of(first)
        if n % 4 or n % 5 == 0:
            read_to(first, 2)
    for _ in range(n % 3):
        with come_back(places.serves, ticket, n % 2) as back:
            back.read_head()
    if n % 5 == 0:
        with come_back(places.serves, ticket) as one, come_back(places.serves, ticket, 1) as other:
            assert len(blocks(one.read_rest().body)) == 5
            assert len(blocks(other.read_rest().body, 2)) == 4
    return ticket.stream_id


def pair(places: Places) -> list[Gateway]:
    return [places.runs] if places.runs is places.serves else [places.runs, places.serves]


def nothing_is_kept(places: Places) -> None:
    """Until no log is, in the memory of the process that ran the streams."""
    wait_until(lambda: metric(places.runs, "continuation_log_streams") == 0)
    assert metric(places.runs, "continuation_generations") == 0


def keys_of(ids: list[str], store: dict[str, str]) -> list[str]:
    """What Redis holds of these streams, or of their readers."""
    if not store:
        return []
    with closing(Redis.from_url(store["REDIS_URL"], decode_responses=True)) as redis:
        return [key for key in redis.keys("*") if any(stream_id in key for stream_id in ids)]


def clients_of_redis(store: dict[str, str]) -> int:
    if not store:
        return 0
    with closing(Redis.from_url(store["REDIS_URL"])) as redis:
        return len(redis.client_list())


def fewest_tasks(one: Gateway) -> int:
    """daphne looks for ended applications once a second only, and each question is one."""
    found = []
    for _ in range(4):
        time.sleep(0.5)
        found.append(tasks(one))
    return min(found)


def sockets(one: Gateway) -> list[str]:
    return [name for name in one.open_files() if name.startswith("socket:")]
