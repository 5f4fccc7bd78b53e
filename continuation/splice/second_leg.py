"""Leg 2: its events are rewritten in leg 1's identity, and joined to the partial."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from continuation.plan import Guarded
from continuation.shapes.chat.chunks import count, error_message, usage_of
from continuation.shapes.encoding import JSON, parse
from continuation.shapes.sse import DONE, Event, EventDecoder
from continuation.splice.leg import Leg
from continuation.splice.line_ends import LineEnds
from continuation.splice.options import Options
from continuation.splice.reports import Reports
from continuation.splice.rewrite import Rewriter
from continuation.splice.seam import RestartDeparted, Seam
from continuation.splice.shelf import Shelf
from continuation.vocabulary import Failure, Reason
from strategies.types import Partial

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SecondEnd:
    """How leg 2 ended: Reason.NONE where it has finished the answer. message: the engine's, or what was wrong."""

    reason: Reason = Reason.NONE
    message: str = ""


FINISHED = SecondEnd()
_Read = tuple[list[bytes], SecondEnd | None]


class SecondLeg:
    """Reads leg 2 and writes what the client gets of it.

    leg           what has been read of the answer
    seam          where its text is joined to the partial
    shelf         where events with tool calls lie until the calls are whole
    usage         the newest that the engine reported
    progress_at   when something came that puts off the ending: the idle clock counts from here
    joined_at     when its first text was shown
    """

    def __init__(
        self,
        plan: Guarded,
        options: Options,
        request_id: str,
        leg1: Leg,
        partial: Partial,
        now: float,
        *,
        exact: bool,
        running_usage: Callable[[JSON], JSON] | None,
    ) -> None:
        """exact: see Seam. running_usage: the usage of the whole answer for one of leg 2; None where the client wants
        none as it goes."""
        self._request_id = request_id
        self._decoder = EventDecoder(options.event_limit)
        self._line_ends = LineEnds()
        self._reports = Reports(options.failed_finishes, plan.choices)
        self._adds_to_answer = bool(partial.content or leg1.tool_call_seen)
        self.seam = Seam(plan.strategy, partial, plan.stops, stop_shown=plan.stop_shown, exact=exact)
        self._rewriter = Rewriter(leg1, self.seam, running_usage)
        self.leg = Leg(options.partial_limit)
        # A call of which the client has a part already is not held any more.
        self.shelf = Shelf(options.buffer_limit, wanted=options.buffers and not leg1.tool_call_seen)
        self.usage: JSON | None = None
        self.progress_at = now
        self.joined_at: float | None = None

    @property
    def finish_sent(self) -> bool:
        """Whether it has finished the answer."""
        return self._rewriter.finish_sent

    def read(self, read: bytes, now: float) -> _Read:
        """The events to forward, and how the leg ended if it has."""
        forward: list[bytes] = []
        for event in self._decoder.feed(read):
            events, end = self._event(event, now)
            forward += events
            if end is not None:
                return forward, end
        if self._decoder.overflowed:
            return forward, SecondEnd(Reason.LEG2_BROKEN, "an event that is too large")
        return forward, None

    def close(self, failure: Failure, now: float, detail: str) -> tuple[list[bytes], SecondEnd]:
        """Its bytes are over, or hold something that ends them."""
        is_over = failure in (Failure.EOF, Failure.DISCONNECT, Failure.IDLE_TIMEOUT)
        last = self._decoder.finish() if is_over else None
        if last is not None and last.data and not _is_cut(last):
            events, end = self._event(last, now)
            if end is None:
                more, end = self.close(failure, now, detail)
                events = [*events, *more]
            return events, end
        if self.finish_sent:
            return [], FINISHED
        return [], SecondEnd(Reason.LEG2_BROKEN, detail or str(failure))

    def last_words(self) -> list[bytes]:
        """Text that the seam still holds: it has been generated, and nothing will come any more to take it back."""
        try:
            return self._rewriter.last_words()
        except RestartDeparted:
            return []
        except Exception:
            logger.exception("request %s: text at the seam could not be shown", self._request_id)
            return []

    def _event(self, event: Event, now: float) -> _Read:
        event = self._line_ends.mended(event, as_received=event.data is None)
        if not event.data and event.name != "error":
            return ([self.shelf.take(event.raw, finished=False)] if event.data is None else []), None
        if event.data == DONE:
            return self.close(Failure.EOF, now, "[DONE] without a finish_reason")
        try:
            value = parse(event.data or b"null")
        except ValueError:
            if event.name != "error":
                return self.close(Failure.MALFORMED, now, "a data line that is no JSON")
            value = (event.data or b"").decode("utf-8", "replace")
        failure = self._reports.failure_in(event, value)
        if failure:
            message = error_message(value) if failure is Failure.ERROR_EVENT else ""
            return self.close(failure, now, message)
        return self._chunk(value, now) if isinstance(value, dict) else ([], None)

    def _chunk(self, chunk: JSON, now: float) -> _Read:
        counted = count(self.usage, "completion_tokens") or 0
        self.usage = usage_of(chunk) or self.usage
        if self.finish_sent:
            if (count(self.usage, "completion_tokens") or 0) > counted:
                self.progress_at = now
            return [], None
        self.leg.absorb(chunk)
        if self.leg.finish == "stop" and self._is_empty():
            return [], SecondEnd(Reason.LEG2_EMPTY, "leg 2 ended without a word")
        try:
            texts, calls = self._rewriter.chunk(chunk)
        except RestartDeparted:
            return [], SecondEnd(Reason.LEG2_RESTARTED, "leg 2 told the answer again, and differently")
        events = self._held_or_shown(texts, calls)
        if self.finish_sent:
            self.progress_at = now
        if self.joined_at is None and self._rewriter.text_seen:
            self.joined_at = now
        if self.seam.stopped_at is not None:
            self.usage = None  # the engine would have gone on
            return events, FINISHED
        return events, None

    def _held_or_shown(self, texts: list[bytes], calls: list[bytes]) -> list[bytes]:
        """texts come before the first tool call of a chunk, calls are what comes from it on."""
        if calls and self.shelf.waiting:
            shown = texts
            self.shelf.begin()
        else:
            shown, calls = [], [*texts, *calls]
        return [*shown, self.shelf.take(b"".join(calls), finished=self.finish_sent)]

    def _is_empty(self) -> bool:
        """A thinking that just ends was not continued; a content may have been complete but for its ending."""
        return not (self._adds_to_answer or self.leg.has_text or self.leg.tool_call_seen)


def _is_cut(event: Event) -> bool:
    if event.data == DONE:
        return False
    try:
        parse(event.data or b"")
    except ValueError:
        return True
    return False
