"""Streams recorded from real engines, and a leg 2 that says what is left of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.continuation.splice.playbook import DONE, Told, event, told
from tests.harness.gateway import ROOT

DATA = ROOT / "tests" / "data" / "transcripts"


@dataclass(frozen=True)
class Recorded:
    name: str
    stream: bytes
    request: dict[str, Any]

    def __str__(self) -> str:
        return self.name


def body_of(answer: bytes) -> bytes:
    """The body of an HTTP answer as `curl -i` prints it."""
    return answer.partition(b"\r\n\r\n")[2] or answer.partition(b"\n\n")[2]


def unchunked(answer: bytes) -> bytes:
    """The body of an HTTP answer as it came off the socket."""
    rest, body = answer.partition(b"\r\n\r\n")[2], b""
    while size := re.match(rb"([0-9a-f]+)\r\n", rest):
        length = int(size[1], 16)
        body, rest = body + rest[size.end() : size.end() + length], rest[size.end() + length + 2 :]
    return body


def recorded(name: str) -> Recorded:
    path = DATA / name
    if path.suffix == ".sse":
        stream, request = path.read_bytes(), path.with_suffix(".req.json")
        request = request if request.exists() else path.with_suffix(".request.json")
    elif path.suffix == ".rawhttp":
        stream, request = unchunked(path.read_bytes()), path.with_suffix(".none")
    else:
        stream, request = body_of(path.read_bytes()), path.with_suffix(".request.json")
    return Recorded(path.stem, stream, json.loads(request.read_text()) if request.exists() else {})


@cache
def answer_of(whole: bytes) -> Told:
    return told(whole)


def rest_of(whole: bytes, reasoning: str, content: str, name: str, finish: str = "stop") -> list[bytes]:
    """A continuation, in small pieces, of an answer of which `reasoning` and `content` have been delivered."""
    answer, ident = (
        told(whole),
        {"id": "leg-2", "object": "chat.completion.chunk", "created": 1, "model": "second"},
    )
    assert answer.reasoning.startswith(reasoning)
    assert answer.content.startswith(content)
    left = [(name, answer.reasoning[len(reasoning) :])] if not content else []
    left.append(("content", answer.content[len(content) :]))
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{key: text[i : i + 7]} for key, text in left for i in range(0, len(text), 7)]
    deltas += [{"tool_calls": [call]} for call in answer.tool_calls]
    chunks = [event({**ident, "choices": [{"index": 0, "delta": d, "finish_reason": None}]}) for d in deltas]
    chunks.append(event({**ident, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    return [
        *chunks,
        event({**ident, "choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 9}}),
        DONE,
    ]
