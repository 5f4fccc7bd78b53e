"""How Redis answers: in time, late, or not at all."""

from __future__ import annotations

import logging
from enum import Enum, auto

logger = logging.getLogger(__name__)

# Seconds: a flush that takes longer than the first makes Redis late, and longer than the second makes it away.
PATIENCE = 0.1
LATE_SECONDS = 0.5
# Seconds after which a lease is looked at again: it may have run out only because Redis was away.
STEADY_SECONDS = 2.0


class Condition(Enum):
    WELL = auto()
    LATE = auto()  # nothing waits for Redis
    AWAY = auto()  # nothing new is begun either


class Health:
    """Redis is well again once a flush has written all that was new in time. That it goes away, and comes
    back, is logged once each.

    Times are seconds of one clock, which is passed in."""

    def __init__(self) -> None:
        self.condition = Condition.WELL
        self.troubled_at: float | None = (
            None  # when it was last late, or came back; None: well from the start
        )
        self._sent_at = 0.0  # of the flush under way, or the last one
        self._sent_late = False
        self._judge_at: float | None = None  # the flush under way, if it has not been answered by then

    @property
    def is_late(self) -> bool:
        """Or away."""
        return self.condition is not Condition.WELL

    @property
    def is_away(self) -> bool:
        return self.condition is Condition.AWAY

    def has_been_well(self, now: float, seconds: float = STEADY_SECONDS) -> bool:
        """Whether it has been well for `seconds`, or ever since this process began. In STEADY_SECONDS each process has
        renewed its lease."""
        if self.is_late:
            return False
        return self.troubled_at is None or now - self.troubled_at >= seconds

    # -- a flush -----------------------------------------------------------------------------------

    def note_sent(self, now: float) -> None:
        self._sent_at, self._sent_late = now, self.is_late
        self._judge_at = now + PATIENCE

    def note_answered(self, now: float, *, whole: bool) -> None:
        """whole: nothing that was new had been left out."""
        self._judge_at = None
        if self._sent_late and whole and now - self._sent_at < PATIENCE:
            self.mark_well(now)

    def note_broken_off(self) -> None:
        self._judge_at = None

    def patience_left(self, now: float) -> float | None:
        """Seconds until the flush under way is to be judged; None if none is."""
        return None if self._judge_at is None else self._judge_at - now

    def judge(self, now: float) -> Condition:
        """The flush under way has not been answered, and no patience is left."""
        if now - self._sent_at < LATE_SECONDS:
            self.mark_late(now)
            self._judge_at = self._sent_at + LATE_SECONDS
            return Condition.LATE
        self.mark_away(now, "it does not answer")
        self._judge_at = None
        return Condition.AWAY

    # -- what it is --------------------------------------------------------------------------------

    def mark_late(self, now: float) -> None:
        self.troubled_at = now
        if self.condition is Condition.WELL:
            self.condition = Condition.LATE

    def mark_away(self, now: float, trouble: str) -> None:
        self.troubled_at = now
        if not self.is_away:
            self.condition = Condition.AWAY
            logger.warning("the resume log in Redis is away, streams go on without it: %s", trouble)

    def mark_well(self, now: float) -> None:
        if not self.is_late:
            return
        if self.is_away:
            logger.warning("the resume log in Redis is back")
        self.condition, self.troubled_at = Condition.WELL, now
