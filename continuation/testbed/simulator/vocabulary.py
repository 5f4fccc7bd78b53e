"""A small fixed byte-level vocabulary: text <-> token ids, greedy, reversible, no model files.

Every byte is a token, so every text has ids. Emoji and some CJK characters are only covered in parts:
one character is then several tokens, and a token can end in the middle of a character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from continuation.testbed.simulator import phrases
from continuation.testbed.simulator.dialects import DIALECTS

_PIECES = re.compile(
    r" ?[A-Za-z_À-ÿ]+| {2,}|\s*\n+|[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]+"
    r"|[\U00010000-\U0010ffff]|[^\w\s]+\n*|.",
    re.DOTALL,
)


def _texts() -> Iterator[str]:
    groups = (phrases.THOUGHTS, phrases.OPENERS, phrases.SENTENCES, phrases.BULLETS, phrases.CODE)
    others = (phrases.CLOSERS, phrases.SEPARATORS, phrases.WORDS, phrases.CALL_REMARKS)
    for group in (*groups, *others, phrases.ARGUMENT_WORDS):
        for text in group:
            yield text.replace("{n}", "").replace("{w}", "")
    yield from (f" {word}" for word in phrases.WORDS)
    yield '{"name": "", "arguments": {"":'


def _parts(piece: str) -> Iterator[bytes]:
    """The tokens that one piece of text gives the vocabulary."""
    if ord(piece[0]) > 0xFFFF:  # an emoji: two tokens of two bytes
        raw = piece.encode()
        yield from (raw[:2], raw[2:])
    elif ord(piece[0]) > 0x2FFF:
        for run in re.split(f"[{phrases.SPLIT_CHARACTERS}]", piece):
            yield from (run[start : start + 2].encode() for start in range(0, len(run), 2))
            yield from (character.encode() for character in run)
    elif not any(character in piece for character in phrases.SPLIT_CHARACTERS):
        middle = len(piece) // 2 if len(piece) > 6 and piece.strip().isalpha() else len(piece)
        yield from (piece[:middle].encode(), piece[middle:].encode())


def _entries() -> list[bytes]:
    found = {part for text in _texts() for piece in _PIECES.findall(text) for part in _parts(piece)}
    found |= {word.encode() for word in phrases.STRAY_WORDS}
    for character, kept, rest in phrases.STRADDLING:
        found.add(character.encode()[kept:] + rest.encode())
    return sorted(part for part in found if len(part) > 1)


def _tokens() -> list[bytes]:
    special = dict.fromkeys(marker for dialect in DIALECTS.values() for marker in dialect.markers)
    taken = [marker.encode() for marker in special]
    return [*taken, *(bytes([value]) for value in range(256)), *(t for t in _entries() if t not in taken)]


TOKENS: tuple[bytes, ...] = tuple(_tokens())
_IDS = {token: number for number, token in enumerate(TOKENS)}
_LENGTHS: dict[int, tuple[int, ...]] = {
    first: tuple(sorted({len(token) for token in TOKENS if token[0] == first}, reverse=True))
    for first in range(256)
}
LONGEST = max(map(len, TOKENS))


def encode(text: str) -> list[bytes]:
    """Greedy longest match. A lone surrogate, which is no text, counts as `?`."""
    raw, position, tokens = text.encode("utf-8", "replace"), 0, []
    while position < len(raw):
        token = next(
            piece
            for length in _LENGTHS[raw[position]]
            if (piece := raw[position : position + length]) in _IDS and len(piece) == length
        )
        tokens.append(token)
        position += len(token)
    return tokens


def ids(tokens: Iterable[bytes]) -> list[int]:
    return [_IDS[token] for token in tokens]


def decode(numbers: Iterable[int]) -> str:
    """Text of token ids; unfinished characters become U+FFFD. KeyError for an id outside the vocabulary."""
    return b"".join(_token(number) for number in numbers).decode("utf-8", "replace")


def _token(number: int) -> bytes:
    if not 0 <= number < len(TOKENS):
        raise KeyError(number)
    return TOKENS[number]
