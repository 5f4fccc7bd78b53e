"""Where an answer is cut for a verification, and whether a continued answer equals the uninterrupted one. No I/O.

A recorded stream is cut between events, for there a continuation joins. Each such place is of one kind (`Place`),
found from the text before and after it, so that the few cuts that are tried cover all kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from continuation.shapes.chat.chunks import (
    JSON,
    choices,
    count,
    delta_of,
    error_object,
    finish_of,
    index_of,
    is_error,
    parse,
    reasoning_of,
    reasoning_tokens,
    text_of,
    usage_of,
)
from continuation.shapes.sse import DONE, Event, EventDecoder
from continuation.splice.leg import Leg

STREAM_BYTES = 2**27
# So many characters before its last one an answer is near its end.
NEAR_END = 8
# A difference is shown with so much of the text around it.
WINDOW = 24


class Place(StrEnum):
    """Kinds of cut places, in the order of an answer; the value is what people are shown."""

    REASONING_WORD = "reasoning, word boundary"
    REASONING_MID_WORD = "reasoning, inside a word"
    REASONING_SPACE = "reasoning, after white space"
    REASONING_CHARACTER = "reasoning, multi-byte character"
    REASONING_END = "reasoning, at its end"
    CONTENT_BLANK = "content, white space only"
    CONTENT_START = "content, first character"
    CONTENT_WORD = "content, word boundary"
    CONTENT_MID_WORD = "content, inside a word"
    CONTENT_SPACE = "content, after white space"
    CONTENT_CHARACTER = "content, multi-byte character"
    CONTENT_END = "content, near the end"
    TOOL_CALL = "tool call"


# -- a recorded stream -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Told:
    """What a client makes of a stream."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    usage: JSON | None = None
    error: JSON | None = None
    roles: int = 0
    ids: int = 0
    dones: int = 0

    @property
    def spoken(self) -> str:
        return self.reasoning + self.content


def told(stream: bytes) -> Told:
    """The whole of an event stream; events that cannot be read are left out."""
    reading = _Reading()
    for event in events_of(stream):
        if event.data == DONE:
            reading.dones += 1
        elif event.data:
            reading.value(event, value_in(event))
    return reading.told()


def value_in(event: Event) -> Any:
    """The JSON of an event's data; None where it has none that can be read."""
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

    def told(self) -> Told:
        calls = tuple(Call(*self.calls[index]) for index in sorted(self.calls))
        texts = "".join(self.reasoning), "".join(self.content)
        return Told(*texts, calls, self.finish, self.usage, self.error, self.roles, len(self.ids), self.dones)


