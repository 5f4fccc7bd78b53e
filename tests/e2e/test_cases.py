"""Faults that proxies and sites of this kind are known for, and their neighbours, over real sockets."""

import base64
import contextlib
import gzip
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.faults import CUT, EOF, ERROR_EVENT, STALL, Fault
from tests.harness.client import Answer, Stream, call, one_failed_ending, one_whole_answer
from tests.harness.gateway import EVENT_TABLE, Database, Gateway
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import (
    EVENT_STREAM,
    Gate,
    Headers,
    HoldOpen,
    Pause,
    Reply,
    Request,
    Send,
    SendRaw,
    Step,
    Upstream,
    event,
    json_reply,
)

QUICK = {"STALL_IDLE_TIMEOUT_SECONDS": "0.4"}
WHOLE_LEG2 = Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2)])
# What may follow the chunks of a body but is no chunk: the length is no number, or the chunk is longer than it says.
BAD_FRAMING = [b"zzz\r\nno chunk\r\n", b"3\r\nlonger than three\r\n", b"-1\r\n\r\n", b"\r\n\r\n\r\n"]


def broken_off(bad: bytes, *said: Send, gate: Gate) -> Reply:
    """A leg whose framing breaks while its connection stays open."""
    return Reply([*said, Pause(gate), SendRaw(bad), HoldOpen()])


# -- framing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", BAD_FRAMING)
def test_a_leg_1_whose_framing_breaks_is_continued_at_once(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, bad: bytes
) -> None:
    one, gate = gateway(), Gate()
    upstream.script(broken_off(bad, *started(VLLM, [], ["a"]), gate=gate), WHOLE_LEG2)
    stream = chat(one, body())
    stream.read_until('"a"')
    gate.open()
    one_whole_answer(stream.read_rest(), reasoning="", content="ab", like=VLLM)
    assert one.event(stream.request_id)["failure"] == "disconnect"


