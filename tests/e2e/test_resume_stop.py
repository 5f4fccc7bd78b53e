"""A gateway is stopped while streams that can be resumed are open, or run without a reader: with a log of its own it
ends them, with Redis another process goes on with them."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest
from redis import Redis

from tests.e2e.resuming import (
    Ticket,
    about,
    answer_of,
    ask,
    at_once,
    blocks,
    come_back,
    newest,
    read_to,
    rest,
    status,
    wait_until,
    whole_events,
)
from tests.harness.client import Answer, Stream, one_failed_ending, one_whole_answer
from tests.harness.gateway import TROUBLE, Database, Gateway
from tests.harness.redis import RedisServer
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Gate, HoldOpen, Pause, Reply, Request, Upstream

PATIENCE = 60.0
LEASE = 5.0  # seconds after which a process that says nothing counts as dead
Start = Callable[..., Gateway]
LEG2 = [*started(VLLM_LEG2, [], [" the rest"]), *ended(VLLM_LEG2)]


@pytest.fixture
def start(
    upstream: Upstream, migrated: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Start]:
    """start(server, NAME="value", ...): a gateway of the test's own, which it may stop."""
    begun: list[Gateway] = []

    def starting(server: str = "serve", **settings: str) -> Gateway:
        chosen = {"DOWNSTREAM_URL": upstream.url, "CONTINUATION_MODEL": "house-model", **settings}
        begun.append(Gateway(chosen, migrated, tmp_path_factory.mktemp("gateway"), server))
        return begun[-1]

    yield starting
    for one in begun:
        one.terminate()
        one.terminate()
    for one in begun:
        one.wait(PATIENCE)
        assert not TROUBLE.search(one.log), one.log


