"""The faults that a drill knows, each with what it does; what is due for each is said in `judging`."""

from __future__ import annotations

from collections.abc import Sequence

ALL = "all"

# Leg 1, the engine's answer to the client's own request.
ENGINE = {
    "none": "no fault: the answer must come through byte for byte",
    "reset": "the connection is reset (RST)",
    "disconnect": "the connection is closed (FIN) without the closing chunk",
    "half_closed": "the engine's side is closed, the other side stays open",
    "broken_framing": "a chunk whose length is no number",
    "eof": "a clean end without finish_reason",
    "done_without_finish": "[DONE] and a clean end without finish_reason",
    "cut_inside_event": "closed in the middle of an event, or before its blank line",
    "cut_inside_character": "closed in the middle of a character of several bytes",
    "stall": "silence, and the connection stays open",
    "stall_with_pings": "nothing but comments",
    "error_event": "an error event, in one of its forms",
    "client_error_event": "an error event that blames the request",
    "aborted": "a finish_reason that is a failure, such as abort",
    "malformed": "an event that is no JSON",
    "ending_lost": "broken after the finish_reason",
    "hold_open": "the connection stays open after [DONE]",
    "pause": "silence that is too short to be a stall",
    "late": "silence before the first event, longer than a stall",
    "empty": "status 200 and a clean end without any event",
    "refused": "an error status instead of an answer",
    "unreachable": "the connection is closed before any answer",
}
# Leg 2: leg 1 is broken in one of the ways above, and then this happens to the continuation.
CONTINUATION = {
    "leg2_refused": "the continuation is answered with an error status",
    "leg2_unreachable": "its connection is closed before any answer",
    "leg2_broken": "it breaks off too, in any of the ways",
    "leg2_empty": "it ends at once, without a word",
    "leg2_restarted": "it tells the whole answer from the beginning",
    "leg2_departed": "it tells the answer from the beginning, and then another one",
    "leg2_renamed": "it has its reasoning under the other name",
    "leg2_pause": "it is silent for longer than a stall, then goes on",
}
# What clients do.
CLIENT = {
    "client_leaves": "the client leaves: before the headers, before the first event, in the middle",
    "client_leaves_leg2": "the client leaves during the continuation",
    "client_returns": "the client's connection breaks, up to three times, and it comes back for the rest",
    "client_returns_leg2": "the same, and the engine breaks as well",
    "client_slow": "the client reads nothing for longer than a stall, while the engine has much to say",
    "client_opts_out": "X-Continuation: off, and a fault: everything is passed through, the break as well",
    "client_passes": "requests that are never continued: not streamed, several choices, structured output, other paths",
    "client_garbage": "no JSON, no HTTP, half a request, wrong types, unknown paths and methods",
}
KINDS = ENGINE | CONTINUATION | CLIENT


class UnknownKind(ValueError):
    """Names what is allowed."""


def chosen(text: str) -> tuple[str, ...]:
    """`all`, or names separated by commas, in the order of KINDS. Raises UnknownKind."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in (ALL, *KINDS)]
    if unknown or not names:
        what = f"unknown fault {unknown[0]!r}" if unknown else "no fault is named"
        raise UnknownKind(f"{what}; allowed: {ALL}, or a comma-separated list of {', '.join(KINDS)}")
    return tuple(KINDS) if ALL in names else tuple(name for name in KINDS if name in names)


def help_text(names: Sequence[str] = tuple(KINDS)) -> str:
    width = max(map(len, names))
    return "\n".join(f"  {name:<{width}}  {KINDS[name]}" for name in names)
