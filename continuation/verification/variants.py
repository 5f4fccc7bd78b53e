"""Which settings a verification tries for a strategy, and which of them it recommends. No I/O.

A variant is the strategy with some settings changed. All of chat-continue's combinations that could be right are
made: the control tokens as the row has them, with and without the line break, as the engine itself writes them;
OPEN left out; one string or structured; trimming made up for or not; each thinking key. The token routes come where
the engine has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from continuation.verification.verdicts import Place, Tally, summed
from strategies.types import CompiledStrategy, Engine, Fallback
from strategies.verification import changes_between, settings_of

GENERIC_TOKENS = ("<think>", "</think>", "")
CHAT, TEXT_IDS, CARRIED_IDS, COMPLETIONS = "chat-continue", "token route", "carried ids", "completions"
# What a route costs beyond the one request, in the order of preference among equals.
COSTS = {CHAT: 0, CARRIED_IDS: 1, TEXT_IDS: 2, COMPLETIONS: 3}
# So many combinations of chat-continue are tried at every cut; the others only at the first ones.
FINALISTS = 6

LABELS = {
    "open_token": "OPEN",
    "close_token": "CLOSE",
    "content_open_token": "CONTENT_OPEN",
    "prompt_opens_thinking": "prompt opens thinking",
    "thinking_key": "thinking key",
    "structured_message": "structured message",
    "reasoning_field": "reasoning field",
    "reasoning_end": "reasoning ends with",
    "template_trims": "template trims",
    "may_think_again": "may think again",
    "render_generate": "token route",
    "token_exact": "token exact",
    "without_scale_out": "without scale-out",
    "markers": "markers",
}


@dataclass(frozen=True, slots=True)
class Probe:
    """One question to the engine. value is None where it could not be found out."""

    name: str
    value: Any
    says: str


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the probes found out; None where they could not.

    opening          what the generation prompt ends with when it opens the thinking; "" where it does not
    thinking_switch  the key of chat_template_kwargs that changes the prompt; "" where none does
    on_by_default    whether the model thinks without being told to
    tokens           OPEN, CLOSE and CONTENT_OPEN as the engine itself writes them
    reasoning_end    the white space that every reasoning ends with; "" where they have none in common
    """

    engine: Engine = Engine.ANY
    version: str = ""
    model: str = ""
    max_model_len: int | None = None
    scale_out: bool | None = None
    ids: bool | None = None
    honours_flag: bool | None = None
    trims: bool | None = None
    opening: str | None = None
    thinking_switch: str | None = None
    on_by_default: bool = True
    tokens: tuple[str, str, str] | None = None
    reasoning_end: str | None = None
    repeats: bool | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """eligible: may be recommended; hides_scale_out: tried as if the engine had no scale-out endpoints."""

    name: str
    route: str
    strategy: CompiledStrategy
    configured: bool = False
    eligible: bool = True
    hides_scale_out: bool = False


def route_of(strategy: CompiledStrategy, known: Knowledge) -> str:
    """The route that a strategy takes at this engine."""
    if not strategy.takes_tokens:
        return CHAT
    if known.scale_out is False and strategy.without_scale_out is not Fallback.NONE:
        return CHAT if strategy.without_scale_out is Fallback.CHAT else COMPLETIONS
    return CARRIED_IDS if strategy.token_exact and known.ids is not False else TEXT_IDS


def variants(strategy: CompiledStrategy, known: Knowledge) -> list[Variant]:
    """The strategy as it is, first, then all that could be better."""
    configured = Variant("as configured", route_of(strategy, known), strategy, configured=True)
    found = [configured]
    seen = {_behaviour(configured)}
    for variant in (*_chats(strategy, known), *_tokens(strategy, known)):
        if _behaviour(variant) not in seen:
            seen.add(_behaviour(variant))
            found.append(replace(variant, name=_name(strategy, variant)))
    return found


def _chats(row: CompiledStrategy, known: Knowledge) -> Iterator[Variant]:
    base = replace(row, render_generate=False, token_exact=False)
    for opening, closing, content_open in _control_tokens(row, known):
        for left_out in _left_out(row, known):
            for structured in (False,) if left_out or known.engine is Engine.SGLANG else (False, True):
                for trims in (False, True):
                    for key, end in product(_thinking_keys(row, known), _reasoning_ends(row, known)):
                        changed = replace(
                            base,
                            open=row.open if left_out else opening,
                            close=closing,
                            content_open=content_open,
                            prompt_opens_thinking=left_out,
                            structured=structured,
                            reasoning_end=end,
                            template_trims=trims,
                            thinking_key=key,
                        )
                        yield Variant("", CHAT, changed, eligible=known.honours_flag is not False)


