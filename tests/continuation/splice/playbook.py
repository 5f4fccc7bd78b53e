"""Drives a Splice without sockets or clocks: what comes in is written down, what goes out is collected."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from continuation.plan import Guarded
from continuation.shapes.sse import Event, EventDecoder
from continuation.splice.actions import Action, CloseLeg, OpenLeg, OpenTokens, Send
from continuation.splice.course import Phase
from continuation.splice.machine import Splice
from continuation.splice.options import Options
from continuation.splice.record import StreamRecord
from continuation.vocabulary import Failure
from strategies.types import GENERIC, CompiledStrategy

QUESTION = {"role": "user", "content": "Tell me of the sea."}
ID = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 100, "model": "m"}
ID2 = {"id": "chatcmpl-2", "object": "chat.completion.chunk", "created": 999, "model": "other"}
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: Any = None, finish: str | None = None, *, ident: dict[str, Any] = ID, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {} if delta is None else delta, "logprobs": None, "finish_reason": finish}
    return event({**ident, "choices": [choice], **more})


def role(ident: dict[str, Any] = ID) -> bytes:
    return chunk({"role": "assistant", "content": ""}, ident=ident)


def content(text: str, ident: dict[str, Any] = ID, **more: Any) -> bytes:
    return chunk({"content": text}, ident=ident, **more)


def reasoning(text: str, ident: dict[str, Any] = ID, name: str = "reasoning", **more: Any) -> bytes:
    return chunk({name: text}, ident=ident, **more)


def usage(prompt: int, completion: int, ident: dict[str, Any] = ID, **more: Any) -> bytes:
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        **more,
    }
    return event({**ident, "choices": [], "usage": counts})


def tokens(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


@dataclass
class Told:
    """What a client reads in a stream."""

    reasoning: str = ""
    content: str = ""
    ids: set[Any] = field(default_factory=set)
    roles: int = 0
    finishes: list[str] = field(default_factory=list)
    usages: list[dict[str, Any]] = field(default_factory=list)
    errors: list[Any] = field(default_factory=list)
    tool_calls: list[Any] = field(default_factory=list)
    done: int = 0

    def take(self, block: Event) -> None:
        if not block.data:
            return
        if block.data == b"[DONE]":
            self.done += 1
            return
        value = json.loads(block.data)
        assert not self.done, "an event after [DONE]"
        if not isinstance(value, dict):
            return
        if value.get("error"):
            self.errors.append(value["error"])
            return
        if "id" in value:
            self.ids.add((value["id"], value.get("created"), value.get("model")))
        if value.get("usage"):
            self.usages.append(value["usage"])
        for choice in value.get("choices") or []:
            if isinstance(choice, dict):
                self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        self.roles += bool(delta.get("role"))
        self.reasoning += delta.get("reasoning") or delta.get("reasoning_content") or ""
        text = delta.get("content")
        self.content += text if isinstance(text, str) else ""
        self.tool_calls += delta.get("tool_calls") or []
        if choice.get("finish_reason") not in (None, "", "null", 0):
            self.finishes.append(choice["finish_reason"])


def told(stream: bytes) -> Told:
    """Reads strictly: every block is whole, every data line JSON or [DONE]."""
    decoder, answer = EventDecoder(2**26), Told()
    for block in decoder.feed(stream):
        answer.take(block)
    assert decoder.pending == b"", f"an event without its end: {decoder.pending!r}"
    return answer


class Play:
    """One stream. `sent` is what the client got, `legs` the bodies of continuation requests, `jobs` those by ids."""

    def __init__(
        self, body: dict[str, Any] | None = None, strategy: CompiledStrategy = GENERIC, **options: Any
    ) -> None:
        request = {"model": "m", "stream": True, "messages": [QUESTION], **(body or {})}
        self.plan = Guarded.of(json.dumps(request).encode(), request, strategy)
        self.now = 0.0
        self.splice = Splice(
            self.plan, Options(**options), "request-1", datetime(2026, 1, 1, tzinfo=UTC), 0.0
        )
        self.sent = b""
        self.legs: list[dict[str, Any]] = []
        self.jobs: list[OpenTokens] = []
        self.open = 1
        self.splice.leg1_opened(self.now)

    def does(self, actions: Iterable[Action]) -> Play:
        for action in actions:
            match action:
                case Send(data):
                    self.sent += data
                case OpenLeg():
                    assert self.open == 0, "leg 1 is still open"
                    self.legs.append(json.loads(action.body))
                    self.open += 1
                case OpenTokens():
                    assert self.open == 0, "leg 1 is still open"
                    self.jobs.append(action)
                    self.open += 1
                case CloseLeg():
                    self.open = 0
        return self

    def reads(self, *reads: bytes) -> Play:
        """Reads of the current leg; once it is closed, nothing more of it arrives."""
        leg = self.asked
        for read in reads:
            if self.open and self.asked == leg:
                self.does(self.splice.received(read, self.now))
        return self

    def ends(self, failure: Failure = Failure.EOF) -> Play:
        return self.does(self.splice.leg_ended(failure, self.now))

    def waits(self, seconds: float) -> Play:
        self.now += seconds
        return self.does(self.splice.idle_expired(self.now))

    def leg2(self, *reads: bytes, ended: Failure | None = None) -> Play:
        """The continuation is opened and sends `reads`."""
        assert self.asked == 1, "no continuation was asked for"
        self.splice.leg2_opened(200, self.now)
        self.reads(*reads)
        return self.ends(ended) if ended else self

    @property
    def asked(self) -> int:
        """How many continuations were asked for."""
        return len(self.legs) + len(self.jobs)

    @property
    def told(self) -> Told:
        return told(self.sent)

    @property
    def record(self) -> StreamRecord:
        record = self.splice.record()
        assert record is not None
        return record

    def whole(self) -> Told:
        """One whole answer."""
        answer = self.told
        assert self.splice.phase is Phase.DONE
        assert (answer.done, len(answer.finishes), answer.errors) == (1, 1, [])
        assert len(answer.ids) == 1
        assert answer.roles <= 1
        assert self.open == 0
        assert self.sent.endswith(DONE)
        return answer

    def failed(self) -> Told:
        """One failed ending."""
        answer = self.told
        assert self.splice.phase is Phase.FAILED
        assert (answer.done, answer.finishes, len(answer.errors)) == (0, [], 1)
        assert self.open == 0
        return answer


def finished(*events: bytes, ident: dict[str, Any] = ID2, finish: str = "stop") -> Sequence[bytes]:
    """A leg 2 that says `events` and ends well."""
    return (role(ident), *events, chunk(finish=finish, ident=ident), usage(50, 7, ident=ident), DONE)
