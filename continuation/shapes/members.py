"""A JSON object as bytes: how many values it has, and the same object with some members changed.

Nothing is parsed but the names of its members. Memory is that of the bytes, and the work is done in steps between
which other threads have their turn: parsing, or writing, would hold up the whole process until it is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from continuation.shapes.encoding import dump_exact, parse, parse_exact

# Bytes of a text with escapes that are looked at in one step: the first, and the largest.
FIRST_SLICE = 2**6
LARGEST_SLICE = 2**16

_QUOTE = ord('"')
_COLON = ord(":")
_OPENING = b"{["
_CLOSING = b"}]"
_MARK = re.compile(rb'["{}\[\],:]')
_SPACE = re.compile(rb"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object; start, value and end are places in its bytes: of the name, the value, and behind it."""

    name: str
    start: int
    value: int
    end: int


def has_more_values(data: bytes, most: int) -> bool:
    """Whether `data` has more values than `most`, counted by its commas and opening brackets that are in no text. It
    need not be JSON."""
    if sum(map(data.count, (b",", b"{", b"["))) <= most:  # texts and all
        return False
    found = 0
    for _, mark in marks(data):
        found += mark in b",{["
        if found > most:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Members:
    """Those of the JSON object that `data` is, which has been parsed before. A name may occur more than once: the last
    one counts."""

    data: bytes
    found: tuple[Member, ...]

    @classmethod
    def of(cls, data: bytes) -> Members:
        return cls(data, tuple(_members(data)))

    def value(self, name: str) -> bytes:
        """Its JSON; b"" where there is none."""
        return next((self.data[m.value : m.end] for m in reversed(self.found) if m.name == name), b"")

    def read(self, names: Iterable[str]) -> dict[str, Any]:
        """The parsed values of those of `names` that are there; whole numbers are exact."""
        values = {name: self.value(name) for name in names}
        return {name: parse_exact(value) for name, value in values.items() if value}

    def changed(self, changes: Mapping[str, bytes | None]) -> bytes:
        """The object with these members, JSON by name, in place of its own; None leaves one out. All else stays as it
        is, byte for byte."""
        left, parts = dict(changes), []
        for member in self.found:
            if member.name not in changes:
                parts.append(self.data[member.start : member.end])
            elif (value := left.pop(member.name, None)) is not None:
                parts.append(self.data[member.start : member.value] + value)
        parts += [dump_exact(name) + b":" + value for name, value in left.items() if value is not None]
        return b"{" + b",".join(parts) + b"}"


def _members(data: bytes) -> Iterator[Member]:
    depth = start = colon = 0
    for at, mark in marks(data):
        if depth == 1 and mark in b",}":
            if colon:
                yield _member(data, start, colon, at)
            start, colon = at + 1, 0
        elif depth == 1 and mark == _COLON:
            colon = at
        if mark in _OPENING:
            depth += 1
            start = at + 1 if depth == 1 else start
        elif mark in _CLOSING:
            depth -= 1


def _member(data: bytes, start: int, colon: int, end: int) -> Member:
    value = _SPACE.match(data, colon + 1)
    assert value
    return Member(parse(data[start:colon]), start, value.end(), end)


def marks(data: bytes) -> Iterator[tuple[int, int]]:
    """The place and the byte of each bracket, comma and colon outside of texts."""
    at = 0
    while found := _MARK.search(data, at):
        at, mark = found.end(), data[found.start()]
        if mark == _QUOTE:
            at = _behind_text(data, at)
        else:
            yield at - 1, mark


def _behind_text(data: bytes, at: int) -> int:
    """The place behind the text whose first character is at `at`; the end of the data if it does not end."""
    quote = data.find(b'"', at)
    if quote < 0:
        return len(data)
    escape = data.find(b"\\", at, quote)
    if escape < 0:
        return quote + 1
    at, size = escape, FIRST_SLICE
    while piece := data[at : at + size]:
        # Each pair of backslashes is one character, so that what is left of them belongs to what follows.
        plain = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        if (end := plain.find(b'"')) >= 0:
            return at + end + 1
        if piece == b"\\":
            break
        at += len(piece) - plain.endswith(b"\\")  # the rest of that escape is in the next piece
        size = min(4 * size, LARGEST_SLICE)
    return len(data)
