"""What the gateway leaves alone reads as from the engine, and what breaks off there is an error for the client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.asking import PLACE_AND_DAYS, legs, question, truth
from tests.clients.conftest import Ask, GatewayFor, SimulatorFor
from tests.clients.driving import CLIENTS, Client, Reading
from tests.harness.shapes import SGLANG, VLLM, ended, started
from tests.harness.upstream import Cut, Reply, Send, Upstream

pytestmark = pytest.mark.clients

NOT_HELPERS = [client for client in CLIENTS if not client.is_helper]
# LangChain refuses to stream several choices, the AI SDK knows none.
OF_SEVERAL_CHOICES = [
    client for client in CLIENTS if client.driver not in ("langchain_chat.py", "ai_sdk.mjs")
]
STRUCTURED = {
    "type": "json_schema",
    "json_schema": {"name": "place", "strict": True, "schema": PLACE_AND_DAYS},
}
SAID = {"city": "杭州 🌊", "days": 3}


def passed_through(reading: Reading, reason: str) -> None:
    assert reading.watched in (f"passthrough; reason={reason}", None)


@pytest.mark.parametrize("client", NOT_HELPERS, ids=str)
def test_an_answer_that_is_no_stream(
    client: Client, engine: str, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator(engine)
    asked = question(usage=False, stream=False)
    direct, through = ask(client, behind.url, asked), ask(client, gateway(behind.url, engine).url, asked)
    assert through.error is None
    assert through.choice.content == truth(behind, question()).content
    assert (through.said, through.usages) == (direct.said, direct.usages)
    passed_through(through, "not_stream")


def test_a_stream_that_the_client_wants_unwatched(
    client: Client, engine: str, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator(engine)
    direct = ask(client, behind.url, question())
    through = ask(client, gateway(behind.url, engine).url, question(), headers={"X-Continuation": "off"})
    assert through.error is None
    assert (through.said, through.usages) == (direct.said, direct.usages)
    passed_through(through, "client_opt_out")


@pytest.mark.parametrize("fault", ["disconnect; in=content; after=20", "reset; in=content; after=20"])
def test_an_unwatched_stream_that_breaks_off_is_an_error(
    client: Client, engine: str, fault: str, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator(engine)
    asked = question()
    whole = truth(behind, asked)
    behind.requests.clear()
    one = gateway(behind.url, engine)
    reading = ask(client, one.url, asked, fault, headers={"X-Continuation": "off"})
    assert legs(behind) == [1]
    assert reading.error is not None
    if client.way == "--http1.1":
        assert reading.error.code == "18"  # "transfer closed with outstanding read data remaining"
    content = reading.choices[0].content if reading.choices else ""
    assert whole.content.startswith(content)
    assert content != whole.content


@pytest.mark.parametrize("client", OF_SEVERAL_CHOICES, ids=str)
def test_a_stream_of_two_choices(
    client: Client, engine: str, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator(engine)
    direct, through = (
        ask(client, behind.url, question(n=2)),
        ask(client, gateway(behind.url, engine).url, question(n=2)),
    )
    assert through.error is None
    assert len(through.choices) == 2
    assert (through.said, through.usages) == (direct.said, direct.usages)
    assert through.watched in ("guarded", None)


def structured(client: Client) -> dict[str, Any]:
    return question("Which place?", usage=client.usage_always, response_format=STRUCTURED)


def pieces() -> list[str]:
    text = json.dumps(SAID, ensure_ascii=False)
    return [text[at : at + 3] for at in range(0, len(text), 3)]


@pytest.mark.parametrize("shape", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_structured_output(
    client: Client, shape: Any, scripted: Upstream, gateway: GatewayFor, ask: Ask
) -> None:
    scripted.script(Reply([*started(shape, ["hm"], pieces()), *ended(shape)]))
    reading = ask(client, gateway(scripted.url, "vllm").url, structured(client))
    assert reading.error is None
    assert json.loads(reading.choice.content) == SAID
    assert "response_format" in scripted.requests[0].json()
    passed_through(reading, "structured_output")
    if client.driver == "ai_sdk.mjs":
        assert reading.extra["output"] == SAID


def test_structured_output_that_breaks_off_is_an_error(
    client: Client, scripted: Upstream, gateway: GatewayFor, ask: Ask
) -> None:
    steps: list[Send] = started(VLLM, [], pieces()[:4])
    scripted.script(Reply([*steps, Cut()]))
    reading = ask(client, gateway(scripted.url, "vllm").url, structured(client))
    assert reading.error is not None
    if client.driver == "ai_sdk.mjs":
        assert reading.extra.get("output") is None or isinstance(reading.extra["output"], str)
