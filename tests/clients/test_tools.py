"""Tool calls: whole ones are called, and no half of one ever is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from continuation.testbed.simulator import Simulator
from tests.clients.asking import CALLING, has_han, legs, patience, question, weather
from tests.clients.conftest import Ask, GatewayFor, SimulatorFor
from tests.clients.driving import Client, Reading
from tests.harness.gateway import Gateway

pytestmark = pytest.mark.clients

BUFFERED = {"BUFFER_TOOL_CALLS": "true"}
SETTINGS: dict[str, dict[str, str]] = {"unbuffered": {}, "buffered": BUFFERED}


def calling(client: Client) -> dict[str, Any]:
    strict = client.driver == "openai_python.py" and client.is_helper
    return question(CALLING, tools=[weather(strict)])


def two_calls(reading: Reading) -> None:
    """A remark, then two whole calls, as the engine itself would have made them."""
    assert reading.error is None
    choice = reading.choice
    assert choice.finish == ("tool_calls",)
    assert [name for name, _arguments in choice.tools] == ["get_weather", "get_weather"]
    assert all(set(json.loads(arguments)) == {"city", "days"} for _name, arguments in choice.tools)
    assert choice.content.strip()
    assert has_han(choice.content + json.dumps(choice.tools, ensure_ascii=False))
    called = [[name, json.loads(arguments)] for name, arguments in choice.tools]
    assert reading.extra.get("called", called) == called


def reads_whole(client: Client, behind: Simulator, one: Gateway, fault: str, ask: Ask) -> None:
    """Through the gateway, as from the engine when nothing breaks."""
    direct = ask(client, behind.url, calling(client))
    behind.requests.clear()
    rescued = ask(client, one.url, calling(client), fault)
    two_calls(rescued)
    assert rescued.said == direct.said
    assert legs(behind) == ([1] if fault == "ending_lost" else [1, 2])


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_whole_tool_calls_read_as_from_the_engine(
    client: Client,
    engine: str,
    settings: dict[str, str],
    simulator: SimulatorFor,
    gateway: GatewayFor,
    ask: Ask,
) -> None:
    behind = simulator(engine)
    one = gateway(behind.url, engine, **settings)
    direct, through = ask(client, behind.url, calling(client)), ask(client, one.url, calling(client))
    two_calls(through)
    assert (through.said, through.usages) == (direct.said, direct.usages)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(
    "fault",
    [
        "disconnect; in=reasoning; after=12",
        "stall; in=reasoning; after=4",
        "disconnect; in=content; after=2",
        "error_event; in=content; after=1",
        "ending_lost",
    ],
)
def test_a_stream_that_broke_before_its_tool_calls_reads_whole(
    client: Client,
    engine: str,
    fault: str,
    settings: dict[str, str],
    simulator: SimulatorFor,
    gateway: GatewayFor,
    ask: Ask,
) -> None:
    behind = simulator(engine)
    reads_whole(client, behind, gateway(behind.url, engine, **patience(fault), **settings), fault, ask)


IN_A_CALL = {
    "in-the-first": "disconnect; in=tool; after=4",
    "after-its-name": "eof; in=tool; after=1",
    "error-in-the-first": "error_event; in=tool; after=6",
    "in-the-second": "disconnect; in=tool; after=26",
}


@pytest.mark.parametrize("fault", IN_A_CALL.values(), ids=IN_A_CALL)
def test_a_stream_that_broke_in_a_tool_call_is_an_error(
    client: Client, engine: str, fault: str, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator(engine)
    one = gateway(behind.url, engine, **patience(fault))
    whole = ask(client, behind.url, calling(client))
    behind.requests.clear()
    broken = ask(client, one.url, calling(client), fault)
    assert legs(behind) == [1]
    assert broken.error is not None
    if "error_event" not in fault:
        assert (broken.error.type, broken.error.code) == ("stream_interrupted", "tool_call_seen")
    assert broken.choice.content == whole.choice.content
    assert broken.choice.finish == ()
    assert len(broken.choice.tools) == (2 if fault == IN_A_CALL["in-the-second"] else 1)
    assert broken.choice.tools != whole.choice.tools
    for seen, meant in zip(broken.choice.tools, whole.choice.tools, strict=False):
        assert seen[0] == meant[0]
        assert meant[1].startswith(seen[1])
    assert broken.extra.get("called", []) == []  # the AI SDK tells of the half call, and does not run it
    assert "final" not in broken.extra


@pytest.mark.parametrize("fault", [*IN_A_CALL.values(), "aborted; in=tool; after=9"])
def test_a_stream_that_broke_in_a_held_tool_call_reads_whole(
    client: Client, engine: str, fault: str, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator(engine)
    reads_whole(client, behind, gateway(behind.url, engine, **patience(fault), **BUFFERED), fault, ask)


def test_held_tool_calls_do_not_starve_a_client_of_comments(
    client: Client, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator("vllm")
    one = gateway(behind.url, "vllm", STALL_IDLE_TIMEOUT_SECONDS="0.8", KEEPALIVE_SECONDS="0.05", **BUFFERED)
    rescued = ask(client, one.url, calling(client), "stall; in=tool; after=9")
    two_calls(rescued)
    assert rescued.said == ask(client, behind.url, calling(client)).said
    if client.driver == "curl":
        assert rescued.comments > 2
