"""The vocabulary of the core: what happened, what to do, what to note, and the words for it. Frozen values, no I/O.

The values of these enums are public: the audit stores them, the metrics and the events of a failed stream show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Self


class Worded(StrEnum):
    """A member is a value and its text, which completes a sentence for clients. One without a text fails at import."""

    _value_: str
    text: str

    def __new__(cls, value: str, text: str) -> Self:
        word = str.__new__(cls, value)
        word._value_ = value
        word.text = text
        return word


class Failure(Worded):
    """How a leg died before its finish_reason."""

    # silence for STALL_IDLE_TIMEOUT_SECONDS
    IDLE_TIMEOUT = "idle_timeout", "the engine fell silent in mid-answer"
    DISCONNECT = "disconnect", "the connection to the engine broke in mid-answer"
    # a clean end, or [DONE], without a finish_reason
    EOF = "eof", "the engine ended the stream without finishing the answer"
    # an `error` object, `event: error`, `object: "error"`
    ERROR_EVENT = "error_event", "the engine reported an error in mid-answer"
    # a finish_reason of FAILED_FINISH_REASONS
    ABORTED = "aborted", "the engine aborted the answer"
    # a data line that is no JSON
    MALFORMED = "malformed", "the engine sent an event that cannot be read"


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


class Reason(Worded):
    """Why there was no leg 2, or why it did not rescue the stream."""

    NONE = "", ""
    TOOL_CALL_SEEN = "tool_call_seen", "a tool call had been delivered, which cannot be continued"
    NO_RECOVERABLE_CONTENT = (
        "no_recoverable_content",
        "nothing had been delivered that could be continued",
    )
    CONTINUATION_DISABLED = "continuation_disabled", "continuation is switched off"
    BUDGET_EXHAUSTED = "budget_exhausted", "no tokens were left of the request's limit"
    CLIENT_ERROR = "client_error", "the request itself is at fault"
    CLIENT_GONE = "client_gone", "the client had left"
    MULTIPLE_CHOICES = "multiple_choices", "several choices cannot be continued"
    SCALE_OUT_MISSING = (
        "scale_out_missing",
        "the engine lacks the endpoints that this model's continuation needs",
    )
    ENDING_LOST = "ending_lost", "only its ending was missing"
    EVENT_TOO_LARGE = "event_too_large", "an event was too large to be read"
    LEG2_UNREACHABLE = "leg2_unreachable", "the continuation could not be sent"
    LEG2_REFUSED = "leg2_refused", "the continuation was refused"
    LEG2_BROKEN = "leg2_broken", "the continuation broke off too"
    LEG2_EMPTY = "leg2_empty", "the continuation was empty"
    LEG2_RESTARTED = "leg2_restarted", "the continuation started over"
    INTERNAL_ERROR = "internal_error", "the gateway met an unexpected error"
    SHUTTING_DOWN = "shutting_down", "the gateway is shutting down"
    STOPPED = "stopped", "it was stopped on request"  # by its own client, over the resume endpoints


class PassReason(StrEnum):
    """Why a chat request is passed through. A plan looks for them in this order."""

    BODY_TOO_LARGE = "body_too_large"
    NOT_JSON = "not_json"
    NOT_STREAM = "not_stream"
    CLIENT_OPT_OUT = "client_opt_out"
    CLIENT_CONTINUATION = "client_continuation"
    STRUCTURED_OUTPUT = "structured_output"
    NO_STRATEGY = "no_strategy"
    CONTENT_ENCODED = "content_encoded"  # found only when the answer arrives: it cannot be read


def label(word: StrEnum) -> str:
    """The word as the audit's pages show it."""
    return str(word) or "(none)"


def failed_message(failure: Failure | None, reason: Reason) -> str:
    """The message of a failed ending. failure is None where the engine has done nothing wrong."""
    texts = (failure.text if failure else "", reason.text)
    return f"The stream was interrupted: {'; '.join(filter(None, texts))}."


# What the log says of a stream that ended without a failure of its own.
_UNFAILED: Mapping[str, str] = {
    Reason.STOPPED: "stopped by its client",
    Outcome.CLIENT_GONE: "left by its client",
    Outcome.FAILED: "ended by the shutdown",
}


def ended_by(failure: str, outcome: str, reason: str) -> str:
    """What ended a stream, for the log: its failure, where there was one."""
    return failure or _UNFAILED.get(reason) or _UNFAILED.get(outcome, "unfailed")
