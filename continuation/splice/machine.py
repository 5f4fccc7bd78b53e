"""The splice: one answer out of at most two legs.

A `Splice` is told what happened - a read arrived, a leg ended, the clock passed the idle deadline, the client left -
and answers with what is to be done: send bytes, open the second leg, close the current one. It owns no socket and no
clock: times are seconds of any monotonic clock, passed in. Whatever it is told, the client gets valid events, exactly
one ending, and nothing twice.

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

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from itertools import chain
from typing import Any

from continuation.plan import Guarded
from continuation.shapes.chat.asking import Unasked, asking_to_continue
from continuation.shapes.chat.chunks import (
    FAILED_FINISHES,
    calls_tool,
    choices,
    count,
    error_message,
    error_object,
    finish_of,
    index_of,
    is_client_error,
    is_error,
    usage_of,
)
from continuation.shapes.chat.usage import Conversation, Delivered, Estimator, delivered, joined_usage
from continuation.shapes.encoding import JSON, event_of, parse, parse_exact
from continuation.shapes.sse import DONE, DONE_EVENT, Event, EventDecoder, closed
from continuation.splice.decision import Breakage, Verdict, decide
from continuation.splice.leg import Leg
from continuation.splice.record import StreamRecord
from continuation.splice.rewrite import Rewriter, chunk_like, finish_choice
from continuation.splice.seam import RestartDeparted, Seam
from continuation.splice.shelf import Shelf
from continuation.splice.wording import first_line
from continuation.vocabulary import Case, Decision, Failure, Outcome, Reason, Route, failed_message
from strategies.builders import prefix, without_lone_surrogates
from strategies.types import CompiledStrategy, Fallback, Partial

logger = logging.getLogger(__name__)


# What a client is told by the reason itself, for its failure alone would not explain it.
OWN_CODES = (Reason.INTERNAL_ERROR, Reason.SCALE_OUT_MISSING, Reason.EVENT_TOO_LARGE)
# In an event that is too large to be read, a finish_reason is found by its name; in a text its quotes are escaped.
_FINISH = re.compile(rb'"finish_reason" ?: ?"([^"\\]{1,64})"')
# Bytes of such an event that are looked at again with the next ones: the longest that _FINISH matches fits into them.
_FINISH_BYTES = 128


class Phase(Enum):
    PLANNED = auto()
    LEG1 = auto()
    UNFRAMED = auto()
    DECIDING = auto()
    LEG2 = auto()
    DONE = auto()
    FAILED = auto()


NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.PLANNED: frozenset({Phase.LEG1, Phase.FAILED}),
    Phase.LEG1: frozenset({Phase.UNFRAMED, Phase.DECIDING, Phase.DONE, Phase.FAILED}),
    Phase.UNFRAMED: frozenset({Phase.LEG1, Phase.DECIDING, Phase.DONE, Phase.FAILED}),
    Phase.DECIDING: frozenset({Phase.LEG2, Phase.DONE, Phase.FAILED}),
    Phase.LEG2: frozenset({Phase.DONE, Phase.FAILED}),
    Phase.DONE: frozenset(),
    Phase.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Send:
    """Bytes for the client: whole events, but in phase UNFRAMED."""

    data: bytes


@dataclass(frozen=True, slots=True)
class OpenLeg:
    """Send `body` to CONTINUATION_URL, then report leg2_opened, leg2_refused or leg2_unreachable.

    spent: tokens of the request's budget.
    """

    plan: Guarded
    partial: Partial
    spent: int

    @property
    def size(self) -> int:
        """Of what the body is built from, in bytes or characters; building it takes time accordingly."""
        return len(self.plan.body) + len(self.partial.reasoning) + len(self.partial.content)

    @property
    def body(self) -> bytes:
        return asking_to_continue(self.plan.body, self.plan.strategy, self.partial, self.spent)


@dataclass(frozen=True, slots=True)
class OpenTokens:
    """Continue on the token route, then report as for OpenLeg, or scale_out_missing.

    carried_ids: all that leg 1 generated after carried_prompt; None where the text is to be tokenized.
    shown_ids: of carried_ids those up to the end of the text; None where that is not between two of them.
    tool_ids: the ids of the tool calls that the client has seen begin, in order.
    """

    plan: Guarded
    strategy: CompiledStrategy
    partial: Partial
    carried_prompt: tuple[int, ...]
    carried_ids: tuple[int, ...] | None
    tool_ids: tuple[str, ...]
    stops: tuple[str, ...]
    stop_shown: bool
    shown_ids: tuple[int, ...] | None = None

    @property
    def request(self) -> JSON:
        """The client's, parsed anew; `size` is that of its bytes."""
        request: JSON = parse_exact(self.plan.body)
        return request

    @property
    def size(self) -> int:
        return len(self.plan.body)


@dataclass(frozen=True, slots=True)
class CloseLeg:
    """Close the connection of the current leg; nothing more of it is wanted."""


