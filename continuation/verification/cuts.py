"""The places at which a whole answer is cut, and the choice of some of each kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from continuation.verification.heard import Extent, HeardAnswer

# Characters before the end of an answer within which a cut counts as near its end.
NEAR_END = 8


class Place(StrEnum):
    """Kinds of cut places, in the order of an answer. The value is the text that people read."""

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


@dataclass(frozen=True, slots=True)
class Cut:
    """prompt: its index. step: where the cut is, in the recording in which the place was found."""

    prompt: int
    place: Place
    step: Extent


def place_of(step: Extent, whole: HeardAnswer) -> Place:
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


def _in_content(step: Extent, whole: HeardAnswer) -> Place:
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
    """Without ids, a cut inside a character cannot be seen: every cut before a wide one counts as such."""
    if withheld or (_is_wide(rest[0]) and not text[-1].isspace()):
        return character
    if text[-1].isspace():
        return space
    return mid_word if text[-1].isalnum() and rest[0].isalnum() and not _is_wide(text[-1]) else word


def _is_wide(character: str) -> bool:
    return ord(character) >= 0x2E80


def cuts_of(prompt: int, steps: Sequence[Extent], whole: HeardAnswer) -> list[Cut]:
    """All cut places of an answer. The first step with content stands for its start, if none ends there."""
    found = [Cut(prompt, place_of(step, whole), step) for step in steps]
    if any(cut.place is Place.CONTENT_START for cut in found):
        return found
    has_content = [bool(whole.content[: cut.step.content].strip()) for cut in found]
    first = has_content.index(True) if True in has_content else None
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


def events_at(cut: Cut, steps: Sequence[Extent]) -> int:
    """Number of events that bring another recording of the same answer to `cut` and not beyond it; 0 if none do."""
    if cut.step in steps:
        return cut.step.events
    wanted = cut.step.position
    return max(
        (s.events for s in steps if all(a <= b for a, b in zip(s.position, wanted, strict=True))), default=0
    )
