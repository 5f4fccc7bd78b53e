"""Leg 1: its events are read along, and passed on as the bytes received."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from continuation.plan import Guarded
from continuation.shapes.chat.asking import Unasked
from continuation.shapes.chat.chunks import calls_tool, choices, finish_of, usage_of
from continuation.shapes.encoding import JSON, parse
from continuation.shapes.sse import DONE, Event, EventDecoder, closed
from continuation.splice.leg import Leg
from continuation.splice.line_ends import LineEnds
from continuation.splice.options import Options
from continuation.splice.reports import LegFault, Reports
from continuation.splice.shelf import Shelf
from continuation.vocabulary import Failure

logger = logging.getLogger(__name__)

# In an event that is too large to be read, a finish_reason is found by its name; in a text its quotes are escaped.
_FINISH = re.compile(rb'"finish_reason" ?: ?"([^"\\]{1,64})"')
# Bytes of such an event that are looked at again with the next ones: the longest that _FINISH matches fits into them.
_FINISH_BYTES = 128


@dataclass(frozen=True, slots=True)
class FirstRead:
    """What a read of leg 1 brought.

    forward   bytes for the client, in order
    fault     how the leg failed in this read
    is_done   [DONE] has come behind a finish: the answer is whole
    """

    forward: list[bytes]
    fault: LegFault | None = None
    is_done: bool = False


class LostEvent:
    """An event that is too large to be read. Its bytes are passed on, and only its finish is looked for."""

    __slots__ = ("_end", "seen")

    def __init__(self) -> None:
        self.seen = False
        self._end = b""

    def begin(self) -> None:
        self.seen, self._end = True, b""

    def finishes(self, piece: bytes) -> list[str]:
        """The finish_reasons in the next piece of the event."""
        looked_at = self._end + piece
        self._end = looked_at[-_FINISH_BYTES:]
        return [found[1].decode("latin-1") for found in _FINISH.finditer(looked_at)]


class FirstLeg:
    """Reads leg 1 along.

    leg           what has been read of the answer
    shelf         where events with tool calls lie until the calls are whole
    early_usage   a usage event that is sent only at the end, for leg 2 may add to it
    progress_at   when something new came last: the idle clock counts from here
    event_at      when the last chunk came
    usage_sent    whether the client has its usage
    """

    def __init__(self, plan: Guarded, options: Options, request_id: str, now: float) -> None:
        self._plan = plan
        self._request_id = request_id
        self._decoder = EventDecoder(options.event_limit)
        self._reports = Reports(options.failed_finishes, plan.choices)
        self._unasked = Unasked(
            ids=plan.asks_ids, usage=plan.asks_usage, running_usage=plan.asks_usage_always
        )
        self._line_ends = LineEnds()
        self._lost = LostEvent()
        self._before_calls: Leg | None = None
        self._is_blind = False
        self.early_usage = b""
        self.leg = Leg(options.partial_limit, plan.choices)
        self.shelf = Shelf(options.buffer_limit, wanted=options.buffers and plan.choices == 1)
        self.progress_at = now
        self.event_at: float | None = None
        self.usage_sent = False

    @property
    def delivered(self) -> Leg:
        """Leg 1 as the client knows it: without what lies on the shelf."""
        if self._before_calls is None or not self.shelf.holding:
            return self.leg
        self._before_calls.take_identity(self.leg)
        return self._before_calls

    @property
    def is_unframed(self) -> bool:
        """Whether the last read ended in the middle of an event that is too large to be read."""
        return self._decoder.skipping

    @property
    def has_lost_event(self) -> bool:
        return self._lost.seen

    @property
    def awaits_ending(self) -> bool:
        """Whether the answer has its finish_reason, so that all that can still come is its ending."""
        return self.leg.finish is not None and not self.leg.another_goes_on

    @property
    def could_be_continued(self) -> bool:
        """Whether a failure at this moment could be mended by a leg 2."""
        leg = self.delivered
        if leg.finish or leg.tool_call_seen or not leg.has_whole_text:
            return False
        return not (leg.unreadable or leg.too_large or leg.other_choices or self._lost.seen)

    # -- what comes --------------------------------------------------------------------------------

    def read(self, read: bytes, now: float) -> FirstRead:
        forward: list[bytes] = []
        for event in self._events(read):
            failure, value = self._read_along(event, now)
            if failure:
                return FirstRead([*forward, self._given_up(event)], LegFault(failure, event, value))
            forward.append(self._passed_on(event, value))
            if event.data == DONE and self.leg.finish:
                return FirstRead(forward, is_done=True)
        if self._decoder.skipping:
            self.progress_at = now
        return FirstRead(forward)

    def close(self, failure: Failure, now: float) -> FirstRead:
        """The bytes of the leg are over, for `failure`; what is left may be an event that lacks its blank line."""
        last = self._decoder.finish()
        if last is None or not (last.data or last.name == "error"):
            return FirstRead([], LegFault(failure))
        found, value = self._read_along(last, now)
        if found is Failure.MALFORMED:  # cut inside the event: the cut is the failure
            return FirstRead([], LegFault(failure))
        if found:
            return FirstRead([self._given_up(last)], LegFault(found, last, value))
        forward = [self._passed_on(replace(last, raw=closed(last.raw)), value)]
        if last.data == DONE and self.leg.finish:
            return FirstRead(forward, is_done=True)
        return FirstRead(forward, LegFault(failure))

    def take_delivered(self, delivered: bytes, now: float) -> FirstRead:
        """Read what another process has sent of this answer. Nothing of it is forwarded, and nothing is held."""
        self.shelf.waiting = False
        for event in self._events(delivered):
            if event.data == DONE:  # whatever of it is missing
                return FirstRead([], is_done=True)
            failure, _ = self._read_along(event, now)
            if failure is Failure.MALFORMED:  # what is left of a larger event
                self.leg.unreadable = True
            elif failure:  # is delivered only as the failed ending
                return FirstRead([], LegFault(failure))
        return FirstRead([])

    def drop_rest(self) -> None:
        """Let go of bytes behind the failure: up to a whole event, which leg 2 would hold for as long as it runs."""
        self._decoder = EventDecoder(self._decoder.limit)

    # -- events ------------------------------------------------------------------------------------

    def _events(self, read: bytes) -> Iterable[Event]:
        """Also of an event that is too large, as it comes."""
        decoder = self._decoder
        events = self._found_in_lost(decoder.feed(read)) if decoder.skipping else decoder.feed(read)
        return chain(events, self._events_behind_lost()) if decoder.overflowed else events

    def _events_behind_lost(self) -> Iterator[Event]:
        while self._decoder.overflowed:
            if not self._lost.seen:
                limit = self._decoder.limit
                logger.warning("request %s: an event is larger than %d bytes", self._request_id, limit)
            self._lost.begin()
            yield Event(self.shelf.release())
            yield from self._found_in_lost(self._decoder.skip())

    def _found_in_lost(self, events: list[Event]) -> list[Event]:
        """The first is a piece of the event that is too large: is the answer's finish in it?"""
        if events:
            finishes = self._lost.finishes(events[0].raw)
            endings = (
                finish_of({"finish_reason": one}) for one in finishes if not self._reports.is_failed(one)
            )
            if self._plan.choices == 1:  # else nobody knows whose finish that is
                self.leg.finish = self.leg.finish or next(filter(None, endings), None)
        return events

    def _read_along(self, event: Event, now: float) -> tuple[Failure | None, Any]:
        try:
            return self._read_event(event, now)
        except Exception:  # whatever it is, a stream that we cannot read along must not break
            if not self._is_blind:
                logger.exception("request %s: an event could not be read along", self._request_id)
            self._is_blind = self.leg.unreadable = True
            value = parse(event.data or b"null")
            for choice in choices(value) if isinstance(value, dict) else ():
                if not self._reports.is_failed(finish_of(choice)):
                    self.leg.take_finish(choice)
            return None, value

    def _read_event(self, event: Event, now: float) -> tuple[Failure | None, Any]:
        """The failure that the event is, if it is one, and its JSON value."""
        if not event.data:
            return (Failure.ERROR_EVENT, None) if event.name == "error" else (None, None)
        if event.data == DONE:
            return (None if self.leg.finish else Failure.EOF), None
        try:
            value = parse(event.data)
        except ValueError:
            if event.name == "error":
                return Failure.ERROR_EVENT, event.data.decode("utf-8", "replace")
            return Failure.MALFORMED, None
        failure = self._reports.failure_in(event, value)
        if failure is None and isinstance(value, dict):
            self._note(value, now)
        return failure, value

    def _note(self, chunk: JSON, now: float) -> None:
        leg, reports = self.leg, self._reports
        if self.shelf.waiting and calls_tool(chunk):
            self._before_calls = leg.copy()
            self.shelf.begin()
        if reports.choices > 1 and any(reports.is_failed(finish_of(choice)) for choice in choices(chunk)):
            leg.lose_choice()
        is_first = not leg.events
        leg.events += 1
        self.event_at = now
        if leg.absorb(chunk) or is_first:
            self.progress_at = now
        if leg.finish and usage_of(chunk) and (not choices(chunk) or self._shows_usage_with_choices):
            self.usage_sent = True

    @property
    def _shows_usage_with_choices(self) -> bool:
        """Whether usage in a chunk that has choices is the last that the client is to see. Where only the gateway
        asked for it, it is hidden; where the client asked for running usage, an event of its own comes after it."""
        return not (self._plan.carries_ids or self._plan.asks_usage_always)

    # -- what of it goes on ------------------------------------------------------------------------

    def _given_up(self, event: Event) -> bytes:
        """A [DONE] without a finish proves nothing, but the calls before it are as whole as they will ever be."""
        return self.shelf.release() if event.data == DONE else b""

    def _passed_on(self, event: Event, value: Any) -> bytes:
        """What of an event goes to the client now."""
        shown, is_finished = self._shown(event, value), self.leg.finish is not None
        is_alone = self._holds_usage_alone(value)
        if self._line_ends.is_due or shown is not event.raw or is_alone:
            as_received = shown is event.raw and (is_finished or not is_alone)
            event = self._line_ends.mended(event, as_received=as_received)
            shown = event.raw if event.data is None else shown
        if is_alone and not is_finished:
            # Its last line end may be cut by the reads, and is not waited for.
            self.early_usage, shown = shown.rstrip(b"\r\n") + b"\n\n", b""
        elif event.data == DONE:
            shown, self.early_usage = self.early_usage + shown, b""
        elif self.early_usage and isinstance(value, dict) and usage_of(value) is not None:
            self.early_usage = b""  # there is a newer one
        return self.shelf.take(shown, finished=is_finished) if self.shelf.holding else shown

    def _holds_usage_alone(self, value: Any) -> bool:
        """Whether an event holds usage and nothing else, and the client, who asked for one such event, would read it
        as the last word."""
        if not self._plan.asks_usage or self._plan.asks_usage_always or not isinstance(value, dict):
            return False
        if self._plan.choices > 1:  # there will be no leg 2 that adds to it
            return False
        return usage_of(value) is not None and not choices(value)

    def _shown(self, event: Event, value: Any) -> bytes:
        """The bytes as received, but for what only the gateway has asked for."""
        if not self._plan.carries_ids or not isinstance(value, dict):
            return event.raw
        try:
            return self._unasked.shown(value) or b""
        except (ValueError, RecursionError):  # too deep to be written again
            return event.raw
