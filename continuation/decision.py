"""Whether a broken stream is continued: one table, read from the top."""

from __future__ import annotations

from dataclasses import dataclass

from continuation.events import Decision, Reason, Route


@dataclass(frozen=True, slots=True)
class State:
    """What is known when leg 1 has failed. remaining is the token budget left, None without a limit."""

    tool_call_seen: bool
    empty: bool
    unreadable: bool
    too_large: bool
    other_choices: bool
    enabled: bool
    remaining: int | None
    counts_exact: bool
    client_error: bool
    render_generate: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    decision: Decision
    reason: Reason = Reason.NONE
    route: Route = Route.NONE


def decide(state: State) -> Verdict:
    if state.remaining is not None and state.remaining <= 0 and state.counts_exact and _could_continue(state):
        return Verdict(Decision.COMPLETE, Reason.BUDGET_EXHAUSTED)
    for applies, reason in _refusals(state):
        if applies:
            return Verdict(Decision.REFUSE, reason)
    return Verdict(Decision.CONTINUE, route=Route.CHAT_CONTINUE)


def _refusals(state: State) -> tuple[tuple[bool, Reason], ...]:
    return (
        (state.tool_call_seen, Reason.TOOL_CALL_SEEN),
        (state.other_choices, Reason.MULTIPLE_CHOICES),
        (state.unreadable or state.too_large or state.empty, Reason.NO_RECOVERABLE_CONTENT),
        (not state.enabled, Reason.CONTINUATION_DISABLED),
        (state.remaining is not None and state.remaining <= 0, Reason.BUDGET_EXHAUSTED),
        (state.client_error, Reason.CLIENT_ERROR),
        (state.render_generate, Reason.ROUTE_UNAVAILABLE),
    )


def _could_continue(state: State) -> bool:
    """Nothing that comes before the budget in the table stands against it."""
    return state.enabled and not (
        state.tool_call_seen or state.other_choices or state.unreadable or state.too_large or state.empty
    )
