"""The simulator over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from continuation.testbed.simulator import Config, Simulator
from continuation.testbed.simulator.faults import KINDS
from tests.continuation.testbed.simulator.helpers import (
    Raw,
    ask,
    call,
    chat,
    connected,
    continued_ask,
    engine,
    events,
    exchange,
    read_to_the_end,
    request_bytes,
    told,
)

SOON = 0.25  # seconds of silence that show that nothing more comes


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator(Config(scale=0.5)) as running:
        yield running
    assert running.open_streams == 0
    assert running.open_connections == 0


@pytest.fixture
async def sglang() -> AsyncIterator[Simulator]:
    async with Simulator(Config(engine="sglang", scale=0.5)) as running:
        yield running


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for is the server's state, which no event tells
            await asyncio.sleep(0.005)


async def test_a_stream_comes_whole_and_the_connection_is_used_again(simulator: Simulator) -> None:
    async with connected(simulator.url) as (reader, writer):
        for _ in range(2):
            writer.write(request_bytes("/v1/chat/completions", ask()))
            raw = await read_to_the_end(reader, 5, until=b"0\r\n\r\n")
            assert raw.status == 200
            assert "content-type: text/event-stream; charset=utf-8" in raw.head
            assert raw.blocks[-1] == "data: [DONE]\n\n"
            assert told(raw.blocks[:-1]) == told(events(engine(scale=0.5)))
    assert len(simulator.requests) == 2


async def test_every_event_is_a_chunk_of_its_own(simulator: Simulator) -> None:
    raw = await chat(simulator.url)
    assert raw.wire.count(b"\n\n\r\n") == len(raw.blocks)


async def test_requests_may_come_in_pieces_in_chunks_and_in_a_row(simulator: Simulator) -> None:
    plain = request_bytes("/v1/chat/completions", ask())
    head, _, body = plain.partition(b"\r\n\r\n")
    head = head.replace(b"content-length: %d" % len(body), b"transfer-encoding: chunked")
    half = len(body) // 2
    pieces = b"".join(b"%x;x=y\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]))
    async with connected(simulator.url) as (reader, writer):
        for byte in (head + b"\r\n\r\n" + pieces + b"0\r\ntrailer: 1\r\n\r\n")[:-1]:
            writer.write(bytes([byte]))
        writer.write(b"\n" + request_bytes("/health", method="GET"))
        raw = await read_to_the_end(reader, 5, until=b"content-length: 0\r\n\r\n")
    assert b"[DONE]" in raw.data
    assert b"HTTP/1.1 200 OK\r\n" in raw.data.partition(b"[DONE]")[2]


async def test_an_old_client_gets_a_body_that_ends_with_the_connection(simulator: Simulator) -> None:
    raw = await exchange(
        simulator.url,
        request_bytes("/v1/chat/completions", ask()).replace(b"HTTP/1.1", b"HTTP/1.0"),
        until=None,
    )
    assert raw.end == "eof"
    assert "transfer-encoding" not in raw.head
    assert raw.wire.endswith(b"data: [DONE]\n\n")


async def test_a_client_that_expects_100_is_told_to_go_on(simulator: Simulator) -> None:
    async with connected(simulator.url) as (reader, writer):
        head, _, body = request_bytes("/v1/chat/completions", ask(), expect="100-continue").partition(
            b"\r\n\r\n"
        )
        writer.write(head + b"\r\n\r\n")
        assert await reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await read_to_the_end(reader, 5, until=b"0\r\n\r\n")).status == 200


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: ten\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 999999999999\r\n\r\n", 413),
        (b"GET /" + b"x" * 70000, 431),
    ],
)
async def test_what_is_no_http_is_refused_and_the_connection_closed(
    simulator: Simulator, raw: bytes, status: int
) -> None:
    answer = await exchange(simulator.url, raw, until=None)
    assert answer.status == status
    assert answer.end in ("eof", "reset")


async def test_the_engine_s_other_endpoints_answer(simulator: Simulator, sglang: Simulator) -> None:
    assert await call(simulator.url, "/health") == (200, None)
    assert (await call(simulator.url, "/version"))[1] == {"version": "0.32.0"}
    assert (await call(simulator.url, "/v1/models"))[1]["data"][0]["id"] == "simulated-model"
    assert await call(simulator.url, "/nowhere") == (404, {"detail": "Not Found"})
    assert await call(simulator.url, "/v1/tokenize", {}, "POST") == (404, {"detail": "Not Found"})
    assert await call(simulator.url, "/v1/chat/completions") == (405, {"detail": "Method Not Allowed"})
    assert (await call(simulator.url, "/tokenize", {"prompt": "a b"}, "POST"))[1]["count"] == 2
    assert (await call(simulator.url, "/inference/v1/generate", {}, "POST"))[0] == 403
    assert (await call(simulator.url, "/v1/chat/completions", {"model": "x", "messages": []}, "POST"))[
        0
    ] == 404
    assert (await call(sglang.url, "/server_info"))[1]["version"] == "0.5.23"
    assert (await call(sglang.url, "/version"))[0] == 404
    assert (await chat(sglang.url, ask(model="any name"))).status == 200


# -- faults ----------------------------------------------------------------------------------------


async def struck(simulator: Simulator, fault: str, **fields: Any) -> Raw:
    body = ask(stream_options={"include_usage": True}, **fields)
    waits = fault.startswith(("half", "stall", "hold"))
    return await chat(
        simulator.url, body, fault, patience=SOON if waits else 5.0, until=None if waits else b"0\r\n\r\n"
    )


def finished(raw: Raw) -> bool:
    return '"finish_reason":"stop"' in raw.body.decode("utf-8", "replace")


async def test_a_reset_is_a_reset_after_all_that_was_sent(simulator: Simulator) -> None:
    raw = await struck(simulator, "reset; after=12")
    assert raw.end == "reset"
    assert len(raw.blocks) == 12


async def test_a_disconnect_lacks_the_closing_chunk(simulator: Simulator) -> None:
    raw = await struck(simulator, "disconnect; after=12")
    assert raw.end == "eof"
    assert len(raw.blocks) == 12
    assert not raw.closed_cleanly


async def test_a_half_closed_connection_can_still_be_written_to(simulator: Simulator) -> None:
    async with connected(simulator.url) as (reader, writer):
        writer.write(request_bytes("/v1/chat/completions", ask(), X_Simulate_Fault="half_closed; after=3"))
        raw = await read_to_the_end(reader, 5)
        assert raw.end == "eof"
        assert len(raw.blocks) == 3
        for _ in range(3):  # no RST comes back
            writer.write(b"still there?")
            await writer.drain()
            await asyncio.sleep(0.02)
        assert simulator.open_streams == 1
    await until(lambda: simulator.open_streams == 0)


async def test_a_clean_end_without_finish(simulator: Simulator) -> None:
    raw = await struck(simulator, "eof")
    assert raw.closed_cleanly
    assert len(raw.blocks) == 12
    assert not finished(raw)
    raw = await struck(simulator, "done_without_finish")
    assert raw.closed_cleanly
    assert raw.blocks[-1] == "data: [DONE]\n\n"
    assert not finished(raw)


async def test_an_event_cut_in_the_middle(simulator: Simulator) -> None:
    raw = await struck(simulator, "cut_inside_event; after=4")
    assert raw.end == "eof"
    assert raw.body.count(b"\n\n") == 4
    assert raw.body.rpartition(b"\n\n")[2].startswith(b'data: {"id"')


async def test_a_character_cut_in_the_middle(simulator: Simulator) -> None:
    raw = await struck(simulator, "cut_inside_character; after=4")
    assert raw.end == "eof"
    with pytest.raises(UnicodeDecodeError, match="unexpected end of data"):
        raw.body.decode()


async def test_a_stall_is_silence_on_an_open_connection(simulator: Simulator) -> None:
    raw = await struck(simulator, "stall; after=5")
    assert raw.end == "open"
    assert len(raw.blocks) == 5
    await until(lambda: simulator.open_streams == 0)


async def test_a_stall_that_ends_loses_nothing(simulator: Simulator) -> None:
    raw = await chat(simulator.url, ask(), "stall; after=5; for=0.1")
    assert told(raw.blocks[:-1]) == told(events(engine(scale=0.5)))


async def test_pings_come_during_a_stall(simulator: Simulator) -> None:
    async with connected(simulator.url) as (reader, writer):
        writer.write(
            request_bytes(
                "/v1/chat/completions", ask(), X_Simulate_Fault="stall_with_pings; after=2; every=0.02"
            )
        )
        raw = await read_to_the_end(reader, 5, until=b": ping\n\n\r\n8\r\n: ping\n\n")
    assert raw.blocks[2] == ": ping\n\n"
    await until(lambda: simulator.open_streams == 0)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("error_event", '"EngineCore encountered an issue.'),
        ("error_event_named", "event: error\n"),
        ("client_error_event", '"code": 400'),
        ("aborted", '"finish_reason":"abort"'),
        ("malformed", '"logprobs":null,\n\n'),
    ],
)
async def test_failures_told_in_the_stream(simulator: Simulator, fault: str, expected: str) -> None:
    raw = await struck(simulator, fault)
    assert raw.closed_cleanly
    assert expected in raw.body.decode()
    assert raw.blocks[-1] == "data: [DONE]\n\n"
    assert finished(raw) is (fault == "malformed")


async def test_refusals_have_the_status_asked_for_and_the_engine_s_shape(
    simulator: Simulator, sglang: Simulator
) -> None:
    for status in (400, 429, 500, 503, 599):
        code, body = await call(
            simulator.url, "/v1/chat/completions", ask(), "POST", X_Simulate_Fault=f"refuse; status={status}"
        )
        assert (code, body["error"]["code"]) == (status, status)
    code, body = await call(sglang.url, "/v1/chat/completions", ask(), "POST", X_Simulate_Fault="refuse")
    assert (code, body["code"], body["object"]) == (503, 503, "error")


async def test_a_truncated_body_is_shorter_than_its_length(simulator: Simulator) -> None:
    raw = await struck(simulator, "truncated; after=6")
    length = int(raw.head.partition("content-length: ")[2].split("\r\n")[0])
    assert raw.end == "eof"
    assert 0 < len(raw.wire) < length
    assert len(raw.blocks) == 6
    raw = await struck(simulator, "truncated; form=no_done")
    assert raw.closed_cleanly
    assert finished(raw)
    assert "[DONE]" not in raw.body.decode()


async def test_an_empty_answer_is_200_and_nothing(simulator: Simulator) -> None:
    raw = await struck(simulator, "empty")
    assert (raw.status, raw.wire) == (200, b"0\r\n\r\n")


async def test_a_slow_first_token_lets_the_headers_through_or_not(simulator: Simulator) -> None:
    for before, has_head in (("event", True), ("headers", False)):
        fault = f"slow_first_token; delay=60; before={before}"
        raw = await chat(simulator.url, ask(), fault, patience=SOON, until=None)
        assert raw.end == "open"
        assert bool(raw.data) is has_head
        assert raw.wire == b""
    raw = await struck(simulator, "slow_first_token; delay=0.05")
    assert finished(raw)


async def test_usage_can_be_left_out(simulator: Simulator) -> None:
    raw = await struck(simulator, "no_usage")
    assert finished(raw)
    assert '"usage"' not in raw.body.decode()


async def test_the_ending_can_be_lost(simulator: Simulator) -> None:
    raw = await struck(simulator, "ending_lost")
    assert raw.end == "eof"
    assert finished(raw)
    assert '"finish_reason":"stop"' in raw.blocks[-1]


async def test_a_connection_can_stay_open_after_done(simulator: Simulator) -> None:
    raw = await struck(simulator, "hold_open")
    assert raw.end == "open"
    assert raw.blocks[-1] == "data: [DONE]\n\n"
    await until(lambda: simulator.open_streams == 0)


async def test_a_continuation_can_start_over(simulator: Simulator) -> None:
    whole = told((await chat(simulator.url)).blocks[:-1])
    body = continued_ask(whole.reasoning, whole.content[:20])
    again = told((await chat(simulator.url, body, "restart")).blocks[:-1])
    assert again == whole
    rest = told((await chat(simulator.url, body)).blocks[:-1])
    assert (rest.reasoning, whole.content[:20] + rest.content) == ("", whole.content)


async def test_a_header_fault_strikes_its_leg_only(simulator: Simulator) -> None:
    leg2 = continued_ask("R\n", "C")
    assert (await chat(simulator.url, leg2, "refuse")).status == 200
    assert (await chat(simulator.url, leg2, "refuse; leg=2")).status == 503
    assert (await chat(simulator.url, ask(), "refuse; leg=2")).status == 200
    assert (await chat(simulator.url, ask(), "refuse; leg=any")).status == 503
    assert [recorded.leg for recorded in simulator.requests] == [2, 2, 1, 1]
    assert [recorded.fault for recorded in simulator.requests] == [None, "refuse", None, "refuse"]


async def test_a_fault_nobody_knows_is_refused_by_name(simulator: Simulator) -> None:
    code, body = await call(simulator.url, "/v1/chat/completions", ask(), "POST", X_Simulate_Fault="explode")
    assert code == 400
    assert all(name in body["error"]["message"] for name in KINDS)


async def test_faults_are_armed_listed_used_up_and_cleared(simulator: Simulator) -> None:
    arm = {"fault": "refuse", "status": 500, "times": 2}
    code, body = await call(simulator.url, "/simulator/faults", arm, "POST")
    assert (code, body["armed"]) == (201, [{"fault": "refuse", "leg": "1", "status": 500, "times": 2}])
    assert [(await chat(simulator.url)).status for _ in range(3)] == [500, 500, 200]
    await call(simulator.url, "/simulator/faults", {"fault": "refuse", "leg": 2, "times": "always"}, "POST")
    assert (await chat(simulator.url)).status == 200
    assert [(await chat(simulator.url, continued_ask("R", "C"))).status for _ in range(3)] == [503] * 3
    assert (await call(simulator.url, "/simulator/faults"))[1]["armed"][0]["times"] == "always"
    assert (await call(simulator.url, "/simulator/faults", method="DELETE"))[1] == {"cleared": 1}
    assert (await chat(simulator.url, continued_ask("R", "C"))).status == 200
    simulator.arm("refuse; status=418")
    assert (await chat(simulator.url)).status == 418


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"fault": "explode"}', b"[" * 100_000])
async def test_bad_arms_are_refused(simulator: Simulator, body: bytes) -> None:
    code, answer = await call(simulator.url, "/simulator/faults", body, "POST")
    assert code == 400
    assert answer["error"]["message"]
    assert simulator.armed == []


async def test_requests_are_kept_with_bodies_and_headers(simulator: Simulator) -> None:
    await call(simulator.url, "/v1/chat/completions?x=1", b"no json \xff", "POST", X_Mine="yes")
    await call(simulator.url, "/v1/chat/completions", ask(stream=False), "POST")
    rows = (await call(simulator.url, "/simulator/requests"))[1]["requests"]
    assert [row["status"] for row in rows] == [400, 200]
    assert (rows[0]["path"], rows[0]["headers"]["x-mine"]) == ("/v1/chat/completions?x=1", "yes")
    assert rows[0]["body"].startswith("no json")
    assert rows[1]["body"] == ask(stream=False)
    assert (await call(simulator.url, "/simulator/requests", method="DELETE"))[1] == {"cleared": 2}
    assert not simulator.requests


async def test_the_kept_requests_are_bounded(simulator: Simulator) -> None:
    await call(simulator.url, "/v1/chat/completions", b" " * 2_000_000, "POST")
    assert (simulator.requests[0].body, simulator.requests[0].body_bytes) == (None, 2_000_000)
    async with connected(simulator.url) as (_reader, writer):
        for _ in range(250):
            writer.write(request_bytes("/health", method="GET"))
        await until(lambda: simulator.total_requests == 251)
    assert len(simulator.requests) == 200


async def test_the_state_counts_connections_and_streams(simulator: Simulator) -> None:
    async with connected(simulator.url) as (reader, writer):
        writer.write(request_bytes("/v1/chat/completions", ask(), X_Simulate_Fault="stall; after=1"))
        await read_to_the_end(reader, 5, until=b"\n\n\r\n")
        state = (await call(simulator.url, "/simulator/state"))[1]
        assert (state["open_connections"], state["open_streams"]) == (1, 1)
    await until(lambda: simulator.open_streams == 0)
    assert (await call(simulator.url, "/simulator/state"))[1]["open_connections"] == 0


async def test_an_unknown_control_path_names_the_known_ones(simulator: Simulator) -> None:
    code, body = await call(simulator.url, "/simulator/else")
    assert code == 404
    assert "/simulator/faults" in body["error"]["message"]


async def test_a_client_that_does_not_read_holds_the_model_back() -> None:
    async with Simulator(Config(scale=400)) as running, connected(running.url) as (reader, writer):
        writer.write(request_bytes("/v1/chat/completions", ask()))
        await reader.readexactly(100)
        (connection,) = running._connections
        await until(lambda: connection.transport.get_write_buffer_size() > 0)
        await asyncio.sleep(0.1)
        assert connection.transport.get_write_buffer_size() < 200_000
        assert running.open_streams == 1


async def test_tokens_take_their_time() -> None:
    async with Simulator(Config(token_delay_ms=5)) as running:
        before = asyncio.get_running_loop().time()
        await chat(running.url, ask(max_tokens=20))
        assert asyncio.get_running_loop().time() - before >= 19 * 0.005


async def test_stopping_cuts_what_is_open_and_leaves_no_task_behind() -> None:
    running = Simulator(Config())
    await running.start()
    async with connected(running.url) as (reader, writer):
        writer.write(request_bytes("/v1/chat/completions", ask(), X_Simulate_Fault="stall; after=1"))
        await read_to_the_end(reader, 5, until=b"\n\n\r\n")
        await running.stop()
        assert (await read_to_the_end(reader, 5)).end in ("eof", "reset")
    assert running.open_streams == 0
    assert [task for task in asyncio.all_tasks() if task.get_name() == "simulator connection"] == []
    await running.stop()


async def test_many_streams_at_once_get_their_own_answers(simulator: Simulator) -> None:
    raws = await asyncio.gather(*(chat(simulator.url, ask(f"Question {number}")) for number in range(60)))
    texts = {told(raw.blocks[:-1]).content for raw in raws}
    assert len(texts) == 60


async def test_an_answer_told_at_once_can_fail_too(simulator: Simulator) -> None:
    plain = ask(stream=False)
    assert (await call(simulator.url, "/v1/chat/completions", plain, "POST"))[1]["choices"][0]["message"][
        "content"
    ]
    raw = await chat(simulator.url, plain, "disconnect", until=None)
    assert (raw.end, raw.data) == ("eof", b"")
    raw = await chat(simulator.url, plain, "reset", until=None)
    assert (raw.end, raw.data) == ("reset", b"")
    assert (await chat(simulator.url, plain, "stall", patience=SOON, until=None)).end == "open"


async def test_a_body_of_json_escapes_and_lone_surrogates_does_no_harm(simulator: Simulator) -> None:
    code, body = await call(
        simulator.url,
        "/v1/chat/completions",
        json.dumps(
            {"messages": [{"role": "assistant", "content": "\ud83d<think>x</think>"}]} | FLAGS
        ).encode(),
        "POST",
    )
    assert code == 400
    assert "does not appear in the chat" in body["error"]["message"]


FLAGS = {"continue_final_message": True, "add_generation_prompt": False}
