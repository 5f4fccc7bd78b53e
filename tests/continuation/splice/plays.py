"""Plays and events that several files of these tests use."""

import json
from typing import Any

from continuation.splice.course import Phase
from continuation.vocabulary import Failure
from tests.continuation.splice.playbook import ID, Play, chunk, event

ASKS = {"stream_options": {"include_usage": True}}


ALWAYS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def utf8(text: str, ident: dict[str, Any] = ID) -> bytes:
    """A content event whose text is UTF-8, as engines write it, rather than escaped."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({**ident, "choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


def of_choice(ident: dict[str, Any] = ID, **choice: Any) -> bytes:
    return event({**ident, "choices": [{"index": 0, **choice}]})


def prefix_of(play: Play) -> str:
    (body,) = play.legs
    text = body["messages"][-1]["content"]
    assert isinstance(text, str)
    return text


def untouched(*events: bytes, body: dict[str, Any] | None = None) -> Play:
    """A healthy stream: what comes in goes out, byte for byte, and nothing is recorded."""
    play = Play(body).reads(*events)
    assert play.sent == b"".join(events)
    assert play.splice.phase is Phase.DONE
    assert play.splice.record() is None
    return play


def broken(*events: bytes, body: dict[str, Any] | None = None, **options: Any) -> Play:
    """A stream that says `events` and loses its connection."""
    return Play(body, **options).reads(*events).ends(Failure.DISCONNECT)


CALL = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]})


def choice(number: int, text: str = "", finish: str | None = None) -> bytes:
    delta = {"content": text} if text else {}
    return event({**ID, "choices": [{"index": number, "delta": delta, "finish_reason": finish}]})


def refused(play: Play) -> Play:
    return play.does(play.splice.leg2_refused(503, b'{"error": {"message": "busy"}}', play.now))
