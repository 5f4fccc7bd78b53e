"""Pieces of leg 2's text, each with the tokens that it was written in: their ids and log-probabilities.

An engine tells these for a chunk. Where the text of a chunk waits, is split, cut or swallowed, its tokens go with it:
a token is shown with the first of its characters that is, and not at all if none is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from continuation.shapes.chat.chunks import text_of
from continuation.shapes.encoding import JSON


class Field(StrEnum):
    REASONING = "reasoning"
    CONTENT = "content"


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A token, or several that cannot be distinguished, at the characters from `start` to `end` of its chunk's text.

    logprobs is as in a choice, None where the engine told none.
    """

    start: int
    end: int
    ids: tuple[Any, ...] = ()
    logprobs: Any = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one field. `tokens` are those of its chunk, in whose text it begins at character `start`."""

    field: Field
    text: str
    tokens: tuple[Token, ...] = ()
    start: int = 0

    def cut(self, start: int, end: int) -> Piece:
        return replace(self, text=self.text[start:end], start=self.start + start)

    def under(self, field: Field) -> Piece:
        return self if field is self.field else replace(self, field=field)


Pieces = list[Piece]


def text_in(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def first(pieces: Pieces, length: int) -> Pieces:
    """Their first `length` characters."""
    return _between(pieces, 0, length)


def without_first(pieces: Pieces, length: int) -> Pieces:
    """What follows their first `length` characters."""
    return _between(pieces, length, sum(len(piece.text) for piece in pieces))


def _between(pieces: Pieces, start: int, end: int) -> Pieces:
    found: Pieces = []
    for piece in pieces:
        size = len(piece.text)
        if start <= 0 and size <= end:
            found.append(piece)
        elif start < size and end > 0:
            found.append(piece.cut(max(start, 0), max(end, 0)))
        start, end = start - size, end - size
    return [piece for piece in found if piece.text]


class TokenLedger:
    """The tokens of one leg in order: read with the chunks' texts, and taken with those that are shown.

    Tokens that brought no text yet, such as the first ones of a character, wait for the next text.
    """

    def __init__(self) -> None:
        self._waiting: list[Token] = []
        self._taken: Token | None = None

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def pieces(self, choice: JSON, texts: Sequence[tuple[Field, str]]) -> Pieces:
        """The texts of a choice, in order, with its tokens."""
        text = "".join(text for _, text in texts)
        tokens = _tokens_of(choice, text)
        if not text:
            self._waiting += tokens
            return []
        shown = tuple(replace(token, start=0, end=1) for token in self._waiting)
        shown += tuple(token for token in tokens if token.start < len(text))
        self._waiting = [token for token in tokens if token.start >= len(text)]
        found, start = [], 0
        for field, one in texts:
            found.append(Piece(field, one, shown, start))
            start += len(one)
        return found

    def take(self, pieces: Pieces) -> list[Token]:
        """The tokens of pieces that are shown now. A token is taken once."""
        found: list[Token] = []
        for piece in pieces:
            end = piece.start + len(piece.text)
            own = [token for token in piece.tokens if token.start < end and token.end > piece.start]
            if self._taken in own:
                del own[: own.index(self._taken) + 1]
            self._taken = own[-1] if own else self._taken
            found += own
        return found

    def rest(self) -> list[Token]:
        """The tokens that wait, for an event that ends the waiting."""
        waiting, self._waiting = self._waiting, []
        return waiting


def as_told(tokens: Sequence[Token]) -> JSON:
    """`logprobs` and `token_ids` of a choice; the second only where there are ids."""
    ids = [number for token in tokens for number in token.ids]
    told = [token.logprobs for token in tokens if token.logprobs]
    logprobs: Any = told[-1] if told else None
    if len(told) > 1 and all(_entries(each) for each in told):
        logprobs = {**told[0], "content": [entry for each in told for entry in _entries(each)]}
    return {"logprobs": logprobs} | ({"token_ids": ids} if ids else {})


def _tokens_of(choice: JSON, text: str) -> list[Token]:
    """The tokens of a choice, each at its place in `text` where their own texts make it up; else all as one."""
    logprobs: Any = choice.get("logprobs") or None
    told = choice.get("token_ids")
    ids = tuple(told) if isinstance(told, list) else ()
    if not ids and logprobs is None:
        return []
    entries = _entries(logprobs)
    spans = _spans(text, [_text_in(entry) for entry in entries])
    if not entries or spans is None or (ids and len(ids) != len(entries)):
        return [Token(0, len(text), ids, logprobs)]
    return [
        Token(*span, ids[at : at + 1], {**logprobs, "content": [entry]})
        for at, (span, entry) in enumerate(zip(spans, entries, strict=True))
    ]


def _entries(logprobs: Any) -> list[Any]:
    """One for each token; none where they come in a form that is not known."""
    found = logprobs.get("content") if isinstance(logprobs, dict) else None
    return found if isinstance(found, list) else []


def _text_in(entry: Any) -> str:
    return text_of(entry.get("token")) if isinstance(entry, dict) else ""


def _spans(text: str, tokens: list[str]) -> list[tuple[int, int]] | None:
    """Where each token stands in `text`. One that shows nothing, or is hidden, stands at the character after it."""
    found, at = [], 0
    for token in tokens:
        seen = bool(token) and text.startswith(token, at)
        found.append((at, at + (len(token) if seen else 1)))
        at += len(token) if seen else 0
    return found if at == len(text) else None