@dataclass(frozen=True, slots=True)
class Step:
    """How far a stream was after its first `events` events, in characters of each kind.

    withheld: ids were generated whose text has not been told, half a character for instance.
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


def steps_of(events: Sequence[Event]) -> list[Step]:
    """A step for each event after which a cut has something to continue and something to come."""
    leg, reading, steps = Leg(STREAM_BYTES), _Reading(), []
    for number, event in enumerate(events, start=1):
        value = value_in(event)
        if isinstance(value, dict):
            leg.absorb(value)
            reading.chunk(value)
        if leg.finish:
            break
        so_far = reading.told()
        calls = sum(len(call.name) + len(call.arguments) for call in so_far.calls)
        step = Step(number, len(so_far.reasoning), len(so_far.content), calls, leg.ids_withheld)
        if any(step.position):
            steps.append(step)
    return steps


# -- cuts ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """prompt counts from 0. `step` is of the stream in which the place was found."""

    prompt: int
    place: Place
    step: Step


def place_of(step: Step, whole: Told) -> Place:
    if step.calls:
        return Place.TOOL_CALL
    if step.content:
        return _in_content(step, whole)
    text, rest = whole.reasoning[: step.reasoning], whole.reasoning[step.reasoning :]
    if not rest:
        return Place.REASONING_END
    return _within(
        text,
        rest,
        step.withheld,
        Place.REASONING_SPACE,
        Place.REASONING_CHARACTER,
        Place.REASONING_MID_WORD,
        Place.REASONING_WORD,
    )


def _in_content(step: Step, whole: Told) -> Place:
    text, rest = whole.content[: step.content], whole.content[step.content :]
    if text.isspace():
        return Place.CONTENT_BLANK
    if not rest and whole.calls:
        return Place.TOOL_CALL
    if len(rest) <= NEAR_END:
        return Place.CONTENT_END
    if len(text.lstrip()) == 1:
        return Place.CONTENT_START
    return _within(
        text,
        rest,
        step.withheld,
        Place.CONTENT_SPACE,
        Place.CONTENT_CHARACTER,
        Place.CONTENT_MID_WORD,
        Place.CONTENT_WORD,
    )


def _within(
    text: str, rest: str, withheld: bool, space: Place, character: Place, mid_word: Place, word: Place
) -> Place:
    """Without ids it is not known where a character was cut in two, so all between wide ones are taken for it."""
    if withheld or (_is_wide(rest[0]) and not text[-1].isspace()):
        return character
    if text[-1].isspace():
        return space
    return mid_word if text[-1].isalnum() and rest[0].isalnum() and not _is_wide(text[-1]) else word


def _is_wide(character: str) -> bool:
    return ord(character) >= 0x2E80


def cuts_of(prompt: int, steps: Sequence[Step], whole: Told) -> list[Cut]:
    """All cut places of an answer. Where no step tells one character of content, the first that tells any does."""
    found = [Cut(prompt, place_of(step, whole), step) for step in steps]
    if any(cut.place is Place.CONTENT_START for cut in found):
        return found
    told_some = [bool(whole.content[: cut.step.content].strip()) for cut in found]
    first = told_some.index(True) if True in told_some else None
    if first is not None and found[first].place not in (Place.CONTENT_END, Place.TOOL_CALL):
        found[first] = Cut(prompt, Place.CONTENT_START, found[first].step)
    return found


def choose(cuts: Iterable[Cut], per_place: int) -> list[Cut]:
    """At most `per_place` cuts of each kind, spread evenly over all answers; 0 for all."""
    by_place: dict[Place, list[Cut]] = {}
    for cut in cuts:
        by_place.setdefault(cut.place, []).append(cut)
    return [cut for place in Place for cut in spread(by_place.get(place, []), per_place)]


def spread(cuts: Sequence[Cut], most: int) -> list[Cut]:
    if most <= 0 or len(cuts) <= most:
        return list(cuts)
    if most == 1:
        return [cuts[len(cuts) // 2]]
    return [cuts[round(number * (len(cuts) - 1) / (most - 1))] for number in range(most)]


def events_at(cut: Cut, steps: Sequence[Step]) -> int:
    """How many events of another recording of the same answer bring it as far as `cut`; 0 for none."""
    if cut.step in steps:
        return cut.step.events
    wanted = cut.step.position
    return max(
        (s.events for s in steps if all(a <= b for a, b in zip(s.position, wanted, strict=True))), default=0
    )


# -- verdicts --------------------------------------------------------------------------------------


class Verdict(StrEnum):
    EXACT = "exact"
    DIVERGED = "diverged"
    REFUSED = "refused"  # the engine, or the seam, did not continue: the stream ended as failed
    NOT_TRIED = "not tried"  # the gateway itself does not continue there on this route


@dataclass(frozen=True, slots=True)
class Finding:
    """difference is one line, "" where there is none; usage_equal: all counts are those of the whole answer."""

    verdict: Verdict
    difference: str = ""
    usage_equal: bool = False


def judge(want: Told, got: Told, before: Told, *, decided: bool, counts_exact: bool, reason: str) -> Finding:
    """Compare a spliced answer with the uninterrupted one.

    before        what the client had been told at the cut
    decided       a continuation was asked for
    counts_exact  else the budget is an estimate, and an answer that ends at its limit ends elsewhere
    reason        the gateway's own word for an ending that failed
    """
    if got.error is not None:
        return Finding(Verdict.REFUSED if decided else Verdict.NOT_TRIED, reason or "the stream failed")
    if want.finish == got.finish == "length" and not counts_exact:
        want, got = _as_long(want, got)
    difference = first_difference(want, got, before)
    same = not difference
    return Finding(
        Verdict.EXACT if same else Verdict.DIVERGED, difference, same and _counts(want) == _counts(got)
    )


def first_difference(want: Told, got: Told, before: Told) -> str:
    """The first thing about `got` that is not as it should be; "" if all is."""
    checks = (
        _text_difference("reasoning", want.reasoning, got.reasoning),
        _text_difference("content", want.content, got.content),
        _calls_difference(want, got, before),
        "" if want.finish == got.finish else f"finish_reason: wanted {want.finish!r}, got {got.finish!r}",
        _form_difference(want, got),
    )
    return next(filter(None, checks), "")


def _text_difference(name: str, want: str, got: str) -> str:
    if want == got:
        return ""
    pairs = enumerate(zip(want, got, strict=False))
    at = next((n for n, (a, b) in pairs if a != b), min(len(want), len(got)))
    before = want[max(0, at - WINDOW) : at]
    wanted, found = want[at : at + WINDOW], got[at : at + WINDOW]
    return f"{name}, character {at}: after {before!r} wanted {_or_end(wanted)}, got {_or_end(found)}"


def _or_end(text: str) -> str:
    return repr(text) if text else "its end"


def _calls_difference(want: Told, got: Told, before: Told) -> str:
    if len(want.calls) != len(got.calls):
        return f"tool calls: wanted {len(want.calls)}, got {len(got.calls)}"
    for number, (wanted, found) in enumerate(zip(want.calls, got.calls, strict=True)):
        if difference := _text_difference(f"tool call {number}, name", wanted.name, found.name):
            return difference
        if difference := _text_difference(
            f"tool call {number}, arguments", wanted.arguments, found.arguments
        ):
            return difference
    for number, told_before in enumerate(before.calls):
        if told_before.id != got.calls[number].id:
            return f"tool call {number}, id: {told_before.id!r} became {got.calls[number].id!r}"
    ids = [call.id for call in got.calls]
    return "tool calls: an id is missing or comes twice" if len({*ids} - {""}) != len(ids) else ""


def _form_difference(want: Told, got: Told) -> str:
    if got.dones != 1:
        return f"[DONE]: wanted once, got {got.dones} times"
    if got.roles != want.roles:
        return f"role: wanted {want.roles} times, got {got.roles} times"
    if got.ids > max(1, want.ids):
        return f"id: {got.ids} different ones in one answer"
    missing = _usage_fields(want) - _usage_fields(got)
    return f"usage: {', '.join(sorted(missing))} missing" if missing else ""


def _usage_fields(of: Told) -> set[str]:
    names = {name for name, value in zip(COUNTS, _counts(of), strict=True) if value is not None}
    # A count of no reasoning may be left out.
    return names if of.reasoning else names - {"reasoning_tokens"}


COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "reasoning_tokens")


def _counts(of: Told) -> tuple[int | None, ...]:
    return *(count(of.usage, name) for name in COUNTS[:3]), reasoning_tokens(of.usage)


def _as_long(want: Told, got: Told) -> tuple[Told, Told]:
    """Both up to where the shorter one ends."""
    length = min(len(want.spoken), len(got.spoken))
    return _up_to(want, length), _up_to(got, length)


def _up_to(of: Told, length: int) -> Told:
    reasoning = of.reasoning[:length]
    content = of.content[: length - len(reasoning)]
    return Told(reasoning, content, of.calls, of.finish, of.usage, None, of.roles, of.ids, of.dones)


# -- counting --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """Findings of one kind of place, counted."""

    exact: int = 0
    diverged: int = 0
    refused: int = 0
    not_tried: int = 0
    usage_equal: int = 0
    first_difference: str = ""

    def add(self, finding: Finding) -> None:
        match finding.verdict:
            case Verdict.EXACT:
                self.exact += 1
            case Verdict.DIVERGED:
                self.diverged += 1
            case Verdict.REFUSED:
                self.refused += 1
            case Verdict.NOT_TRIED:
                self.not_tried += 1
        self.usage_equal += finding.usage_equal
        self.first_difference = self.first_difference or finding.difference

    @property
    def tried(self) -> int:
        return self.exact + self.diverged + self.refused

    @property
    def total(self) -> int:
        return self.tried + self.not_tried


def summed(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for one in tallies:
        total.exact += one.exact
        total.diverged += one.diverged
        total.refused += one.refused
        total.not_tried += one.not_tried
        total.usage_equal += one.usage_equal
        total.first_difference = total.first_difference or one.first_difference
    return total
