"""Where an answer is cut for a verification, and whether a continued answer equals the uninterrupted one. No I/O.

A recorded stream is cut between events, for there a continuation joins. Each such place is of one kind (`Place`),
found from the text before and after it, so that the few cuts that are tried cover all kinds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from continuation.shapes.chat.chunks import count, reasoning_tokens
from continuation.verification.heard import HeardAnswer

# Characters of text that are shown around a difference.
WINDOW = 24


class Likeness(StrEnum):
    EXACT = "exact"
    DIVERGED = "diverged"
    REFUSED = "refused"  # the engine, or the seam, did not continue: the stream ended as failed
    NOT_TRIED = "not tried"  # the gateway itself does not continue there on this route


@dataclass(frozen=True, slots=True)
class Finding:
    """difference: one line, "" if there is none. usage_equal: all counts are those of the uninterrupted answer."""

    verdict: Likeness
    difference: str = ""
    usage_equal: bool = False


def judge(
    want: HeardAnswer,
    got: HeardAnswer,
    before: HeardAnswer,
    *,
    decided: bool,
    counts_exact: bool,
    reason: str,
) -> Finding:
    """Compare a spliced answer with the uninterrupted one.

    before        what the client had received at the cut
    decided       a continuation was asked for
    counts_exact  False: the budget is an estimate, so an answer may reach its limit at another place
    reason        the gateway's own word for an ending that failed
    """
    if got.error is not None:
        return Finding(Likeness.REFUSED if decided else Likeness.NOT_TRIED, reason or "the stream failed")
    if want.finish == got.finish == "length" and not counts_exact:
        want, got = _as_long(want, got)
    difference = first_difference(want, got, before)
    same = not difference
    return Finding(
        Likeness.EXACT if same else Likeness.DIVERGED, difference, same and _counts(want) == _counts(got)
    )


def first_difference(want: HeardAnswer, got: HeardAnswer, before: HeardAnswer) -> str:
    """The first difference between `got` and the expected answer; "" if there is none."""
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


def _calls_difference(want: HeardAnswer, got: HeardAnswer, before: HeardAnswer) -> str:
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


def _form_difference(want: HeardAnswer, got: HeardAnswer) -> str:
    if got.dones != 1:
        return f"[DONE]: wanted once, got {got.dones} times"
    if got.roles != want.roles:
        return f"role: wanted {want.roles} times, got {got.roles} times"
    if got.ids > max(1, want.ids):
        return f"id: {got.ids} different ones in one answer"
    missing = _usage_fields(want) - _usage_fields(got)
    return f"usage: {', '.join(sorted(missing))} missing" if missing else ""


def _usage_fields(of: HeardAnswer) -> set[str]:
    names = {name for name, value in zip(COUNTS, _counts(of), strict=True) if value is not None}
    # A count of no reasoning may be left out.
    return names if of.reasoning else names - {"reasoning_tokens"}


COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "reasoning_tokens")


def _counts(of: HeardAnswer) -> tuple[int | None, ...]:
    return *(count(of.usage, name) for name in COUNTS[:3]), reasoning_tokens(of.usage)


def _as_long(want: HeardAnswer, got: HeardAnswer) -> tuple[HeardAnswer, HeardAnswer]:
    """Cut both answers to the length of the shorter one."""
    length = min(len(want.spoken), len(got.spoken))
    return _up_to(want, length), _up_to(got, length)


def _up_to(of: HeardAnswer, length: int) -> HeardAnswer:
    reasoning = of.reasoning[:length]
    content = of.content[: length - len(reasoning)]
    return HeardAnswer(reasoning, content, of.calls, of.finish, of.usage, None, of.roles, of.ids, of.dones)


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
            case Likeness.EXACT:
                self.exact += 1
            case Likeness.DIVERGED:
                self.diverged += 1
            case Likeness.REFUSED:
                self.refused += 1
            case Likeness.NOT_TRIED:
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
