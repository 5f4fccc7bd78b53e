"""The splice: one answer out of at most two legs.

Something happens - a read arrives, a leg ends, the clock passes the idle deadline, the client leaves - and a `Splice`
returns what is to be done: send bytes, open the second leg, close the current one. It owns no socket and no clock:
times are seconds of any monotonic clock, passed in. Whatever happens, the client gets valid events, exactly one
ending, and nothing twice.

TABLE, at the end of this module, names the step for each happening in each phase. The steps share a `Course`. Those
of a failed leg 1 are in `continuing`, those that end a stream in `ending`; how a leg is read is in `first_leg` and
`second_leg`.

    phase      from                 means
    PLANNED                         leg 1 is being opened; nothing has been promised to the client
    LEG1       PLANNED, UNFRAMED    events are forwarded as received, and read along
    UNFRAMED   LEG1                 in the middle of an event that is too large to be read: its bytes are forwarded
    DECIDING   LEG1, UNFRAMED       leg 1 has failed; lasts no longer than the decision itself
    LEG2       DECIDING             the continuation is being opened, or its events are rewritten and forwarded
    DONE       all but PLANNED      finish_reason and [DONE] have been sent
    FAILED     all                  the failed ending has been sent, or the client has left

An in-band failure (an error event, an abort, a malformed line, a [DONE] without a finish) is held back until the
decision: if a leg 2 rescues the answer the client never learns of it.

Where tool calls are buffered, everything from the first one on lies on a shelf until the answer finishes. What lies
there has not been delivered: silence is a failure still, and after a failure the shelf is emptied and the answer goes
on from where it was before the call. Each leg has a shelf of its own.

An answer of several choices (n > 1) is never continued. Its bytes are forwarded as received, and it has finished when
each choice has; an abort of one choice leaves the others alone, but the answer is then never whole.

An event that says nothing but usage is kept to the end while the answer is unfinished, for leg 2 will add to it: a
client that asked for one usage gets one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from enum import Enum, auto
from typing import Any, assert_never

from continuation.plan import Guarded
from continuation.shapes.chat.chunks import error_message
from continuation.shapes.chat.usage import Delivered
from continuation.shapes.encoding import parse
from continuation.splice.actions import Action, CloseLeg, Send, sends
from continuation.splice.continuing import act_on, continue_by_chat, guard
from continuation.splice.course import Course, Phase
from continuation.splice.decision import Verdict
from continuation.splice.ending import break_off, complete, fail, fail_second, finish_second
from continuation.splice.first_leg import FirstRead
from continuation.splice.options import Options
from continuation.splice.record import StreamRecord, record_of
from continuation.splice.reports import LegFault
from continuation.splice.second_leg import SecondEnd
from continuation.splice.wording import first_line
from continuation.vocabulary import Decision, Failure, Outcome, Reason, Route
from strategies.types import Fallback


class Happening(Enum):
    """What can happen to a stream; each is a method of Splice, which says more."""

    LEG1_OPENED = auto()
    READ = auto()
    LEG_ENDED = auto()
    LEG2_OPENED = auto()
    LEG2_FAILED = auto()
    SCALE_OUT_MISSING = auto()
    TAKEN_OVER = auto()
    BROKEN_OFF = auto()
    CLIENT_GONE = auto()


class Splice:
    """One stream. Each method that names a happening returns what is to be done, in order."""

    def __init__(
        self, plan: Guarded, options: Options, request_id: str, created_at: datetime, now: float
    ) -> None:
        self.course = Course(plan, options, request_id, created_at, now)
        self.started_at = now
        self._ending_delivered: Phase | None = None

    @property
    def phase(self) -> Phase:
        return self.course.phase

    @property
    def ended(self) -> bool:
        return self.course.ended

    @property
    def options(self) -> Options:
        return self.course.options

    @property
    def request_id(self) -> str:
        return self.course.request_id

    def record(self) -> StreamRecord | None:
        """For the audit, once the splice has ended; None for a stream that needed nothing."""
        return record_of(self.course)

    # -- the idle clock ----------------------------------------------------------------------------

    def idle_deadline(self) -> float | None:
        """When silence ends the current leg; None while the gateway would go on waiting as if it were not there.

        Before the finish that is a failure, which is acted on only where it can be mended. After it the answer is
        whole, in either leg: its ending is added.
        """
        course = self.course
        match course.phase:
            case Phase.LEG1:
                first = course.first
                waits = first.awaits_ending or (course.options.enabled and first.could_be_continued)
                return first.progress_at + course.options.idle_timeout if waits else None
            case Phase.UNFRAMED:
                first = course.first
                return first.progress_at + course.options.idle_timeout if first.awaits_ending else None
            case Phase.LEG2:
                second = course.continued
                return second.progress_at + course.options.idle_timeout if second.finish_sent else None
            case Phase.PLANNED | Phase.DECIDING | Phase.DONE | Phase.FAILED:
                return None
            case _:
                assert_never(course.phase)

    def waited_for_client(self, seconds: float) -> None:
        """The client took nothing for that time, and the idle clock stood still."""
        self.course.first.progress_at += seconds
        if self.course.second is not None:
            self.course.second.progress_at += seconds

    def idle_expired(self, now: float) -> list[Action]:
        """End the leg if it has been silent up to its deadline."""
        deadline = self.idle_deadline()
        if deadline is None or now < deadline:
            return []
        if self.phase is Phase.LEG1 and not self.course.first.awaits_ending:
            return act_on(self.course, LegFault(Failure.IDLE_TIMEOUT), now)
        return self.leg_ended(Failure.IDLE_TIMEOUT, now, "silence after the finish")

    # -- what happens ------------------------------------------------------------------------------

    def leg1_opened(self, now: float) -> list[Action]:
        return self._take(Happening.LEG1_OPENED, now)

    def received(self, read: bytes, now: float) -> list[Action]:
        """Bytes of the current leg."""
        return self._take(Happening.READ, now, read)

    def leg_ended(self, failure: Failure, now: float, detail: str = "") -> list[Action]:
        """The current leg's bytes are over: EOF for a clean end, DISCONNECT for a broken one, IDLE_TIMEOUT for silence
        after the finish."""
        return self._take(Happening.LEG_ENDED, now, failure, detail)

    def leg2_opened(self, status: int, now: float, counted: Delivered | None = None) -> list[Action]:
        """counted: the partial's tokens, where the route has counted them."""
        return self._take(Happening.LEG2_OPENED, now, status, counted)

    def scale_out_missing(self, message: str, now: float) -> list[Action]:
        """The server has no token route."""
        return self._take(Happening.SCALE_OUT_MISSING, now, message)

    def leg2_refused(self, status: int, body: bytes, now: float) -> list[Action]:
        """Any answer that is no event stream."""
        notes = self.course.notes
        notes.leg2_status, notes.leg2_opened = status, now
        try:
            message = error_message(parse(body))
        except ValueError:
            message = body.decode("utf-8", "replace")
        return self._take(Happening.LEG2_FAILED, now, Reason.LEG2_REFUSED, message)

    def leg2_unreachable(self, message: str, now: float) -> list[Action]:
        return self._take(Happening.LEG2_FAILED, now, Reason.LEG2_UNREACHABLE, message)

    def client_gone(self, now: float) -> None:
        self._take(Happening.CLIENT_GONE, now)

    def broke(self, now: float) -> list[Action]:
        """An unexpected exception in the gateway's own code; the caller has logged it."""
        return self._take(Happening.BROKEN_OFF, now, Reason.INTERNAL_ERROR, "")

    def shut_down(self, now: float) -> list[Action]:
        """The gateway stops, and waits no longer: what has its finish gets its ending, all else the failed one."""
        return self._take(Happening.BROKEN_OFF, now, Reason.SHUTTING_DOWN, "the gateway was shut down")

    def given_up(self, reason: Reason, now: float) -> list[Action]:
        """Nobody wants the rest of a stream that could be resumed: its client has stopped it, or did not come back."""
        goes_on = not (self.ended or self.course.is_finished)
        actions = self._take(Happening.BROKEN_OFF, now, reason, "nobody waited for the rest")
        if goes_on:
            self.course.notes.outcome = Outcome.CLIENT_GONE
        return actions

    def was_delivered(self, delivered: bytes, now: float) -> None:
        """What the client has been sent by another process, which has run this stream until it died: `taken_over` goes
        on from there. Before anything else; it takes half a second for 4 MB, and may be done in any thread."""
        course = self.course
        course.notes.taken_over = True
        found = course.first.take_delivered(delivered, now)
        if found.is_done:
            self._ending_delivered = Phase.DONE
        elif found.fault is not None:
            course.notes.outcome, course.fault = Outcome.FAILED, found.fault
            self._ending_delivered = Phase.FAILED

    def taken_over(self, now: float, *, whole: bool, continued: bool) -> list[Action]:
        """whole: nothing of what was delivered is missing. continued: leg 2 had been asked for already, and there is no
        third."""
        if self._ending_delivered:
            self.course.end(self._ending_delivered, now)
            return []
        return self._take(Happening.TAKEN_OVER, now, whole, continued)

    def _take(self, happening: Happening, now: float, *more: Any) -> list[Action]:
        """Raises RuntimeError for what cannot happen in this phase."""
        course = self.course
        step = TABLE[happening].get(course.phase)
        if step is None:
            raise RuntimeError(f"{happening.name} cannot happen in phase {course.phase.name}")
        return step(course, now, *more)


