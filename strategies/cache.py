"""The strategy book of this process: read by requests, swapped whole when rows change.

`current()` is all that the request path uses: it never waits and never touches the database.
"""

from __future__ import annotations

import logging
import re
import threading
from datetime import datetime

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connections, router

from strategies.types import CompiledStrategy, StrategyBook

logger = logging.getLogger(__name__)

THREAD_NAME = "strategy-refresh"
# Distinct troubles remembered, so that each is logged once and not at every poll.
TROUBLES_REMEMBERED = 100

Stamp = tuple[int, datetime | None]


class UnusableRow(Exception):
    """A row was written past validation."""


class BookShelf:
    """Holds the last good book. Reading it takes no lock; filling it is serialised."""

    def __init__(self) -> None:
        self.book = StrategyBook()
        self.loaded = threading.Event()
        self._stamp: Stamp | None = None
        self._filling = threading.Lock()
        self._troubles: set[str] = set()

    def refresh(self) -> bool:
        """Read the rows again if their revision has changed. False if that failed; the last good book stays."""
        with self._filling:
            try:
                self._fill()
            except (DatabaseError, UnusableRow) as trouble:
                self._log_once(f"strategies stay as they were: {_in_one_line(trouble)}{_hint(trouble)}")
                return False
            except Exception as trouble:  # a bug; even so, requests go on with the book they have
                self._log_once(f"strategies stay as they were: {_in_one_line(trouble)}", exc_info=True)
                return False
            return True

    def _fill(self) -> None:
        # The revision is read first: rows changed after it are then read again, and never missed.
        stamp = _stamp()
        if stamp == self._stamp:
            return
        strategies = self._compiled()
        self.book = StrategyBook.of(strategies, stamp[0])
        self._stamp = stamp
        if self._troubles or self.loaded.is_set():
            self._troubles.clear()
            logger.info("strategies are read again, revision %d", stamp[0])
        if not self.loaded.is_set():
            _log_startup_warnings(self.book)
            self.loaded.set()

    def _compiled(self) -> list[CompiledStrategy]:
        compiled = []
        for row in apps.get_model("strategies.Strategy").objects.filter(enabled=True).order_by("name"):
            try:
                compiled.append(row.compile())
            except ValidationError as trouble:
                message = f"strategy {row.name!r} does not compile: {_in_one_line(trouble)}"
                if self.loaded.is_set():
                    raise UnusableRow(message) from trouble
                # There is no last good book yet: the other rows are better than none.
                logger.error("%s; it is left out", message)
        return compiled

    def _log_once(self, trouble: str, exc_info: bool = False) -> None:
        if trouble not in self._troubles and len(self._troubles) < TROUBLES_REMEMBERED:
            self._troubles.add(trouble)
            logger.error("%s", trouble, exc_info=exc_info)


class Refresher(threading.Thread):
    """Loads at once, then polls the revision row each `interval` seconds until it is stopped."""

    def __init__(self, shelf: BookShelf, interval: float) -> None:
        super().__init__(name=THREAD_NAME, daemon=True)
        self._shelf = shelf
        self._interval = interval
        self._stopping = threading.Event()

    def run(self) -> None:
        while True:
            self._shelf.refresh()
            _close_connection()
            if self._stopping.wait(self._interval):
                return

    def stop(self, timeout: float | None = 10) -> None:
        self._stopping.set()
        self.join(timeout)


_shelf = BookShelf()
_refresher: Refresher | None = None
_starting = threading.Lock()


def current() -> StrategyBook:
    """The last good book; an empty one before the first load."""
    return _shelf.book


def refresh() -> bool:
    """Bring the book up to date. False, and one log line per distinct trouble, if that fails."""
    return _shelf.refresh()


def load_once() -> bool:
    """Load unless a book is loaded already; for commands, which need no polling."""
    return is_loaded() or refresh()


def is_loaded() -> bool:
    return _shelf.loaded.is_set()


def wait_until_loaded(timeout: float) -> bool:
    """Wait up to `timeout` seconds for the first load; False if it has not come."""
    return _shelf.loaded.wait(timeout)


def start(interval: float | None = None) -> None:
    """Start the refreshing thread unless it runs; `interval` in seconds, else STRATEGY_REFRESH_SECONDS."""
    global _refresher
    with _starting:
        if _refresher is None or not _refresher.is_alive():
            _refresher = Refresher(
                _shelf, settings.STRATEGY_REFRESH_SECONDS if interval is None else interval
            )
            _refresher.start()


def stop() -> None:
    """End the refreshing thread; the book stays."""
    global _refresher
    with _starting:
        if _refresher is not None:
            _refresher.stop()
            _refresher = None


def startup_warnings(book: StrategyBook, model: str, engine: str) -> list[str]:
    """Warnings for an operator about the strategy for CONTINUATION_MODEL and CONTINUATION_ENGINE."""
    chosen = book.by_model(model, engine)
    if chosen.strategy is None:
        return []
    asked = f"CONTINUATION_MODEL {model!r}" + (f" with CONTINUATION_ENGINE {engine!r}" if engine else "")
    if chosen.how == "generic":
        return [
            f"{asked} matches no enabled strategy that can be used: the generic format is used "
            f"({chosen.strategy.open!r}, {chosen.strategy.close!r}). Add a strategy for this model."
        ]
    if chosen.how == "other_engine":
        return [
            f"{asked} matches strategies of other engines only: {chosen.strategy.name!r}, for "
            f"{chosen.strategy.engine}, is used. Set CONTINUATION_ENGINE to vllm or sglang, whichever runs "
            "behind CONTINUATION_URL; if it is set rightly, add a strategy for that engine."
        ]
    return []


def _log_startup_warnings(book: StrategyBook) -> None:
    for warning in startup_warnings(book, settings.CONTINUATION_MODEL, settings.CONTINUATION_ENGINE):
        logger.warning("%s", warning)


def _stamp() -> Stamp:
    revision = apps.get_model("strategies.StrategyRevision")
    row = revision._default_manager.filter(pk=revision.THE_ROW).first()
    return (row.counter, row.changed_at) if row else (0, None)


def _close_connection() -> None:
    try:
        connections[router.db_for_read(apps.get_model("strategies.Strategy"))].close()
    except Exception as trouble:
        logger.warning("the connection that strategies are read by did not close: %s", _in_one_line(trouble))


def _hint(trouble: Exception) -> str:
    """Advice for a missing table or column. SQLite, PostgreSQL and MySQL each word this error in their own way."""
    missing = re.search(r"no such (table|column)|does not exist|doesn't exist|Unknown column", str(trouble))
    return "; run `manage.py migrate`" if missing and isinstance(trouble, DatabaseError) else ""


def _in_one_line(trouble: Exception) -> str:
    if isinstance(trouble, ValidationError) and hasattr(trouble, "error_dict"):
        return "; ".join(f"{field}: {' '.join(messages)}" for field, messages in trouble.message_dict.items())
    return " ".join(f"{type(trouble).__name__}: {trouble}".split())
