"""A stream as a client understands it, event by event and in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from continuation.shapes.chat.chunks import (
    choices,
    delta_of,
    error_object,
    finish_of,
    index_of,
    is_error,
    reasoning_of,
    text_of,
    usage_of,
)
from continuation.shapes.encoding import JSON, parse
from continuation.shapes.sse import DONE, Event, EventDecoder
from continuation.splice.leg import Leg

STREAM_BYTES = 2**27


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class HeardAnswer:
    """The answer that a client reads from a stream. roles, ids, dones: how many it saw of each."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str | None = None
    usage: JSON | None = None
    error: JSON | None = None
    roles: int = 0
    ids: int = 0
    dones: int = 0

    @property
    def spoken(self) -> str:
        return self.reasoning + self.content


def heard_answer(stream: bytes) -> HeardAnswer:
    """Read a whole event stream. Events that cannot be read are left out."""
    reading = _Reading()
    for event in events_of(stream):
        if event.data == DONE:
            reading.dones += 1
        elif event.data:
            reading.value(event, value_in(event))
    return reading.answer()


def value_in(event: Event) -> Any:
    """Parse an event's data. None if it is empty, [DONE], or not JSON."""
    try:
        return parse(event.data) if event.data and event.data != DONE else None
    except ValueError:
        return None


@dataclass(slots=True)
class _Reading:
    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: dict[int, list[str]] = field(default_factory=dict)
    finish: str | None = None
    usage: JSON | None = None
    error: JSON | None = None
    roles: int = 0
    dones: int = 0
    ids: set[Any] = field(default_factory=set)

    def value(self, event: Event, value: Any) -> None:
        if is_error(event, value):
            self.error = error_object(value)
        elif isinstance(value, dict):
            self.chunk(value)

    def chunk(self, chunk: JSON) -> None:
        self.ids.add(chunk.get("id"))
        self.usage = usage_of(chunk) or self.usage
        for choice in choices(chunk):
            if index_of(choice) == 0:
                self._delta(delta_of(choice))
                self.finish = finish_of(choice) or self.finish

    def _delta(self, delta: JSON) -> None:
        self.roles += bool(delta.get("role"))
        self.reasoning.append(reasoning_of(delta))
        self.content.append(text_of(delta.get("content")))
        for call in delta.get("tool_calls") or []:
            known = self.calls.setdefault(index_of(call), ["", "", ""])
            function = call.get("function") or {}
            known[0] = known[0] or text_of(call.get("id"))
            known[1] += text_of(function.get("name"))
            known[2] += text_of(function.get("arguments"))

    def answer(self) -> HeardAnswer:
        calls = tuple(ToolCall(*self.calls[index]) for index in sorted(self.calls))
        texts = "".join(self.reasoning), "".join(self.content)
        return HeardAnswer(
            *texts, calls, self.finish, self.usage, self.error, self.roles, len(self.ids), self.dones
        )


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a stream was after its first `events` events, in characters of each kind.

    withheld: the engine generated ids whose text it has not sent yet, for example half a character.
    """

    events: int
    reasoning: int
    content: int
    calls: int
    withheld: bool

    @property
    def position(self) -> tuple[int, int, int]:
        return self.reasoning, self.content, self.calls


def events_of(stream: bytes) -> list[Event]:
    return EventDecoder(STREAM_BYTES).feed(stream)


def steps_of(events: Sequence[Event]) -> list[Extent]:
    """An extent for each event after which a cut leaves text to continue and text to come."""
    leg, reading, steps = Leg(STREAM_BYTES), _Reading(), []
    for number, event in enumerate(events, start=1):
        value = value_in(event)
        if isinstance(value, dict):
            leg.absorb(value)
            reading.chunk(value)
        if leg.finish:
            break
        so_far = reading.answer()
        calls = sum(len(call.name) + len(call.arguments) for call in so_far.calls)
        step = Extent(number, len(so_far.reasoning), len(so_far.content), calls, leg.ids_withheld)
        if any(step.position):
            steps.append(step)
    return steps
