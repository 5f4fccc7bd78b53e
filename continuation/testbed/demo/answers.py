"""One streamed answer as a client sees it, and where in it the second leg begins."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from continuation.shapes.sse import DONE, EventDecoder

CHAT = "/v1/chat/completions"
FAULT_HEADER = "X-Simulate-Fault"
_EVENT_LIMIT = 2**20
# Seconds; no answer of the demo is silent for longer.
_READ_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class SeamMark:
    """How many characters of each channel came from leg 1."""

    reasoning: int
    content: int


@dataclass(frozen=True, slots=True)
class WatchedPiece:
    """Text of one event. waited: seconds since the event before it."""

    channel: str
    leg: int
    text: str
    waited: float


@dataclass(slots=True)
class WatchedAnswer:
    """endings counts the [DONE]s; error is what a failed ending said."""

    request_id: str
    reasoning: str = ""
    content: str = ""
    finish: str = ""
    endings: int = 0
    error: str = ""
    seam: SeamMark | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return bool(self.finish) and self.endings == 1 and not self.error

    def equals(self, other: WatchedAnswer) -> bool:
        return (self.reasoning, self.content, self.finish) == (other.reasoning, other.content, other.finish)


class Client:
    """Asks the gateway, and the simulator's request log about what the gateway sent there."""

    def __init__(self, gateway: str, simulator: str) -> None:
        self._gateway, self._simulator = gateway, simulator
        self._http = httpx.Client(trust_env=False, timeout=_READ_SECONDS)

    def close(self) -> None:
        self._http.close()

    def ask(self, answer: WatchedAnswer, body: Mapping[str, Any], fault: str) -> Iterator[WatchedPiece]:
        """Pieces as they arrive; `answer` is filled meanwhile. Raises httpx.HTTPError."""
        headers = {"X-Request-Id": answer.request_id} | ({FAULT_HEADER: fault} if fault else {})
        decoder, before = EventDecoder(_EVENT_LIMIT), time.monotonic()
        with self._http.stream("POST", self._gateway + CHAT, json=body, headers=headers) as response:
            if response.status_code != 200:
                raise httpx.HTTPError(f"status {response.status_code}: {response.read().decode()[:300]}")
            answer.headers = dict(response.headers)
            for read in response.iter_raw():
                now = time.monotonic()
                for event in decoder.feed(read):
                    if fault and answer.seam is None:
                        answer.seam = self._seam(answer.request_id)
                    yield from _take(answer, event.data or b"", now - before)
                before = now

    def _seam(self, request_id: str) -> SeamMark | None:
        """From the continuation request itself, if the engine has received one.

        It is there before the first event of leg 2 is, and its last message holds all that leg 1 had delivered.
        """
        log = self._http.get(f"{self._simulator}/simulator/requests").json()["requests"]
        for request in log:
            if request["leg"] == 2 and request["headers"].get("x-request-id", "").startswith(request_id):
                return seam_of(request["body"]["messages"][-1])
        return None


def seam_of(message: Mapping[str, str]) -> SeamMark:
    """Of the final message of a continuation whose answer reasons: one string, or the reasoning in a field."""
    reasoning = message.get("reasoning", message.get("reasoning_content"))
    if reasoning is not None:
        return SeamMark(len(reasoning), len(message["content"]))
    before, _, after = message["content"].removeprefix("<think>").partition("</think>")
    return SeamMark(len(before), len(after))


def _take(answer: WatchedAnswer, data: bytes, waited: float) -> Iterator[WatchedPiece]:
    if data == DONE:
        answer.endings += 1
        return
    chunk = json.loads(data or b"{}")
    answer.error = answer.error or (chunk.get("error") or {}).get("message", "")
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        answer.finish = choice.get("finish_reason") or answer.finish
        reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
        for channel, text in (("reasoning", reasoning), ("content", delta.get("content") or "")):
            if text:
                yield WatchedPiece(channel, _leg(answer, channel), text, waited)
                setattr(answer, channel, getattr(answer, channel) + text)


def _leg(answer: WatchedAnswer, channel: str) -> int:
    """Of the next character. Seams fall between events, so no piece has a part of each leg."""
    if answer.seam is None:
        return 1
    return 2 if len(getattr(answer, channel)) >= getattr(answer.seam, channel) else 1
