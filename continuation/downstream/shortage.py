"""No descriptor is left, here or on the whole machine: how that is recognized, and said without flooding the log."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

CODES = {errno.EMFILE, errno.ENFILE}
RETRY_SECONDS = 1
SPACING_SECONDS = 1.0


def is_shortage(trouble: BaseException) -> bool:
    """Whether this, or what it came from, is a lack of descriptors."""
    return any(isinstance(each, OSError) and each.errno in CODES for each in _chain(trouble))


def _chain(trouble: BaseException | None) -> Iterator[BaseException]:
    while trouble is not None:
        yield trouble
        trouble = trouble.__cause__


class Notice:
    """A line of the log, at most one a second. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = 0.0
        self._unsaid = 0

    def say(self, message: str) -> None:
        now = self._clock()
        if now < self._due:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since the last such line)" if self._unsaid else ""
        logger.warning("%s%s", message, more)
        self._due, self._unsaid = now + SPACING_SECONDS, 0