def test_a_leg_2_whose_framing_breaks_fails_at_once(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one, gate = gateway(), Gate()
    leg2 = broken_off(BAD_FRAMING[0], *started(VLLM_LEG2, [], ["b"]), gate=gate)
    upstream.script(Reply(started(VLLM, [], ["a"])), leg2)
    stream = chat(one, body())
    stream.read_until('"b"')
    gate.open()
    one_failed_ending(stream.read_rest(), content="ab", code={"eof"})
    assert one.event(stream.request_id)["reason"] == "leg2_broken"


def test_a_passed_through_answer_whose_framing_breaks_looks_cut(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    gate = Gate()
    upstream.script(broken_off(BAD_FRAMING[0], Send(b"some"), gate=gate))
    stream = chat(gateway(), body(continue_final_message=True))
    stream.read_until(b"some")
    gate.open()
    assert stream.read_rest().body == b"some"
    assert not stream.complete


@pytest.mark.parametrize("bad", BAD_FRAMING)
def test_framing_that_breaks_after_done_spoils_nothing(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, bad: bytes
) -> None:
    gate = Gate()
    steps: list[Step] = [*started(VLLM, [], ["a"]), Pause(gate), *ended(VLLM)]
    upstream.script(Reply([*steps, SendRaw(bad), HoldOpen()]))
    stream = chat(gateway(), body())
    stream.read_until('"a"')
    gate.open()
    one_whole_answer(stream.read_rest(), reasoning="", content="a", like=VLLM)


@pytest.mark.parametrize("said", [b"no HTTP at all\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\x00" * 100])
def test_a_leg_2_that_is_no_http_fails(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, said: bytes
) -> None:
    one = gateway()
    upstream.script(Reply(started(VLLM, [], ["a"])), Reply(before=[SendRaw(said), HoldOpen()]))
    stream = chat(one, body()).read_rest()
    one_failed_ending(stream, content="a", code={"eof"})
    assert one.event(stream.request_id)["reason"] == "leg2_unreachable"


def test_a_leg_2_that_stays_open_after_done_is_let_go(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway()
    leg2 = Reply([*started(VLLM_LEG2, [], ["b"]), *ended(VLLM_LEG2), HoldOpen()])
    upstream.script(Reply(started(VLLM, [], ["a"])), leg2)
    one_whole_answer(chat(one, body()).read_rest(), reasoning="", content="ab", like=VLLM)
    assert upstream.requests[1].connection.gone.wait(1.0)


# -- headers and encodings ---------------------------------------------------------------------------


def test_headers_of_one_connection_are_not_those_of_the_next(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    steps = [*started(VLLM, [], ["a"]), *ended(VLLM)]
    length = sum(len(step.data) for step in steps)
    hop_by_hop = [("Connection", "keep-alive, X-Theirs"), ("X-Theirs", "1"), ("Keep-Alive", "timeout=5")]
    headers = [*EVENT_STREAM, *hop_by_hop, ("X-End", "1")]
    upstream.script(Reply(steps, headers=headers, framing="length", length=length))
    stream = chat(gateway(), body()).read_rest()
    for name in ("Content-Length", "X-Theirs", "Keep-Alive"):
        assert stream.all(name) == []
    assert "X-Theirs" not in "".join(stream.all("Connection"))
    assert stream.all("X-End") == ["1"]
    one_whole_answer(stream, reasoning="", content="a", like=VLLM)


def test_a_stream_that_is_compressed_all_the_same_is_handed_on_as_it_is(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    steps = [*started(VLLM, [], ["a"]), *ended(VLLM)]
    packed = gzip.compress(b"".join(step.data for step in steps))
    headers = [*EVENT_STREAM, ("Content-Encoding", "gzip")]
    upstream.script(Reply([Send(packed[:40]), Send(packed[40:])], headers=headers))
    stream = chat(gateway(), body(), [("Accept-Encoding", "gzip")]).read_rest()
    assert stream.all("X-Continuation") == ["passthrough; reason=content_encoded"]
    assert (stream.all("Content-Encoding"), stream.body) == (["gzip"], packed)
    assert stream.complete


def test_a_leg_2_that_is_compressed_is_not_read(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    one = gateway()
    packed = gzip.compress(b"".join(step.data for step in WHOLE_LEG2.steps if isinstance(step, Send)))
    headers = [*EVENT_STREAM, ("Content-Encoding", "gzip")]
    upstream.script(Reply(started(VLLM, [], ["a"])), Reply([Send(packed)], headers=headers))
    stream = chat(one, body()).read_rest()
    one_failed_ending(stream, content="a", code={"eof"})
    assert one.event(stream.request_id)["reason"] == "leg2_refused"


def test_an_empty_request_id_is_none(gateway: GatewayFor, upstream: Upstream) -> None:
    upstream.script(json_reply({"ok": True}))
    answer = call(gateway().port, "GET", "/v1/models", [("X-Request-Id", "")])
    assert [bool(value) for value in answer.all("X-Request-Id")] == [True]


def test_a_long_request_id_is_recorded_as_far_as_there_is_room(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one, name = gateway(), "x" * 4000
    before = _rows(one)
    upstream.script(Reply(started(VLLM, [], ["a"])), WHOLE_LEG2)
    stream = chat(one, body(), [("X-Request-Id", name)]).read_rest()
    one_whole_answer(stream, reasoning="", content="ab", like=VLLM)
    _wait_for_rows(one, before + 1)


# -- bodies ------------------------------------------------------------------------------------------


def _with_image(megabytes: float) -> bytes:
    image = base64.b64encode(bytes(int(megabytes * 750_000))).decode()
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    return json.dumps(body(messages=[{"role": "user", "content": [url]}])).encode()


def test_a_chat_with_twelve_megabytes_of_image_goes_through(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    sent = _with_image(12)
    upstream.script(Reply([*started(VLLM, [], ["a"]), *ended(VLLM)]))
    stream = chat(gateway(), sent).read_rest()
    assert stream.all("X-Continuation") == ["passthrough; reason=body_too_large"]
    one_whole_answer(stream, reasoning="", content="a", like=VLLM)
    assert upstream.requests[0].body == sent


def test_a_chat_with_nine_megabytes_of_image_is_continued_with_it(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    sent = _with_image(9)
    upstream.script(Reply(started(VLLM, [], ["a"])), WHOLE_LEG2)
    one_whole_answer(chat(gateway(), sent).read_rest(), reasoning="", content="ab", like=VLLM)
    leg1, leg2 = upstream.requests
    assert leg1.body == sent
    assert leg2.json()["messages"][:-1] == json.loads(sent)["messages"]
    assert leg2.all("Content-Length") == [str(len(leg2.body))]


def test_halves_of_characters_reach_neither_the_database_nor_leg_2(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway(AUDIT_STORE_TEXT="true")
    half = Send(VLLM.content("?").data.replace(b'"?"', rb'"\ud83d"'))
    again = Send(VLLM_LEG2.content("?").data.replace(b'"?"', rb'"\ude00"'))
    asked = json.dumps(body()).replace('"any-name"', r'"any\ud83d"').encode()
    legs = (Reply([*started(VLLM, [], ["a"]), half]), Reply([VLLM_LEG2.role(), again, *ended(VLLM_LEG2)]))
    upstream.script(*legs)
    stream = chat(one, asked).read_rest()
    answer = Answer.of(stream.body)
    assert (answer.done, answer.errors, answer.content) == (1, [], "a\ud83d\ude00")
    assert upstream.requests[1].json()["messages"][-1]["content"] == "a"
    row = one.event(stream.request_id)
    assert (row["outcome"], row["partial_text"]) == ("rescued", "a")


# -- connections -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [CUT, EOF, ERROR_EVENT, STALL], ids=str)
def test_one_connection_is_enough_for_both_legs(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, fault: Fault
) -> None:
    one = gateway(DOWNSTREAM_CONNECTION_LIMIT="1", **QUICK)
    upstream.script(fault.leg(VLLM, started(VLLM, [], ["a"])), WHOLE_LEG2)
    one_whole_answer(chat(one, body()).read_rest(), reasoning="", content="ab", like=VLLM)


def test_those_who_left_while_waiting_for_a_connection_are_not_served(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    """A request beyond the script would be one of theirs."""
    one = gateway(DOWNSTREAM_CONNECTION_LIMIT="1", **QUICK)
    gate = Gate()
    upstream.script(Reply([*started(VLLM, [], ["a"]), Pause(gate), *ended(VLLM)]))
    first = chat(one, body())
    first.read_until('"a"')
    waiting = [chat(one, body()) for _ in range(5)]
    assert call(one.port, "GET", "/health").status == 200  # they have all been accepted
    for stream in waiting:
        stream.drop()
    for stream in waiting:
        assert one.event(stream.request_id)["outcome"] == "client_gone"
    gate.open()
    one_whole_answer(first.read_rest(), reasoning="", content="a", like=VLLM)
    upstream.script(Reply([*started(VLLM, [], ["c"]), *ended(VLLM)]))
    one_whole_answer(chat(one, body()).read_rest(), reasoning="", content="c", like=VLLM)


BUSY: list[Step] = [step for n in range(3000) for step in (Pause(0.01), VLLM.content(f"{n} "))]
LEFT: list[tuple[str, Reply, Headers]] = [
    ("tokens flow", Reply([VLLM.role(), *BUSY]), ()),
    ("silence", Reply([HoldOpen()]), ()),
    ("no headers", Reply(before=[HoldOpen()]), ()),
    ("passed through", Reply([VLLM.role(), *BUSY]), [("X-Continuation", "off")]),
    ("passed through, no headers", Reply(before=[HoldOpen()]), [("X-Continuation", "off")]),
]


def _leave(one: Gateway, upstream: Upstream, chat: Chat, number: int, asked: bytes) -> None:
    name, reply, headers = LEFT[number % len(LEFT)]
    upstream.script(reply)
    stream = chat(one, asked, headers)
    (request,) = upstream.wait_for_requests(1)
    if "headers" not in name and "silence" not in name:
        stream.read_until(b"assistant")
    stream.drop()
    request.connection.wait_closed_by_peer()


def test_a_hundred_clients_leave_and_their_files_are_closed(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    """Every fourth one sent a body that Django keeps in a file."""
    one = gateway()
    small, large = json.dumps(body()).encode(), json.dumps(body(filler="x" * 3_000_000)).encode()
    for number in range(len(LEFT)):
        _leave(one, upstream, chat, number, large)
    before = _settled_files(one, 0)
    for number in range(100):
        _leave(one, upstream, chat, number, small if number % 4 else large)
    after = _settled_files(one, len(before))
    assert len(after) <= len(before), sorted(set(after) - set(before))
    assert not [name for name in after if "deleted" in name]
    assert len([name for name in after if name.endswith(".sqlite3")]) <= 1


def _settled_files(one: Gateway, most: int) -> list[str]:
    """The open files once they are no more than `most`, or after a second in which the audit rests too."""
    until = time.monotonic() + 1.5
    while len(files := one.open_files()) > most and time.monotonic() < until:
        time.sleep(0.05)
    return files


def test_a_silent_stream_does_not_hold_up_a_shutdown(
    upstream: Upstream, tmp_path: Path, migrated: Database
) -> None:
    settings = {"DOWNSTREAM_URL": upstream.url, "CONTINUATION_MODEL": "house-model"}
    one = Gateway(settings, migrated, tmp_path)
    upstream.respond(
        lambda request: Reply([HoldOpen()]) if b"headers" in request.body else Reply(before=[HoldOpen()])
    )
    asked = [
        json.dumps(body(messages=[{"role": "user", "content": what}])).encode()
        for what in ("headers", "nothing")
    ]
    with contextlib.ExitStack() as clients:
        for each in asked:
            clients.enter_context(Stream(one.port, "POST", "/v1/chat/completions", (), each))
        requests = upstream.wait_for_requests(2)
        begun = time.monotonic()
        assert one.stop() == 0
        assert time.monotonic() - begun < 5.0
        for request in requests:
            request.connection.wait_closed_by_peer()


# -- the audit ---------------------------------------------------------------------------------------


def _rows(one: Gateway) -> int:
    connection = sqlite3.connect(f"file:{one.database}?mode=ro", uri=True, timeout=5)
    try:
        (count,) = connection.execute(f"SELECT count(*) FROM {EVENT_TABLE}").fetchone()
        return int(count)
    finally:
        connection.close()


def _wait_for_rows(one: Gateway, count: int) -> None:
    until = time.monotonic() + 5.0
    while _rows(one) < count:
        assert time.monotonic() < until, f"{_rows(one)} audit rows, {count} were expected"
        time.sleep(0.02)


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


# -- what is said in a stream ------------------------------------------------------------------------


def test_the_first_token_does_not_wait_for_the_second(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    """Neither planned nor passed through, nor where the client asks for compression."""
    one = gateway()
    for headers in ((), [("X-Continuation", "off")], [("Accept-Encoding", "gzip")]):
        gate = Gate()
        upstream.script(Reply([*started(VLLM, [], ["a"]), Pause(gate), *ended(VLLM)]))
        begun = time.monotonic()
        stream = chat(one, body(), headers)
        stream.read_until('"a"')
        assert time.monotonic() - begun < 1.0
        assert stream.all("Content-Encoding") == []
        gate.open()
        one_whole_answer(stream.read_rest(), reasoning="", content="a", like=VLLM)


@pytest.mark.parametrize("code", ["²", "9" * 5000])
def test_an_error_with_an_odd_code_is_continued(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, code: Any
) -> None:
    error = event({"error": {"message": "m", "code": code}})
    upstream.script(Reply([*started(VLLM, [], ["a"]), error]), WHOLE_LEG2)
    one_whole_answer(chat(gateway(), body()).read_rest(), reasoning="", content="ab", like=VLLM)


def test_a_client_that_opted_out_gets_the_engines_own_error_from_one_request(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    error = event({"error": {"message": "EngineCore encountered an issue.", "code": 500}})
    steps = [*started(VLLM, [], ["a"]), error, event("[DONE]")]
    upstream.script(Reply(steps))
    stream = chat(gateway(), body(), [("X-Continuation", "off")]).read_rest()
    assert stream.body == b"".join(step.data for step in steps)
    assert len(upstream.requests) == 1
