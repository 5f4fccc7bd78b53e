"""The part of verification that strategies know: what is verified, and who does it.

The runner talks to engines, so it is not in here: the application that has one registers it. It is called with the
key of a VerificationRun that has just begun, in a thread of its own, and keeps that row up to date.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from strategies.types import CompiledStrategy

logger = logging.getLogger(__name__)

Runner = Callable[[int], None]
runner: Runner | None = None

# Fields of a row that decide how an answer is continued, by the attribute of the compiled strategy.
FIELDS = {
    "open": "open_token",
    "close": "close_token",
    "content_open": "content_open_token",
    "prompt_opens_thinking": "prompt_opens_thinking",
    "thinking_key": "thinking_key",
    "structured": "structured_message",
    "reasoning_field": "reasoning_field",
    "reasoning_end": "reasoning_end",
    "template_trims": "template_trims",
    "may_think_again": "may_think_again",
    "render_generate": "render_generate",
    "token_exact": "token_exact",
    "without_scale_out": "without_scale_out",
    "markers": "markers",
}


def settings_of(strategy: CompiledStrategy) -> dict[str, Any]:
    """The verified settings of a strategy by the names of its row's fields, as JSON holds them."""
    return {field: _plain(getattr(strategy, name)) for name, field in FIELDS.items()}


def changes_between(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in wanted.items() if now.get(field) != value}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, str) else value


def start(run: int) -> threading.Thread:
    """Run it in the background. RuntimeError where no application has registered a runner."""
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
