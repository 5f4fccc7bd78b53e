"""Each broken stream has its row and its line in the log, whatever the database is doing."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.client import Stream, call, one_failed_ending, one_whole_answer
from tests.harness.gateway import Gateway
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import (
    Cut,
    Gate,
    HoldOpen,
    Pause,
    Reply,
    Request,
    Send,
    Upstream,
    event,
    json_reply,
)


def _failing(request: Request) -> Reply:
    """Half of the streams are rescued, the others fail; each says its own number."""
    asked = request.json()
    number = int(asked["messages"][0]["content"])
    if not asked.get("continue_final_message"):
        return Reply(started(VLLM, ["r"], [f"{number} "]))
    if number % 2:
        return json_reply({"error": {"message": f"refused {number}", "code": 400}}, "400 Bad Request")
    return Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2)])


def _thirty(one: Gateway, upstream: Upstream, chat: Chat) -> list[Stream]:
    upstream.respond(_failing)
    asked = [body(max_tokens=100, messages=[{"role": "user", "content": str(n)}]) for n in range(30)]
    with ThreadPoolExecutor(30) as clients:
        streams = list(clients.map(lambda each: chat(one, each).read_rest(), asked))
    for number, stream in enumerate(streams):
        if number % 2:
            one_failed_ending(stream, reasoning="r", content=f"{number} ", code={"eof"})
        else:
            one_whole_answer(stream, reasoning="r", content=f"{number} b", like=VLLM)
    return streams


def _assert_complete(one: Gateway, streams: list[Stream]) -> None:
    for number, stream in enumerate(streams):
        row = one.event(stream.request_id)
        told = (row["outcome"], row["reason"], row["leg2_status"], row["leg2_message"])
        refused = ("failed", "leg2_refused", 400, f"refused {number}")
        assert told == (refused if number % 2 else ("rescued", "", 200, ""))
        assert (row["failure"], row["decision"], row["content_chars"]) == (
            "eof",
            "continue",
            len(f"{number} "),
        )
        assert row["budget_before"] - row["budget_after"] == row["tokens_recovered"] > 0
        assert row["total_seconds"] >= row["leg1_seconds"] >= 0
        assert row["leg2_seconds"] >= 0


def test_thirty_broken_streams_at_once_are_all_recorded(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    _assert_complete(one, _thirty(one, upstream, chat))


@pytest.fixture
def holding() -> Iterator[Callable[[Gateway], threading.Event]]:
    """holding(gateway): another writer holds its database until the event is set."""
    held: list[tuple[threading.Thread, threading.Event]] = []

    def hold(one: Gateway) -> threading.Event:
        connection = sqlite3.connect(one.database, timeout=5, isolation_level=None, check_same_thread=False)
        connection.execute("BEGIN IMMEDIATE")
        release = threading.Event()
        thread = threading.Thread(target=_roll_back, args=(connection, release), daemon=True)
        thread.start()
        held.append((thread, release))
        return release

    yield hold
    for thread, release in held:
        release.set()
        thread.join()


def _roll_back(connection: sqlite3.Connection, when: threading.Event) -> None:
    when.wait(30)
    connection.rollback()
    connection.close()


def test_another_writer_of_the_database_holds_up_no_stream_and_costs_no_row(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, holding: Callable[[Gateway], threading.Event]
) -> None:
    one = gateway()
    release = holding(one)
    begun = time.monotonic()
    streams = _thirty(one, upstream, chat)
    assert call(one.port, "GET", "/health").status == 200
    assert time.monotonic() - begun < 4.0  # the writer waits for longer
    assert _unwritten(one, streams)
    release.set()
    _assert_complete(one, streams)


def _unwritten(one: Gateway, streams: list[Stream]) -> bool:
    return all(one.events(stream.request_id, count=0) == [] for stream in streams)


def _second_choice(text: str) -> Send:
    one = {"index": 1, "delta": {"content": text}, "finish_reason": None}
    return event({"id": VLLM.id, "object": "chat.completion.chunk", "choices": [one]})


ROWS: dict[str, tuple[list[Reply], tuple[str, str]]] = {
    "ending_lost": ([Reply([*started(VLLM, [], ["a"]), VLLM.finish()])], ("complete", "completed")),
    "multiple_choices": ([Reply([*started(VLLM, [], ["a"]), _second_choice("b")])], ("refuse", "failed")),
    "leg2_empty": (
        [Reply(started(VLLM, ["hm"])), Reply([VLLM_LEG2.role(), *ended(VLLM_LEG2)])],
        ("continue", "failed"),
    ),
    "leg2_refused": ([Reply(started(VLLM, ["hm"])), json_reply({}, "503 Away")], ("continue", "failed")),
    "no_recoverable_content": ([Reply([VLLM.role()])], ("refuse", "failed")),
}


@pytest.mark.parametrize("reason", ROWS)
def test_the_reason_is_in_the_row_and_in_the_log(
    plain: Gateway, upstream: Upstream, chat: Chat, reason: str
) -> None:
    replies, (decision, outcome) = ROWS[reason]
    upstream.script(*replies)
    stream = chat(plain, body()).read_rest()
    assert stream.complete
    row = plain.event(stream.request_id)
    assert (row["reason"], row["decision"], row["outcome"]) == (reason, decision, outcome)
    (line,) = (line for line in plain.log.splitlines() if f"request {stream.request_id}: eof " in line)
    assert line.endswith(f": {outcome} {reason}")


def test_a_client_that_left_is_in_the_row_and_in_the_log(
    plain: Gateway, upstream: Upstream, chat: Chat
) -> None:
    upstream.script(Reply([*started(VLLM, [], ["a"]), HoldOpen()]))
    stream = chat(plain, body())
    stream.read_until('"a"')
    stream.drop()
    assert plain.event(stream.request_id)["reason"] == "client_gone"
    assert f"request {stream.request_id}: left by its client" in plain.log


def test_an_answer_that_was_passed_through_and_broke_off_is_in_the_log(
    plain: Gateway, upstream: Upstream, chat: Chat
) -> None:
    gate = Gate()
    upstream.script(Reply([Send(b"part"), Pause(gate), Cut()]))
    stream = chat(plain, body(continue_final_message=True))
    stream.read_until(b"part")
    gate.open()
    assert not stream.read_rest().complete
    assert f"request {stream.request_id}: a passed-through answer broke off: " in plain.log