# -- the steps: each for one happening, in the phases that the table names ---------------------------


def _ignore(course: Course, now: float, *more: Any) -> list[Action]:
    """It came too late, or too early, to matter."""
    return []


def _open_first(course: Course, now: float) -> list[Action]:
    course.enter(Phase.LEG1)
    course.first.progress_at = now
    return []


def _read_first(course: Course, now: float, read: bytes) -> list[Action]:
    found = course.first.read(read, now)
    if found.fault is not None or found.is_done:
        return _leave_first(course, now, found)
    phase = Phase.UNFRAMED if course.first.is_unframed else Phase.LEG1
    if phase is not course.phase:
        course.enter(phase)
    return sends(found.forward)


def _leave_first(course: Course, now: float, found: FirstRead) -> list[Action]:
    if found.fault is not None:
        return [*sends(found.forward), *act_on(course, found.fault, now)]
    course.end(Phase.DONE, now)
    return [*sends(found.forward), CloseLeg()]


def _close_first(course: Course, now: float, failure: Failure, detail: str) -> list[Action]:
    _note_detail(course, detail)
    return _leave_first(course, now, course.first.close(failure, now))


def _close_unframed(course: Course, now: float, failure: Failure, detail: str) -> list[Action]:
    """The end of the event that is too large will not come; its bytes are with the client already."""
    _note_detail(course, detail)
    course.fault, course.notes.leg1_ended = LegFault(failure), now
    course.weigh()
    if course.first.leg.finish:
        course.notes.verdict = Verdict(Decision.COMPLETE, Reason.ENDING_LOST)
        return [Send(b"\n\n"), *complete(course, None, now)]
    course.notes.verdict = Verdict(Decision.REFUSE, Reason.EVENT_TOO_LARGE)
    return [Send(b"\n\n"), *fail(course, Reason.EVENT_TOO_LARGE, now)]


