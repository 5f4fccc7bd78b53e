"""What the audit keeps of one stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """What the audit keeps of one stream that failed, was continued, or was left by its client.

    Seconds are wall-clock durations; None means that it did not happen or is not known.
    """

    created_at: datetime
    request_id: str
    requested_model: str
    completion_id: str = ""
    strategy_id: int | None = None
    strategy_name: str = ""
    engine: str = ""
    failure: str = ""
    case: str = ""
    decision: str = ""
    route: str = ""
    outcome: str = ""
    reason: str = ""
    reasoning_chars: int = 0
    content_chars: int = 0
    tokens_recovered: int = 0
    tokens_exact: bool = False
    budget_before: int | None = None
    budget_after: int | None = None
    idle_seconds: float | None = None
    seam_gap_seconds: float | None = None
    leg1_seconds: float | None = None
    leg2_seconds: float | None = None
    total_seconds: float | None = None
    leg2_status: int | None = None
    leg2_message: str = ""
    usage_before: dict[str, Any] | None = None
    usage_after: dict[str, Any] | None = None
    partial_text: str = ""
    continued_text: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
