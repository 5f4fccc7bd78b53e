"""A strategy and a partial become the continuation request. Pure: values in, values out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from strategies.types import CompiledStrategy, Partial

BUDGET_KEYS = ("max_tokens", "max_completion_tokens")
# vLLM's and SGLang's names for a client's own request id.
REQUEST_ID_KEYS = ("request_id", "rid")
# Fields of the client's body that continuation_fields reads.
FIELDS_READ = (*BUDGET_KEYS, *REQUEST_ID_KEYS, "min_tokens", "stream_options", "chat_template_kwargs", "echo")

_WHOLE_TEXT = re.compile(r"[+-]?[0-9]{1,18}(\.0+)?")
_LARGEST = 2**63 - 1
_TRUE_WORDS = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE_WORDS = frozenset({"0", "false", "f", "no", "n", "off"})
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def prefix(strategy: CompiledStrategy, partial: Partial) -> str:
    """The partial as one string, in the model's own control tokens.

    Text of the partial stays exactly as it is, without lone surrogates, which no engine takes.
    """
    reasoning, content = without_lone_surrogates(partial.reasoning), without_lone_surrogates(partial.content)
    if not reasoning:
        return content
    opening = "" if strategy.prompt_opens_thinking else strategy.open
    if not (partial.content or thought_to_the_end(strategy, partial)):
        # Left open: if the thinking was over, the model closes it; a wrong close cannot be undone.
        return opening + reasoning
    return opening + reasoning + strategy.close + strategy.content_open + content


def thought_to_the_end(strategy: CompiledStrategy, partial: Partial) -> bool:
    """Whether the reasoning looks complete, and may be closed before any content has begun."""
    return bool(strategy.reasoning_end) and partial.reasoning.endswith(strategy.reasoning_end)


def final_message(strategy: CompiledStrategy, partial: Partial) -> dict[str, str]:
    """The assistant message to be continued; its content is always a string."""
    reasoning = without_lone_surrogates(partial.reasoning)
    closed = partial.content or thought_to_the_end(strategy, partial)
    if strategy.structured and reasoning and closed:
        content = without_lone_surrogates(partial.content)
        return {"role": "assistant", strategy.reasoning_field: reasoning, "content": content}
    return {"role": "assistant", "content": prefix(strategy, partial)}


def continuation_body(
    client_body: Mapping[str, Any], strategy: CompiledStrategy, partial: Partial, spent_tokens: int
) -> dict[str, Any]:
    """The body of the one continuation request.

    All other fields are the client's; nested values are shared with `client_body`, which is not changed.
    spent_tokens: tokens of the client's budget that the partial has used.
    """
    messages = client_body.get("messages")
    return {
        **client_body,
        "messages": [*(messages if isinstance(messages, list) else ()), final_message(strategy, partial)],
        **continuation_fields(client_body, strategy, partial, spent_tokens),
    }


def continuation_fields(
    client_body: Mapping[str, Any], strategy: CompiledStrategy, partial: Partial, spent_tokens: int
) -> dict[str, Any]:
    """Fields of the continuation request that replace the client's fields, without the messages.

    Of `client_body` only FIELDS_READ are looked at.
    """
    body = {
        "continue_final_message": True,
        "add_generation_prompt": False,
        "stream": True,
        "stream_options": {**_object(client_body.get("stream_options")), "include_usage": True},
        **_reduced_budget(client_body, spent_tokens),
        **_second_request_ids(client_body),
    }
    if partial.content and strategy.thinking_key:
        switches = _object(client_body.get("chat_template_kwargs"))
        body["chat_template_kwargs"] = {**switches, strategy.thinking_key: False}
    if truth(client_body.get("echo")):
        body["echo"] = False  # else the engine repeats the prefix to the client
    return body


def remaining_budget(client_body: Mapping[str, Any], spent_tokens: int) -> int | None:
    """Tokens left of the client's limit, of the smaller one if there are two; None without a limit."""
    limits = [limit for key in BUDGET_KEYS if (limit := whole_number(client_body.get(key))) is not None]
    return min(limits) - spent_tokens if limits else None


def whole_number(value: object) -> int | None:
    """The value as engines read a whole number: int, integral float or text; None if it is none of these."""
    if isinstance(value, str):
        text = value.strip()
        return int(text.partition(".")[0]) if _WHOLE_TEXT.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not value.is_integer():  # nor is inf or nan
        return None
    return int(value) if abs(value) <= _LARGEST else None


def truth(value: object) -> bool | None:
    """The value as engines read a boolean (pydantic, not strict): true, 1, 1.0, "true", "t", "yes", "y", "on", "1" and
    their opposites, in any case; None if it is none of these, which engines refuse."""
    if isinstance(value, str):
        word = value.lower()
        return True if word in _TRUE_WORDS else False if word in _FALSE_WORDS else None
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    return None


def without_lone_surrogates(text: str) -> str:
    """Join surrogate halves that came in two deltas, and drop halves without a partner."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    joined = _SURROGATE_PAIR.sub(
        lambda pair: pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text
    )
    return _SURROGATE.sub("", joined)


def _reduced_budget(client_body: Mapping[str, Any], spent_tokens: int) -> dict[str, int]:
    reduced = {
        key: limit - spent_tokens
        for key in BUDGET_KEYS
        if (limit := whole_number(client_body.get(key))) is not None
    }
    least = whole_number(client_body.get("min_tokens"))
    if least is not None:
        reduced["min_tokens"] = max(0, least - spent_tokens)
    return reduced


def _second_request_ids(client_body: Mapping[str, Any]) -> dict[str, str]:
    """The engine may still hold the first request under its id."""
    sent = ((key, client_body.get(key)) for key in REQUEST_ID_KEYS)
    return {key: f"{value}-leg2" for key, value in sent if isinstance(value, str) and value}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
