"""What is noted while a stream runs, for the audit."""

from __future__ import annotations

from datetime import datetime

from continuation.splice.decision import Verdict
from continuation.vocabulary import Outcome, Reason


class Notes:
    """Times are seconds of the machine's clock, None until it happens."""

    __slots__ = (
        "created_at",
        "ended_at",
        "failure_detail",
        "leg1_ended",
        "leg2_message",
        "leg2_opened",
        "leg2_status",
        "outcome",
        "reason",
        "started_at",
        "taken_over",
        "verdict",
    )

    def __init__(self, created_at: datetime, now: float) -> None:
        self.created_at = created_at
        self.started_at = now
        self.leg1_ended: float | None = None
        self.leg2_opened: float | None = None
        self.ended_at: float | None = None
        self.failure_detail = ""
        self.verdict: Verdict | None = None
        self.outcome: Outcome | None = None
        self.reason = Reason.NONE
        self.leg2_status: int | None = None
        self.leg2_message = ""
        self.taken_over = False
