"""From a failed leg 1 to leg 2: the decision, and what is sent."""

from __future__ import annotations

import logging
from collections.abc import Callable

from continuation.shapes.chat.chunks import error_message, is_client_error
from continuation.shapes.encoding import JSON
from continuation.splice.actions import Action, CloseLeg, OpenLeg, OpenTokens, sends
from continuation.splice.course import Course, Phase
from continuation.splice.decision import Breakage, Verdict, decide
from continuation.splice.ending import complete, fail, fail_second
from continuation.splice.leg import Leg
from continuation.splice.reports import LegFault
from continuation.splice.second_leg import SecondLeg
from continuation.vocabulary import Decision, Failure, Reason

logger = logging.getLogger(__name__)


def act_on(course: Course, fault: LegFault, now: float) -> list[Action]:
    """Leg 1 has failed: decide, and do what was decided."""
    course.enter(Phase.DECIDING)
    course.fault, course.notes.leg1_ended = fault, now
    if fault.failure is Failure.ERROR_EVENT:
        course.notes.failure_detail = error_message(fault.value)
    if course.first.leg.finish:
        return _end_finished(course, now)
    released = _judge(course, fault)
    return [*sends([released]), *_carry_out(course, now)]


def guard(course: Course, step: Callable[[], list[Action]], now: float) -> list[Action]:
    """Continuation code that fails in a way nobody thought of ends the stream as any other failed leg 2."""
    try:
        return step()
    except Exception:
        logger.exception("request %s: the continuation failed inside the gateway", course.request_id)
        return fail_second(course, Reason.INTERNAL_ERROR, "", now)


def continue_by_chat(course: Course, now: float) -> list[Action]:
    _begin_second(course, now, exact=False)
    return [OpenLeg(course.plan, course.partial, course.bill.before.completion)]


def _end_finished(course: Course, now: float) -> list[Action]:
    """Leg 1 failed behind its finish: its ending is added, unless another choice goes on."""
    course.weigh()
    if course.first.leg.another_goes_on:
        course.notes.verdict = Verdict(Decision.REFUSE, Reason.MULTIPLE_CHOICES)
        return fail(course, Reason.MULTIPLE_CHOICES, now)
    course.notes.verdict = Verdict(Decision.COMPLETE, Reason.ENDING_LOST)
    return complete(course, None, now)


def _judge(course: Course, fault: LegFault) -> bytes:
    """Note the verdict; the events that are released from the shelf now. What lies there is dropped if the answer can
    go on without it."""
    first = course.first
    whole, first.leg = first.leg, first.delivered
    without = course.notes.verdict = _verdict(course, fault)
    if not first.shelf.holding:
        return b""
    if without.decision is Decision.CONTINUE:
        first.shelf.drop()
        return b""
    first.leg = whole
    within = _verdict(course, fault)  # carried ids go on inside a call
    course.notes.verdict = without if within.decision is Decision.REFUSE else within
    return first.shelf.release()


def _verdict(course: Course, fault: LegFault) -> Verdict:
    course.weigh()
    leg, plan = course.first.leg, course.plan
    return decide(
        Breakage(
            tool_call_seen=leg.tool_call_seen,
            empty=course.partial.is_empty,
            unreadable=leg.unreadable,
            event_lost=course.first.has_lost_event,
            too_large=leg.too_large,
            other_choices=leg.other_choices,
            enabled=course.options.enabled,
            remaining=course.bill.remaining,
            counts_exact=course.bill.before.exact,
            client_error=fault.failure is Failure.ERROR_EVENT and is_client_error(fault.value),
            takes_tokens=plan.strategy.takes_tokens,
            ids_carried=plan.carries_ids and leg.carried_ids is not None,
        )
    )


def _carry_out(course: Course, now: float) -> list[Action]:
    verdict = course.notes.verdict
    match verdict.decision if verdict else Decision.REFUSE:
        case Decision.CONTINUE:
            return guard(course, lambda: _continue(course, now), now)
        case Decision.COMPLETE:
            return complete(course, "length", now)
        case Decision.REFUSE | Decision.NONE:
            return fail(course, verdict.reason if verdict else Reason.INTERNAL_ERROR, now)


def _continue(course: Course, now: float) -> list[Action]:
    course.enter(Phase.LEG2)
    course.first.drop_rest()
    by_tokens = course.plan.strategy.takes_tokens
    opening = _continue_by_tokens(course, now) if by_tokens else continue_by_chat(course, now)
    return [CloseLeg(), *opening]


def _continue_by_tokens(course: Course, now: float) -> list[Action]:
    plan, leg = course.plan, course.first.leg
    _begin_second(course, now, exact=True)
    carried = leg.carried_ids if plan.carries_ids else None
    return [
        OpenTokens(
            plan=plan,
            strategy=plan.strategy,
            partial=course.partial,
            carried_prompt=leg.prompt_ids if carried is not None else (),
            carried_ids=carried,
            tool_ids=tuple(leg.tool_ids),
            stops=plan.stops,
            stop_shown=plan.stop_shown,
            shown_ids=leg.shown_ids if carried is not None else None,
        )
    ]


def _begin_second(course: Course, now: float, *, exact: bool) -> None:
    leg1 = course.first.leg
    course.second = SecondLeg(
        course.plan,
        course.options,
        course.request_id,
        leg1,
        course.partial,
        now,
        exact=exact,
        running_usage=_running_usage(course, leg1),
    )


def _running_usage(course: Course, leg1: Leg) -> Callable[[JSON], JSON] | None:
    """The usage of the whole answer for one of leg 2, where the client wants it on each chunk."""
    plan = course.plan
    is_shown = plan.asks_usage or (leg1.last_usage is not None and not plan.carries_ids)
    if not (plan.asks_usage_always and is_shown):
        return None
    return lambda counts: course.bill.joined(leg1, course.second, counts)
