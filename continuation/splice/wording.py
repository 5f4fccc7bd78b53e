"""What clients and operators read when a stream could not be saved."""

from __future__ import annotations

import re
from collections.abc import Iterable

from continuation.vocabulary import Failure, Reason

MESSAGE_CHARS = 200
# From here on some engines repeat the request or the conversation in their errors.
_REPEATS = re.compile(
    r"Final message to continue|Rendered chat|'input':|\"input\":|Received:|messages=\[", re.I
)
_PROBE_CHARS = 12
# So much of a line is looked at: what is cut away would not be kept anyway, and an error may be megabytes long.
_LINE_CHARS = 2 * MESSAGE_CHARS
_LEAST_PROBE = 4

_FAILURES = {
    Failure.IDLE_TIMEOUT: "the engine fell silent in mid-answer",
    Failure.DISCONNECT: "the connection to the engine broke in mid-answer",
    Failure.EOF: "the engine ended the stream without finishing the answer",
    Failure.ERROR_EVENT: "the engine reported an error in mid-answer",
    Failure.ABORTED: "the engine aborted the answer",
    Failure.MALFORMED: "the engine sent an event that cannot be read",
}
_REASONS = {
    Reason.NONE: "",
    Reason.TOOL_CALL_SEEN: "a tool call had been delivered, which cannot be continued",
    Reason.NO_RECOVERABLE_CONTENT: "nothing had been delivered that could be continued",
    Reason.CONTINUATION_DISABLED: "continuation is switched off",
    Reason.BUDGET_EXHAUSTED: "no tokens were left of the request's limit",
    Reason.CLIENT_ERROR: "the request itself is at fault",
    Reason.CLIENT_GONE: "the client had left",
    Reason.MULTIPLE_CHOICES: "several choices cannot be continued",
    Reason.SCALE_OUT_MISSING: "the engine lacks the endpoints that this model's continuation needs",
    Reason.ENDING_LOST: "only its ending was missing",
    Reason.EVENT_TOO_LARGE: "an event was too large to be read",
    Reason.LEG2_UNREACHABLE: "the continuation could not be sent",
    Reason.LEG2_REFUSED: "the continuation was refused",
    Reason.LEG2_BROKEN: "the continuation broke off too",
    Reason.LEG2_EMPTY: "the continuation was empty",
    Reason.LEG2_RESTARTED: "the continuation started over",
    Reason.INTERNAL_ERROR: "the gateway met an unexpected error",
    Reason.SHUTTING_DOWN: "the gateway is shutting down",
    Reason.STOPPED: "it was stopped on request",
}


def failed_message(failure: Failure | None, reason: Reason) -> str:
    """failure is None where the engine has done nothing wrong."""
    why = (_FAILURES[failure] if failure else "", _REASONS[reason])
    return f"The stream was interrupted: {'; '.join(filter(None, why))}."


def opening_of(text: str) -> str:
    """By what a text of the conversation is recognized."""
    return text.strip()[:_PROBE_CHARS]


def beginning_of(text: str) -> str:
    """As much of it as its opening depends on, whatever follows."""
    text = text.lstrip()
    return text[:_PROBE_CHARS] + text[_PROBE_CHARS:].strip()[:1]


def first_line(message: str, conversation: Iterable[str]) -> str:
    """The first line of an engine's message, cut before it repeats any of the conversation; 200 characters at most."""
    line = message.lstrip().partition("\n")[0][:_LINE_CHARS].strip()
    ends = [found.start()] if (found := _REPEATS.search(line)) else []
    for text in conversation:
        probe = opening_of(text)
        if len(probe) >= _LEAST_PROBE and (at := line.find(probe)) >= 0:
            ends.append(at)
    return line[: min(ends, default=len(line))].rstrip(" :,{'\"")[:MESSAGE_CHARS]
