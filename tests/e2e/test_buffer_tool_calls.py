"""Tool calls held until they are whole, over sockets."""

import json
import time
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.asking import asking_usage, body, estimate
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.faults import FAULTS, STALL, Fault
from tests.harness.client import one_failed_ending, one_whole_answer
from tests.harness.shapes import (
    SGLANG,
    SGLANG_LEG2,
    VLLM,
    VLLM_LEG2,
    Sglang,
    Vllm,
    ended,
    joined,
    started,
)
from tests.harness.upstream import DONE, Cut, Gate, Pause, Reply, Send, Upstream

HELD = {"BUFFER_TOOL_CALLS": "true"}
QUICK = {**HELD, "STALL_IDLE_TIMEOUT_SECONDS": "0.4"}
ENGINES = [(VLLM, VLLM_LEG2), (SGLANG, SGLANG_LEG2)]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
SAID = "Let me look."


def call(engine: Vllm | Sglang, id: str = "call-1", *parts: str) -> list[Send]:
    pieces = parts or ('{"ci', 'ty": "Paris"}')
    return [engine.tool(0, "get_weather", id), *(engine.tool(0, arguments=part) for part in pieces)]


def held_of(row: dict[str, Any], leg: str) -> str:
    told: str = json.loads(row["extra"])[f"held_{leg}"]
    return told