def _open_second(course: Course, now: float, status: int, counted: Delivered | None) -> list[Action]:
    course.notes.leg2_status, course.notes.leg2_opened = status, now
    if counted:
        course.bill.take_count(counted)
    return []


def _read_second(course: Course, now: float, read: bytes) -> list[Action]:
    def step() -> list[Action]:
        events, end = course.continued.read(read, now)
        return sends(events) if end is None else [*sends(events), *_leave_second(course, end, now)]

    return guard(course, step, now)


def _close_second(course: Course, now: float, failure: Failure, detail: str) -> list[Action]:
    def step() -> list[Action]:
        events, end = course.continued.close(failure, now, detail)
        return [*sends(events), *_leave_second(course, end, now)]

    _note_detail(course, detail)
    return guard(course, step, now)


def _leave_second(course: Course, end: SecondEnd, now: float) -> list[Action]:
    if end.reason is Reason.NONE:
        return finish_second(course, now)
    return fail_second(course, end.reason, end.message, now)


def _fail_second(course: Course, now: float, reason: Reason, message: str) -> list[Action]:
    return fail_second(course, reason, message, now)


def _go_without_token_route(course: Course, now: float, message: str) -> list[Action]:
    is_unopened = course.notes.leg2_opened is None and not course.first.leg.tool_call_seen
    if not is_unopened or course.plan.strategy.without_scale_out is not Fallback.CHAT:
        return fail_second(course, Reason.SCALE_OUT_MISSING, message, now)
    course.notes.verdict = Verdict(Decision.CONTINUE, route=Route.CHAT_CONTINUE)
    course.notes.leg2_message = first_line(message, [])
    return [CloseLeg(), *guard(course, lambda: continue_by_chat(course, now), now)]


