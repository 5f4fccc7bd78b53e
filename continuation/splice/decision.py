"""Whether a broken stream is continued: one table, read from the top."""

from __future__ import annotations

from dataclasses import dataclass

from continuation.vocabulary import Decision, Reason, Route


@dataclass(frozen=True, slots=True)
class Breakage:
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


def decide(state: Breakage) -> Verdict:
    reason = next((reason for applies, reason in _refusals(state) if applies), None)
    if reason is None:
        return Verdict(Decision.CONTINUE, route=_route(state))
    if reason is Reason.BUDGET_EXHAUSTED and state.counts_exact:
        return Verdict(Decision.COMPLETE, reason)
    return Verdict(Decision.REFUSE, reason)


def _refusals(state: Breakage) -> tuple[tuple[bool, Reason], ...]:
    return (
        (state.other_choices, Reason.MULTIPLE_CHOICES),
        (state.tool_call_seen and not state.ids_carried, Reason.TOOL_CALL_SEEN),
        (state.event_lost, Reason.EVENT_TOO_LARGE),
        (_nothing_to_continue(state), Reason.NO_RECOVERABLE_CONTENT),
        (not state.enabled, Reason.CONTINUATION_DISABLED),
        (state.remaining is not None and state.remaining <= 0, Reason.BUDGET_EXHAUSTED),
        (state.client_error, Reason.CLIENT_ERROR),
    )


def _nothing_to_continue(state: Breakage) -> bool:
    """A tool call may come without any text; its ids are then all that is continued."""
    empty = state.empty and not (state.tool_call_seen and state.ids_carried)
    return empty or state.unreadable or state.too_large


def _route(state: Breakage) -> Route:
    if not state.takes_tokens:
        return Route.CHAT_CONTINUE
    return Route.CARRIED_IDS if state.ids_carried else Route.RENDER_GENERATE
