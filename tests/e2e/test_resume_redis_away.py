"""Redis dies, hangs, and comes back: live streams are whole and as fast as ever, new ones say that they cannot be
resumed, and when it is there again all can be, without a restart."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import pytest

from tests.e2e.conftest import GatewayFor
from tests.e2e.resuming import (
    Places,
    Ticket,
    about,
    ask,
    at_once,
    blocks,
    come_back,
    error_code,
    read_to,
    rest,
    wait_until,
    whole_events,
)
from tests.harness.client import Stream, one_whole_answer
from tests.harness.gateway import Gateway, free_port
from tests.harness.redis import RedisServer
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Cut, Pause, Reply, Request, Send, Step, Upstream

EVENTS = 100
PACE = 0.02  # seconds between two events of downstream
LATE = 0.5  # what a busy machine may need for what takes none
How = Callable[[RedisServer], None]
Listening = Callable[[Stream], Stream]
TEXT = "".join(f"{n} " for n in range(EVENTS))


@pytest.fixture
def places(gateway: GatewayFor, redis: RedisServer) -> Iterator[Places]:
    """Redis is there before and after each test."""
    both = Places(gateway(REDIS_URL=redis.url), gateway(REDIS_URL=redis.url, STRATEGY_REFRESH_SECONDS="4"))
    yield both
    if not redis.ask("PING").endswith(b"PONG\r\n"):
        redis.start_again()


def paced(breaks_at: int = EVENTS) -> Callable[[Request], Reply]:
    """Answers with an event each PACE seconds, in two legs where they break."""
    texts = [f"{n} " for n in range(EVENTS)]

    def answer(request: Request) -> Reply:
        if b"continue_final_message" in request.body:
            rest_of_it = slowly(VLLM_LEG2.content(text) for text in texts[breaks_at:])
            return Reply([VLLM_LEG2.role(), *rest_of_it, *ended(VLLM_LEG2)])
        leg1 = [VLLM.role(), *slowly(VLLM.content(text) for text in texts[:breaks_at])]
        return Reply([*leg1, *(ended(VLLM) if breaks_at == EVENTS else [Cut()])])

    return answer


def slowly(sends: Iterator[Send]) -> list[Step]:
    return [step for send in sends for step in (Pause(PACE), send)]


def heard(stream: Stream, count: int) -> None:
    """Wait until that many pieces have come to a stream that is listened to."""
    wait_until(lambda: len(stream.pieces) >= count, lambda: stream.body)


def longest_gap(stream: Stream) -> float:
    """Between two pieces, of a stream that was listened to."""
    return max(later - earlier for (earlier, _), (later, _) in pairwise(stream.pieces))


@pytest.fixture
def listening() -> Iterator[Callable[[Stream], Stream]]:
    """listening(stream): the same one; it is read to its end meanwhile."""
    with ThreadPoolExecutor() as pool:

        def listen(stream: Stream) -> Stream:
            stream.read_head()
            pool.submit(stream.read_rest)
            return stream

        yield listen


def is_whole(stream: Stream) -> list[bytes]:
    """Its events, when it has ended."""
    wait_until(lambda: b"[DONE]" in stream.body and stream.complete)
    one_whole_answer(stream, reasoning="", content=TEXT, like=VLLM)
    return blocks(stream.body) if stream.header("X-Stream-Id") else []


def is_resumable_again(places: Places, upstream: Upstream) -> None:
    """Without a restart: a new stream can be, at either process."""
    upstream.respond(lambda request: Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]))

    def asked() -> bool:
        with ask(places.runs) as stream:
            stream.read_rest()
            if stream.header("X-Resume") == "unavailable":
                return False
            assert rest_at_last(places.serves, Ticket.of(stream), 1).body == b"".join(blocks(stream.body)[1:])
            return True

    wait_until(asked)


def rest_at_last(to: Gateway, ticket: Ticket, cursor: int) -> Stream:
    """What comes to one who asks again as long as that is not possible: the process may notice late that Redis was
    away, or the log is not written again yet."""
    found: list[Stream] = []

    def asked() -> bool:
        found.append(rest(to, ticket, cursor))
        assert found[-1].status in (200, 503)
        return found[-1].status == 200

    wait_until(asked, lambda: found[-1].body, every=0.1)
    return found[-1]


def lost(redis: RedisServer) -> None:
    """Redis dies."""
    redis.kill()


def hung(redis: RedisServer) -> None:
    """Redis says nothing more."""
    redis.pause()


def back(redis: RedisServer, how: How) -> None:
    redis.go_on() if how is hung else redis.start_again()


# -- during a stream -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [lost, hung])
def test_a_live_stream_is_whole_and_not_delayed(
    places: Places, redis: RedisServer, upstream: Upstream, listening: Listening, how: How
) -> None:
    upstream.respond(paced(breaks_at=60))
    live = listening(ask(places.runs))
    ticket = Ticket.of(live)
    heard(live, 20)
    how(redis)
    try:
        heard(live, 40)  # by now it has been noticed
        new = listening(ask(places.runs))
        assert new.header("X-Resume") == "unavailable"
        assert new.header("X-Stream-Id") is None
        live_events = is_whole(live)
        is_whole(new)
        assert b"id: " not in new.body
        assert longest_gap(live) < LATE
        assert longest_gap(new) < LATE
        with come_back(places.serves, ticket, 10) as elsewhere:
            assert error_code(elsewhere) == (503, "resume_unavailable")
            assert elsewhere.header("Retry-After") == "1"
        assert about(places.serves, ticket).status == 503
        assert rest(places.runs, ticket, 10).body == b"".join(live_events[10:])
    finally:
        back(redis, how)
    assert len(upstream.requests) == 4
    wait_until(lambda: about(places.serves, ticket).status == 200)
    assert rest_at_last(places.serves, ticket, 10).body == b"".join(live_events[10:])
    is_resumable_again(places, upstream)


@pytest.mark.parametrize("how", [lost, hung])
def test_a_stream_that_goes_on_when_redis_is_back_can_be_resumed_elsewhere(
    places: Places, redis: RedisServer, upstream: Upstream, listening: Listening, how: How
) -> None:
    upstream.respond(paced(breaks_at=20))
    live = listening(ask(places.runs))
    ticket = Ticket.of(live)
    heard(live, 10)
    how(redis)
    heard(live, 30)
    back(redis, how)
    wait_until(lambda: about(places.serves, ticket).status == 200)
    assert about(places.serves, ticket).json()["state"] == "running"
    after = at_once(partial(rest_at_last, places.serves, ticket, k) for k in range(0, 30, 3))
    events = is_whole(live)
    assert longest_gap(live) < LATE
    for k, stream in zip(range(0, 30, 3), after, strict=True):
        assert stream.body == b"".join(events[k:]), k
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("how", [lost, hung])
def test_one_who_reads_at_another_process_gets_all_in_the_end(
    places: Places, redis: RedisServer, upstream: Upstream, listening: Listening, how: How
) -> None:
    """It may be broken off, and comes back; it is given no hole and nothing twice."""
    upstream.respond(paced())
    live = listening(ask(places.runs))
    ticket = Ticket.of(live)
    heard(live, 10)
    remote = come_back(places.serves, ticket, 5)
    read_to(remote, 12)
    how(redis)
    heard(live, 50)
    back(redis, how)
    body = remote.read_rest().body
    seen = blocks(whole_events(body), 6)
    if remote.complete:
        assert body == whole_events(body)
    wait_until(lambda: about(places.serves, ticket).status == 200)
    events = is_whole(live)
    assert longest_gap(live) < LATE
    assert seen == events[5 : 5 + len(seen)]
    assert rest_at_last(places.serves, ticket, 5 + len(seen)).body == b"".join(events[5 + len(seen) :])


# -- before and after ------------------------------------------------------------------------------


def test_a_process_that_starts_without_redis_serves_and_finds_it_later(
    gateway: GatewayFor,
    upstream: Upstream,
    listening: Listening,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    late = RedisServer(tmp_path_factory.mktemp("late"))
    late.kill()
    one = gateway(REDIS_URL=late.url)
    upstream.respond(paced(breaks_at=50))
    stream = listening(ask(one))
    assert stream.header("X-Resume") == "unavailable"
    is_whole(stream)
    assert longest_gap(stream) < LATE
    late.start_again()
    try:
        is_resumable_again(Places(one, one), upstream)
    finally:
        late.stop()


def test_a_redis_that_is_none_breaks_no_stream(gateway: GatewayFor, upstream: Upstream) -> None:
    """What listens there is no Redis, or nothing does."""
    for url in (f"redis://127.0.0.1:{free_port()}/0", f"redis://127.0.0.1:{upstream.port}/0"):
        one = gateway(REDIS_URL=url)
        upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]))
        stream = ask(one)
        assert stream.read_head().header("X-Resume") == "unavailable"
        one_whole_answer(stream.read_rest(), reasoning="", content="a", like=VLLM)
        assert error_code(come_back(one, Ticket("0" * 32, "none"))) == (404, "not_found")
        upstream.malformed.clear()


@pytest.mark.parametrize("how", [lost, hung])
def test_a_stream_that_has_ended_can_be_resumed_when_redis_is_back(
    places: Places, redis: RedisServer, upstream: Upstream, how: How
) -> None:
    upstream.script(Reply([*started(VLLM, [], ["a", "b"]), *ended(VLLM)]))
    with ask(places.runs) as stream:
        ticket = Ticket.of(stream)
        events = blocks(stream.read_rest().body)
    how(redis)
    assert rest(places.runs, ticket, 2).body == b"".join(events[2:])
    back(redis, how)
    assert rest_at_last(places.serves, ticket, 2).body == b"".join(events[2:])


def test_a_stop_that_redis_cannot_tell_is_told_as_such(
    places: Places, redis: RedisServer, upstream: Upstream, listening: Listening
) -> None:
    upstream.respond(paced())
    live = listening(ask(places.runs))
    ticket = Ticket.of(live)
    heard(live, 5)
    with redis.paused():
        with come_back(places.serves, ticket, 1) as waits:
            assert error_code(waits) == (503, "resume_unavailable")
        assert about(places.serves, ticket, "DELETE", "").status == 503
    is_whole(live)
