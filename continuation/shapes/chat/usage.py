"""Tokens: estimates from text, exact counts where an engine reported them, and the usage of a joined answer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from continuation.shapes.chat.chunks import count, reasoning_tokens
from continuation.shapes.encoding import JSON
from continuation.shapes.openings import beginning_of, opening_of

# Ideographs, kana, hangul, bopomofo, their punctuation and full-width forms.
_CJK = re.compile(
    "[\u2e80-\u303f\u3040-\u30ff\u3100-\u31ff\u3200-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff"
    "\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]+"
)
# Characters that are looked at without a break for other threads.
_SLICE = 2**16
_QUOTED = re.compile('"([0-9a-f]{32,})"')


@dataclass(frozen=True, slots=True)
class LongText:
    """What a conversation needs of a text that is not in its request, but has a stand-in there (see steps.py).

    written     its characters as JSON, without the quotes; wide: those that are CJK
    beginning   what its opening depends on
    """

    characters: int = 0
    wide: int = 0
    written: int = 0
    beginning: str = ""

    def with_more(self, text: str, written: int) -> LongText:
        return LongText(
            self.characters + len(text),
            self.wide + _wide(text),
            self.written + written,
            beginning_of(self.beginning + text),
        )


LongTexts = Mapping[str, LongText]  # by their stand-ins
NO_LONG_TEXTS: LongTexts = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Estimator:
    """est(text) = ceil(CJK chars / cjk + other chars / other), both in characters per token."""

    cjk: float = 1.6
    other: float = 4.0

    def tokens(self, text: str) -> int:
        return self._tokens(len(text), _wide(text))

    def _tokens(self, characters: int, wide: int) -> int:
        return math.ceil(round(wide / self.cjk + (characters - wide) / self.other, 9))

    def prompt_tokens(self, body: JSON, long: LongTexts = NO_LONG_TEXTS) -> int:
        """Messages, their tool calls, and the tool schemas of a chat request."""
        messages = body.get("messages")
        total = (
            sum(self._message(m, long) for m in messages if isinstance(m, dict))
            if isinstance(messages, list)
            else 0
        )
        tools = body.get("tools")
        return total + (sum(self._written(tool, long) for tool in tools) if isinstance(tools, list) else 0)

    def _message(self, message: JSON, long: LongTexts) -> int:
        said = sum(self._text(text, long) for text in texts_of(message))
        return said + sum(self._written(function, long) for function in _functions(message))

    def _text(self, text: str, long: LongTexts) -> int:
        found = long.get(text)
        return self._tokens(found.characters, found.wide) if found else self.tokens(text)

    def _written(self, value: Any, long: LongTexts) -> int:
        text = _json(value)
        names = [name for name in _QUOTED.findall(text) if name in long] if long else []
        more = sum(long[name].written - len(name) for name in names)
        return self._tokens(len(text) + more, _wide(text) + sum(long[name].wide for name in names))


def _wide(text: str) -> int:
    """How many of its characters are CJK."""
    if text.isascii():
        return 0
    slices = (text[at : at + _SLICE] for at in range(0, len(text), _SLICE))
    return len(text) - sum(len(_CJK.sub("", one)) for one in slices)


def texts_of(message: JSON) -> list[str]:
    """Content and reasoning of a message, whether they come as texts or in parts."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return [*_texts(message.get("content")), *_texts(reasoning)]


def arguments_of(message: JSON) -> list[str]:
    """Those of its tool calls."""
    told = (f.get("arguments") for f in _functions(message) if isinstance(f, dict))
    return [arguments for arguments in told if isinstance(arguments, str)]


def _functions(message: JSON) -> list[Any]:
    calls = message.get("tool_calls")
    return (
        [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    )


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is needed of a request's texts when its stream has broken.

    prompt_tokens   estimated
    openings        a line for each text: its first characters, by which an engine's error is seen to repeat it
    """

    prompt_tokens: int
    openings: str

    @classmethod
    def of(cls, request: JSON, estimator: Estimator, long: LongTexts = NO_LONG_TEXTS) -> Conversation:
        messages = request.get("messages")
        found = [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
        texts = (text for m in found for text in (*texts_of(m), *arguments_of(m)))
        openings = (opening_of(long[text].beginning if text in long else text) for text in texts)
        lines = dict.fromkeys(opening for opening in openings if opening and "\n" not in opening)
        return cls(estimator.prompt_tokens(request, long), "\n".join(lines))


@dataclass(frozen=True, slots=True)
class Delivered:
    """Tokens of leg 1 that the client has received; `exact` where the engine counted them itself.

    prompt is the exact prompt count or None; reasoning is the part of completion that was reasoning. left_out are
    tokens without text that leg 2 writes again.
    """

    completion: int
    reasoning: int
    exact: bool = False
    prompt: int | None = None
    left_out: int = 0


def delivered(
    usage: JSON | None,
    current: bool,
    reasoning: str,
    content: str,
    estimator: Estimator,
    *,
    least: int = 0,
    reasoning_events: int = 0,
    others: str = "",
) -> Delivered:
    """What a leg delivered: counted by the engine where its newest `usage` is `current`, else estimated.

    least: tokens that it has cost at least, which no estimate is below; reasoning_events of them were reasoning.
    others: the text of other choices, which the engine counts as well.
    """
    told, guess = count(usage, "completion_tokens") or 0, estimator.tokens(reasoning)
    prompt = count(usage, "prompt_tokens")
    if current and told:
        thought = reasoning_tokens(usage)
        return Delivered(told, min(guess if thought is None else thought, told), exact=True, prompt=prompt)
    whole = guess + estimator.tokens(content) + estimator.tokens(others)
    share = guess if whole > least else reasoning_events
    return Delivered(max(told, whole, least), share, prompt=prompt)


def joined_usage(
    before: Delivered, leg2: JSON | None, prompt: int, leg2_reasons: bool, template: JSON | None
) -> JSON:
    """The usage of the whole answer.

    leg2 is what leg 2 reported, also in mid-stream; None leaves the delivered part alone. prompt is used where leg 1
    did not report it. template is a usage of leg 1 whose shape is kept. leg2_reasons: leg 2 delivered reasoning.
    """
    usage: JSON = {**(template or {}), **(leg2 or {})}
    more, thought = count(leg2, "completion_tokens") or 0, reasoning_tokens(leg2) or 0
    if thought >= more and not leg2_reasons:
        thought = 0  # SGLang counts all of a continued answer as reasoning
    usage["prompt_tokens"] = before.prompt if before.prompt is not None else prompt
    usage["completion_tokens"] = before.completion + more
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    _put_reasoning(usage, min(before.reasoning + thought, usage["completion_tokens"]))
    _clamp_cached(usage)
    return usage


def _put_reasoning(usage: JSON, tokens: int) -> None:
    details = usage.get("completion_tokens_details")
    if "reasoning_tokens" in usage:
        usage["reasoning_tokens"] = tokens
    if isinstance(details, dict):
        usage["completion_tokens_details"] = {**details, "reasoning_tokens": tokens}
    elif "reasoning_tokens" not in usage and tokens:
        usage["completion_tokens_details"] = {"reasoning_tokens": tokens}


def _clamp_cached(usage: JSON) -> None:
    """The continuation's cached prefix must not exceed the prompt count that the client gets."""
    details = usage.get("prompt_tokens_details")
    cached = count(details, "cached_tokens") if isinstance(details, dict) else None
    if isinstance(details, dict) and cached is not None:
        usage["prompt_tokens_details"] = {
            **details,
            "cached_tokens": max(0, min(cached, usage["prompt_tokens"] - 1)),
        }


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        return [
            part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
    return []


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
