"""How Redis answers: in time, late, or not at all."""

from __future__ import annotations

import logging
from enum import Enum, auto

logger = logging.getLogger(__name__)

# A lease may have run out only because Redis was away: it is looked at again after so many seconds.
STEADY_SECONDS = 2.0


class Condition(Enum):
    WELL = auto()
    LATE = auto()  # nothing waits for Redis
    AWAY = auto()  # nothing new is begun either


class Health:
    """Redis is well again once all that is new has been written in time. That it goes and comes back is logged once."""

    def __init__(self) -> None:
        self.condition = Condition.WELL
        self.troubled_at: float | None = (
            None  # when it was last late, or came back; None: well from the start
        )

    @property
    def is_late(self) -> bool:
        """Or away."""
        return self.condition is not Condition.WELL

    @property
    def is_away(self) -> bool:
        return self.condition is Condition.AWAY

    def has_been_well(self, now: float, seconds: float = STEADY_SECONDS) -> bool:
        """Whether it has been well for so long, or ever since this process began. In STEADY_SECONDS each process has
        renewed its lease."""
        if self.is_late:
            return False
        return self.troubled_at is None or now - self.troubled_at >= seconds

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
        match self.condition:
            case Condition.WELL:
                return
            case Condition.AWAY:
                logger.warning("the resume log in Redis is back")
            case Condition.LATE:
                pass
        self.condition, self.troubled_at = Condition.WELL, now
