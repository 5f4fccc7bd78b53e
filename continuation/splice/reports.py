"""What an event of either leg reports: that the leg has failed, or that it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from continuation.shapes.chat.chunks import choices, finish_of, index_of, is_error
from continuation.shapes.sse import Event
from continuation.vocabulary import Failure


@dataclass(frozen=True, slots=True)
class Reports:
    """failed_finishes: finish_reasons that are failures, in lower case. choices: how many the client asked for."""

    failed_finishes: frozenset[str]
    choices: int

    def is_failed(self, finish: str | None) -> bool:
        """Whether a finish_reason says that the engine gave up, and not that the answer has ended."""
        return finish is not None and finish.lower() in self.failed_finishes

    def failure_in(self, event: Event, value: Any) -> Failure | None:
        """The failure that an event reports; None where it reports none. `value` is its JSON."""
        if is_error(event, value):
            return Failure.ERROR_EVENT
        found = choices(value) if isinstance(value, dict) and self.choices == 1 else []
        finishes = [finish_of(choice) for choice in found if index_of(choice) == 0]
        return Failure.ABORTED if any(map(self.is_failed, finishes)) else None


@dataclass(frozen=True, slots=True)
class LegFault:
    """How leg 1 failed.

    held    the event that reports it: it is not sent before it is decided whether leg 2 follows
    value   the JSON of that event
    """

    failure: Failure
    held: Event | None = None
    value: Any = None
