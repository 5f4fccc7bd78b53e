"""What was due to a stream, from what the injector did to it, and whether its client got exactly that.

Due is decided from what was really handed on, not from what was planned: a fault that strikes before any text fails
the stream as it should, and the same fault one event later must be rescued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from os.path import commonprefix
from typing import Any

from continuation.testbed.drill.flights import Flight, FlownLeg
from continuation.testbed.drill.plans import ERROR, STALLS, Reference, Strike
from continuation.testbed.drill.questions import QUESTIONS
from continuation.testbed.drill.reading import BOM, JSON, Told, difference, read, text_difference

# The gateway's words for how leg 1 died, by fault.
FAILURES: Mapping[str, str] = {
    **dict.fromkeys(("reset", "disconnect", "half_closed", "broken_framing"), "disconnect"),
    **dict.fromkeys(("cut_inside_event", "cut_inside_character"), "disconnect"),
    **dict.fromkeys(("eof", "done_without_finish", "empty"), "eof"),
    **dict.fromkeys(STALLS, "idle_timeout"),
    **dict.fromkeys(("error_event", "client_error_event"), "error_event"),
    "aborted": "aborted",
    "malformed": "malformed",
}
_ENDING_LOST = {"reset": "disconnect", "disconnect": "disconnect", "eof": "eof", "no_done": "eof"}
# Of X-Continuation, by the way in which a request is not guarded.
_NOTES: Mapping[str, str] = {
    "not_stream": "passthrough; reason=not_stream",
    "choices": "guarded",
    "structured": "passthrough; reason=structured_output",
    "guided": "passthrough; reason=structured_output",
    "continues": "passthrough; reason=client_continuation",
    **dict.fromkeys(("not_json", "no_object", "deep"), "passthrough; reason=not_json"),
    "wrong_types": "guarded",
}
_OPTED_OUT = "passthrough; reason=client_opt_out"
LEAVING = ("client_leaves", "client_leaves_leg2")
# Part of the idle limit: a silence as long may have been one of the whole limit, where the gateway saw it.
_STARVED = 0.9
# Tokens that leg 1 had generated but not shown (halves of a character) are generated, and counted, twice.
_COUNTED_TWICE = 4
# And where it held text back that might have been the beginning of a stop string.
_HELD_BACK = 16


class DrillOutcome(StrEnum):
    """How a stream came out."""

    WHOLE = "whole"  # needed nothing
    RESCUED = "rescued"  # broken and continued, equal to the uninterrupted one
    COMPLETED = "completed"  # broken after its finish, and ended properly
    FAILED = "failed as due"  # could not be saved, and says so
    PASSED = "passed on"  # not guarded, refused, or left: came out as it went in
    UNCLEAR = "unclear"  # sound in itself, but the machine was too busy to tell what was due
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Due:
    """failure and reason are the gateway's words; row is what its audit must say, None for no row."""

    outcome: DrillOutcome
    legs: int = 1
    failure: str = ""
    reason: str = ""
    row: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """troubles, one line each, are empty unless the outcome is WRONG.

    row_is_certain: the audit must say what is due; if not, a starved engine may have been given up before its fault.
    """

    outcome: DrillOutcome
    due: Due
    troubles: tuple[str, ...] = ()
    row_is_certain: bool = True


def judge(flight: Flight, reference: Reference, idle_seconds: float) -> Judgement:
    due = due_to(flight)
    troubles = tuple(found for found in _troubles(flight, reference, due) if found)
    watched = due.outcome is not DrillOutcome.PASSED or flight.plan.kind in LEAVING
    starved = watched and flight.starved(_STARVED * idle_seconds)
    if troubles and starved:
        troubles = tuple(found for found in _unsound(flight, reference) if found)
        return Judgement(DrillOutcome.WRONG if troubles else DrillOutcome.UNCLEAR, due, troubles, False)
    return Judgement(
        DrillOutcome.WRONG if troubles else due.outcome, due, troubles, not (troubles or starved)
    )


# -- what is due -------------------------------------------------------------------------------------


def due_to(flight: Flight) -> Due:
    leg1, kind = flight.leg1, flight.plan.kind
    if kind in ("client_opts_out", "client_passes", "client_garbage"):
        return Due(DrillOutcome.PASSED, legs=len(flight.legs) and 1)
    if kind in LEAVING:
        return _due_to_leaving(flight)
    if leg1 is None or leg1.status != 200:
        return Due(DrillOutcome.PASSED)
    return _due_to_stream(flight, leg1, _failure(flight.plan.leg1, leg1))


