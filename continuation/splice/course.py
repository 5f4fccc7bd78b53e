"""The course of one stream: the phase that it is in, and all that is known of its legs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum, auto

from continuation.plan import Guarded
from continuation.splice.bill import Bill
from continuation.splice.first_leg import FirstLeg
from continuation.splice.notes import Notes
from continuation.splice.options import Options
from continuation.splice.reports import LegFault
from continuation.splice.second_leg import SecondLeg
from strategies.builders import without_lone_surrogates
from strategies.types import Partial


class Phase(Enum):
    PLANNED = auto()
    LEG1 = auto()
    UNFRAMED = auto()
    DECIDING = auto()
    LEG2 = auto()
    DONE = auto()
    FAILED = auto()


NEXT: Mapping[Phase, frozenset[Phase]] = {
    Phase.PLANNED: frozenset({Phase.LEG1, Phase.FAILED}),
    Phase.LEG1: frozenset({Phase.UNFRAMED, Phase.DECIDING, Phase.DONE, Phase.FAILED}),
    Phase.UNFRAMED: frozenset({Phase.LEG1, Phase.DECIDING, Phase.DONE, Phase.FAILED}),
    Phase.DECIDING: frozenset({Phase.LEG2, Phase.DONE, Phase.FAILED}),
    Phase.LEG2: frozenset({Phase.DONE, Phase.FAILED}),
    Phase.DONE: frozenset(),
    Phase.FAILED: frozenset(),
}


class Course:
    """What the steps of the machine share.

    partial   what leg 1 had delivered when it failed
    fault     how leg 1 failed; None until it has
    notes     what the audit is to know beside that
    """

    def __init__(
        self, plan: Guarded, options: Options, request_id: str, created_at: datetime, now: float
    ) -> None:
        self.plan = plan
        self.options = options
        self.request_id = request_id
        self.phase = Phase.PLANNED
        self.first = FirstLeg(plan, options, request_id, now)
        self.second: SecondLeg | None = None
        self.bill = Bill(plan, options.estimator)
        self.partial = Partial()
        self.fault: LegFault | None = None
        self.notes = Notes(created_at, now)

    @property
    def ended(self) -> bool:
        return self.phase in (Phase.DONE, Phase.FAILED)

    @property
    def is_finished(self) -> bool:
        """Whether the client has a finish_reason, of either leg."""
        return self.first.leg.finish is not None or (self.second is not None and self.second.finish_sent)

    @property
    def continued(self) -> SecondLeg:
        """Leg 2, where there must be one. Raises RuntimeError."""
        if self.second is None:
            raise RuntimeError(f"there is no leg 2 in phase {self.phase.name}")
        return self.second

    def enter(self, phase: Phase) -> None:
        if phase not in NEXT[self.phase]:
            raise RuntimeError(f"no way from {self.phase.name} to {phase.name}")
        self.phase = phase

    def end(self, phase: Phase, now: float) -> None:
        self.enter(phase)
        self.notes.ended_at = now

    def weigh(self) -> None:
        """Settle what there is to be continued, and what it has cost."""
        partial = self.first.leg.partial
        self.partial = Partial(*map(without_lone_surrogates, (partial.reasoning, partial.content)))
        self.bill.weigh(self.first.leg, self.partial)
