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
    event_lost: bool
    too_large: bool
    other_choices: bool
    enabled: bool
    remaining: int | None
    counts_exact: bool
    client_error: bool
    takes_tokens: bool
    ids_carried: bool


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
    return Verdict(Decision.CONTINUE, route=_route(state))


def _refusals(state: State) -> tuple[tuple[bool, Reason], ...]:
    return (
        (state.tool_call_seen and not state.ids_carried, Reason.TOOL_CALL_SEEN),
        (state.other_choices, Reason.MULTIPLE_CHOICES),
        (state.event_lost, Reason.EVENT_TOO_LARGE),
        (_nothing_to_continue(state), Reason.NO_RECOVERABLE_CONTENT),
        (not state.enabled, Reason.CONTINUATION_DISABLED),
        (state.remaining is not None and state.remaining <= 0, Reason.BUDGET_EXHAUSTED),
        (state.client_error, Reason.CLIENT_ERROR),
    )


def _could_continue(state: State) -> bool:
    """Nothing that comes before the budget in the table stands against it."""
    refused = (
        (state.tool_call_seen and not state.ids_carried) or state.other_choices or _nothing_to_continue(state)
    )
    return state.enabled and not refused


def _nothing_to_continue(state: State) -> bool:
    """A tool call may come without any text; its ids are then all that is continued."""
    empty = state.empty and not (state.tool_call_seen and state.ids_carried)
    return empty or state.unreadable or state.event_lost or state.too_large


def _route(state: State) -> Route:
    if not state.takes_tokens:
        return Route.CHAT_CONTINUE
    return Route.CARRIED_IDS if state.ids_carried else Route.RENDER_GENERATE
