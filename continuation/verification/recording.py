"""Whole answers: recorded once, with what they show of the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any

from continuation.shapes.chat.asking import asking_for_ids
from continuation.shapes.chat.chunks import choices
from continuation.shapes.encoding import JSON, dump
from continuation.shapes.sse import Event
from continuation.verification import heard
from continuation.verification.door import EngineDoor, detokenized
from continuation.verification.heard import HeardAnswer
from continuation.verification.knowledge import Knowledge, Probe
from continuation.verification.order import Trouble
from strategies.types import CompiledStrategy


@dataclass(frozen=True, slots=True)
class Recording:
    """One whole answer: the events received, and the answer that a client reads from them."""

    events: tuple[Event, ...]
    steps: tuple[heard.Extent, ...]
    heard: HeardAnswer

    @classmethod
    def of(cls, stream: bytes) -> Recording:
        events = heard.events_of(stream)
        return cls(tuple(events), tuple(heard.steps_of(events)), heard.heard_answer(stream))


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """A prompt and its answer. plain: as a client asks for it; again: the same, with ids if the engine reports them."""

    body: JSON
    plain: Recording
    again: Recording


async def record_answer(door: EngineDoor, body: JSON, known: Knowledge) -> RecordedAnswer:
    plain = Recording.of(await door.streamed(dump(body)))
    if plain.heard.error is not None:
        raise Trouble(f"the engine broke off: {plain.heard.error.get('message')}")
    stops = bool(body.get("stop"))
    again = await door.streamed(asking_for_ids(dump(body)) if known.ids and not stops else dump(body))
    return RecordedAnswer(body, plain, Recording.of(again))


async def learn_from(
    door: EngineDoor, known: Knowledge, answers: Sequence[RecordedAnswer], row: CompiledStrategy
) -> tuple[Knowledge, tuple[Probe, ...]]:
    """Learn from the answers whether they repeat, and how the engine writes the thinking."""
    repeats = all(_same(answer.plain.heard, answer.again.heard) for answer in answers)
    says = "gives the same greedy answer" if repeats else "does not give the same greedy answer"
    probes = [Probe("repeats", repeats, f"Asked twice, the engine {says}.")]
    tokens = next(filter(None, [await _written(door, known, row, one) for one in answers]), None)
    if tokens:
        known = replace(known, tokens=tokens)
    if known.tokens:
        opening, *closing = known.tokens
        written = (
            f"The engine writes OPEN as {opening!r}, and {''.join(closing)!r} between reasoning and content."
        )
        probes.append(Probe("control tokens", list(known.tokens), written))
    else:
        probes.append(
            Probe("control tokens", None, "How the thinking is opened and closed could not be seen.")
        )
    end = _common_end([answer.plain.heard.reasoning for answer in answers])
    if end:
        probes.append(Probe("reasoning end", end, f"Every reasoning ends with {end!r}."))
    return replace(known, repeats=repeats, reasoning_end=end), tuple(probes)


def _common_end(reasonings: Sequence[str]) -> str:
    """The white space at the end of every text that is not empty."""
    ends = [text[len(text.rstrip()) :][::-1] for text in reasonings if text]
    return commonprefix(ends)[::-1]  # noqa: RUF071 - character by character is what is wanted


def _same(one: HeardAnswer, other: HeardAnswer) -> bool:
    def shape(of: HeardAnswer) -> tuple[Any, ...]:
        return of.reasoning, of.content, of.finish, [(call.name, call.arguments) for call in of.calls]

    return shape(one) == shape(other)


async def _written(
    door: EngineDoor, known: Knowledge, row: CompiledStrategy, answer: RecordedAnswer
) -> tuple[str, str, str] | None:
    """Find OPEN, CLOSE and CONTENT_OPEN in the ids of an answer that has reasoning and content."""
    heard_again, ids = answer.again.heard, _ids_in(answer.again)
    if not (ids and heard_again.reasoning and heard_again.content):
        return None
    raw = await detokenized(door, known.model, ids)
    before, found, rest = raw.partition(heard_again.reasoning)
    between, found_too, _ = rest.partition(heard_again.content[:40])
    opening = before or known.opening or ""
    if not (found and found_too and opening and between):
        return None
    if row.content_open and between.endswith(row.content_open):
        return opening, between.removesuffix(row.content_open), row.content_open
    return opening, between, ""


def _ids_in(recording: Recording) -> list[int]:
    ids: list[int] = []
    for event in recording.events:
        value = heard.value_in(event)
        for choice in choices(value) if isinstance(value, dict) else ():
            ids += [token for token in choice.get("token_ids") or [] if isinstance(token, int)]
    return ids
