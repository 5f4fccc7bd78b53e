"""The simulated model: its next token is a fixed function of the exact prompt text so far.

A prompt is everything before the assistant's turn (the base) and what already stands in that turn. The base
decides, by hash, the whole answer that the model wants to give. If the turn is the beginning of that answer, the
model goes on with it, from any character; if it is anything else - a lost newline, a thinking block closed too
early, another history - the model has lost its way and strings stray words together, each chosen by a hash of all
text so far. Nothing is remembered between calls: a continuation is right exactly when the prompt is.

One liberty is taken, since real models take it: where the switch says "off" and the text says "on", the text wins. A
thinking block that the template closed empty counts as opened once if it is opened again at once, or if a closing token
follows later. And a turn that starts with no thinking block at all is one without thinking.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from continuation.testbed.simulator import phrases
from continuation.testbed.simulator.dialects import Dialect
from continuation.testbed.simulator.vocabulary import encode

REASONING_TOKENS = (20, 40)  # a reasoning ends with the first sentence past a limit between these two
CONTENT_TOKENS = (45, 110)
_STRAY_LIMIT = 40  # stray words before the model gives up
_WANTS_TOOL = re.compile(
    r"\b(use|call|with) (a|the|your|both|two) (tool|function)s?\b|工具|\bweather\b", re.I
)
_WANTS_TWO = re.compile(r"\b(both|two) (tool|function)s\b|两个工具|\bcompare\b", re.I)
_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt, split after the newest assistant header: base + text."""

    base: str
    text: str


def split(prompt: str, dialect: Dialect) -> Turn:
    at = prompt.rfind(dialect.header)
    end = len(prompt) if at < 0 else at + len(dialect.header)
    return Turn(prompt[:end], prompt[end:])


def next_tokens(prompt: str, dialect: Dialect, scale: float = 1.0) -> Iterator[bytes]:
    """The tokens that follow `prompt`, up to and with the end of the stream. `scale` multiplies lengths."""
    turn = split(prompt, dialect)
    text = settled(turn.text, dialect)
    if dialect.eos in text:
        yield from _after_the_end(turn, dialect)
        return
    whole = answer(turn.base, not text.startswith(dialect.off), dialect, scale)
    if whole.startswith(text):
        yield from encode(whole[len(text) :])
    else:
        yield from _astray(turn.base, text, dialect, int(_STRAY_LIMIT * scale) + 1)


def next_token(prompt: str, dialect: Dialect, scale: float = 1.0) -> bytes:
    return next(next_tokens(prompt, dialect, scale))


def answer(base: str, thinking: bool, dialect: Dialect, scale: float = 1.0) -> str:
    """The assistant's whole turn, control tokens included, that the model wants to write after `base`."""
    dice = _Dice(base, "on" if thinking else "off")
    if not thinking:
        head = dialect.off
    else:
        reasoning = _reasoning(dice, scale) + dialect.reasoning_tail
        head = dialect.opening + reasoning + dialect.close + dialect.content_open + dialect.content_head
    calls = _calls(base, dice, dialect)
    return head + (calls or _content(dice, scale)) + "".join(dialect.end)


def settled(text: str, dialect: Dialect) -> str:
    """A turn's text as the model takes it (the liberty named above)."""
    rest = text.removeprefix(dialect.off)
    if text.startswith(dialect.off) and rest.startswith(dialect.think):
        return dialect.opening + rest.removeprefix(dialect.think).removeprefix(
            dialect.opening[len(dialect.think) :]
        )
    if text.startswith(dialect.off) and dialect.close in rest:
        return dialect.opening + rest
    if not text or text.startswith((dialect.off, dialect.opening)):
        return text
    return dialect.off + text


class _Dice:
    """Numbers that depend on nothing but the seed and how many were drawn."""

    def __init__(self, *seed: str) -> None:
        self._seed = _digest("\0".join(seed))
        self._drawn = 0
        self._said: set[str] = set()

    def roll(self, sides: int) -> int:
        self._drawn += 1
        drawn = hashlib.blake2b(self._seed + self._drawn.to_bytes(4, "big"), digest_size=8).digest()
        return int.from_bytes(drawn, "big") % sides

    def pick(self, options: tuple[str, ...] | list[str]) -> str:
        return options[self.roll(len(options))]

    def say(self, options: tuple[str, ...]) -> str:
        """One of the phrases, filled in; none comes twice before all have been said."""
        fresh = [phrase for phrase in options if phrase not in self._said] or list(options)
        self._said.difference_update(options if len(fresh) == len(options) else ())
        phrase = self.pick(fresh)
        self._said.add(phrase)
        return phrase.format(n=self.roll(980) + 13, w=self.pick(phrases.WORDS))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _limit(dice: _Dice, bounds: tuple[int, int], scale: float) -> int:
    return int((bounds[0] + dice.roll(bounds[1] - bounds[0])) * scale)


def _reasoning(dice: _Dice, scale: float) -> str:
    limit, text, length = _limit(dice, REASONING_TOKENS, scale), "", 0
    while not text or length < limit:
        gap = ("", " ", "\n", " ", "  ")[0 if not text or text.endswith("\n") else 1 + dice.roll(4)]
        part = gap + dice.say(phrases.THOUGHTS)
        text, length = text + part, length + len(encode(part))
    return text.rstrip("\n")


