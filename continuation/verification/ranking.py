"""Variants in the order of their scores, and the recommendation that follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from continuation.verification.cuts import Place
from continuation.verification.knowledge import Knowledge
from continuation.verification.variants import (
    CARRIED_IDS,
    CHAT,
    COMPLETIONS,
    TEXT_IDS,
    Variant,
    shown,
)
from continuation.verification.verdicts import Tally, summed
from strategies.columns import label_of
from strategies.types import CompiledStrategy
from strategies.verification import changes_between, settings_of

# What a route costs beyond the one request, in the order of preference among equals.
COSTS = {CHAT: 0, CARRIED_IDS: 1, TEXT_IDS: 2, COMPLETIONS: 3}
# Combinations of chat-continue that are tried at every cut; all others are tried at the first cuts only.
FINALISTS = 6


@dataclass(slots=True)
class Measured:
    """A variant and its findings. finalist: it is tried at every cut, not at the first ones only."""

    variant: Variant
    tallies: dict[Place, Tally] = field(default_factory=dict)
    finalist: bool = False

    @property
    def total(self) -> Tally:
        return summed(self.tallies.values())

    def tally(self, place: Place) -> Tally:
        return self.tallies.setdefault(place, Tally())


def finalists(measured: Sequence[Measured], row: CompiledStrategy, known: Knowledge) -> list[Measured]:
    """The configured one, the best of chat-continue, and all others."""
    ranked = sorted(
        (one for one in measured if one.variant.route == CHAT), key=lambda one: rank(one, row, known)
    )
    best = {id(one) for one in ranked[:FINALISTS]}
    return [one for one in measured if one.variant.configured or one.variant.route != CHAT or id(one) in best]


def rank(one: Measured, row: CompiledStrategy, known: Knowledge) -> tuple[Any, ...]:
    """Smallest is best: exact places, then a refusal before wrong text, the cheaper route, what the engine itself
    says, the fewest changes."""
    total, strategy = one.total, one.variant.strategy
    changes = changes_between(settings_of(row), settings_of(strategy))
    return (
        -total.exact,
        total.diverged,
        COSTS[one.variant.route],
        _against_the_engine(one.variant, known),
        len(changes),
        one.variant.name,
    )


def _against_the_engine(variant: Variant, known: Knowledge) -> int:
    """Number of settings in which a variant contradicts the probes."""
    row = variant.strategy
    if variant.route != CHAT:
        return 0
    wrong = [known.trims is not None and row.template_trims != known.trims]
    if known.tokens:
        wrong.append(not row.prompt_opens_thinking and row.open != known.tokens[0])
        wrong.append(row.close + row.content_open != known.tokens[1] + known.tokens[2])
    if known.thinking_switch:
        wrong.append(row.thinking_key not in (known.thinking_switch, ""))
    return sum(wrong)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """best is the variant to use; changes are fields of the row with their new values."""

    best: Measured | None
    changes: Mapping[str, Any]
    says: tuple[str, ...]


def recommend(measured: Sequence[Measured], row: CompiledStrategy, known: Knowledge) -> Recommendation:
    able = [one for one in measured if one.finalist and (one.variant.eligible or one.variant.configured)]
    if not able or not any(one.total.total for one in able):
        return Recommendation(None, {}, ("Nothing could be measured, so nothing is recommended.",))
    configured = next(one for one in able if one.variant.configured)
    best = min(able, key=lambda one: rank(one, row, known))
    if not best.total.exact:
        says = (
            "No way of continuing was exact anywhere; nothing is recommended.",
            *_remarks(able, best, known),
        )
        return Recommendation(configured, {}, says)
    changes = changes_between(settings_of(row), settings_of(best.variant.strategy))
    return Recommendation(best, changes, tuple(_says(able, configured, best, changes, row, known)))


def _says(
    able: Sequence[Measured],
    configured: Measured,
    best: Measured,
    changes: Mapping[str, Any],
    row: CompiledStrategy,
    known: Knowledge,
) -> Iterator[str]:
    yield f"As configured ({configured.variant.route}): {_score(configured)}."
    if not changes:
        yield "No other settings scored better: leave the row as it is."
    else:
        equal = ", no more, but it costs less or agrees better with what the engine says"
        same = best.total.exact == configured.total.exact and best.total.diverged == configured.total.diverged
        yield f"Best ({best.variant.route}): {_score(best)}{equal if same else ''}. To get there:"
        now = settings_of(row)
        for name, value in changes.items():
            yield f"Change {label_of(name)} from {shown(now[name])} to {shown(value)}."
    chats = [one for one in able if one.variant.route == CHAT and one.total.exact]
    if best.variant.route != CHAT and chats:
        chat = min(chats, key=lambda one: rank(one, row, known))
        yield f"Where that route cannot be had, the best is {chat.variant.name}: {_score(chat)}."
    yield from _remarks(able, best, known)


def _score(one: Measured) -> str:
    total = one.total
    return f"{total.exact} of {total.total} cuts exact" + (
        f", {total.not_tried} of them not continued on this route" if total.not_tried else ""
    )


def _remarks(able: Sequence[Measured], best: Measured, known: Knowledge) -> Iterator[str]:
    left = [place for place, tally in best.tallies.items() if tally.exact < tally.total]
    if left:
        yield f"Not exact everywhere even so: {'; '.join(left)}."
    if known.honours_flag is False:
        yield "The renderer ignores continue_final_message: chat-continue cannot work with this model here."
    if known.engine.traits.token_route and known.scale_out is False and left:
        yield "With --enable-scale-out the engine would offer the token route, which is exact more often."
    if known.repeats is False:
        yield (
            "The engine did not repeat its own greedy answer: differences may be the engine's. Run it with "
            "nothing else on the engine, or in float32."
        )


def percent(tallies: Iterable[Tally]) -> float:
    """Share of exact cuts among those that were tried, in per cent; 0 if none was tried."""
    total = summed(tallies)
    return 100.0 * total.exact / total.tried if total.tried else 0.0