Action = Send | OpenLeg | OpenTokens | CloseLeg


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator configured. Limits in bytes, idle_timeout in seconds.

    failed_finishes: finish_reasons that are failures, in lower case.
    """

    enabled: bool = True
    idle_timeout: float = 20.0
    failed_finishes: frozenset[str] = FAILED_FINISHES
    estimator: Estimator = field(default_factory=Estimator)
    event_limit: int = 32 * 2**20
    partial_limit: int = 10 * 2**20
    store_text: bool = False
    buffer_tool_calls: bool = False
    buffer_limit: int = 2**20

    @property
    def buffers(self) -> bool:
        """Whether tool calls are held: only where something can be done about a failure."""
        return self.buffer_tool_calls and self.enabled


class Splice:
    def __init__(
        self, plan: Guarded, options: Options, request_id: str, created_at: datetime, now: float
    ) -> None:
        self.plan = plan
        self.options = options
        self.request_id = request_id
        self.phase = Phase.PLANNED
        self._created_at = created_at
        self.started_at = now
        self._decoder = EventDecoder(options.event_limit)
        self._choices = plan.choices
        self._leg1 = Leg(options.partial_limit, self._choices)
        self._unasked = Unasked(
            ids=plan.asks_ids, usage=plan.asks_usage, running_usage=plan.asks_usage_always
        )
        self._shelf = Shelf(options.buffer_limit, wanted=options.buffers and self._choices == 1)
        self._before_calls: Leg | None = None
        self._early_usage = b""
        self._line_feed_due = False
        self._event_lost = False
        self._lost_end = b""
        self._blind = False
        self._leg2: Leg | None = None
        self._shelf2 = Shelf(options.buffer_limit, wanted=False)
        self._rewriter: Rewriter | None = None
        self._seam: Seam | None = None
        self._partial = Partial()
        self._before = Delivered(0, 0)
        self._usage_sent = False
        self._conversation: Conversation | None = None
        self._leg2_usage: JSON | None = None
        self._failure: Failure | None = None
        self._failure_detail = ""
        self._held: Event | None = None
        self._held_value: Any = None
        self._verdict: Verdict | None = None
        self._outcome: Outcome | None = None
        self._reason = Reason.NONE
        self._leg2_status: int | None = None
        self._leg2_message = ""
        self._taken_over = False
        self._ending_delivered: Phase | None = None
        self._progress_at = now  # what the idle clock counts from
        self._event_at = self._leg1_ended = self._leg2_opened = self._seam_at = None
        self._ended_at: float | None = None

    _event_at: float | None
    _leg1_ended: float | None
    _leg2_opened: float | None
    _seam_at: float | None

    # -- what happened -----------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self.phase in (Phase.DONE, Phase.FAILED)

    def leg1_opened(self, now: float) -> None:
        self._enter(Phase.LEG1)
        self._progress_at = now

    @property
    def _awaits_ending(self) -> bool:
        """Whether the answer has its finish_reason, so that all that can still come is its ending."""
        match self.phase:
            case Phase.LEG1 | Phase.UNFRAMED:
                return self._leg1.finish is not None and not self._leg1.another_goes_on
            case Phase.LEG2:
                return self._finish_sent
            case _:
                return False

    def idle_deadline(self) -> float | None:
        """When silence ends the current leg; None while the gateway would go on waiting as if it were not there.

        Before the finish that is a failure, which is acted on only where it can be mended. After it the answer is
        whole, in either leg: its ending is added.
        """
        if self._awaits_ending:
            return self._progress_at + self.options.idle_timeout
        leg = self._delivered_leg
        if self.phase is not Phase.LEG1 or not self.options.enabled or leg.finish:
            return None
        if leg.tool_call_seen or not leg.has_whole_text:
            return None
        if leg.unreadable or leg.too_large or leg.other_choices or self._event_lost:
            return None  # it could not be continued
        return self._progress_at + self.options.idle_timeout

    def waited_for_client(self, seconds: float) -> None:
        """The idle clock stood still for so long."""
        self._progress_at += seconds

    def received(self, read: bytes, now: float) -> list[Action]:
        match self.phase:
            case Phase.LEG1 | Phase.UNFRAMED:
                return self._read_leg1(read, now)
            case Phase.LEG2:
                return self._guarded_leg2(lambda: self._read_leg2(read, now), now)
            case _:
                return []

    def leg_ended(self, failure: Failure, now: float, detail: str = "") -> list[Action]:
        """The current leg's bytes are over: EOF for a clean end, DISCONNECT for a broken one, IDLE_TIMEOUT for silence
        after the finish."""
        self._failure_detail = self._failure_detail or detail
        match self.phase:
            case Phase.LEG1:
                return self._leg1_over(failure, now)
            case Phase.LEG2:
                return self._guarded_leg2(lambda: self._leg2_over(failure, now, detail), now)
            case Phase.UNFRAMED:
                return self._unframed_over(failure, now)
            case _:
                return []

    def idle_expired(self, now: float) -> list[Action]:
        deadline = self.idle_deadline()
        if deadline is None or now < deadline:
            return []
        if self._awaits_ending:
            return self.leg_ended(Failure.IDLE_TIMEOUT, now, "silence after the finish")
        return self._fail(Failure.IDLE_TIMEOUT, now)

    def leg2_opened(self, status: int, now: float, told: Delivered | None = None) -> None:
        """told: the partial's tokens, where the route has counted them."""
        self._leg2_status, self._leg2_opened = status, now
        if told and not self._before.exact:
            self._before = told
        elif told:
            before = self._before
            prompt = told.prompt if before.prompt is None else before.prompt
            self._before = replace(before, completion=before.completion - told.left_out, prompt=prompt)

    def scale_out_missing(self, message: str, now: float) -> list[Action]:
        """The server has no token route."""
        unopened = self._leg2_opened is None and not self._leg1.tool_call_seen
        chat = unopened and self.plan.strategy.without_scale_out is Fallback.CHAT
        if self.ended or not chat:
            return self._leg2_failed(Reason.SCALE_OUT_MISSING, message, now)
        self._verdict = Verdict(Decision.CONTINUE, route=Route.CHAT_CONTINUE)
        self._leg2_message = first_line(message, [])
        return [CloseLeg(), *self._guarded_leg2(self._continue_chat, now)]

    def leg2_refused(self, status: int, body: bytes, now: float) -> list[Action]:
        """Any answer that is no event stream."""
        self._leg2_status, self._leg2_opened = status, now
        try:
            message = error_message(parse(body))
        except ValueError:
            message = body.decode("utf-8", "replace")
        return self._leg2_failed(Reason.LEG2_REFUSED, message, now)

    def leg2_unreachable(self, message: str, now: float) -> list[Action]:
        return self._leg2_failed(Reason.LEG2_UNREACHABLE, message, now)

    def client_gone(self, now: float) -> None:
        if not self.ended:
            self._leg1 = self._delivered_leg
            self._shelf.drop()
            self._shelf2.drop()
            self._outcome = Outcome.CLIENT_GONE
            self._reason = self._reason or Reason.CLIENT_GONE
            self._end(Phase.FAILED, now)

    def broke(self, now: float) -> list[Action]:
        """An unexpected exception in the gateway's own code; the caller has logged it."""
        if self.ended:
            return []
        if self._leg1.finish or self._finish_sent:
            with suppress(Exception):  # whatever is broken: the answer is whole
                return self.leg_ended(Failure.DISCONNECT, now)
        if self._failure is None:
            self._failure = Failure.DISCONNECT
            with suppress(Exception):  # the row says less then
                self._weigh()
        return self._broken_off(Reason.INTERNAL_ERROR, now)

    def shut_down(self, now: float) -> list[Action]:
        """The gateway stops, and waits no longer: what has its finish gets its ending, all else the failed one."""
        if self.ended:
            return []
        if self._leg1.finish or self._finish_sent:
            return self.leg_ended(Failure.DISCONNECT, now, "the gateway was shut down")
        return self._broken_off(Reason.SHUTTING_DOWN, now)

    def given_up(self, reason: Reason, now: float) -> list[Action]:
        """Nobody wants the rest of a stream that could be resumed: its client has stopped it, or did not come back."""
        if self.ended:
            return []
        if self._leg1.finish or self._finish_sent:
            return self.leg_ended(Failure.DISCONNECT, now, "nobody waited for the rest")
        actions = self._broken_off(reason, now)
        self._outcome = Outcome.CLIENT_GONE
        return actions

    def was_delivered(self, delivered: bytes, now: float) -> None:
        """What the client has been sent by another process, which has run this stream until it died: `taken_over` goes
        on from there. Before anything else; it takes half a second for 4 MB, and may be done in any thread."""
        self._taken_over = True
        self._shelf = Shelf(self.options.buffer_limit, wanted=False)  # what was delivered is held by nobody
        for event in self._leg1_events(delivered):
            if event.data == DONE:  # whatever of it is missing
                self._ending_delivered = Phase.DONE
                return
            failure, _ = self._read_along(event, now)
            if failure is Failure.MALFORMED:  # what is left of a larger event
                self._leg1.unreadable = True
            elif failure:  # is delivered only as the failed ending
                self._outcome, self._failure = Outcome.FAILED, failure
                self._ending_delivered = Phase.FAILED
                return

    def taken_over(self, now: float, *, whole: bool, continued: bool) -> list[Action]:
        """whole: nothing of what was delivered is missing. continued: leg 2 had been asked for already, and there is no
        third."""
        if self._ending_delivered:
            self._end(self._ending_delivered, now)
            return []
        self._failure_detail = "the gateway process that ran the stream is gone"
        self._leg1.unreadable = self._leg1.unreadable or not whole
        if continued and not self._leg1.finish:
            self._failure, self._leg1_ended = Failure.DISCONNECT, now
            self._weigh()
            self._enter(Phase.DECIDING)
            self._verdict = Verdict(Decision.CONTINUE, route=Route.NONE)
            return self._failed(Reason.LEG2_BROKEN, now)
        return self._fail(Failure.DISCONNECT, now)

    def _broken_off(self, reason: Reason, now: float) -> list[Action]:
        """The failed ending from any phase, without a look at what the engine said."""
        self._held = None
        unfinished = self._shelf.release() + (b"\n\n" if self.phase is Phase.UNFRAMED else b"")
        unfinished += self._early_usage if self._leg2 is None else b""
        self._shelf2.drop()
        self._outcome, self._reason = Outcome.FAILED, reason
        self.phase, self._ended_at = Phase.FAILED, now
        return [CloseLeg(), Send(unfinished + interrupted_event(None, reason, reason))]

    @property
    def _finish_sent(self) -> bool:
        """Whether leg 2 has finished the answer."""
        return self._rewriter is not None and self._rewriter.finish_sent

    # -- leg 1 -------------------------------------------------------------------------------------

    @property
    def _delivered_leg(self) -> Leg:
        """Leg 1 as the client knows it."""
        if not self._shelf.holding:
            return self._leg1
        assert self._before_calls
        self._before_calls.take_identity(self._leg1)
        return self._before_calls

    def _read_leg1(self, read: bytes, now: float) -> list[Action]:
        forward: list[bytes] = []
        for event in self._leg1_events(read):
            failure, value = self._read_along(event, now)
            if failure:
                return [*_send([*forward, self._given_up(event)]), *self._fail(failure, now, event, value)]
            forward.append(self._passed_on(event, value))
            if self._leg1.finish and event.data == DONE:
                self._end(Phase.DONE, now)
                return [*_send(forward), CloseLeg()]
        phase = Phase.UNFRAMED if self._decoder.skipping else Phase.LEG1
        if phase is Phase.UNFRAMED:
            self._progress_at = now
        if phase is not self.phase:
            self._enter(phase)
        return _send(forward)

    def _mended(self, event: Event, *, kept: bool) -> Event:
        """A CRLF may be cut by the reads: its second half is lost where the event before was not kept as it came."""
        raw = event.raw[1:] if self._line_feed_due and event.raw.startswith(b"\n") else event.raw
        self._line_feed_due = not kept and raw.endswith(b"\r")
        return event if raw is event.raw else replace(event, raw=raw)

    def _leg1_events(self, read: bytes) -> Iterable[Event]:
        """Also of an event that is too large, as it comes."""
        decoder = self._decoder
        events = self._found_in_lost(decoder.feed(read)) if decoder.skipping else decoder.feed(read)
        return chain(events, self._events_behind_lost()) if decoder.overflowed else events

    def _events_behind_lost(self) -> Iterator[Event]:
        while self._decoder.overflowed:
            if not self._event_lost:
                limit = self.options.event_limit
                logger.warning("request %s: an event is larger than %d bytes", self.request_id, limit)
            self._event_lost, self._lost_end = True, b""
            yield Event(self._shelf.release())
            yield from self._found_in_lost(self._decoder.skip())

    def _found_in_lost(self, events: list[Event]) -> list[Event]:
        """The first is a piece of the event that is too large: is the answer's finish in it?"""
        if events:
            seen = self._lost_end + events[0].raw
            found = (finish[1].decode("latin-1") for finish in _FINISH.finditer(seen))
            endings = (
                finish_of({"finish_reason": finish}) for finish in found if not self._is_failed(finish)
            )
            if self._choices == 1:  # else nobody knows whose finish that is
                self._leg1.finish = self._leg1.finish or next(filter(None, endings), None)
            self._lost_end = seen[-_FINISH_BYTES:]
        return events

    def _read_along(self, event: Event, now: float) -> tuple[Failure | None, Any]:
        try:
            return self._leg1_event(event, now)
        except Exception:  # whatever it is, a stream that we cannot read along must not break
            if not self._blind:
                logger.exception("request %s: an event could not be read along", self.request_id)
            self._blind = self._leg1.unreadable = True
            value = parse(event.data or b"null")
            for choice in choices(value) if isinstance(value, dict) else ():
                if not self._is_failed(finish_of(choice)):
                    self._leg1.take_finish(choice)
            return None, value

    def _given_up(self, event: Event) -> bytes:
        """A [DONE] without a finish proves nothing, but the calls before it are as whole as they will ever be."""
        return self._shelf.release() if event.data == DONE else b""

    def _passed_on(self, event: Event, value: Any) -> bytes:
        """What of an event goes to the client now."""
        shown, finished = self._shown(event, value), self._leg1.finish is not None
        alone = self._says_usage_alone(value)
        if self._line_feed_due or shown is not event.raw or alone:
            event = self._mended(event, kept=shown is event.raw and (finished or not alone))
            shown = event.raw if event.data is None else shown
        if alone and not finished:
            # Its last line end may be cut by the reads, and is not waited for.
            self._early_usage, shown = shown.rstrip(b"\r\n") + b"\n\n", b""
        elif event.data == DONE:
            shown, self._early_usage = self._early_usage + shown, b""
        elif self._early_usage and isinstance(value, dict) and usage_of(value) is not None:
            self._early_usage = b""  # there is a newer one
        return self._shelf.take(shown, finished=finished) if self._shelf.holding else shown

    def _says_usage_alone(self, value: Any) -> bool:
        """And the client, who asked for one such event, would read it as the last word."""
        if not self.plan.asks_usage or self.plan.asks_usage_always or not isinstance(value, dict):
            return False
        if self._choices > 1:  # there will be no leg 2 that adds to it
            return False
        return usage_of(value) is not None and not choices(value)

    def _shown(self, event: Event, value: Any) -> bytes:
        """The bytes as received, but for what only the gateway has asked for."""
        if not self.plan.carries_ids or not isinstance(value, dict):
            return event.raw
        try:
            return self._unasked.shown(value) or b""
        except (ValueError, RecursionError):  # too deep to be written again
            return event.raw

    def _leg1_event(self, event: Event, now: float) -> tuple[Failure | None, Any]:
        """The failure that the event is, if it is one, and its JSON value."""
        if not event.data:
            return (Failure.ERROR_EVENT, None) if event.name == "error" else (None, None)
        if event.data == DONE:
            return (None if self._leg1.finish else Failure.EOF), None
        try:
            value = parse(event.data)
        except ValueError:
            if event.name == "error":
                return Failure.ERROR_EVENT, event.data.decode("utf-8", "replace")
            return Failure.MALFORMED, None
        failure = self._failure_in(event, value)
        if failure is None and isinstance(value, dict):
            self._note(value, now)
        return failure, value

    def _failure_in(self, event: Event, value: Any) -> Failure | None:
        """The failure that an event of either leg reports; None where it reports none."""
        if is_error(event, value):
            return Failure.ERROR_EVENT
        found = choices(value) if isinstance(value, dict) and self._choices == 1 else []
        finishes = [finish_of(choice) for choice in found if index_of(choice) == 0]
        return Failure.ABORTED if any(map(self._is_failed, finishes)) else None

    def _is_failed(self, finish: str | None) -> bool:
        """Whether a finish_reason says that the engine gave up, and not that the answer has ended."""
        return finish is not None and finish.lower() in self.options.failed_finishes

    def _note(self, chunk: JSON, now: float) -> None:
        leg = self._leg1
        if self._shelf.waiting and calls_tool(chunk):
            self._before_calls = leg.copy()
            self._shelf.begin()
        if self._choices > 1 and any(self._is_failed(finish_of(choice)) for choice in choices(chunk)):
            leg.lose_choice()
        first = not leg.events
        leg.events += 1
        self._event_at = now
        if leg.absorb(chunk) or first:
            self._progress_at = now
        if leg.finish and usage_of(chunk) and (not choices(chunk) or self._shows_usage_with_choices):
            self._usage_sent = True

    @property
    def _shows_usage_with_choices(self) -> bool:
        """Whether usage in a chunk that has choices is the last that the client is to see. Where only the gateway
        asked for it, it is hidden; where the client asked for running usage, an event of its own comes after it."""
        return not (self.plan.carries_ids or self.plan.asks_usage_always)

    def _leg1_over(self, failure: Failure, now: float) -> list[Action]:
        last = self._decoder.finish()
        if last is None or not (last.data or last.name == "error"):
            return self._fail(failure, now)
        found, value = self._read_along(last, now)
        if found is Failure.MALFORMED:  # cut inside the event: the cut is the failure
            return self._fail(failure, now)
        if found:
            return [*_send([self._given_up(last)]), *self._fail(found, now, last, value)]
        sends = _send([self._passed_on(replace(last, raw=closed(last.raw)), value)])
        if self._leg1.finish and last.data == DONE:
            self._end(Phase.DONE, now)
            return [*sends, CloseLeg()]
        return [*sends, *self._fail(failure, now)]

    def _unframed_over(self, failure: Failure, now: float) -> list[Action]:
        """The end of the event that is too large will not come; its bytes are with the client already."""
        self._failure, self._leg1_ended = failure, now
        self._weigh()
        if self._leg1.finish:
            self._verdict = Verdict(Decision.COMPLETE, Reason.ENDING_LOST)
            return [Send(b"\n\n"), *self._completed(None, now)]
        self._verdict = Verdict(Decision.REFUSE, Reason.EVENT_TOO_LARGE)
        return [Send(b"\n\n"), *self._failed(Reason.EVENT_TOO_LARGE, now)]

    # -- the decision ------------------------------------------------------------------------------

    def _fail(
        self, failure: Failure, now: float, held: Event | None = None, value: Any = None
    ) -> list[Action]:
        self._enter(Phase.DECIDING)
        self._failure, self._leg1_ended = failure, now
        self._held, self._held_value = held, value
        if failure is Failure.ERROR_EVENT:
            self._failure_detail = error_message(value)
        if self._leg1.finish:
            self._weigh()
            if self._leg1.another_goes_on:
                self._verdict = Verdict(Decision.REFUSE, Reason.MULTIPLE_CHOICES)
                return self._failed(Reason.MULTIPLE_CHOICES, now)
            self._verdict = Verdict(Decision.COMPLETE, Reason.ENDING_LOST)
            return self._completed(None, now)
        whole, self._leg1 = self._leg1, self._delivered_leg
        self._verdict = self._judged(failure, value)
        released = self._judged_with_calls(whole, failure, value) if self._shelf.holding else b""
        return [*_send([released]), *self._acted(now)]

    def _acted(self, now: float) -> list[Action]:
        assert self._verdict
        match self._verdict.decision:
            case Decision.CONTINUE:
                return self._guarded_leg2(lambda: self._continue(now), now)
            case Decision.COMPLETE:
                return self._completed("length", now)
            case _:
                return self._failed(self._verdict.reason, now)

    def _judged_with_calls(self, whole: Leg, failure: Failure, value: Any) -> bytes:
        """The calls on the shelf are dropped if the answer can go on without them; else they are released."""
        without = self._verdict
        if without and without.decision is Decision.CONTINUE:
            self._shelf.drop()
            return b""
        self._leg1 = whole
        within = self._judged(failure, value)  # carried ids go on inside a call
        self._verdict = without if within.decision is Decision.REFUSE else within
        return self._shelf.release()

    def _judged(self, failure: Failure, value: Any) -> Verdict:
        self._weigh()
        return decide(self._state(failure, value))

    def _weigh(self) -> None:
        """What is there to be continued, and what it has cost."""
        partial = self._leg1.partial
        self._partial = Partial(*map(without_lone_surrogates, (partial.reasoning, partial.content)))
        before = self._counted(self._leg1, self._partial)
        prompt = before.prompt if before.prompt is not None else self._leg1.prompt_tokens
        self._before = replace(before, prompt=prompt)

    def _state(self, failure: Failure, value: Any) -> Breakage:
        leg = self._leg1
        return Breakage(
            tool_call_seen=leg.tool_call_seen,
            empty=self._partial.is_empty,
            unreadable=leg.unreadable,
            event_lost=self._event_lost,
            too_large=leg.too_large,
            other_choices=leg.other_choices,
            enabled=self.options.enabled,
            remaining=self._remaining,
            counts_exact=self._before.exact,
            client_error=failure is Failure.ERROR_EVENT and is_client_error(value),
            takes_tokens=self.plan.strategy.takes_tokens,
            ids_carried=self.plan.carries_ids and leg.carried_ids is not None,
        )

    @property
    def _remaining(self) -> int | None:
        return self.plan.remaining(self._before.completion)

    def _continue(self, now: float) -> list[Action]:
        self._line_feed_due = False
        self._decoder = EventDecoder(self.options.event_limit)
        self._enter(Phase.LEG2)
        opening = self._continue_tokens() if self.plan.strategy.takes_tokens else self._continue_chat()
        return [CloseLeg(), *opening]

    def _continue_chat(self) -> list[Action]:
        self._join(exact=False)
        return [OpenLeg(self.plan, self._partial, self._before.completion)]

    def _continue_tokens(self) -> list[Action]:
        plan, leg = self.plan, self._leg1
        self._join(exact=True)
        carried = leg.carried_ids if plan.carries_ids else None
        return [
            OpenTokens(
                plan=plan,
                strategy=plan.strategy,
                partial=self._partial,
                carried_prompt=leg.prompt_ids if carried is not None else (),
                carried_ids=carried,
                tool_ids=tuple(leg.tool_ids),
                stops=plan.stops,
                stop_shown=plan.stop_shown,
                shown_ids=leg.shown_ids if carried is not None else None,
            )
        ]

    def _join(self, *, exact: bool) -> None:
        plan = self.plan
        self._seam = Seam(plan.strategy, self._partial, plan.stops, stop_shown=plan.stop_shown, exact=exact)
        shown = plan.asks_usage or (self._leg1.last_usage is not None and not plan.carries_ids)
        running = self._joined if plan.asks_usage_always and shown else None
        self._rewriter = Rewriter(self._leg1, self._seam, running)
        self._leg2 = Leg(self.options.partial_limit)
        # A call of which the client has a part already is not held any more.
        wanted = self.options.buffers and not self._leg1.tool_call_seen
        self._shelf2 = Shelf(self.options.buffer_limit, wanted=wanted)

    # -- leg 2 -------------------------------------------------------------------------------------

    def _guarded_leg2(self, step: Callable[[], list[Action]], now: float) -> list[Action]:
        """Continuation code that fails in a way nobody thought of ends the stream as any other failed leg 2."""
        try:
            return step()
        except Exception:
            logger.exception("request %s: the continuation failed inside the gateway", self.request_id)
            return self._leg2_failed(Reason.INTERNAL_ERROR, "", now)

    def _read_leg2(self, read: bytes, now: float) -> list[Action]:
        forward: list[bytes] = []
        for event in self._decoder.feed(read):
            events, ending = self._leg2_event(event, now)
            forward += events
            if ending is not None:
                return [*_send(forward), *ending]
        if self._decoder.overflowed:
            message = "an event that is too large"
            return [*_send(forward), *self._leg2_failed(Reason.LEG2_BROKEN, message, now)]
        return _send(forward)

    def _leg2_event(self, event: Event, now: float) -> tuple[list[bytes], list[Action] | None]:
        """The events to forward, and how the stream ends if it ends here."""
        event = self._mended(event, kept=event.data is None)
        if not event.data and event.name != "error":
            return ([self._shelf2.take(event.raw, finished=False)] if event.data is None else []), None
        if event.data == DONE:
            return [], self._leg2_over(Failure.EOF, now, "[DONE] without a finish_reason")
        try:
            value = parse(event.data or b"null")
        except ValueError:
            if event.name != "error":
                return [], self._leg2_over(Failure.MALFORMED, now, "a data line that is no JSON")
            value = (event.data or b"").decode("utf-8", "replace")
        failure = self._failure_in(event, value)
        if failure:
            message = error_message(value) if failure is Failure.ERROR_EVENT else ""
            return [], self._leg2_over(failure, now, message)
        return self._leg2_chunk(value, now) if isinstance(value, dict) else ([], None)

    def _leg2_chunk(self, chunk: JSON, now: float) -> tuple[list[bytes], list[Action] | None]:
        assert self._leg2
        assert self._rewriter
        assert self._seam
        counted = count(self._leg2_usage, "completion_tokens") or 0
        self._leg2_usage = usage_of(chunk) or self._leg2_usage
        if self._rewriter.finish_sent:
            if (count(self._leg2_usage, "completion_tokens") or 0) > counted:
                self._progress_at = now
            return [], None
        self._leg2.absorb(chunk)
        if self._leg2.finish == "stop" and self._is_empty():
            return [], self._leg2_failed(Reason.LEG2_EMPTY, "leg 2 ended without a word", now)
        try:
            texts, calls = self._rewriter.chunk(chunk)
        except RestartDeparted:
            message = "leg 2 told the answer again, and differently"
            return [], self._leg2_failed(Reason.LEG2_RESTARTED, message, now)
        events = self._held_or_shown(texts, calls)
        if self._rewriter.finish_sent:
            self._progress_at = now
        if self._seam_at is None and self._rewriter.text_seen:
            self._seam_at = now
        if self._seam.stopped_at is not None:
            self._leg2_usage = None  # the engine would have gone on
            return events, self._leg2_finished(now)
        return events, None

    def _held_or_shown(self, texts: list[bytes], calls: list[bytes]) -> list[bytes]:
        """texts come before the first tool call of a chunk, calls are what comes from it on."""
        assert self._rewriter
        shelf = self._shelf2
        if calls and shelf.waiting:
            shown = texts
            shelf.begin()
        else:
            shown, calls = [], [*texts, *calls]
        return [*shown, shelf.take(b"".join(calls), finished=self._rewriter.finish_sent)]

    def _is_empty(self) -> bool:
        """A thinking that just ends was not continued; a content may have been complete but for its ending."""
        leg = self._leg2
        said = self._partial.content or self._leg1.tool_call_seen
        return leg is not None and not (said or leg.has_text or leg.tool_call_seen)

    def _leg2_over(self, failure: Failure, now: float, detail: str) -> list[Action]:
        """Leg 2's bytes are over, or hold something that ends them."""
        assert self._rewriter
        is_over = failure in (Failure.EOF, Failure.DISCONNECT, Failure.IDLE_TIMEOUT)
        last = self._decoder.finish() if is_over else None
        if last is not None and last.data and not _is_cut(last):
            events, ending = self._leg2_event(last, now)
            return [
                *_send(events),
                *(ending if ending is not None else self._leg2_over(failure, now, detail)),
            ]
        if self._rewriter.finish_sent:
            return self._leg2_finished(now)
        return self._leg2_failed(Reason.LEG2_BROKEN, detail or str(failure), now)

    def _leg2_finished(self, now: float) -> list[Action]:
        usage = self._final_usage() if self.plan.asks_usage else b""
        self._outcome = Outcome.RESCUED
        self._end(Phase.DONE, now)
        return [Send(usage + DONE_EVENT), CloseLeg()]

    def _leg2_failed(self, reason: Reason, message: str, now: float) -> list[Action]:
        self._leg2_message = self._quoted(message)
        silent = self._finish_sent or self._shelf2.holding or reason is Reason.LEG2_RESTARTED
        words = [] if silent else self._last_words()
        self._shelf2.drop()
        if self._finish_sent:  # before, which nothing spoils any more, or by a stop string among the words
            return [*_send(words), *self._leg2_finished(now)]
        return [*_send(words), *self._failed(reason, now)]

    def _last_words(self) -> list[bytes]:
        """Text that the seam still holds has been generated, and nothing will come any more to take it back."""
        if self._rewriter is None:
            return []
        try:
            return self._rewriter.last_words()
        except RestartDeparted:
            return []
        except Exception:
            logger.exception("request %s: text at the seam could not be shown", self.request_id)
            return []

    def _quoted(self, message: str) -> str:
        """What the audit holds of an engine's message."""
        return first_line(message, self._repeatable()) if message else ""

    def _repeatable(self) -> list[str]:
        """Texts that an engine may repeat in an error, and that must not be kept."""
        return [
            prefix(self.plan.strategy, self._partial),
            self._partial.reasoning,
            self._partial.content,
            *self._asked.openings.split("\n"),
        ]

    @property
    def _asked(self) -> Conversation:
        """What the client's request holds."""
        if self._conversation is None:
            self._conversation = self.plan.read_conversation(self.options.estimator)
        return self._conversation

    # -- endings -----------------------------------------------------------------------------------

    def _completed(self, finish: str | None, now: float) -> list[Action]:
        """The answer is whole: add what is missing of its ending."""
        self._outcome, self._reason = (
            Outcome.COMPLETED,
            self._verdict.reason if self._verdict else Reason.NONE,
        )
        tail = event_of(chunk_like(self._leg1, choices=[finish_choice(finish)])) if finish else b""
        if self.plan.asks_usage and not self._usage_sent:
            tail += self._final_usage()
        self._end(Phase.DONE, now)
        return [CloseLeg(), Send(tail + DONE_EVENT)]

    def _failed(self, reason: Reason, now: float) -> list[Action]:
        self._outcome, self._reason = Outcome.FAILED, reason
        usage = self._early_usage if self._leg2 is None else b""
        event = self._error_event(reason)
        self._end(Phase.FAILED, now)
        return [CloseLeg(), Send(usage + event)]

    def _error_event(self, reason: Reason) -> bytes:
        if self._failure is Failure.ERROR_EVENT and self._held is not None:
            if isinstance(self._held_value, dict) and self._held_value.get("error"):
                return closed(self._held.raw)
            named = {"type": "stream_interrupted", "code": "error_event", **_named(self._held_value)}
            return event_of({"error": named})
        failure = self._failure or Failure.DISCONNECT
        refused = (
            self._verdict is not None and self._verdict.decision is Decision.REFUSE and self._leg1.events
        )
        return interrupted_event(failure, reason, reason if refused or reason in OWN_CODES else failure)

    def _final_usage(self) -> bytes:
        return event_of(chunk_like(self._leg1, choices=[], usage=self._joined(self._leg2_counts())))

    def _leg2_counts(self) -> JSON | None:
        """What leg 2 reported, or an estimate of what it wrote."""
        if self._leg2 is None or self._leg2_usage is not None:
            return self._leg2_usage
        wrote = self._counted(self._leg2, self._leg2.partial)
        counts: JSON = {"completion_tokens": wrote.completion}
        thought = {"completion_tokens_details": {"reasoning_tokens": wrote.reasoning}}
        return counts | (thought if wrote.reasoning else {})

    def _joined(self, leg2: JSON | None) -> JSON:
        before = self._before
        if self._seam is not None and self._seam.restarted:  # leg 2 wrote, and counted, the partial itself
            before = Delivered(0, 0, prompt=before.prompt)
        reasons = self._leg2 is not None and self._leg2.has_reasoning
        return joined_usage(before, leg2, self._prompt_tokens(leg2), reasons, self._leg1.last_usage)

    def _prompt_tokens(self, leg2: JSON | None) -> int:
        """The client's prompt: that of leg 2, which holds the partial too, less what the partial has cost."""
        counted = count(leg2, "prompt_tokens")
        return max(0, counted - self._before.completion) if counted else self._asked.prompt_tokens

    def _enter(self, phase: Phase) -> None:
        if phase not in NEXT[self.phase]:
            raise RuntimeError(f"no way from {self.phase.name} to {phase.name}")
        self.phase = phase

    def _end(self, phase: Phase, now: float) -> None:
        self._enter(phase)
        self._ended_at = now

    # -- the record --------------------------------------------------------------------------------

    def record(self) -> StreamRecord | None:
        """For the audit, once the splice has ended; None for a stream that needed nothing."""
        if self._outcome is None:
            return None
        leg, verdict = self._leg1, self._verdict
        partial = self._partial if self._failure else leg.partial
        before = self._before if self._failure else self._counted(leg, partial)
        budget = self.plan.budget
        continued = self._leg2 is not None
        return StreamRecord(
            created_at=self._created_at,
            request_id=self.request_id,
            requested_model=self.plan.model,
            completion_id=leg.id if isinstance(leg.id, str) else "",
            strategy_id=self.plan.strategy.pk,
            strategy_name=self.plan.strategy.name,
            engine=str(self.plan.strategy.engine),
            failure=str(self._failure or ""),
            case=str(Case.TOOL_CALL_SEEN if leg.tool_call_seen else partial.case),
            decision=str(verdict.decision if verdict else Decision.NONE),
            route=str(verdict.route if verdict else Route.NONE),
            outcome=str(self._outcome),
            reason=str(self._reason),
            reasoning_chars=len(partial.reasoning),
            content_chars=len(partial.content),
            tokens_recovered=before.completion,
            tokens_exact=before.exact,
            budget_before=budget,
            budget_after=budget - before.completion if budget is not None and self._failure else None,
            idle_seconds=_between(self._event_at, self._leg1_ended),
            seam_gap_seconds=_between(self._event_at, self._seam_at),
            leg1_seconds=_between(self.started_at, self._leg1_ended or self._ended_at),
            leg2_seconds=_between(self._leg1_ended, self._ended_at) if continued else None,
            total_seconds=_between(self.started_at, self._ended_at),
            leg2_status=self._leg2_status,
            leg2_message=self._leg2_message,
            usage_before=leg.last_usage,
            usage_after=self._joined(self._leg2_counts()) if self._outcome is Outcome.RESCUED else None,
            partial_text=partial.reasoning + partial.content if self.options.store_text else "",
            continued_text=self._continued_text() if self.options.store_text else "",
            extra={"failure_detail": self._quoted(self._failure_detail)}
            | ({"taken_over": True} if self._taken_over else {})
            | self._ids_note()
            | self._shelf.note("leg1")
            | self._shelf2.note("leg2"),
        )

    def _counted(self, leg: Leg, partial: Partial) -> Delivered:
        """What `partial`, the text of `leg`, has cost."""
        return delivered(
            leg.last_usage,
            leg.usage_current,
            partial.reasoning,
            partial.content,
            self.options.estimator,
            least=leg.least_tokens,
            reasoning_events=leg.reasoning_events,
            others=leg.others,
        )

    def _ids_note(self) -> dict[str, str]:
        """Why ids were not carried where the strategy wants them to be."""
        if not self.plan.strategy.token_exact or self._failure is None:
            return {}
        if self.plan.stops:
            return {"ids": "tokenized from the text: with stop strings the ids run ahead of it"}
        if self._leg1.carried_ids is None:
            return {"ids": "tokenized from the text: the ids do not agree with the engine's count"}
        return {"ids": "carried"}

    def _continued_text(self) -> str:
        text = self._leg2.partial if self._leg2 else Partial()
        return text.reasoning + text.content


def _is_cut(event: Event) -> bool:
    if event.data == DONE:
        return False
    try:
        parse(event.data or b"")
    except ValueError:
        return True
    return False


def interrupted_event(failure: Failure | None, reason: Reason, code: Failure | Reason) -> bytes:
    message = failed_message(failure, reason)
    return event_of({"error": {"message": message, "type": "stream_interrupted", "code": str(code)}})


def _named(value: Any) -> JSON:
    """An engine's error in the one form that clients understand; its nulls would hide our type and code."""
    said = {key: told for key, told in error_object(value).items() if isinstance(told, str | int | float)}
    said.pop("object", None)
    return {"message": "the engine reported an error", **said}


def _send(events: Sequence[bytes]) -> list[Action]:
    data = b"".join(events)
    return [Send(data)] if data else []


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)