def _take_over(course: Course, now: float, whole: bool, continued: bool) -> list[Action]:
    leg = course.first.leg
    course.notes.failure_detail = "the gateway process that ran the stream is gone"
    leg.unreadable = leg.unreadable or not whole
    if not continued or leg.finish:
        return act_on(course, LegFault(Failure.DISCONNECT), now)
    course.fault, course.notes.leg1_ended = LegFault(Failure.DISCONNECT), now
    course.weigh()
    course.enter(Phase.DECIDING)
    course.notes.verdict = Verdict(Decision.CONTINUE, route=Route.NONE)
    return fail(course, Reason.LEG2_BROKEN, now)


def _break_off(course: Course, now: float, reason: Reason, detail: str) -> list[Action]:
    """End it as well as it can be ended: what has its finish gets its ending, all else the failed one."""
    is_broken = reason is Reason.INTERNAL_ERROR
    add_ending = TABLE[Happening.LEG_ENDED].get(course.phase)
    if course.is_finished and add_ending is not None:
        try:
            return add_ending(course, now, Failure.DISCONNECT, detail)
        except (
            Exception
        ):  # of code that is broken already, and was logged: then the failed ending is all there is
            if not is_broken:
                raise
    if is_broken and course.fault is None:
        course.fault = LegFault(Failure.DISCONNECT)
        with suppress(Exception):  # the row says less then
            course.weigh()
    return break_off(course, reason, now)


def _note_client_gone(course: Course, now: float) -> list[Action]:
    course.first.leg = course.first.delivered
    course.first.shelf.drop()
    if course.second is not None:
        course.second.shelf.drop()
    course.notes.outcome = Outcome.CLIENT_GONE
    course.notes.reason = course.notes.reason or Reason.CLIENT_GONE
    course.end(Phase.FAILED, now)
    return []


def _note_detail(course: Course, detail: str) -> None:
    course.notes.failure_detail = course.notes.failure_detail or detail


_Step = Callable[..., list[Action]]
_ENDED: Mapping[Phase, _Step] = {Phase.DONE: _ignore, Phase.FAILED: _ignore}
# What happens x the phase. What does not stand here cannot happen, and raises.
TABLE: Mapping[Happening, Mapping[Phase, _Step]] = {
    Happening.LEG1_OPENED: {Phase.PLANNED: _open_first},
    Happening.READ: {
        **_ENDED,
        Phase.PLANNED: _ignore,
        Phase.LEG1: _read_first,
        Phase.UNFRAMED: _read_first,
        Phase.LEG2: _read_second,
    },
    Happening.LEG_ENDED: {
        **_ENDED,
        Phase.PLANNED: _ignore,
        Phase.LEG1: _close_first,
        Phase.UNFRAMED: _close_unframed,
        Phase.LEG2: _close_second,
    },
    Happening.LEG2_OPENED: {**_ENDED, Phase.LEG2: _open_second},
    Happening.LEG2_FAILED: {Phase.LEG2: _fail_second},
    Happening.SCALE_OUT_MISSING: {Phase.LEG2: _go_without_token_route},
    Happening.TAKEN_OVER: {Phase.LEG1: _take_over},
    Happening.BROKEN_OFF: {
        **_ENDED,
        Phase.PLANNED: _break_off,
        Phase.LEG1: _break_off,
        Phase.UNFRAMED: _break_off,
        Phase.DECIDING: _break_off,
        Phase.LEG2: _break_off,
    },
    Happening.CLIENT_GONE: {
        **_ENDED,
        Phase.PLANNED: _note_client_gone,
        Phase.LEG1: _note_client_gone,
        Phase.UNFRAMED: _note_client_gone,
        Phase.DECIDING: _note_client_gone,
        Phase.LEG2: _note_client_gone,
    },
}
