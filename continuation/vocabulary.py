"""The vocabulary of the core: what happened, what to do, what to note. Frozen values, no behaviour."""

from __future__ import annotations

from enum import StrEnum


class Failure(StrEnum):
    """How a leg died before its finish_reason."""

    IDLE_TIMEOUT = "idle_timeout"  # silence for STALL_IDLE_TIMEOUT_SECONDS
    DISCONNECT = "disconnect"  # the connection broke
    EOF = "eof"  # a clean end, or [DONE], without a finish_reason
    ERROR_EVENT = "error_event"  # an `error` object, `event: error`, `object: "error"`
    ABORTED = "aborted"  # a finish_reason of FAILED_FINISH_REASONS
    MALFORMED = "malformed"  # a data line that is no JSON


class Decision(StrEnum):
    CONTINUE = "continue"  # one leg 2 is sent
    REFUSE = "refuse"  # no leg 2; the stream fails
    COMPLETE = "complete"  # no leg 2 needed: the answer is whole
    NONE = "none"  # nothing was to be decided: the client left a healthy stream


class Route(StrEnum):
    NONE = ""
    CHAT_CONTINUE = "chat-continue"
    RENDER_GENERATE = "render-generate"  # the text's ids
    CARRIED_IDS = "carried-ids"  # the ids that leg 1 reported


class Case(StrEnum):
    CONTENT_DONE = "content-done"
    THINKING_PARTIAL = "thinking-partial"
    TOOL_CALL_SEEN = "tool-call-seen"
    EMPTY = "empty"


class Outcome(StrEnum):
    RESCUED = "rescued"  # leg 2 finished the answer
    COMPLETED = "completed"  # the answer was whole; its ending was lost and has been added
    FAILED = "failed"  # the client got the failed ending
    CLIENT_GONE = "client_gone"  # the client left first


class Reason(StrEnum):
    """Why there was no leg 2, or why it did not rescue the stream."""

    NONE = ""
    TOOL_CALL_SEEN = "tool_call_seen"
    NO_RECOVERABLE_CONTENT = "no_recoverable_content"
    CONTINUATION_DISABLED = "continuation_disabled"
    BUDGET_EXHAUSTED = "budget_exhausted"
    CLIENT_ERROR = "client_error"
    CLIENT_GONE = "client_gone"
    MULTIPLE_CHOICES = "multiple_choices"
    SCALE_OUT_MISSING = "scale_out_missing"
    ENDING_LOST = "ending_lost"
    EVENT_TOO_LARGE = "event_too_large"
    LEG2_UNREACHABLE = "leg2_unreachable"
    LEG2_REFUSED = "leg2_refused"
    LEG2_BROKEN = "leg2_broken"
    LEG2_EMPTY = "leg2_empty"
    LEG2_RESTARTED = "leg2_restarted"
    INTERNAL_ERROR = "internal_error"
    SHUTTING_DOWN = "shutting_down"
    STOPPED = "stopped"  # by its own client, over the resume endpoints
