"""The part of verification that strategies know: what is verified, and who does it.

The runner talks to engines, so it is not in here: the application that has one registers it. It is called with the
key of a VerificationRun that has just begun, in a thread of its own, and keeps that row up to date.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from strategies.columns import COLUMNS
from strategies.types import CompiledStrategy

logger = logging.getLogger(__name__)

Runner = Callable[[int], None]
runner: Runner | None = None

# (attribute of the compiled strategy, field of the row) of each setting that decides how an answer is continued.
_VERIFIED = tuple((column.attribute, column.field) for column in COLUMNS if column.verified)


def settings_of(strategy: CompiledStrategy) -> dict[str, Any]:
    """The verified settings of a strategy by the names of its row's fields, as JSON holds them."""
    return {field: _plain(getattr(strategy, name)) for name, field in _VERIFIED}


def changes_between(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in wanted.items() if now.get(field) != value}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, str) else value


def start(run: int) -> threading.Thread:
    """Start the run in the background. Raises RuntimeError if no application has registered a runner."""
    found = runner
    if found is None:
        raise RuntimeError("no application has registered a verification runner")
    thread = threading.Thread(target=_guarded, args=(found, run), name=f"verification-{run}", daemon=True)
    thread.start()
    return thread


def _guarded(found: Runner, run: int) -> None:
    try:
        found(run)
    except Exception:
        logger.exception("verification run %d failed", run)
