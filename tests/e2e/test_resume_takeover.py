"""A gateway process dies by SIGKILL: whoever comes back to its streams, at another process, gets them to their end."""

import json
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from redis import Redis

from continuation.resume.store.redis.scripts import keys_of
from continuation.testbed.simulator import Config
from tests.e2e.resuming import (
    Ticket,
    answer_of,
    ask,
    at_once,
    blocks,
    come_back,
    metric,
    newest,
    read_to,
    rest,
    status,
    stop,
    wait_for_state,
    wait_until,
    whole_events,
)
from tests.e2e.test_simulated import running
from tests.e2e.test_token_route import (
    CONTENT,
    REASONING,
    TOKEN_ROUTE,
    Server,
    rows_edited,
    tokens,
    with_ids,
)
from tests.harness.client import Answer, Stream, call
from tests.harness.gateway import TROUBLE, Database, Gateway
from tests.harness.redis import RedisServer
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Cut, HoldOpen, Reply, Request, Step, Upstream

PATIENCE = 60.0
STREAMS = 50
AUTHORIZATION = [("Authorization", "Bearer of-the-caller")]
KEYS = urlsafe_b64encode(b"0123456789abcdef0123456789abcdef").decode()
Start = Callable[..., Gateway]


@pytest.fixture(scope="module")
def start(
    redis: RedisServer,
    session_upstream: Upstream,
    migrated: Database,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Start]:
    """start(NAME="value", ...): a process under `serve`, with the module's Redis."""
    begun: list[Gateway] = []

    def starting(**settings: str) -> Gateway:
        chosen = {
            "DOWNSTREAM_URL": session_upstream.url,
            "CONTINUATION_MODEL": "house-model",
            "REDIS_URL": redis.url,
            "RESUME_ENCRYPTION_KEYS": KEYS,
            "GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS": "1",
        }
        begun.append(Gateway(chosen | settings, migrated, tmp_path_factory.mktemp("gateway"), "serve"))
        return begun[-1]

    yield starting
    for one in begun:
        one.terminate()
    for one in begun:
        one.wait(PATIENCE)
        assert not TROUBLE.search(one.log), one.log


@pytest.fixture(scope="module")
def survivors(start: Start) -> list[Gateway]:
    return [start(), start()]


def kill(one: Gateway) -> None:
    one.terminate(9)
    one.wait()


def what_came(stream: Stream) -> bytes:
    """The whole events that a client has of a connection that broke."""
    return whole_events(stream.read_rest().body)


# -- fifty of them ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Client:
    """One who asks a question of its own, and reads some events."""

    number: int
    stream: Stream
    ticket: Ticket
    before: bytes = b""
    after: list[bytes] = field(default_factory=list)