def _due_to_leaving(flight: Flight) -> Due:
    legs = 2 if flight.plan.kind == "client_leaves_leg2" else 1
    row = {"outcome": "client_gone", "decision": "continue" if legs == 2 else "none"}
    return Due(DrillOutcome.PASSED, legs, row=row)


def _failure(strike: Strike | None, leg: FlownLeg) -> str:
    """How leg 1 died, in the gateway's words; "" if it did not."""
    if strike and leg.struck and not leg.went_on:
        if strike.name == "ending_lost":
            return _ENDING_LOST[strike.how]
        if strike.name in FAILURES:
            return FAILURES[strike.name]
    return "disconnect" if leg.ended == "broken" else ""


def _due_to_stream(flight: Flight, leg1: FlownLeg, failure: str) -> Due:
    told = read(bytes(leg1.raw))
    chars = {"reasoning_chars": len(told.reasoning), "content_chars": len(told.content)}
    if not failure:
        return Due(DrillOutcome.WHOLE)
    if told.finishes:
        row = {"outcome": "completed", "decision": "complete", "reason": "ending_lost", **chars}
        return Due(DrillOutcome.COMPLETED, failure=failure, reason="ending_lost", row=row)
    if reason := _refusal(flight.plan.leg1, told):
        row = {"outcome": "failed", "decision": "refuse", "reason": reason, "failure": failure, **chars}
        return Due(DrillOutcome.FAILED, 1, failure, reason, row)
    reason = _leg2_reason(flight, told)
    row = {"decision": "continue", "reason": reason, "failure": failure, **chars}
    row |= {"outcome": "failed" if reason else "rescued"}
    if flight.plan.leg2 and flight.plan.leg2.name == "broken_framing":
        del row["reason"]  # if the bad chunk comes in one read with the headers, these are lost with it
    elif flight.leg2 is not None and flight.leg2.status:
        row |= {"leg2_status": flight.leg2.status}
    return Due(DrillOutcome.FAILED if reason else DrillOutcome.RESCUED, 2, failure, reason, row)


def _refusal(strike: Strike | None, told: Told) -> str:
    """Why leg 1 cannot be continued; "" if it can."""
    if told.calls:
        return "tool_call_seen"
    if not told.has_text:
        return "no_recoverable_content"
    return "client_error" if strike and strike.name == "client_error_event" else ""


def _leg2_reason(flight: Flight, told: Told) -> str:
    """Why leg 2 does not rescue the stream; "" if it must."""
    strike, leg2 = flight.plan.leg2, flight.leg2
    match strike:
        case None:
            return ""
        case Strike(name="refused"):
            return "leg2_refused"
        case Strike(name="unreachable"):
            return "leg2_unreachable"
        case Strike(name="empty_stop"):
            return "" if told.content else "leg2_empty"
        case Strike(name="depart"):
            return "leg2_restarted"
        case Strike(name=name) if name in FAILURES and leg2 is not None and leg2.struck:
            return "leg2_broken"
        case _:
            return ""


# -- whether it came -------------------------------------------------------------------------------


def _troubles(flight: Flight, reference: Reference, due: Due) -> Iterator[str]:
    heard, kind = flight.heard, flight.plan.kind
    if heard.ended == "late":
        yield heard.trouble
        return
    yield from _requests(flight, due)
    if kind in LEAVING:
        yield from _left(flight)
    elif due.outcome is DrillOutcome.PASSED:
        yield from _passed_on(flight)
    else:
        yield from _guarded(flight, reference, due)


def _requests(flight: Flight, due: Due) -> Iterator[str]:
    numbers = [leg.number for leg in flight.legs]
    strike = flight.plan.leg1
    if (
        strike
        and flight.plan.kind == "client_garbage"
        and strike.how in ("not_http", "half_head", "half_body")
    ):
        yield difference("requests that reached the engine", [], numbers)
        return
    yield difference("requests that reached the engine", [1, 2][: due.legs], numbers)
    leg1 = flight.leg1
    if leg1 and flight.sent != leg1.sent and b'"return_token_ids"' not in leg1.sent:
        yield "leg 1 was asked for with another body than the client's"


def _left(flight: Flight) -> Iterator[str]:
    if flight.heard.ended != "left":
        yield f"the answer ended ({flight.heard.ended} {flight.heard.trouble}) before the client could leave"
    for leg in flight.legs:
        if not leg.ended:
            yield f"leg {leg.number} was not let go of after the client had left"


