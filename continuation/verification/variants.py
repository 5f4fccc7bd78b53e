"""Which settings a verification tries for a strategy, and which of them it recommends. No I/O.

A variant is the strategy with some settings changed. All of chat-continue's combinations that could be right are
made: the control tokens as the row has them, with and without the line break, as the engine itself writes them;
OPEN left out; one string or structured; trimming made up for or not; each thinking key. The token routes come where
the engine has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from continuation.verification.knowledge import Knowledge
from strategies.columns import label_of
from strategies.types import CompiledStrategy, Fallback
from strategies.verification import changes_between, settings_of

GENERIC_TOKENS = ("<think>", "</think>", "")


CHAT, TEXT_IDS, CARRIED_IDS, COMPLETIONS = "chat-continue", "token route", "carried ids", "completions"


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
            for structured in (False,) if left_out or known.engine.traits.appends_raw else (False, True):
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
    in_the_prompt = row.prompt_opens_thinking or known.engine.traits.appends_raw is not False
    return (False, True) if in_the_prompt else (False,)


def _thinking_keys(row: CompiledStrategy, known: Knowledge) -> list[str]:
    return list(dict.fromkeys([row.thinking_key, known.thinking_switch or "", ""]))


def _reasoning_ends(row: CompiledStrategy, known: Knowledge) -> list[str]:
    """Where an open reasoning is appended as it is, nothing is gained by closing it."""
    seen = "" if known.engine.traits.appends_raw else known.reasoning_end or ""
    return list(dict.fromkeys([row.reasoning_end, seen, ""]))


def _tokens(row: CompiledStrategy, known: Knowledge) -> Iterator[Variant]:
    if not known.engine.traits.token_route or row.engine.traits.token_route is False:
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
    changes = [f"{label_of(name)} {shown(value)}" for name, value in changed.items()]
    return f"{variant.route}: {', '.join(changes) or 'settings of the row'}"


def shown(value: Any) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case "":
            return "none"
        case _:
            return repr(value)