def _content(dice: _Dice, scale: float) -> str:
    """An opening, blocks in changing order until the limit, a closing sentence. Always some CJK or emoji."""
    limit, text = _limit(dice, CONTENT_TOKENS, scale), dice.say(phrases.OPENERS)
    length, kinds = len(encode(text)), dice.roll(3)
    while length < limit:
        block = (_paragraph, _bullets, _code)[kinds % 3](dice)
        text += dice.pick(phrases.SEPARATORS) + block
        length, kinds = length + len(encode(block)), kinds + 1
    return text + ("\n" if text.endswith("\n") else "\n\n") + dice.say(phrases.CLOSERS)


def _paragraph(dice: _Dice) -> str:
    return dice.say(phrases.SENTENCES) + dice.pick((" ", "  ", "\n")) + dice.say(phrases.SENTENCES)


def _bullets(dice: _Dice) -> str:
    return dice.say(phrases.BULLETS)


def _code(dice: _Dice) -> str:
    return dice.say(phrases.CODE)


# -- tool calls ------------------------------------------------------------------------------------


def _calls(base: str, dice: _Dice, dialect: Dialect) -> str:
    """The tool calls that the last message of a user asks for; "" for none. All is read from the prompt text."""
    question, tools = _question(base, dialect), _tools(base)
    if not tools or not _WANTS_TOOL.search(question):
        return ""
    count = 2 if _WANTS_TWO.search(question) else 1
    envelopes = (_envelope(tools[(index + dice.roll(7)) % len(tools)], dice) for index in range(count))
    calls = (f"{dialect.call_open}\n{envelope}\n{dialect.call_close}" for envelope in envelopes)
    return dice.pick(phrases.CALL_REMARKS) + "\n".join(calls)


def _question(base: str, dialect: Dialect) -> str:
    history = base[: base.rfind(dialect.header)] if dialect.header in base else base
    start = max(history.rfind(header) for header in dialect.turn_headers)
    at = history.rfind(dialect.user_header)
    return history[at + len(dialect.user_header) :] if at >= 0 and at == start else ""


def _tools(base: str) -> list[dict[str, Any]]:
    found = _TOOLS.search(base)
    tools = []
    for line in found[1].splitlines() if found else ():
        try:
            function = json.loads(line)["function"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            tools.append(function)
    return tools


def _envelope(function: dict[str, Any], dice: _Dice) -> str:
    schema = function.get("parameters")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    fields = properties.items() if isinstance(properties, dict) else ()
    arguments = {name: _argument(field if isinstance(field, dict) else {}, dice) for name, field in fields}
    return json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)


def _argument(schema: dict[str, Any], dice: _Dice) -> Any:
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[dice.roll(len(choices))]
    match schema.get("type"):
        case "integer" | "number":
            return dice.roll(100)
        case "boolean":
            return dice.roll(2) == 1
        case "array":
            return [dice.pick(phrases.WORDS)]
        case "object":
            return {"key": dice.pick(phrases.WORDS)}
        case _:
            return dice.pick(phrases.ARGUMENT_WORDS)


# -- a wrong prompt --------------------------------------------------------------------------------


def _astray(base: str, text: str, dialect: Dialect, limit: int) -> Iterator[bytes]:
    """Stray words, each a hash of all text so far, at least six of them and at most `limit`, then the way out."""
    seen = hashlib.blake2b(base.encode("utf-8", "surrogatepass"), digest_size=8)
    seen.update(text.encode("utf-8", "surrogatepass"))
    while True:
        token = _stray(text, int.from_bytes(seen.digest(), "big"), dialect, limit)
        yield token.encode()
        if token == dialect.eos:
            return
        text += token
        seen.update(token.encode())


def _stray(text: str, dice: int, dialect: Dialect, limit: int) -> str:
    for marker, following in zip(dialect.end, dialect.end[1:], strict=False):
        if text.endswith(marker):
            return following
    if dialect.content_open and text.endswith(dialect.close):
        return dialect.content_open
    spoken = _stray_words_at_the_end(text, limit)
    if spoken >= limit or (spoken > 5 and dice % 29 == 0):
        newest = max((marker for marker in dialect.markers), key=text.rfind)
        return dialect.close if newest == dialect.think else dialect.end[0]
    return phrases.STRAY_WORDS[dice % len(phrases.STRAY_WORDS)]


def _stray_words_at_the_end(text: str, most: int) -> int:
    count = 0
    while count < most and (word := next((w for w in phrases.STRAY_WORDS if text.endswith(w)), None)):
        text, count = text.removesuffix(word), count + 1
    return count


def _after_the_end(turn: Turn, dialect: Dialect) -> Iterator[bytes]:
    """The turn was closed in the prompt: nothing more, or garbage."""
    text, past = turn.text, turn.text.rfind(dialect.eos) + len(dialect.eos)
    while True:
        dice = int.from_bytes(_digest(turn.base + text)[:8], "big")
        if dice % (2 if not text[past:].strip() else 9) == 0 or len(text) - past > 120:
            yield dialect.eos.encode()
            return
        token = phrases.STRAY_WORDS[dice // 18 % len(phrases.STRAY_WORDS)]
        yield token.encode()
        text += token
