"""Strategies as the request path sees them: frozen values, no ORM, no Django.

A strategy says how a continuation request is built for one model on one engine. A book is the set of
all enabled strategies; it is compiled once, pinned by each request and swapped whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Engine(StrEnum):
    """The engine a strategy is for; ANY fits both."""

    ANY = "any"
    VLLM = "vllm"
    SGLANG = "sglang"


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
    template_trims  the template trims the prefix; white space written twice at the seam is dropped once
    may_think_again reasoning after content had begun is kept as reasoning (else it is content)
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
    template_trims: bool = False
    may_think_again: bool = False
    render_generate: bool = False
    token_exact: bool = False
    markers: tuple[str, ...] = ()
    served_names: tuple[str, ...] = ()
    pk: int | None = None


GENERIC = CompiledStrategy(name="generic", model="generic")


@dataclass(frozen=True, slots=True)
class Selection:
    """The strategy for a request (None: the request is passed through), and how it was found.

    how is one of: served_name, model_engine, model_any, other_engine, generic, none.
    """

    strategy: CompiledStrategy | None
    how: str


@dataclass(frozen=True, slots=True)
class StrategyBook:
    """All enabled strategies. `revision` is the database revision that it was compiled from."""

    strategies: tuple[CompiledStrategy, ...] = ()
    revision: int = 0
    generic: CompiledStrategy = field(default=GENERIC)

    def select(self, requested: str, model: str, engine: str) -> Selection:
        """Choose by the request's `model`, then by CONTINUATION_MODEL (`model`) and CONTINUATION_ENGINE (`engine`)."""
        raise NotImplementedError