def _control_tokens(row: CompiledStrategy, known: Knowledge) -> list[tuple[str, str, str]]:
    bare = row.open.strip()
    toggled = bare + "\n" if row.open == bare else bare
    found = [(row.open, row.close, row.content_open)]
    if bare:
        found.append((toggled, row.close, row.content_open))
    if known.tokens:
        found.append(known.tokens)
    found.append(GENERIC_TOKENS)
    return [tokens for tokens in dict.fromkeys(found) if tokens[1]]


def _left_out(row: CompiledStrategy, known: Knowledge) -> tuple[bool, ...]:
    """Only an engine that appends to the generation prompt has OPEN in there already."""
    return (False, True) if row.prompt_opens_thinking or known.engine is not Engine.VLLM else (False,)


def _thinking_keys(row: CompiledStrategy, known: Knowledge) -> list[str]:
    return list(dict.fromkeys([row.thinking_key, known.thinking_switch or "", ""]))


def _reasoning_ends(row: CompiledStrategy, known: Knowledge) -> list[str]:
    """SGLang appends an open reasoning as it is, so that nothing is to be gained by closing it."""
    seen = "" if known.engine is Engine.SGLANG else known.reasoning_end or ""
    return list(dict.fromkeys([row.reasoning_end, seen, ""]))


def _tokens(row: CompiledStrategy, known: Knowledge) -> Iterator[Variant]:
    if known.engine is not Engine.VLLM or row.engine is Engine.SGLANG:
        return
    own = (row.open, row.close, row.content_open)
    written = known.tokens or own
    plain = replace(row, prompt_opens_thinking=False, render_generate=True)
    for tokens in dict.fromkeys([own, written]):
        if not tokens[1]:
            continue
        text = replace(_with_tokens(plain, tokens), token_exact=False)
        if known.scale_out is not False:
            yield Variant("", TEXT_IDS, text)
        last = replace(text, without_scale_out=Fallback.COMPLETIONS)
        there = known.scale_out is False
        yield Variant("", COMPLETIONS, last, eligible=there, hides_scale_out=not there)
    if known.scale_out is not False and known.ids is not False:
        yield Variant("", CARRIED_IDS, replace(_with_tokens(plain, written), token_exact=True))


def _with_tokens(row: CompiledStrategy, tokens: tuple[str, str, str]) -> CompiledStrategy:
    opening, closing, content_open = tokens
    return replace(row, open=opening, close=closing, content_open=content_open)


def _behaviour(variant: Variant) -> tuple[Any, ...]:
    """Two variants that are equal in this ask the engine the same."""
    row = variant.strategy
    tokens = (row.open, row.close, row.content_open)
    if variant.route == CHAT:
        opening = "" if row.prompt_opens_thinking else row.open
        rest = (row.structured, row.reasoning_field, row.reasoning_end, row.template_trims, row.thinking_key)
        return CHAT, opening, row.prompt_opens_thinking, *tokens[1:], *rest
    return variant.route, *tokens


def _name(row: CompiledStrategy, variant: Variant) -> str:
    changed = changes_between(settings_of(row), settings_of(variant.strategy))
    for of_the_route in ("render_generate", "token_exact", "without_scale_out"):
        changed.pop(of_the_route, None)
    told = [f"{LABELS[name]} {shown(value)}" for name, value in changed.items()]
    return f"{variant.route}: {', '.join(told) or 'settings of the row'}"


def shown(value: Any) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case "":
            return "none"
        case _:
            return repr(value)


# -- measured --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Measured:
    """A variant and its findings; finalist: tried at every cut, not only at the first ones."""

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
    """In how many settings a variant contradicts the probes."""
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
            yield f"Change {LABELS[name]} from {shown(now[name])} to {shown(value)}."
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
    if known.engine is Engine.VLLM and known.scale_out is False and left:
        yield "With --enable-scale-out the engine would offer the token route, which is exact more often."
    if known.repeats is False:
        yield (
            "The engine did not repeat its own greedy answer: differences may be the engine's. Run it with "
            "nothing else on the engine, or in float32."
        )


def percent(tallies: Iterable[Tally]) -> float:
    """Exact cuts of those that were tried, in per cent; 0 where none was."""
    total = summed(tallies)
    return 100.0 * total.exact / total.tried if total.tried else 0.0
