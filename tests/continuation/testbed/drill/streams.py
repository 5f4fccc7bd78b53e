"""Event streams and flights for the tests of the drill that need no process."""

from __future__ import annotations

from typing import Any

import orjson

from continuation.testbed.drill.flights import Flight, FlownLeg
from continuation.testbed.drill.plans import ERROR, Plan, Reference
from continuation.testbed.drill.reading import read
from continuation.testbed.drill.wire import Head

DONE = b"data: [DONE]\n\n"
HEAD = Head("POST /v1/chat/completions HTTP/1.1", ())
USAGE = {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}


def event(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    head = {"id": "c-1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    return event({**head, "choices": [choice], **more})


def usage(**counts: int) -> bytes:
    head = {"id": "c-1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    return event({**head, "choices": [], "usage": {**USAGE, **counts}})


ROLE = chunk({"role": "assistant", "content": ""})
THOUGHT = [chunk({"reasoning": text}) for text in ("Let me ", "think.")]
WORDS = [chunk({"content": text}) for text in ("\n\nHello ", "there, ", "dear ", "world.")]
STOP = chunk(finish="stop")
WHOLE = [ROLE, *THOUGHT, *WORDS, STOP, usage(), DONE]
TOOL = [
    ROLE,
    WORDS[0],
    chunk({"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]}),
    chunk(finish="tool_calls"),
    usage(),
    DONE,
]


def reference(events: list[bytes] = WHOLE, question: int = 0) -> Reference:
    told = [read(one) for one in events]
    return Reference.of(question, read(b"".join(events)), [len(one.reasoning + one.content) for one in told])


def failed(code: str = "disconnect") -> bytes:
    return event({"error": {"message": "it broke", "type": "stream_interrupted", "code": code}})


def engine_error() -> bytes:
    return event({"error": {"message": ERROR, "type": "DrillError", "code": 500}})


def leg(
    number: int, handed: list[bytes], *, ended: str = "broken", struck: bool = True, **more: Any
) -> FlownLeg:
    raw = bytearray(b"".join(handed))
    told = FlownLeg(number, HEAD, b"{}", 200, list(handed), raw, bytearray(raw), struck, ended=ended)
    for name, value in more.items():
        setattr(told, name, value)
    return told


def flight(plan: Plan, legs: list[FlownLeg], heard: bytes | list[bytes], ended: str = "clean") -> Flight:
    """A guarded stream that was answered with `heard`."""
    told = Flight(plan, "drill-1-0", b"{}", legs)
    told.heard.status, told.heard.ended = (200 if legs else 0), ended
    told.heard.raw = bytearray(heard if isinstance(heard, bytes) else b"".join(heard))
    told.heard.fields = {
        "x-request-id": "drill-1-0",
        "x-continuation": "guarded",
        "cache-control": "no-cache",
    }
    return told