def test_no_stream_of_a_killed_process_is_lost(start: Start, redis: RedisServer) -> None:
    """Each is continued by exactly one leg 2, though every other client comes back at both survivors at once."""
    config = Config(engine="vllm", template="qwen", model="served", token_delay_ms=20, scale=1.5)
    with running(config) as simulator:
        settings = {
            "DOWNSTREAM_URL": simulator.url,
            "CONTINUATION_MODEL": "Qwen/Qwen3.6-35B-A3B",
            "CONTINUATION_ENGINE": "vllm",
        }
        starting = [partial(start, **settings)] * 3
        victim, *found = at_once(
            [*starting, *(partial(uninterrupted, simulator.url, n) for n in range(STREAMS))], workers=STREAMS
        )
        others, whole = found[:2], found[2:]
        clients: list[Client] = []
        for half, events in ((range(STREAMS // 2), 70), (range(STREAMS // 2, STREAMS), 10)):
            clients += at_once([partial(asking, victim, n) for n in half])
            for client in clients[half.start :]:
                read_to(client.stream, events + client.number % 10)
        kill(victim)
        for client in clients:
            client.before = in_the_log(redis, client.ticket, what_came(client.stream))
        jobs = [
            partial(coming_back, other, client)
            for client in clients
            for other in (others if client.number % 2 else [others[client.number // 2 % 2]])
        ]
        at_once(jobs, workers=len(jobs))
        legs = Counter(request.headers.get("x-request-id") for request in simulator.requests)
        assert simulator.open_streams == 0
    places: Counter[str] = Counter()
    for client in clients:
        expected = whole[client.number]
        for after in client.after:
            answer = answer_of(client.before, after)
            assert (answer.reasoning, answer.content) == (expected.reasoning, expected.content), client.number
            assert (answer.finish_reasons, answer.done, answer.errors) == (["stop"], 1, [])
            assert (len(answer.ids), answer.roles, len(answer.usages)) == (1, 1, 1)
            assert client.before
        assert len(set(client.after)) == 1
        places["content" if Answer.of(client.before).content else "reasoning"] += 1
    assert min(places["content"], places["reasoning"]) > 5, places
    assert len(clients) == STREAMS
    for client in clients:
        assert [legs[f"{client.stream.request_id}{leg}"] for leg in ("", "-leg2", "-leg2-leg2")] == [1, 1, 0]
    taken = [metric(one, "continuation_takeovers_total", '{outcome="taken"}') for one in others]
    assert sum(taken) == STREAMS
    assert min(taken) > 0


def in_the_log(redis: RedisServer, ticket: Ticket, body: bytes) -> bytes:
    """Those events of the body that Redis has. The others have died with their process: where Redis is late, as on a
    busy machine, a live stream does not wait for it."""
    with closing(Redis.from_url(redis.url)) as asked:
        (entry,) = asked.xrevrange(keys_of(ticket.stream_id).log, count=1)
    newest_id, _, _ = entry[0].partition(b"-")
    return b"".join(blocks(body)[: int(newest_id)])


def uninterrupted(url: str, number: int) -> Answer:
    """Of the engine itself."""
    port = int(url.rpartition(":")[2])
    body = {
        "model": "served",
        "messages": [{"role": "user", "content": f"question {number}"}],
        "stream": True,
    }
    return Answer.of(call(port, "POST", "/v1/chat/completions", [], json.dumps(body).encode()).body)


def asking(to: Gateway, number: int) -> Client:
    asked = {"model": "served", "stream_options": {"include_usage": True}}
    messages = [{"role": "user", "content": f"question {number}"}]
    stream = ask(to, AUTHORIZATION, PATIENCE, messages=messages, **asked)
    return Client(number, stream, Ticket.of(stream, AUTHORIZATION))


def coming_back(to: Gateway, client: Client) -> None:
    with come_back(to, client.ticket, newest(client.before), timeout=PATIENCE) as stream:
        stream.read_rest()
        assert stream.complete, stream.body
        client.after.append(stream.body)


# -- wherever it was -------------------------------------------------------------------------------

TOOL = [VLLM.tool(0, name="f", id="call-1"), VLLM.tool(0, arguments='{"a"')]
LEG2 = [*started(VLLM_LEG2, [], [" the rest"]), *ended(VLLM_LEG2, usage=(9, 4, 0))]
# By question: leg 1 up to where the process dies, and leg 2, if there may be one.
STATES: dict[str, tuple[list[Step], Reply | None]] = {
    "content": ([*started(VLLM, ["think"], ["some", " text"]), HoldOpen()], Reply(LEG2)),
    "reasoning": ([*started(VLLM, ["think", "ing"]), HoldOpen()], Reply(LEG2)),
    "detached": ([*started(VLLM, [], ["some", " text"]), HoldOpen()], Reply(LEG2)),
    "refused": ([*started(VLLM, [], ["some", " text"]), HoldOpen()], Reply(status="503 No")),
    "broken": ([*started(VLLM, [], ["some", " text"]), HoldOpen()], Reply([*LEG2[:2], Cut()])),
    "finish": ([*started(VLLM, [], ["some", " text"]), VLLM.finish(), HoldOpen()], None),
    "usage": ([*started(VLLM, [], ["some", " text"]), *ended(VLLM, usage=(3, 2, 0))[:2], HoldOpen()], None),
    "ended": ([*started(VLLM, [], ["some", " text"]), *ended(VLLM, usage=(3, 2, 0))], None),
    "stopped": ([*started(VLLM, [], ["some", " text"]), HoldOpen()], None),
    "stopped later": ([*started(VLLM, [], ["some", " text"]), HoldOpen()], None),
    "tool call": ([*started(VLLM, [], ["some", " text"]), *TOOL, HoldOpen()], None),
    "role": ([VLLM.role(), HoldOpen()], None),
    "leg 2": ([*started(VLLM, [], ["some", " text"]), Cut()], Reply([*LEG2[:2], HoldOpen()])),
    "leg 2 awaited": ([*started(VLLM, [], ["some", " text"]), Cut()], Reply(before=[HoldOpen()])),
}


def answering(request: Request) -> Reply | None:
    body = request.json()
    leg1, leg2 = STATES[body["messages"][0]["content"]]
    return leg2 if body.get("continue_final_message") else Reply(leg1)


@pytest.fixture(scope="module")
def found(
    start: Start, survivors: list[Gateway], session_upstream: Upstream, redis: RedisServer
) -> dict[str, Any]:
    """Streams of one process in all states, what their clients had when it died, and what they got when they came
    back; and what Redis held meanwhile."""
    upstream = session_upstream
    upstream.respond(answering)
    victim = start()
    streams = {name: ask(victim, AUTHORIZATION, PATIENCE, **question(name)) for name in STATES}
    tickets = {name: Ticket.of(stream, AUTHORIZATION) for name, stream in streams.items()}
    for name, stream in streams.items():
        read_to(stream, min(3, len(STATES[name][0]) - 1))
    read_to(streams["tool call"], 5)
    read_to(streams["leg 2"], 4)
    read_to(streams["finish"], 4)
    read_to(streams["usage"], 5)
    stop(victim, tickets["stopped"])
    streams["detached"].drop()
    awaited = [name for name, (_, leg2) in STATES.items() if name.startswith("leg 2")]
    upstream.wait_for_requests(len(STATES) + len(awaited), PATIENCE)
    wait_for_state(survivors[0], tickets["ended"], "finished")
    kept = everything_in(redis)
    kill(victim)
    before = {name: what_came(stream) if name != "detached" else b"" for name, stream in streams.items()}
    last = {name: newest(body) for name, body in before.items()}
    wait_for_state(survivors[0], tickets["content"], "interrupted")
    stopped = stop(survivors[1], tickets["stopped later"])
    states = {name: status(survivors[0], ticket)["state"] for name, ticket in tickets.items()}
    jobs = {name: partial(rest_of, survivors[0], tickets[name], last[name]) for name in STATES}
    after = dict(zip(jobs, at_once(jobs.values()), strict=True))
    upstream.wait_until_idle()
    return {
        "before": before,
        "after": after,
        "states": states,
        "then": {name: status(survivors[1], ticket) for name, ticket in tickets.items()},
        "again": {name: rest(survivors[1], ticket).body for name, ticket in tickets.items()},
        "requests": list(upstream.requests),
        "kept": kept,
        "stopped": stopped,
        "row": survivors[0].event(streams["content"].request_id),
    }


def question(name: str) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": name}, {"role": "user", "content": "a secret question"}],
        "stream_options": {"include_usage": True},
        "max_tokens": 100,
    }


def rest_of(to: Gateway, ticket: Ticket, cursor: int) -> Stream:
    with come_back(to, ticket, cursor, timeout=PATIENCE) as stream:
        return stream.read_rest()


def everything_in(redis: RedisServer) -> bytes:
    """All keys and values."""
    found = bytearray()
    with closing(Redis.from_url(redis.url)) as asked:
        for key in asked.keys("*"):
            found += key
            kind = asked.type(key)
            if kind == b"hash":
                found += repr(asked.hgetall(key)).encode()
            elif kind == b"stream":
                found += repr(asked.xrange(key)).encode()
            elif kind == b"list":
                found += b"".join(asked.lrange(key, 0, -1))
            else:
                found += asked.get(key) or b""
    return bytes(found)


def legs2(found: dict[str, Any], name: str) -> list[Request]:
    bodies = [(request, request.json()) for request in found["requests"]]
    return [
        request
        for request, body in bodies
        if body["messages"][0]["content"] == name and body.get("continue_final_message")
    ]


def joined(found: dict[str, Any], name: str) -> Answer:
    """The answer as its client has it; who read all of it later has the same."""
    after = found["after"][name]
    assert (after.status, after.complete) == (200, True)
    assert found["before"][name] + after.body == found["again"][name]
    return answer_of(found["before"][name], after.body)


@pytest.mark.parametrize(
    "name,text",
    [
        ("content", ("think", "some text the rest")),
        ("reasoning", ("thinking", " the rest")),
        ("detached", ("", "some text the rest")),
    ],
)
def test_what_can_be_continued_is(found: dict[str, Any], name: str, text: tuple[str, str]) -> None:
    answer = joined(found, name)
    assert (answer.reasoning, answer.content) == text
    assert (answer.finish_reasons, answer.done, answer.errors, answer.roles) == (["stop"], 1, [], 1)
    assert (answer.ids, answer.created, answer.models) == ({VLLM.id}, {VLLM.created}, {VLLM.model})
    assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + answer.usage["completion_tokens"]
    assert answer.usage["completion_tokens"] > 4
    assert found["states"][name] == "interrupted"
    assert found["then"][name]["state"] == "finished"
    (leg2,) = legs2(found, name)
    assert leg2.json()["max_tokens"] < 100
    assert leg2.json()["messages"][:2] == question(name)["messages"]
    assert leg2.all("Authorization") == ["Bearer of-the-caller"]
    assert found["then"][name]["leg2_from"] == len(blocks(found["again"][name])) - 3


@pytest.mark.parametrize("name,usage", [("finish", None), ("usage", (3, 2))])
def test_an_answer_that_was_complete_gets_its_ending(
    found: dict[str, Any], name: str, usage: tuple[int, int] | None
) -> None:
    answer = joined(found, name)
    assert (answer.content, answer.finish_reasons, answer.done, answer.errors) == (
        "some text",
        ["stop"],
        1,
        [],
    )
    if usage:
        assert (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) == usage
    assert answer.usage["completion_tokens"] > 0
    assert legs2(found, name) == []
    assert found["then"][name]["state"] == "finished"


def test_one_that_had_ended_is_only_replayed(found: dict[str, Any]) -> None:
    answer = joined(found, "ended")
    assert (answer.content, answer.done) == ("some text", 1)
    assert (found["states"]["ended"], found["then"]["ended"]["state"]) == ("finished", "finished")
    stopped = joined(found, "stopped")
    assert [error["code"] for error in stopped.errors] == ["stopped"]
    assert (found["states"]["stopped"], found["then"]["stopped"]["state"]) == ("stopped", "stopped")


def test_one_whose_process_is_gone_can_be_stopped(found: dict[str, Any]) -> None:
    told = found["stopped"]
    assert (told.status, told.json()["state"], told.json()["last_event_id"]) == (200, "stopped", 4)
    answer = joined(found, "stopped later")
    assert (answer.content, [error["code"] for error in answer.errors]) == ("some text", ["stopped"])
    assert legs2(found, "stopped later") == []


def test_the_audit_of_the_process_that_went_on_has_the_row(found: dict[str, Any]) -> None:
    row = found["row"]
    assert (row["failure"], row["decision"], row["outcome"]) == ("disconnect", "continue", "rescued")
    assert json.loads(row["extra"])["taken_over"] is True
    assert (row["reasoning_chars"], row["content_chars"]) == (5, 9)


@pytest.mark.parametrize(
    "name,requests,code",
    [
        ("leg 2", 1, {"disconnect", "leg2_broken"}),
        ("leg 2 awaited", 1, {"disconnect", "leg2_broken"}),
        ("refused", 1, {"disconnect"}),
        ("broken", 1, {"disconnect", "leg2_broken"}),
        ("tool call", 0, {"tool_call_seen", "disconnect"}),
        ("role", 0, {"no_recoverable_content", "disconnect"}),
    ],
)
def test_what_cannot_be_continued_fails_and_says_so(
    found: dict[str, Any], name: str, requests: int, code: set[str]
) -> None:
    """There is never a third leg."""
    answer = joined(found, name)
    assert [error["type"] for error in answer.errors] == ["stream_interrupted"]
    assert answer.errors[0]["code"] in code
    assert (answer.finish_reasons, answer.done) == ([], 0)
    assert len(legs2(found, name)) == requests
    assert found["then"][name]["state"] == "failed"


def test_redis_has_neither_question_nor_answer_nor_key(found: dict[str, Any]) -> None:
    assert found["kept"].count(b":meta") >= len(STATES)
    # In quotes, as in the events: sealed values are long enough to hold a short word by chance, but no quotes.
    for secret in (b"secret question", b'"some"', b'"think"', b"of-the-caller", VLLM.id.encode()):
        assert secret not in found["kept"]


# -- on the token route ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def token_survivor(start: Start) -> Gateway:
    return start(**TOKEN_ROUTE)


TOLD = {
    "in the reasoning": (started(VLLM, [REASONING[:6]]), REASONING[:6]),
    "in the content": (started(VLLM, [REASONING], [CONTENT[:15]]), f"{REASONING}</think>{CONTENT[:15]}"),
    "with carried ids": (with_ids(REASONING[:6]), REASONING[:6]),
}


@pytest.mark.parametrize("place", TOLD)
def test_the_ids_of_the_logs_text_are_continued(
    start: Start, token_survivor: Gateway, upstream: Upstream, place: str
) -> None:
    """Carried ids die with their process, for the log holds what clients get: the text is tokenized then."""
    leg1, told = TOLD[place]
    server = Server([*leg1, HoldOpen()])
    upstream.respond(server)
    victim = start(**TOKEN_ROUTE, STRATEGY_REFRESH_SECONDS="0.1")
    if place == "with carried ids":
        rows_edited(victim, "token_exact = 1")
    asked = {"max_tokens": 500, "stream_options": {"include_usage": True}}
    stream = ask(victim, AUTHORIZATION, PATIENCE, **asked)
    ticket = Ticket.of(stream, AUTHORIZATION)
    read_to(stream, len(leg1))
    kill(victim)
    before = what_came(stream)
    answer = answer_of(before, rest_of(token_survivor, ticket, newest(before)).body)
    assert (answer.reasoning, answer.content) == (REASONING, CONTENT)
    assert (answer.finish_reasons, answer.done, answer.errors, answer.roles) == (["stop"], 1, [], 1)
    assert len(answer.usages) == 1
    generate = server.bodies["/inference/v1/generate"]
    assert generate["token_ids"][-len(tokens(told)) :] == tokens(told)
    assert generate["sampling_params"]["max_tokens"] == 500 - len(tokens(told))
    row = token_survivor.event(stream.request_id)
    assert (row["route"], row["outcome"]) == ("render-generate", "rescued")


# -- not by SIGKILL --------------------------------------------------------------------------------


def test_a_process_that_was_paused_and_lost_its_stream_keeps_quiet(
    start: Start, survivors: list[Gateway], upstream: Upstream
) -> None:
    """Its own client reads on: what the other process writes."""
    upstream.respond(
        lambda request: Reply(LEG2) if b"continue_final" in request.body else Reply(STATES["content"][0])
    )
    slow = start()
    stream = ask(slow, AUTHORIZATION, PATIENCE, **question("content"))
    ticket = Ticket.of(stream, AUTHORIZATION)
    read_to(stream, 4)
    slow.terminate(19)
    taken = rest_of(survivors[0], ticket, 0)
    slow.terminate(18)
    whole = answer_of(taken.body)
    assert (whole.content, whole.done, whole.errors) == ("some text the rest", 1, [])
    assert stream.read_rest().complete
    assert stream.body == taken.body
    assert len(upstream.requests) == 2
    wait_until(lambda: metric(slow, "continuation_generations") == 0)
    assert rest(slow, ticket, 2).body == b"".join(blocks(taken.body)[2:])


def test_what_nobody_comes_back_to_is_let_go_of(
    start: Start, survivors: list[Gateway], upstream: Upstream, redis: RedisServer
) -> None:
    upstream.script(Reply(STATES["content"][0]))
    victim = start(RESUME_TTL_SECONDS="2", RESUME_GRACE_SECONDS="1")
    stream = ask(victim, AUTHORIZATION, **question("content"))
    ticket = Ticket.of(stream, AUTHORIZATION)
    read_to(stream, 4)
    with closing(Redis.from_url(redis.url)) as asked:
        keys = asked.keys(f"continuation:{{{ticket.stream_id}}}*")
        assert len(keys) >= 2
        kill(victim)
        left = [asked.pttl(key) for key in keys]
        assert all(0 < milliseconds <= 60_000 for milliseconds in left), dict(zip(keys, left, strict=True))
    assert len(upstream.requests) == 1
