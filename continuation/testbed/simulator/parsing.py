"""From tokens to what a client sees: whole characters, stop strings, reasoning / content / tool calls."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from continuation.testbed.simulator.dialects import Dialect


class Strand(StrEnum):
    REASONING = "reasoning"
    CONTENT = "content"
    CALL_NAME = "call_name"  # a tool call begins; the text is its name
    CALL_ARGUMENTS = "call_arguments"


@dataclass(frozen=True, slots=True)
class Delta:
    channel: Strand
    text: str
    call: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of generated text, or a control token."""

    text: str
    marker: bool = False


@dataclass(slots=True)
class StopStrings:
    """Holds back as many characters as could begin a stop string. `matched` is the one that was found."""

    stops: tuple[str, ...]
    matched: str | None = None
    _held: list[Segment] = field(default_factory=list)

    def push(self, segment: Segment) -> list[Segment]:
        self._held.append(segment)
        text = "".join(held.text for held in self._held)
        hits = [(at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if hits:
            at, self.matched = min(hits)
            return self._release(at)
        return self._release(len(text) - max(map(len, self.stops), default=1) + 1)

    def flush(self) -> list[Segment]:
        held, self._held = self._held, []
        return held

    def _release(self, count: int) -> list[Segment]:
        """The first `count` characters; a control token only as a whole."""
        released: list[Segment] = []
        while self._held and count > 0:
            first = self._held[0]
            if first.marker and len(first.text) > count:
                break
            released.append(Segment(first.text[:count], first.marker))
            self._held[:1] = [Segment(first.text[count:])] if len(first.text) > count else []
            count -= len(first.text)
        return released


@dataclass(slots=True)
class Parser:
    """Sorts text into channels by the dialect's control tokens; reads a tool call's JSON while it comes in."""

    dialect: Dialect
    in_reasoning: bool
    in_call: bool = False
    calls: int = 0
    _envelope: str = ""
    _argued: int = 0  # characters of the arguments that went out
    _named: bool = False

    def __post_init__(self) -> None:
        # A prompt that ends inside a call leaves the rest of its JSON to be arguments of call 0.
        self._named, self.calls = self.in_call, int(self.in_call)

    def feed(self, segments: Iterable[Segment]) -> Iterator[Delta]:
        for segment in segments:
            if segment.marker:
                yield from self._marker(segment.text)
            elif segment.text:
                yield from self._text(segment.text)

    def _marker(self, marker: str) -> Iterator[Delta]:
        dialect = self.dialect
        if marker in (dialect.think, dialect.close):
            self.in_reasoning = marker == dialect.think
        elif marker == dialect.content_open:
            self.in_reasoning = False
        elif marker == dialect.call_open:
            self.in_call, self._envelope, self._argued, self._named = True, "", 0, False
        elif marker == dialect.call_close:
            if self.in_call:
                yield from self._arguments(self._envelope.rstrip().removesuffix("}"))
                self.in_call = False
            else:  # the end of a call that this stream never began: plain text to the parser
                yield Delta(Strand.CONTENT, marker)

    def _text(self, text: str) -> Iterator[Delta]:
        if self.in_call:
            yield from self._call_text(text)
        elif self.in_reasoning:
            yield Delta(Strand.REASONING, text)
        elif not self.calls or text.strip():  # white space between calls is not content
            yield Delta(Strand.CONTENT, text)

    def _call_text(self, text: str) -> Iterator[Delta]:
        self._envelope += text
        if not self._named:
            found = re.match(r'\s*\{"name": "((?:[^"\\]|\\.)*)", "arguments": ', self._envelope)
            if not found:
                return
            self._named, self.calls, self._envelope = True, self.calls + 1, self._envelope[found.end() :]
            yield Delta(Strand.CALL_NAME, found[1], self.calls - 1)
        # The last brace may be the envelope's own.
        kept = self._envelope.rstrip()
        yield from self._arguments(kept.removesuffix("}"))

    def _arguments(self, known: str) -> Iterator[Delta]:
        if self._named and len(known) > self._argued:
            yield Delta(Strand.CALL_ARGUMENTS, known[self._argued :], self.calls - 1)
            self._argued = len(known)


@dataclass(frozen=True, slots=True)
class Step:
    """What one token brought. finish is None until the last step of a choice."""

    deltas: tuple[Delta, ...]
    token: bytes
    completion: int
    reasoning: int
    finish: str | None = None
    stop: str | None = None


@dataclass(slots=True)
class Decoding:
    """One choice: tokens in, steps out. `thinking_counts` is SGLang's way of counting reasoning tokens.

    vLLM counts what its parser took for reasoning. SGLang counts every token until the closing control token is
    generated, if thinking is on: after a continuation in mid-content that is all of them.
    """

    dialect: Dialect
    parser: Parser
    stops: StopStrings
    max_tokens: int
    thinking_counts: bool | None = None

    def steps(self, tokens: Iterable[bytes]) -> Iterator[Step]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        markers = {marker.encode(): marker for marker in self.dialect.markers}
        reasoning = 0
        counting = self.parser.in_reasoning if self.thinking_counts is None else self.thinking_counts
        for completion, token in enumerate(tokens, start=1):
            marker = markers.get(token)
            counting, counted = self._count(counting, marker)
            reasoning += counted
            segment = Segment(marker, True) if marker else Segment(decoder.decode(token))
            ended = marker == self.dialect.eos
            released = self.stops.flush() if ended else self.stops.push(segment)
            finish = (
                "stop" if ended or self.stops.matched else "length" if completion >= self.max_tokens else None
            )
            if finish == "length":
                released += self.stops.flush()
            deltas = merged(self.parser.feed(released))
            if finish == "stop" and self.parser.calls:
                finish = "tool_calls"
            yield Step(deltas, token, completion, reasoning, finish, self.stops.matched)
            if finish:
                return

    def _count(self, counting: bool, marker: str | None) -> tuple[bool, int]:
        """(whether the next token counts, what this one adds)."""
        closing = marker is not None and marker != self.dialect.think
        if self.thinking_counts is None:
            return (counting if marker is None else not closing), int(counting and marker is None)
        return counting and marker != self.dialect.close, int(counting)


def merged(deltas: Iterable[Delta]) -> tuple[Delta, ...]:
    """Neighbours of one channel become one."""
    merged: list[Delta] = []
    for delta in deltas:
        if (
            merged
            and delta.channel != Strand.CALL_NAME
            and (merged[-1].channel, merged[-1].call) == (delta.channel, delta.call)
        ):
            merged[-1] = Delta(delta.channel, merged[-1].text + delta.text, delta.call)
        else:
            merged.append(delta)
    return tuple(merged)