def test_nothing_of_a_call_is_delivered_before_its_finish_and_then_all_as_it_came(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    gate = Gate()
    before, calls = started(VLLM, ["hm"], [SAID]), [*call(VLLM), Send(b": ping\n\n")]
    steps = [*before, *calls, Pause(gate), *ended(VLLM, "tool_calls", (20, 30, 1))]
    upstream.script(Reply(steps))
    stream = chat(gateway(**HELD), asking_usage(tools=TOOLS))
    gate.wait_reached()
    stream.read_until(before[-1].data)
    time.sleep(0.3)  # what is not to come has had its time
    assert stream.body == joined(before)
    gate.open()
    assert stream.read_rest().body == joined(step for step in steps if isinstance(step, Send))


# Two ends are told apart: [DONE] releases what is held, and what a stall says meanwhile is held as well.
BREAKS = [fault for fault in FAULTS if not fault.name.startswith(("done-", "finish-of-"))]


@pytest.mark.parametrize("fault", BREAKS, ids=str)
@pytest.mark.parametrize("engines", ENGINES, ids=["vllm", "sglang"])
def test_broken_in_a_held_call_the_answer_goes_on_from_before_it(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, fault: Fault, engines: tuple[Any, Any]
) -> None:
    one, gate = gateway(**QUICK) if fault.stalls else gateway(**HELD), Gate()
    first, second = engines
    before = started(first, ["hm"], [SAID])
    upstream.script(
        fault.leg(first, [*before, *call(first, "call-1", '{"ci')], gate),
        Reply([second.role(), *call(second, "call-2"), *ended(second, "tool_calls", (67, 20, 0))]),
    )
    stream = chat(one, asking_usage(tools=TOOLS, max_tokens=100))
    gate.wait_reached()
    stream.read_until(before[-1].data)
    gate.open()
    stream.read_rest()
    answer = one_whole_answer(
        stream, reasoning="hm", content=SAID, like=first, finish="tool_calls", usage=True
    )
    calls = [delta.get("id") for delta in answer.tool_deltas if delta.get("id")]
    assert calls == ["call-2"]
    assert "".join(delta["function"].get("arguments") or "" for delta in answer.tool_deltas) == (
        '{"city": "Paris"}'
    )
    shown = estimate("hm") + estimate(SAID)
    assert answer.usage["completion_tokens"] == shown + 20
    asked = upstream.requests[1].json()
    assert asked["messages"][-1]["content"] == f"<think>hm</think>{SAID}"
    assert asked["max_tokens"] == 100 - shown
    row = one.event(stream.request_id)
    assert (row["case"], row["outcome"], row["content_chars"]) == ("content-done", "rescued", len(SAID))
    assert row["failure"] in fault.failures
    assert "dropped" in held_of(row, "leg1")
    assert "released" in held_of(row, "leg2")


@pytest.mark.parametrize("fault", [f for f in BREAKS if not f.stalls][:4], ids=str)
def test_with_nothing_before_it_a_held_call_is_released_and_the_stream_fails(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, fault: Fault
) -> None:
    one = gateway(**HELD)
    steps = [VLLM.role(), *call(VLLM)]
    gate = Gate()
    upstream.script(fault.leg(VLLM, steps, gate))
    stream = chat(one, body(tools=TOOLS))
    stream.read_until(steps[0].data)
    gate.wait_reached()
    time.sleep(0.2)  # a reset must not overtake what was said
    gate.open()
    answer = one_failed_ending(stream.read_rest())
    assert stream.body.startswith(joined(steps))
    assert len(answer.tool_deltas) == 3
    row = one.event(stream.request_id)
    assert (row["outcome"], row["reason"]) == ("failed", "no_recoverable_content")
    assert "released" in held_of(row, "leg1")


def test_done_without_a_finish_releases_a_held_call_and_the_stream_fails(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    steps = [*started(VLLM, [], [SAID]), *call(VLLM)]
    upstream.script(Reply([*steps, DONE]))
    stream = chat(gateway(**HELD), body(tools=TOOLS)).read_rest()
    assert stream.body.startswith(joined(steps))
    one_failed_ending(stream, content=SAID, code={"tool_call_seen"})


def test_a_call_that_leg_2_leaves_unfinished_is_not_delivered(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one, gate = gateway(**HELD), Gate()
    before = started(VLLM, [], [SAID])
    upstream.script(
        Reply([*before, *call(VLLM), Pause(gate), Cut()]),
        Reply([VLLM_LEG2.role(), VLLM_LEG2.content(" Now:"), *call(VLLM_LEG2, "call-2", '{"ci')]),
    )
    stream = chat(one, body(tools=TOOLS))
    stream.read_until(before[-1].data)
    gate.open()
    answer = one_failed_ending(stream.read_rest(), content=f"{SAID} Now:", code={"disconnect"})
    assert answer.tool_deltas == []
    row = one.event(stream.request_id)
    assert (row["outcome"], row["reason"]) == ("failed", "leg2_broken")
    assert "dropped" in held_of(row, "leg1")
    assert "dropped" in held_of(row, "leg2")


def test_more_than_the_limit_is_released_and_from_then_on_delivered_as_it_comes(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    gates = [Gate(), Gate()]
    small, large = call(VLLM, "call-1", "x" * 100), VLLM.tool(0, arguments="y" * 2000)
    upstream.script(
        Reply(
            [
                *started(VLLM, [], [SAID]),
                *small,
                Pause(gates[0]),
                large,
                Pause(gates[1]),
                *call(VLLM, "call-2"),
                *ended(VLLM, "tool_calls"),
            ]
        )
    )
    stream = chat(gateway(**HELD, BUFFER_TOOL_CALLS_MAX_BYTES="2000"), body(tools=TOOLS))
    stream.read_until(SAID)
    assert b"tool_calls" not in stream.body
    gates[0].open()
    stream.read_until(large.data)
    assert joined([*small, large]) in stream.body
    gates[1].open()
    answer = one_whole_answer(stream.read_rest(), reasoning="", content=SAID, like=VLLM, finish="tool_calls")
    assert len(answer.tool_deltas) == 6


def test_comments_of_the_gateway_come_while_a_call_is_held(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    gate = Gate()
    upstream.script(Reply([*started(VLLM, [], [SAID]), *call(VLLM), Pause(gate), *ended(VLLM, "tool_calls")]))
    stream = chat(gateway(**HELD, KEEPALIVE_SECONDS="0.1"), body(tools=TOOLS))
    stream.read_until(b": keepalive\n")
    assert b"tool_calls" not in stream.body
    gate.open()
    one_whole_answer(stream.read_rest(), reasoning="", content=SAID, like=VLLM, finish="tool_calls")


def test_silence_in_a_held_call_is_waited_out_where_nothing_else_was_said(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    upstream.script(Reply([VLLM.role(), *call(VLLM), Pause(1.2), *ended(VLLM, "tool_calls")]))
    stream = chat(gateway(**QUICK), body(tools=TOOLS)).read_rest()
    one_whole_answer(stream, reasoning="", content="", like=VLLM, finish="tool_calls")
    assert len(upstream.requests) == 1


def test_openai_reads_one_whole_call_of_an_answer_that_stalled_in_one(
    gateway: GatewayFor, upstream: Upstream
) -> None:
    one = gateway(**QUICK)
    upstream.script(
        STALL.leg(VLLM, [*started(VLLM, [], [SAID]), *call(VLLM, "call-1", '{"ci')]),
        Reply([VLLM_LEG2.role(), *call(VLLM_LEG2, "call-2"), *ended(VLLM_LEG2, "tool_calls")]),
    )
    with OpenAI(base_url=f"http://127.0.0.1:{one.port}/v1", api_key="k", max_retries=0) as client:
        chunks = list(client.chat.completions.create(**body(tools=TOOLS)))
    calls = [made for chunk in chunks for choice in chunk.choices for made in choice.delta.tool_calls or []]
    assert [made.id for made in calls if made.id] == ["call-2"]
    told = "".join(made.function.arguments or "" for made in calls if made.function)
    assert json.loads(told) == {"city": "Paris"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
