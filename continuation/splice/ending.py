"""How a stream ends: what the client gets last, and what is noted of it."""

from __future__ import annotations

from typing import Any

from continuation.shapes.chat.chunks import error_object
from continuation.shapes.encoding import JSON, event_of
from continuation.shapes.sse import DONE_EVENT, closed
from continuation.splice.actions import Action, CloseLeg, Send, sends
from continuation.splice.course import Course, Phase
from continuation.splice.record import quoted
from continuation.splice.reports import LegFault
from continuation.splice.rewrite import chunk_like, finish_choice
from continuation.vocabulary import Decision, Failure, Outcome, Reason, failed_message

# Reasons whose own word is the error's code: the failure alone would not explain what happened.
OWN_CODES = (Reason.INTERNAL_ERROR, Reason.SCALE_OUT_MISSING, Reason.EVENT_TOO_LARGE)


def complete(course: Course, finish: str | None, now: float) -> list[Action]:
    """The answer is whole: add what is missing of its ending. finish: the finish_reason, if the client has none yet."""
    notes, leg = course.notes, course.first.leg
    notes.outcome, notes.reason = Outcome.COMPLETED, notes.verdict.reason if notes.verdict else Reason.NONE
    tail = event_of(chunk_like(leg, choices=[finish_choice(finish)])) if finish else b""
    if course.plan.asks_usage and not course.first.usage_sent:
        tail += _usage_event(course)
    course.end(Phase.DONE, now)
    return [CloseLeg(), Send(tail + DONE_EVENT)]


def finish_second(course: Course, now: float) -> list[Action]:
    """Leg 2 has finished the answer."""
    usage = _usage_event(course) if course.plan.asks_usage else b""
    course.notes.outcome = Outcome.RESCUED
    course.end(Phase.DONE, now)
    return [Send(usage + DONE_EVENT), CloseLeg()]


def fail_second(course: Course, reason: Reason, message: str, now: float) -> list[Action]:
    """Leg 2 has failed: the client gets what it has written, and the failed ending. message: the engine's."""
    course.notes.leg2_message = quoted(course, message)
    second = course.second
    if second is None:
        return fail(course, reason, now)
    is_silent = second.finish_sent or second.shelf.holding or reason is Reason.LEG2_RESTARTED
    words = [] if is_silent else second.last_words()
    second.shelf.drop()
    if second.finish_sent:  # before, which nothing spoils any more, or by a stop string among the words
        return [*sends(words), *finish_second(course, now)]
    return [*sends(words), *fail(course, reason, now)]


def fail(course: Course, reason: Reason, now: float) -> list[Action]:
    """The failed ending: one error event, and no [DONE]."""
    course.notes.outcome, course.notes.reason = Outcome.FAILED, reason
    usage = course.first.early_usage if course.second is None else b""
    event = _error_event(course, reason)
    course.end(Phase.FAILED, now)
    return [CloseLeg(), Send(usage + event)]


def break_off(course: Course, reason: Reason, now: float) -> list[Action]:
    """The failed ending from any phase, without a look at what the engine said."""
    unfinished = course.first.shelf.release() + (b"\n\n" if course.phase is Phase.UNFRAMED else b"")
    if course.second is None:
        unfinished += course.first.early_usage
    else:
        course.second.shelf.drop()
    course.notes.outcome, course.notes.reason = Outcome.FAILED, reason
    course.end(Phase.FAILED, now)
    return [CloseLeg(), Send(unfinished + interrupted_event(None, reason, reason))]


def interrupted_event(failure: Failure | None, reason: Reason, code: Failure | Reason) -> bytes:
    message = failed_message(failure, reason)
    return event_of({"error": {"message": message, "type": "stream_interrupted", "code": str(code)}})


def _error_event(course: Course, reason: Reason) -> bytes:
    """The engine's own error if it sent one, in the form that clients understand; else what the gateway knows."""
    fault, verdict = course.fault or LegFault(Failure.DISCONNECT), course.notes.verdict
    if fault.failure is Failure.ERROR_EVENT and fault.held is not None:
        if isinstance(fault.value, dict) and fault.value.get("error"):
            return closed(fault.held.raw)
        named = {"type": "stream_interrupted", "code": "error_event", **_named(fault.value)}
        return event_of({"error": named})
    is_refused = verdict is not None and verdict.decision is Decision.REFUSE and course.first.leg.events > 0
    is_own = is_refused or reason in OWN_CODES
    return interrupted_event(fault.failure, reason, reason if is_own else fault.failure)


def _named(value: Any) -> JSON:
    """An engine's error in the one form that clients understand; its nulls would hide our type and code."""
    said = {key: part for key, part in error_object(value).items() if isinstance(part, str | int | float)}
    said.pop("object", None)
    return {"message": "the engine reported an error", **said}


def _usage_event(course: Course) -> bytes:
    leg = course.first.leg
    return event_of(chunk_like(leg, choices=[], usage=course.bill.total(leg, course.second)))
