"""What the clients ask for, and what the engine itself says to that."""

from __future__ import annotations

import json
from typing import Any

from continuation.testbed.simulator import Simulator
from tests.clients.conftest import SERVED
from tests.harness.client import Answer, Stream

# What the simulated model says to these has what a test wants: Chinese and emoji in the content, in the reasoning,
# and in the arguments of two calls, with a remark before them.
QUESTION = "Question 28: how do I carry on after a broken connection? 请用中文和表情回答 🌊"
THOUGHTFUL = "Question 20: how do I carry on after a broken connection? 请用中文和表情回答 🌊"
CALLING = "Case 6: please compare the weather of two cities 🌦️"
PLACE_AND_DAYS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def weather(strict: bool) -> dict[str, Any]:
    """The tool. openai-python's helper takes strict ones alone; openai-node's cannot read SGLang's calls of those."""
    function: dict[str, Any] = {"name": "get_weather", "description": "The weather of a place"}
    if strict:
        function["strict"] = True
    return {"type": "function", "function": {**function, "parameters": PLACE_AND_DAYS}}


def question(text: str = QUESTION, *, usage: bool = True, **changes: Any) -> dict[str, Any]:
    """A streamed chat request."""
    asked: dict[str, Any] = {"model": SERVED, "messages": [{"role": "user", "content": text}], "stream": True}
    if usage:
        asked["stream_options"] = {"include_usage": True}
    return {**asked, **changes}


def truth(simulator: Simulator, body: dict[str, Any]) -> Answer:
    """The uninterrupted answer, read from the engine's socket by no client at all."""
    port = int(simulator.url.rpartition(":")[2])
    sent = json.dumps(body).encode()
    with Stream(port, "POST", "/v1/chat/completions", [("Content-Type", "application/json")], sent) as stream:
        answer = Answer.of(stream.read_rest().body)
    assert answer.finish_reasons
    return answer


def legs(simulator: Simulator) -> list[int | None]:
    """Which legs it was asked for since the test began to count."""
    return [request.leg for request in simulator.requests]


def has_han(text: str) -> bool:
    return any("\u4e00" <= char <= "\u9fff" for char in text)


def has_emoji(text: str) -> bool:
    return any(char > "\U0001f000" for char in text)


def patience(fault: str) -> dict[str, str]:
    """Settings for a fault: short where silence is waited for, else long: a busy machine is silent too."""
    return {"STALL_IDLE_TIMEOUT_SECONDS": "1"} if "stall" in fault else {}