@pytest.fixture(scope="module")
def other(
    session_upstream: Upstream,
    redis: RedisServer,
    migrated: Database,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    """The process that stays."""
    settings = {
        "DOWNSTREAM_URL": session_upstream.url,
        "CONTINUATION_MODEL": "house-model",
        "REDIS_URL": redis.url,
    }
    one = Gateway(settings, migrated, tmp_path_factory.mktemp("other"), "serve")
    yield one
    assert one.stop() == 0
    assert not TROUBLE.search(one.log), one.log


def asked(to: Gateway, question: str) -> Stream:
    return ask(to, timeout=PATIENCE, messages=[{"role": "user", "content": question}])


def answering(gate: Gate) -> Callable[[Request], Reply]:
    """What is asked, then as the question says: `ends` behind the gate, or `stays` silent. Leg 2 ends."""

    def answer(request: Request) -> Reply:
        if b"continue_final_message" in request.body:
            return Reply(LEG2)
        question = request.json()["messages"][0]["content"]
        first = started(VLLM, [], [question])
        if question.startswith("ends"):
            return Reply([*first, Pause(gate), VLLM.content(" well"), *ended(VLLM)])
        return Reply([*first, HoldOpen()])

    return answer


def of(upstream: Upstream, question: str) -> list[Request]:
    """The requests for that question, in both legs."""
    return [one for one in upstream.requests if one.json()["messages"][0]["content"] == question]


# -- with a log of its own -------------------------------------------------------------------------


def test_open_streams_run_to_their_end_and_those_without_a_reader_are_ended_at_once(
    start: Start, upstream: Upstream
) -> None:
    """Nobody could come back to them: no new connection is let in, and the log goes with the process."""
    one, gate = start(), Gate()
    upstream.respond(answering(gate))
    open_ones = [asked(one, f"ends {n}") for n in range(3)]
    left = [asked(one, f"stays {n}") for n in range(3)]
    for stream in [*open_ones, *left]:
        read_to(stream, 2)
    for stream in left:
        stream.drop()
    asked_at = time.monotonic()
    one.terminate()
    for n in range(3):
        (request,) = of(upstream, f"stays {n}")
        assert request.connection.wait_closed_by_peer() - asked_at < 5.0
    open_ones[0].drop()  # one more leaves while the rest is waited for
    of(upstream, "ends 0")[0].connection.wait_closed_by_peer()
    assert one.is_running()
    gate.open()
    for n, stream in enumerate(open_ones[1:], 1):
        one_whole_answer(stream.read_rest(), reasoning="", content=f"ends {n} well", like=VLLM)
    assert one.wait(PATIENCE) == 0
    assert [one.event(stream.request_id)["outcome"] for stream in left] == ["client_gone"] * 3
    assert len(upstream.requests) == 6


@pytest.mark.parametrize("signals", [1, 2], ids=["the wait is over", "a second signal"])
def test_a_stream_that_outlasts_the_wait_gets_the_failed_ending(
    start: Start, upstream: Upstream, signals: int
) -> None:
    one = start(GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS="0.5" if signals == 1 else "")
    upstream.respond(answering(Gate()))
    stream = asked(one, "stays")
    ticket = Ticket.of(stream)
    read_to(stream, 2)
    second = come_back(one, ticket, 1)
    read_to(second, 2)
    one.terminate()
    if signals == 2:
        wait_until(lambda: "waited for" in one.log, lambda: one.log)  # two at once would be one
        one.terminate()
    one_failed_ending(stream.read_rest(), content="stays", code={"shutting_down"})
    assert blocks(second.read_rest().body, 2) == blocks(stream.body)[1:]
    upstream.requests[0].connection.wait_closed_by_peer()
    assert one.wait(PATIENCE) == (0 if signals == 1 else 128 + signal.SIGTERM)
    assert one.event(stream.request_id)["reason"] == "shutting_down"


# -- with Redis ------------------------------------------------------------------------------------


def test_another_process_goes_on_at_once_with_what_outlasts_the_wait(
    start: Start, other: Gateway, redis: RedisServer, upstream: Upstream
) -> None:
    """Whether the stream has a reader here, had one, or has one there; and what ends in time ends here."""
    one, gate = start(REDIS_URL=redis.url, GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS="1.5"), Gate()
    upstream.respond(answering(gate))
    names = ["ends in time", "stays open", "stays without a reader", "stays with a reader there"]
    streams = {name: asked(one, name) for name in names}
    tickets = {name: Ticket.of(stream) for name, stream in streams.items()}
    for stream in streams.values():
        read_to(stream, 2)
    streams[names[2]].drop()
    streams[names[3]].drop()
    there = come_back(other, tickets[names[3]], 1, timeout=PATIENCE).read_head()
    one.terminate()
    gate.open()
    one_whole_answer(streams[names[0]].read_rest(), reasoning="", content="ends in time well", like=VLLM)
    broken = streams[names[1]].read_rest()
    assert not broken.complete
    assert newest(broken.body) == 2
    asked_at = time.monotonic()
    after = dict(
        zip(names[:3], at_once(partial(rest, other, tickets[name], 2) for name in names[:3]), strict=True)
    )
    assert time.monotonic() - asked_at < LEASE
    assert one.wait(PATIENCE) == 0
    assert blocks(after[names[0]].body, 3) == blocks(streams[names[0]].body)[2:]
    for name in names[1:]:
        body = rest(other, tickets[name]).body
        answer = Answer.of(body)
        assert (answer.content, answer.done, answer.errors) == (f"{name} the rest", 1, [])
        assert answer.ids == {VLLM.id}
        leg1, leg2 = of(upstream, name)
        leg1.connection.wait_closed_by_peer()
        assert status(other, tickets[name])["state"] == "finished"
        if name in after:
            assert after[name].body == b"".join(blocks(body)[2:])
        assert leg2.json()["continue_final_message"]
    assert answer_of(whole_events(broken.body), after[names[1]].body).done == 1
    assert there.read_rest().complete
    assert there.body == b"".join(blocks(rest(other, tickets[names[3]]).body)[1:])


def test_what_nobody_comes_back_to_after_a_stop_goes_out_of_redis(
    start: Start, redis: RedisServer, upstream: Upstream
) -> None:
    settings = {"RESUME_TTL_SECONDS": "2", "RESUME_GRACE_SECONDS": "1"}
    one = start(REDIS_URL=redis.url, GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS="0.2", **settings)
    upstream.respond(answering(Gate()))
    stream = asked(one, "stays")
    ticket = Ticket.of(stream)
    read_to(stream, 2)
    one.terminate()
    assert one.wait(PATIENCE) == 0
    with closing(Redis.from_url(redis.url)) as asking:
        pattern = f"continuation:{{{ticket.stream_id}}}*"
        assert all(0 < asking.pttl(key) < 120_000 for key in asking.keys(pattern))
    assert len(upstream.requests) == 1


def test_with_a_redis_that_hangs_a_stop_ends_what_it_would_have_handed_over(
    start: Start, redis: RedisServer, upstream: Upstream
) -> None:
    one = start(REDIS_URL=redis.url, GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS="1")
    upstream.respond(answering(Gate()))
    stream = asked(one, "stays")
    Ticket.of(stream)
    read_to(stream, 2)
    with redis.paused():
        one.terminate()
        one_failed_ending(stream.read_rest(), content="stays", code={"shutting_down"})
        assert one.wait(PATIENCE) == 0


def test_daphne_that_is_stopped_loses_no_stream_either(
    start: Start, other: Gateway, redis: RedisServer, upstream: Upstream
) -> None:
    one = start("daphne", REDIS_URL=redis.url)
    upstream.respond(answering(Gate()))
    stream = asked(one, "stays")
    ticket = Ticket.of(stream)
    before = read_to(stream, 2)
    one.terminate()
    one.wait(PATIENCE)
    with come_back(other, ticket, 2, timeout=PATIENCE) as back:
        answer = answer_of(before, back.read_rest().body)
    assert (answer.content, answer.done, answer.errors) == ("stays the rest", 1, [])
    assert len(of(upstream, "stays")) == 2
    assert about(other, ticket).json()["state"] == "finished"


def test_restarts_one_after_the_other_lose_no_stream(
    start: Start, redis: RedisServer, upstream: Upstream
) -> None:
    """The second stop meets a stream in leg 2, of which there is only one: it fails and says so."""
    settings = {"REDIS_URL": redis.url, "GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS": "0.2"}
    processes = at_once([partial(start, **settings)] * 3)
    slow_leg2 = [*started(VLLM_LEG2, [], [" more"]), HoldOpen()]
    upstream.respond(
        lambda request: Reply(
            slow_leg2
            if b"continue_final_message" in request.body
            else [*started(VLLM, [], ["a"]), HoldOpen()]
        )
    )
    stream = asked(processes[0], "stays")
    ticket = Ticket.of(stream)
    body = read_to(stream, 2)
    processes[0].terminate()
    second = come_back(processes[1], ticket, 2, timeout=PATIENCE)
    body += read_to(second, 3)
    processes[1].terminate()
    wait_until(lambda: about(processes[2], ticket).json().get("state") in ("interrupted", "failed"))
    with come_back(processes[2], ticket, 3, timeout=PATIENCE) as last:
        answer = answer_of(body, last.read_rest().body)
    assert (answer.content, answer.done) == ("a more", 0)
    assert len(answer.errors) == 1
    assert len(upstream.requests) == 2
