"""A stream that broke and was continued: each client shows exactly what it shows of one that never broke."""

from __future__ import annotations

import pytest

from tests.clients.asking import QUESTION, THOUGHTFUL, has_emoji, has_han, legs, patience, question, truth
from tests.clients.conftest import Ask, GatewayFor, SimulatorFor
from tests.clients.driving import Client, Reading
from tests.harness.client import Answer

pytestmark = pytest.mark.clients

FAULTS = {
    "disconnect-in-content": "disconnect; in=content; after=30",
    "reset-in-reasoning": "reset; in=reasoning; after=9",
    "error-event": "error_event; in=content; after=12",
    "stall": "stall; in=content; after=20",
    "abort-in-reasoning": "aborted; in=reasoning; after=3",
    "done-without-finish": "done_without_finish; in=content; after=45",
    "inside-a-character": "cut_inside_character; in=content; after=33",
    "malformed": "malformed; in=content; after=7",
    "ending-lost": "ending_lost",
}


def of_one_answer(reading: Reading, client: Client, whole: Answer, usage: bool = True) -> None:
    """Complete, of one completion, ended once."""
    assert reading.error is None
    choice = reading.choice
    assert choice.content == whole.content
    assert choice.reasoning == (whole.reasoning if client.reasoning else "")
    assert choice.finish == tuple(whole.finish_reasons)
    assert len(reading.ids) == 1
    assert len(reading.usages) == (usage or client.usage_always)
    for prompt, completion, total in reading.usages:
        assert prompt > 0
        assert completion > 0
        assert prompt + completion == total


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_rescued_stream_reads_like_an_unbroken_one(
    client: Client, engine: str, fault: str, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator(engine)
    one = gateway(behind.url, engine, **patience(fault))
    asked = question(THOUGHTFUL if "in=reasoning" in fault else QUESTION)
    whole = truth(behind, asked)
    assert has_han(whole.reasoning if "in=reasoning" in fault else whole.content)
    assert has_emoji(whole.content)
    unbroken = ask(client, behind.url, asked)
    of_one_answer(unbroken, client, whole)
    behind.requests.clear()
    rescued = ask(client, one.url, asked, fault)
    of_one_answer(rescued, client, whole)
    assert rescued.said == unbroken.said
    assert legs(behind) == ([1] if fault == "ending_lost" else [1, 2])
    assert rescued.watched in ("guarded", None)


def test_an_unbroken_stream_reads_as_from_the_engine(
    client: Client, engine: str, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator(engine)
    one = gateway(behind.url, engine)
    asked = question()
    direct, through = ask(client, behind.url, asked), ask(client, one.url, asked)
    of_one_answer(through, client, truth(behind, asked))
    assert (through.said, through.usages) == (direct.said, direct.usages)


@pytest.mark.parametrize(
    "fault", ["disconnect; in=content; after=400", "disconnect; in=reasoning; after=150"]
)
def test_a_long_answer_is_rescued(
    client: Client, fault: str, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator("vllm", 10.0)
    one = gateway(behind.url, "vllm", **patience(fault))
    asked = question("Tell me everything. 全部告诉我 🎉")
    whole = truth(behind, asked)
    assert len(whole.content) > 2000
    rescued = ask(client, one.url, asked, fault)
    of_one_answer(rescued, client, whole)
    assert rescued.said == ask(client, behind.url, asked).said


def test_usage_that_was_not_asked_for_is_not_told(
    client: Client, engine: str, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator(engine)
    one = gateway(behind.url, engine)
    asked = question(usage=False)
    whole = truth(behind, asked)
    assert whole.usages == []
    rescued = ask(client, one.url, asked, "disconnect; in=content; after=12")
    of_one_answer(rescued, client, whole, usage=False)
    assert rescued.said == ask(client, behind.url, asked).said


@pytest.mark.parametrize(
    "fault",
    [
        "stall; in=content; after=20",
        "stall; in=reasoning; after=5",
        "stall; for=0.4; in=content; after=20",
        "slow_first_token; delay=0.4",
        "disconnect; in=content; after=10, slow_first_token; leg=2; delay=0.4",
        "disconnect; in=content; after=10, slow_first_token; leg=2; delay=0.4; before=headers",
    ],
)
def test_keepalive_comments_are_read_past(
    client: Client, fault: str, simulator: SimulatorFor, gateway: GatewayFor, ask: Ask
) -> None:
    behind = simulator("vllm")
    one = gateway(behind.url, "vllm", KEEPALIVE_SECONDS="0.05", STALL_IDLE_TIMEOUT_SECONDS="0.8")
    asked = question()
    rescued = ask(client, one.url, asked, fault)
    of_one_answer(rescued, client, truth(behind, asked))
    assert rescued.said == ask(client, behind.url, asked).said
    if client.driver == "curl":
        assert rescued.comments > 2