def _passed_on(flight: Flight) -> Iterator[str]:
    """The client gets what the engine wrote, byte for byte, and the end that the engine made."""
    heard, leg, strike = flight.heard, flight.leg1, flight.plan.leg1
    if leg is None:
        if strike and strike.how == "not_http" and heard.raw and not heard.raw.startswith(b"HTTP/1.1 4"):
            yield f"no HTTP was answered with {bytes(heard.raw[:60])!r}"
        elif heard.status:
            yield f"the gateway itself answered: {heard.status} {bytes(heard.raw[:100])!r}"
        return
    if leg.status == 0:
        yield from _undelivered(flight)
        return
    yield difference("status", leg.status, heard.status)
    yield _bytes_difference(bytes(leg.body), bytes(heard.raw))
    clean = leg.ended == "clean"
    yield difference("end", "clean" if clean else "broken", heard.ended)
    opted_out = flight.plan.kind == "client_opts_out"
    guarded = flight.plan.kind not in ("client_passes", "client_garbage")
    how = strike.how if strike else ""
    note = _OPTED_OUT if opted_out else "guarded" if guarded else _NOTES.get(how, "")
    yield from _headers(flight, note)


def _undelivered(flight: Flight) -> Iterator[str]:
    heard = flight.heard
    yield difference("status", 502, heard.status)
    yield difference("end", "clean", heard.ended)
    if b'"downstream_unreachable"' not in heard.raw:
        yield f"an undelivered request was answered with {bytes(heard.raw[:100])!r}"


def _headers(flight: Flight, note: str) -> Iterator[str]:
    fields = flight.heard.fields
    yield difference("X-Request-Id", flight.request_id, fields.get("x-request-id", ""))
    yield difference("X-Continuation", note, fields.get("x-continuation", ""))


def _bytes_difference(want: bytes, got: bytes) -> str:
    if want == got:
        return ""
    at = len(commonprefix([want, got]))  # noqa: RUF071 - byte by byte is what is wanted
    return f"byte {at} of {len(want)}: wanted {want[at : at + 40]!r}, got {got[at : at + 40]!r}"


def _guarded(flight: Flight, reference: Reference, due: Due) -> Iterator[str]:
    heard, leg1 = flight.heard, flight.leg1
    assert leg1
    yield difference("status", 200, heard.status)
    yield difference("end", "clean", heard.ended) + (f" {heard.trouble}" if heard.trouble else "")
    yield heard.misnumbered
    yield from _headers(flight, "guarded")
    cached = "no-store" if "x-resume-token" in heard.fields else "no-cache"
    yield difference("Cache-Control", cached, heard.fields.get("cache-control", ""))
    told, raw = read(bytes(heard.raw)), bytes(heard.raw)
    yield from _form(told)
    kept = bytes(leg1.raw).removeprefix(BOM)
    if not leg1.went_on:
        yield _bytes_difference(kept, raw if due.outcome is DrillOutcome.WHOLE else raw[: len(kept)])
    if due.outcome is DrillOutcome.FAILED:
        yield from _failed(flight, reference, due, told)
    else:
        yield from _finished(flight, reference, due, told)
    strike = flight.plan.leg1
    acts = strike is not None and strike.name in STALLS and not _refusal(strike, _at_stall(leg1, strike))
    if leg1.went_on and flight.leg2 is None and acts:
        yield "silence was not acted on"


def _at_stall(leg1: FlownLeg, strike: Strike) -> Told:
    return read(b"".join(leg1.events[: strike.after]))


def _unsound(flight: Flight, reference: Reference) -> Iterator[str]:
    """What may not be, whatever happened to the stream, and when."""
    if flight.plan.kind in LEAVING:
        yield from (found for found in _left(flight) if "let go" in found)
        return
    yield flight.heard.misnumbered
    told, want, leg2 = read(bytes(flight.heard.raw)), reference.told, flight.plan.leg2
    yield difference("status", 200, flight.heard.status)
    yield from _form(told)
    if leg2 and leg2.name in ("depart", "empty_stop"):  # where leg 1 has ended is not known
        return
    if told.errors:
        yield from _failed_form(told)
        yield from (
            _prefix(name, getattr(want, name), getattr(told, name)) for name in ("reasoning", "content")
        )
        return
    yield from _text(want, told)
    yield from _finished_form(told)


