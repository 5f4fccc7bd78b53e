"""Strategies as the request path sees them: frozen values, no ORM, no Django.

A strategy says how a continuation request is built for one model on one engine. A book is the set of
all enabled strategies; it is compiled once, pinned by each request and swapped whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from strategies.engines import Engine


class Fallback(StrEnum):
    """What a strategy of the token route does at a server without the scale-out endpoints."""

    NONE = "none"  # the stream fails
    CHAT = "chat-continue"
    COMPLETIONS = "completions"  # the prompt's ids to /v1/completions; without tools


@dataclass(frozen=True, slots=True)
class Partial:
    """What the client has received of an answer: raw text, as delivered."""

    reasoning: str = ""
    content: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.reasoning and not self.content

    @property
    def case(self) -> str:
        """`content-done` when there is content, else `thinking-partial`; `empty` without either."""
        if self.content:
            return "content-done"
        return "thinking-partial" if self.reasoning else "empty"


@dataclass(frozen=True, slots=True)
class CompiledStrategy:
    """One row of the strategy table. Token strings are verbatim: their white space counts.

    pk              database id of the row, None for the built-in generic one
    name            unique, e.g. "qwen3.6-vllm"
    model           name or glob, compared without case, also with the part after the last "/"
    open, close     tokens around the reasoning; content_open comes between close and the content
    thinking_key    key of chat_template_kwargs set to false in content-done; "" for none
    structured      content-done is sent as {"role", reasoning_field: R, "content": C}
    reasoning_end   reasoning that ends with this is complete, and is sent closed; "" for never
    template_trims  the template trims the prefix; white space written twice at the seam is dropped once
    may_think_again reasoning after content has begun stays reasoning (else it becomes content)
    render_generate use the token route; token_exact: with the ids that leg 1 carried
    without_scale_out  what is done at a server without the endpoints of the token route
    """

    name: str
    model: str
    engine: Engine = Engine.ANY
    open: str = "<think>"
    close: str = "</think>"
    content_open: str = ""
    prompt_opens_thinking: bool = False
    thinking_key: str = "thinking"
    structured: bool = False
    reasoning_field: str = "reasoning"
    reasoning_end: str = ""
    template_trims: bool = False
    may_think_again: bool = False
    render_generate: bool = False
    token_exact: bool = False
    without_scale_out: Fallback = Fallback.NONE
    markers: tuple[str, ...] = ()
    served_names: tuple[str, ...] = ()
    pk: int | None = None

    @property
    def takes_tokens(self) -> bool:
        """Whether the continuation goes by the token route."""
        return self.render_generate or self.token_exact


GENERIC = CompiledStrategy(name="generic", model="generic")


@dataclass(frozen=True, slots=True)
class Selection:
    """The strategy for a request (None: the request is passed through), and how it was found.

    how is one of: served_name, model_engine, model_any, other_engine, generic, none.
    """

    strategy: CompiledStrategy | None
    how: str


# Characters. A longer name is not matched: it names no model, and a glob must not run over megabytes.
LONGEST_NAME = 512
MEMO_SIZE = 1024

_GLOB_CLASS = re.compile(r"\[!?\]?[^\]]*\]")

# How well a row fits: exact before glob, then the number of literal characters.
Fit = tuple[bool, int]


@dataclass(frozen=True, slots=True)
class StrategyBook:
    """All enabled strategies. `revision` is the database revision that it was compiled from."""

    strategies: tuple[CompiledStrategy, ...] = ()
    revision: int = 0
    generic: CompiledStrategy = field(default=GENERIC)
    _memo: dict[tuple[str, str, str], Selection] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, strategies: Iterable[CompiledStrategy], revision: int = 0) -> StrategyBook:
        """A book whose generic strategy is the one named "generic", if there is one."""
        rows = tuple(strategies)
        generic = next((row for row in rows if row.name == GENERIC.name), GENERIC)
        return cls(rows, revision, generic)

    def select(self, requested: str, model: str, engine: str) -> Selection:
        """Choose by the request's `model`, then by CONTINUATION_MODEL and CONTINUATION_ENGINE (or "")."""
        if len(requested) > LONGEST_NAME:
            return self.by_model(model, engine)
        key = (requested, model, engine)
        selection = self._memo.get(key)
        if selection is None:
            selection = self._by_served_name(requested, engine) or self.by_model(model, engine)
            if len(self._memo) >= MEMO_SIZE:
                self._memo.clear()
            self._memo[key] = selection
        return selection

    def by_model(self, model: str, engine: str) -> Selection:
        """Choose for a request whose `model` no row serves."""
        if not model:
            return Selection(None, "none")
        matching = [row for row in self.strategies if fit(row.model, model)]
        steps: tuple[tuple[str, Callable[[CompiledStrategy], bool]], ...] = (
            ("model_engine", lambda row: row.engine == engine),
            ("model_any", lambda row: row.engine == Engine.ANY),
            # A strategy of another engine: whether this one has the token route is not known, so it is not tried.
            ("other_engine", lambda row: not row.takes_tokens),
        )
        for how, wanted in steps:
            rows = [row for row in matching if wanted(row)]
            if rows:
                return Selection(min(rows, key=lambda row: _rank(fit(row.model, model), row, engine)), how)
        return Selection(self.generic, "generic")

    def _by_served_name(self, requested: str, engine: str) -> Selection | None:
        fits = [(_best_fit(row.served_names, requested), row) for row in self.strategies]
        serving = [(found, row) for found, row in fits if found]
        if not serving:
            return None
        _, best = min(serving, key=lambda pair: _rank(pair[0], pair[1], engine))
        return Selection(best, "served_name")


def fit(pattern: str, name: str) -> Fit | None:
    """How well a name or glob fits a model's name, or the part after its last "/"; None if it does not.

    Compared without case. The larger of two fits is the more specific.
    """
    if len(name) > LONGEST_NAME:
        return None
    pattern, name = pattern.lower(), name.lower()
    candidates = (name, name.rpartition("/")[2])
    if pattern in candidates:
        return True, len(pattern)
    if any(fnmatchcase(candidate, pattern) for candidate in candidates):
        return False, _literal_characters(pattern)
    return None


def _best_fit(patterns: Iterable[str], name: str) -> Fit | None:
    return max(filter(None, (fit(pattern, name) for pattern in patterns)), default=None)


def _literal_characters(pattern: str) -> int:
    return len(_GLOB_CLASS.sub("", pattern).replace("*", "").replace("?", ""))


def _rank(found: Fit | None, row: CompiledStrategy, engine: str) -> tuple[object, ...]:
    """Smallest is best: the most specific, then the configured engine, then the order of `Engine`."""
    exact, literal = found or (False, 0)
    engines = (engine, *Engine)
    return not exact, -literal, engines.index(row.engine), row.name
