"""What the audit gets of one stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from continuation.splice.course import Course
from continuation.splice.wording import first_line
from continuation.vocabulary import Case, Decision, Outcome, Route
from strategies.builders import prefix
from strategies.types import Partial


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """What the audit keeps of one stream that failed, was continued, or was left by its client.

    Seconds are wall-clock durations; None means that it did not happen or is not known.
    """

    created_at: datetime
    request_id: str
    requested_model: str
    completion_id: str = ""
    strategy_id: int | None = None
    strategy_name: str = ""
    engine: str = ""
    failure: str = ""
    case: str = ""
    decision: str = ""
    route: str = ""
    outcome: str = ""
    reason: str = ""
    reasoning_chars: int = 0
    content_chars: int = 0
    tokens_recovered: int = 0
    tokens_exact: bool = False
    budget_before: int | None = None
    budget_after: int | None = None
    idle_seconds: float | None = None
    seam_gap_seconds: float | None = None
    leg1_seconds: float | None = None
    leg2_seconds: float | None = None
    total_seconds: float | None = None
    leg2_status: int | None = None
    leg2_message: str = ""
    usage_before: dict[str, Any] | None = None
    usage_after: dict[str, Any] | None = None
    partial_text: str = ""
    continued_text: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


def record_of(course: Course) -> StreamRecord | None:
    """None for a stream that needed nothing."""
    notes, leg, second = course.notes, course.first.leg, course.second
    if notes.outcome is None:
        return None
    verdict, budget = notes.verdict, course.plan.budget
    partial = course.partial if course.fault else leg.partial
    before = course.bill.before if course.fault else course.bill.cost(leg, partial)
    return StreamRecord(
        created_at=notes.created_at,
        request_id=course.request_id,
        requested_model=course.plan.model,
        completion_id=leg.id if isinstance(leg.id, str) else "",
        strategy_id=course.plan.strategy.pk,
        strategy_name=course.plan.strategy.name,
        engine=str(course.plan.strategy.engine),
        failure=str(course.fault.failure) if course.fault else "",
        case=str(Case.TOOL_CALL_SEEN if leg.tool_call_seen else partial.case),
        decision=str(verdict.decision if verdict else Decision.NONE),
        route=str(verdict.route if verdict else Route.NONE),
        outcome=str(notes.outcome),
        reason=str(notes.reason),
        reasoning_chars=len(partial.reasoning),
        content_chars=len(partial.content),
        tokens_recovered=before.completion,
        tokens_exact=before.exact,
        budget_before=budget,
        budget_after=budget - before.completion if budget is not None and course.fault else None,
        idle_seconds=_between(course.first.event_at, notes.leg1_ended),
        seam_gap_seconds=_between(course.first.event_at, second.joined_at if second else None),
        leg1_seconds=_between(notes.started_at, notes.leg1_ended or notes.ended_at),
        leg2_seconds=_between(notes.leg1_ended, notes.ended_at) if second else None,
        total_seconds=_between(notes.started_at, notes.ended_at),
        leg2_status=notes.leg2_status,
        leg2_message=notes.leg2_message,
        usage_before=leg.last_usage,
        usage_after=course.bill.total(leg, second) if notes.outcome is Outcome.RESCUED else None,
        partial_text=partial.reasoning + partial.content if course.options.store_text else "",
        continued_text=_continued_text(course) if course.options.store_text else "",
        extra=_extra(course),
    )


def quoted(course: Course, message: str) -> str:
    """What the audit holds of an engine's message: nothing that repeats the conversation."""
    return first_line(message, _repeatable(course)) if message else ""


def _repeatable(course: Course) -> list[str]:
    return [
        prefix(course.plan.strategy, course.partial),
        course.partial.reasoning,
        course.partial.content,
        *course.bill.conversation.openings.split("\n"),
    ]


def _extra(course: Course) -> dict[str, Any]:
    return (
        {"failure_detail": quoted(course, course.notes.failure_detail)}
        | ({"taken_over": True} if course.notes.taken_over else {})
        | _ids_note(course)
        | course.first.shelf.note("leg1")
        | (course.second.shelf.note("leg2") if course.second else {})
    )


def _ids_note(course: Course) -> dict[str, str]:
    """Why ids were not carried where the strategy wants them to be."""
    if not course.plan.strategy.token_exact or course.fault is None:
        return {}
    if course.plan.stops:
        return {"ids": "tokenized from the text: with stop strings the ids run ahead of it"}
    if course.first.leg.carried_ids is None:
        return {"ids": "tokenized from the text: the ids do not agree with the engine's count"}
    return {"ids": "carried"}


def _continued_text(course: Course) -> str:
    text = course.second.leg.partial if course.second else Partial()
    return text.reasoning + text.content


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)
