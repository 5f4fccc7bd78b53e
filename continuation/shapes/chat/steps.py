"""A large JSON object is parsed in steps between which other threads have their turn: a C call that parses all of it
would hold up the whole process until it is done.

Two things are cut out of its bytes, with a stand-in, a text that no client can guess, left in their place:

- long texts. They are looked at in slices, and what is needed of them is kept: a LongText. Only those that nothing
  but the conversation looks at are cut out: none that is a name, or that stands less than DEEP deep.
- the values of a top-level array, such as the messages, in groups. Parsed, they are put in again.

What is left is parsed at once. It is JSON exactly if the whole is: each part is parsed by the same reader.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from continuation.shapes.chat.usage import NO_LONG_TEXTS, LongText
from continuation.shapes.encoding import parse_exact
from continuation.shapes.members import marks

# Bytes of a text, or of the values of an array, that are parsed at once: a few tenths of a millisecond.
STEP = 2**16
DEEP = 3
_COMMA, _COLON, _ARRAY = b",:["
_OPENING, _CLOSING, _COUNTED = b"{[", b"}]", b",{["
_ESCAPE_BYTES = 6
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]")

Reader = Callable[[bytes], Any]


class TooManyValuesError(ValueError):
    """More than were allowed."""


@dataclass(frozen=True, slots=True)
class Read:
    """A parsed value, and the long texts that it has stand-ins for."""

    value: Any
    long: Mapping[str, LongText] = field(default_factory=lambda: NO_LONG_TEXTS)


def read_in_steps(data: bytes, most: int, step: int = STEP) -> Read:
    """As `parse`; ValueError if it is no JSON, or has more values than `most`. step: no less than 64."""
    cut = _Cut(data, step)
    cut.look(most)
    try:
        return cut.read(orjson.loads)
    except ValueError:
        return cut.read(parse_exact)  # it takes what the first does not


class _Cut:
    """The bytes with stand-ins, and what they stand for."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data, self._step = data, step
        self._secret = secrets.token_hex(16)
        self._parts: list[bytes] = []
        self._copied = 0  # up to here the data is in the parts
        self._texts: dict[str, tuple[int, int]] = {}
        self._groups: dict[str, bytes] = {}

    def look(self, most: int) -> None:
        depth = values = behind = 0
        in_array, first, base = (
            False,
            0,
            0,
        )  # of a group: its first part, and where it began without its long texts
        for at, mark in marks(self._data):
            values += mark in _COUNTED
            if values > most:
                raise TooManyValuesError
            if at - behind > self._step and depth >= DEEP and mark != _COLON:
                base += self._cut_text(behind, at)
            if mark == _COMMA and depth == DEEP - 1 and in_array and at - base > self._step:
                self._cut_group(first, at)
                first, base = len(self._parts), at
            elif mark in _OPENING:
                depth += 1
                if depth == DEEP - 1 and (in_array := mark == _ARRAY):
                    self._copy(at + 1)
                    first, base = len(self._parts), at
            elif mark in _CLOSING:
                depth -= 1
            behind = at + 1
        if depth:
            raise ValueError("it does not end")
        self._copy(len(self._data))

    def read(self, reader: Reader) -> Read:
        value = reader(b"".join(self._parts))
        groups = {name: self._values(group, reader) for name, group in self._groups.items()}
        if groups and isinstance(value, dict):
            value = {name: _joined(inner, groups) for name, inner in value.items()}
        return Read(value, {name: self._long(*place, reader) for name, place in self._texts.items()})

    def _copy(self, end: int) -> None:
        self._parts.append(self._data[self._copied : end])
        self._copied = end

    def _stand_in(self) -> str:
        return f"{self._secret}{len(self._texts) + len(self._groups)}"

    def _cut_text(self, start: int, end: int) -> int:
        """Between two marks is one text, or what is no JSON; the bytes that were cut out."""
        first = self._data.find(b'"', start, end) + 1
        last = self._data.rfind(b'"', first, end) if first else -1
        if last - first <= self._step:
            return 0
        self._copy(first)
        name = self._stand_in()
        self._texts[name] = first, last
        self._parts.append(name.encode())
        self._copied = last
        return last - first

    def _cut_group(self, first: int, end: int) -> None:
        self._copy(end)
        name = self._stand_in()
        self._groups[name] = b"".join(self._parts[first:]).removeprefix(b",")
        self._parts[first:] = [
            b'%s"%s"' % (b"," if self._parts[first].startswith(b",") else b"", name.encode())
        ]

    def _values(self, group: bytes, reader: Reader) -> list[Any]:
        values: list[Any] = reader(b"[" + group + b"]")
        if not values:
            raise ValueError("a comma without a value")
        return values

    def _long(self, start: int, end: int, reader: Reader) -> LongText:
        found = LongText()
        for piece in slices(self._data, start, end, self._step):
            text = reader(b'"' + piece + b'"')
            written = len(json.dumps(text, ensure_ascii=False)) - 2 if b"\\" in piece else len(text)
            found = found.with_more(text, written)
        return found


def _joined(value: Any, groups: Mapping[str, list[Any]]) -> Any:
    if not isinstance(value, list):
        return value
    found: list[Any] = []
    for one in value:
        found += groups.get(one, [one]) if isinstance(one, str) else [one]
    return found


def slices(data: bytes, start: int, end: int, size: int) -> Iterator[bytes]:
    """The bytes of a text between its quotes, none but the last cut inside of a character or of its escapes."""
    while end - start > size:
        piece = data[start : start + size]
        cut = _cut_of(piece, data[start + size])
        yield piece[:cut]
        start += cut
    yield data[start:end]


def _cut_of(piece: bytes, follows: int) -> int:
    cut = len(piece)
    if follows & 0xC0 == 0x80:  # in the middle of a character, unless it is no UTF-8
        cut = next((at for at in range(cut - 1, cut - 4, -1) if piece[at] >= 0xC0), cut)
    plain = piece.replace(rb"\\", b"__")  # each backslash that is left begins an escape
    if (escape := plain.rfind(b"\\", cut - _ESCAPE_BYTES + 1, cut)) >= 0:
        cut = escape
    if _HIGH_SURROGATE.match(plain, cut - _ESCAPE_BYTES):
        cut -= _ESCAPE_BYTES
    return cut
