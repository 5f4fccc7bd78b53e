"""The columns of a strategy: one description that model, compiler, verification, variants and admin share.

A new column is a line here, an attribute of `CompiledStrategy`, a field of the model with its migration, and a line
in the documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any

from strategies.engines import Engine
from strategies.types import Fallback


class Section(StrEnum):
    """Where the admin's form shows a column; in the form's order."""

    IDENTITY = ""
    TOKENS = "Control tokens"
    TEMPLATE = "Chat template"
    TOKEN_ROUTE = "Token route"


class Kind(Enum):
    """What a column holds, and so how it is written in a form and compiled."""

    PLAIN = auto()  # a text or a flag, as it is
    TOKEN = auto()  # a text whose white space counts
    LIST = auto()  # a JSON list of texts; a tuple once compiled
    ENGINE = auto()
    FALLBACK = auto()


_COMPILED: dict[Kind, Any] = {Kind.LIST: tuple, Kind.ENGINE: Engine, Kind.FALLBACK: Fallback}


@dataclass(frozen=True, slots=True)
class Column:
    """field: of the row; attribute: of CompiledStrategy; label: what reports call it.

    verified: it decides how an answer is continued, so a verification is about it; False for what selects the row.
    """

    field: str
    attribute: str
    section: Section
    label: str
    kind: Kind = Kind.PLAIN
    verified: bool = True

    def compile(self, value: Any) -> Any:
        """The value of the row as CompiledStrategy holds it. Raises ValueError for an unknown word."""
        return _COMPILED[self.kind](value) if self.kind in _COMPILED else value


COLUMNS: tuple[Column, ...] = (
    Column("name", "name", Section.IDENTITY, "name", verified=False),
    Column("model", "model", Section.IDENTITY, "model", verified=False),
    Column("engine", "engine", Section.IDENTITY, "engine", Kind.ENGINE, verified=False),
    Column("served_names", "served_names", Section.IDENTITY, "served names", Kind.LIST, verified=False),
    Column("open_token", "open", Section.TOKENS, "OPEN", Kind.TOKEN),
    Column("close_token", "close", Section.TOKENS, "CLOSE", Kind.TOKEN),
    Column("content_open_token", "content_open", Section.TOKENS, "CONTENT_OPEN", Kind.TOKEN),
    Column("prompt_opens_thinking", "prompt_opens_thinking", Section.TOKENS, "prompt opens thinking"),
    Column("thinking_key", "thinking_key", Section.TEMPLATE, "thinking key"),
    Column("structured_message", "structured", Section.TEMPLATE, "structured message"),
    Column("reasoning_field", "reasoning_field", Section.TEMPLATE, "reasoning field"),
    Column("reasoning_end", "reasoning_end", Section.TEMPLATE, "reasoning ends with", Kind.TOKEN),
    Column("template_trims", "template_trims", Section.TEMPLATE, "template trims"),
    Column("may_think_again", "may_think_again", Section.TEMPLATE, "may think again"),
    Column("render_generate", "render_generate", Section.TOKEN_ROUTE, "token route"),
    Column("token_exact", "token_exact", Section.TOKEN_ROUTE, "token exact"),
    Column("without_scale_out", "without_scale_out", Section.TOKEN_ROUTE, "without scale-out", Kind.FALLBACK),
    Column("markers", "markers", Section.TOKEN_ROUTE, "markers", Kind.LIST),
)


def fields_of(section: Section) -> tuple[str, ...]:
    """The fields of one section, in the form's order."""
    return tuple(column.field for column in COLUMNS if column.section is section)


def fields_of_kind(kind: Kind) -> tuple[str, ...]:
    return tuple(column.field for column in COLUMNS if column.kind is kind)


def label_of(field: str) -> str:
    """What reports call a field of a row. Raises KeyError for a field that is no column."""
    return _LABELS[field]


_LABELS = {column.field: column.label for column in COLUMNS}
