"""A stream that broke and could not be continued: no client takes what there was of it for the answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.asking import legs, patience, question, truth
from tests.clients.conftest import Ask, GatewayFor, SimulatorFor
from tests.clients.driving import Client, Reading
from tests.harness.client import Answer

pytestmark = pytest.mark.clients

REFUSED = "refuse; leg=2; status=400"
# faults, and the code that the client is told
FAILING = {
    "leg-2-refused": (f"disconnect; in=content; after=20, {REFUSED}", "disconnect"),
    "leg-2-breaks": ("eof; in=content; after=20, reset; leg=2; in=content; after=9", "eof"),
    "leg-2-departs": ("disconnect; in=content; after=40, restart; leg=2; depart=60", "disconnect"),
    "stalled": (f"stall; in=content; after=20, {REFUSED}", "idle_timeout"),
    "in-reasoning": (f"disconnect; in=reasoning; after=9, {REFUSED}", "disconnect"),
    "after-the-role": ("disconnect; after=1", "no_recoverable_content"),
    "empty": ("empty", "eof"),
}


def failed(reading: Reading, client: Client, whole: Answer) -> str:
    """The client told of an error, and showed nothing that was not said. Gives the content that it showed."""
    assert reading.error is not None
    content = reading.choices[0].content if reading.choices else ""
    reasoning = reading.choices[0].reasoning if reading.choices else ""
    assert whole.content.startswith(content)
    assert content != whole.content
    assert whole.reasoning.startswith(reasoning)
    assert [choice.finish for choice in reading.choices] in ([], [()])
    assert reading.usages == ()
    raised_by(reading, client)
    return content


def raised_by(reading: Reading, client: Client) -> None:
    """How each client tells of an error that came within the stream."""
    assert reading.error is not None
    match client.driver:
        case "openai_python.py" | "langchain_chat.py":
            assert reading.error.kind == "APIError"
        case "openai_node.mjs":
            assert reading.error.kind == "APIError"
            if client.is_helper:
                assert "error" in reading.extra["events"]
                assert "final" not in reading.extra
        case "ai_sdk.mjs":
            told_by_ai_sdk(reading)


def told_by_ai_sdk(reading: Reading) -> None:
    """An error part and onError; finishReason where the stream had begun. Nothing is thrown at who reads on."""
    assert reading.error is not None
    assert reading.extra["told"] == [reading.error.message]
    if reading.error.kind == "StreamProviderError":
        assert reading.extra["finish"] == "error"
        assert reading.extra["text"] == reading.choice.content
    else:
        assert reading.error.kind == "APICallError"
        assert reading.extra["text"] == "NoOutputGeneratedError"
    assert reading.extra["textStream"] == reading.choice.content


@pytest.mark.parametrize(("fault", "code"), FAILING.values(), ids=FAILING)
def test_a_failed_stream_is_an_error(
    client: Client,
    engine: str,
    fault: str,
    code: str,
    simulator: SimulatorFor,
    gateway: GatewayFor,
    ask: Ask,
) -> None:
    behind = simulator(engine)
    one = gateway(behind.url, engine, **patience(fault))
    asked = question()
    whole = truth(behind, asked)
    behind.requests.clear()
    reading = ask(client, one.url, asked, fault)
    content = failed(reading, client, whole)
    assert bool(content) == ("in=content" in fault)
    assert reading.error is not None
    assert (reading.error.type, reading.error.code) == ("stream_interrupted", code)
    assert reading.error.message.startswith("The stream was interrupted: ")
    assert legs(behind) == ([1] if fault in ("empty", "disconnect; after=1") else [1, 2])
    assert ask(client, one.url, asked).choice.content == whole.content  # on what may be the same connection


# settings, the fault, and what the engine's own error says: type and code of vLLM and of SGLang, and a part of the text
OWN: dict[str, tuple[dict[str, str], str, Any, str]] = {
    "client-error": (
        {},
        "client_error_event; in=content; after=20",
        {"vllm": ("BadRequestError", "400"), "sglang": ("BadRequestError", "400")},
        "cannot be served as it is",
    ),
    "leg-2-refused": (
        {},
        f"error_event; in=content; after=20, {REFUSED}",
        {"vllm": ("InternalServerError", "500"), "sglang": ("SERVICE_UNAVAILABLE", "503")},
        "",
    ),
    "switched-off": (
        {"CONTINUATION_ENABLED": "false"},
        "error_event; in=content; after=20",
        {"vllm": ("InternalServerError", "500"), "sglang": ("SERVICE_UNAVAILABLE", "503")},
        "",
    ),
}


@pytest.mark.parametrize(("settings", "fault", "known", "text"), OWN.values(), ids=OWN)
def test_an_engines_own_error_is_told_as_it_was(
    client: Client,
    engine: str,
    settings: dict[str, str],
    fault: str,
    known: dict[str, tuple[str, str]],
    text: str,
    simulator: SimulatorFor,
    gateway: GatewayFor,
    ask: Ask,
) -> None:
    behind = simulator(engine)
    one = gateway(behind.url, engine, **patience(fault), **settings)
    asked = question()
    reading = ask(client, one.url, asked, fault)
    assert failed(reading, client, truth(behind, asked))
    assert reading.error is not None
    assert (reading.error.type, reading.error.code) == known[engine]
    assert text in reading.error.message


def test_an_error_in_no_clients_form_is_an_error_all_the_same(
    client: Client, engine: str, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    """`event: error` without a key `error`: some clients read past it."""
    behind = simulator(engine)
    one = gateway(behind.url, engine, CONTINUATION_ENABLED="false")
    asked = question()
    reading = ask(client, one.url, asked, "error_event_named; in=content; after=20")
    assert failed(reading, client, truth(behind, asked))


def test_who_asks_again_by_itself(
    client: Client, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    """Within a stream nobody does, but for one: @ai-sdk/openai waits for content before it shows a stream, does not
    know reasoning, and takes an error before the first content for one of the request."""
    behind = simulator("vllm")
    one = gateway(behind.url, "vllm")
    asked = question()
    whole = truth(behind, asked)
    behind.requests.clear()
    behind.arm(f"disconnect; in=reasoning; after=9, {REFUSED}")
    reading = ask(client, one.url, asked, retries=2)
    if client.name == "ai-sdk-openai":
        assert reading.error is None
        assert reading.choice.content == whole.content
        assert legs(behind) == [1, 2, 1]
    else:
        assert failed(reading, client, whole) == ""
        assert legs(behind) == [1, 2]
