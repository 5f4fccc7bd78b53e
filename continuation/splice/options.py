"""What the operator configured of a splice."""

from __future__ import annotations

from dataclasses import dataclass, field

from continuation.shapes.chat.chunks import FAILED_FINISHES
from continuation.shapes.chat.usage import Estimator


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator configured. Limits in bytes, idle_timeout in seconds.

    failed_finishes: finish_reasons that are failures, in lower case.
    """

    enabled: bool = True
    idle_timeout: float = 20.0
    failed_finishes: frozenset[str] = FAILED_FINISHES
    estimator: Estimator = field(default_factory=Estimator)
    event_limit: int = 32 * 2**20
    partial_limit: int = 10 * 2**20
    store_text: bool = False
    buffer_tool_calls: bool = False
    buffer_limit: int = 2**20

    @property
    def buffers(self) -> bool:
        """Whether tool calls are held: only where something can be done about a failure."""
        return self.buffer_tool_calls and self.enabled