def _form(told: Told) -> Iterator[str]:
    """What holds for every guarded stream, whatever became of it."""
    if told.unreadable:
        yield f"an event that is no JSON: {told.unreadable[0][:80]!r}"
    if len(told.identities) > 1:
        yield f"more than one id, created or model: {sorted(map(str, told.identities))}"
    if len(told.names) > 1:
        yield "reasoning under two names"
    if told.roles > 1:
        yield f"the role {told.roles} times"
    if any(len(call.ids) > 1 for call in told.calls.values()):
        yield "a tool call with more than one id"
    if told.running != sorted(told.running):
        yield f"completion tokens that go backwards: {told.running}"


def _failed(flight: Flight, reference: Reference, due: Due, told: Told) -> Iterator[str]:
    before = read(bytes(flight.leg1.raw if flight.leg1 else b""))
    if due.legs == 1:
        yield difference("what was said before the end", before.said, told.said)
    else:
        for name in ("reasoning", "content"):
            said, whole = getattr(told, name), getattr(reference.told, name)
            if not said.startswith(getattr(before, name)):
                yield text_difference(f"{name} of leg 1", getattr(before, name), said)
            yield _prefix(name, whole, said)
    yield from _failed_form(told)
    if told.errors:
        yield from _error(told.errors[0], due)


def _prefix(name: str, whole: str, said: str) -> str:
    return "" if whole.startswith(said) else text_difference(name, whole, said)


def _failed_form(told: Told) -> Iterator[str]:
    if told.dones or told.finishes:
        yield f"it failed, and yet: finish_reason {told.finishes}, [DONE] {told.dones} times"
    if len(told.errors) != 1 or told.kinds[-1:] != ["error"]:
        yield f"the failed ending is not one error event at the end: {told.errors}, {told.kinds[-3:]}"


def _error(error: JSON, due: Due) -> Iterator[str]:
    if due.failure == "error_event":
        if ERROR not in str(error.get("message")):
            yield f"the engine's error event did not come through: {error}"
        return
    if error.get("code") not in (due.failure, due.reason) or error.get("type") != "stream_interrupted":
        yield f"the failed ending does not say {due.failure} or {due.reason}: {error}"


def _finished(flight: Flight, reference: Reference, due: Due, told: Told) -> Iterator[str]:
    want, strike = reference.told, flight.plan.leg2
    if due.legs == 2 and strike and strike.name == "empty_stop":
        before = read(bytes(flight.leg1.raw if flight.leg1 else b""))
        yield difference("what was said", (*before.said[:3], ["stop"]), told.said)
    else:
        yield from _text(want, told)
    yield from _finished_form(told)
    yield from _usage(flight, reference, due, told)


def _text(want: Told, told: Told) -> Iterator[str]:
    yield text_difference("reasoning", want.reasoning, told.reasoning)
    yield text_difference("content", want.content, told.content)
    yield difference("tool calls and finish_reason", want.said[2:], told.said[2:])
    yield difference("roles", want.roles, told.roles)


def _finished_form(told: Told) -> Iterator[str]:
    yield difference("errors", [], told.errors)
    if told.dones != 1 or told.kinds[-1] != "done":
        yield f"[DONE] {told.dones} times, the last event is {told.kinds[-1:]}"


def _usage(flight: Flight, reference: Reference, due: Due, told: Told) -> Iterator[str]:
    wanted = flight.plan.usage
    if wanted == "none":
        if told.usages or told.running:
            yield "usage, which was not asked for"
        return
    if len(told.usages) != 1:
        yield f"{len(told.usages)} usage events"
        return
    got, want = (_counts(one) for one in (told.usages[0], reference.told.usages[0]))
    if got[0] + got[1] != got[2]:
        yield f"a total that is no sum: {told.usages[0]}"
    if due.outcome is DrillOutcome.WHOLE:
        yield difference("usage", want, got)
    elif due.outcome is DrillOutcome.RESCUED and wanted == "running" and not _is_empty_stop(flight):
        held = _HELD_BACK if "stop" in QUESTIONS[flight.plan.question] else 0
        yield _exact_usage(want, got, _COUNTED_TWICE + held)


def _exact_usage(want: tuple[int, int, int], got: tuple[int, int, int], twice: int) -> str:
    """For an answer whose leg 1 had reported its counts. twice: tokens that may have been counted twice."""
    right = got[0] == want[0] and want[1] <= got[1] <= want[1] + twice
    return "" if right else f"usage: wanted {want} (prompt, completion, total), got {got}"


def _is_empty_stop(flight: Flight) -> bool:
    return flight.plan.leg2 is not None and flight.plan.leg2.name == "empty_stop"


def _counts(usage: JSON) -> tuple[int, int, int]:
    return usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), usage.get("total_tokens", 0)
