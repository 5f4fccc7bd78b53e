"""Reading and writing the JSON of `chat.completion.chunk` events; whatever is not known is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from continuation.shapes.encoding import JSON
from continuation.shapes.sse import Event

_DIGITS = re.compile("[0-9]{1,9}")
REASONING_NAMES = ("reasoning", "reasoning_content")
NO_FINISH = ("", "null")
# finish_reasons that are failures, not endings, where FAILED_FINISH_REASONS does not name others; in lower case.
FAILED_FINISHES = frozenset({"abort", "error", "insufficient_system_resource", "network_error"})
# 4xx codes of an error event that another try may well answer.
RETRYABLE_4XX = (408, 409, 425, 429)


def choices(chunk: JSON) -> list[JSON]:
    found = chunk.get("choices")
    return [choice for choice in found if isinstance(choice, dict)] if isinstance(found, list) else []


def index_of(choice: JSON) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0


def delta_of(choice: JSON) -> JSON:
    delta = choice.get("delta")
    return delta if isinstance(delta, dict) else {}


def finish_of(choice: JSON) -> str | None:
    """The finish_reason; null, "" and "null" are none."""
    finish = choice.get("finish_reason")
    return finish if isinstance(finish, str) and finish not in NO_FINISH else None


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def reasoning_of(delta: JSON) -> str:
    """The reasoning of a delta, once, whichever of the two names holds it (both may, with the same text)."""
    return text_of(delta.get("reasoning")) or text_of(delta.get("reasoning_content"))


def has_tool_call(delta: JSON) -> bool:
    return bool(delta.get("tool_calls")) or bool(delta.get("function_call"))


def calls_tool(chunk: JSON) -> bool:
    """Whether the answer, which is choice 0, has a tool call or a part of one in this chunk."""
    return any(index_of(choice) == 0 and has_tool_call(delta_of(choice)) for choice in choices(chunk))


def tool_ids_in(delta: JSON) -> list[str]:
    """The ids of the tool calls that begin in a delta."""
    calls = delta.get("tool_calls")
    found = (call.get("id") for call in calls if isinstance(call, dict)) if isinstance(calls, list) else ()
    return [name for name in found if isinstance(name, str) and name]


def ids_in(value: Any) -> tuple[int, ...]:
    """The token ids of a list, of anything else none."""
    return tuple(token for token in value if isinstance(token, int)) if isinstance(value, list) else ()


def usage_of(chunk: JSON) -> JSON | None:
    usage = chunk.get("usage")
    return usage if isinstance(usage, dict) else None


def count(usage: Mapping[str, Any] | None, name: str) -> int | None:
    """A whole number of a usage object, None if it is not there."""
    value = usage.get(name) if usage else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def reasoning_tokens(usage: JSON | None) -> int | None:
    """At the top level (SGLang) or in completion_tokens_details (both engines)."""
    if usage is None:
        return None
    details = usage.get("completion_tokens_details")
    inner = count(details, "reasoning_tokens") if isinstance(details, dict) else None
    return inner if inner is not None else count(usage, "reasoning_tokens")


def is_error(event: Event, value: Any) -> bool:
    if event.name == "error":
        return True
    return isinstance(value, dict) and (bool(value.get("error")) or value.get("object") == "error")


def error_object(value: Any) -> JSON:
    """The error of an in-band error event, in whichever of its forms, as an object with a message."""
    error = value.get("error") if isinstance(value, dict) and value.get("error") else value
    if error is None:
        return {}
    if not isinstance(error, dict):
        return {"message": error if isinstance(error, str) else json.dumps(error)}
    return error


def error_message(value: Any) -> str:
    """Its message, if it is text."""
    return text_of(error_object(value).get("message"))


def error_code(value: Any) -> int | None:
    code = error_object(value).get("code")
    if isinstance(code, str) and _DIGITS.fullmatch(code):
        return int(code)
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def is_client_error(value: Any) -> bool:
    """A 4xx code that says the request itself is at fault."""
    code = error_code(value)
    return code is not None and 400 <= code < 500 and code not in RETRYABLE_4XX


def brings_something_new(chunk: JSON, tokens_before: int) -> bool:
    """Whether a chunk is progress: text, a tool call, ids, log-probabilities, a finish, or a grown token count."""
    for choice in choices(chunk):
        if any(value for key, value in delta_of(choice).items() if key != "role"):
            return True
        if choice.get("token_ids") or choice.get("logprobs") or finish_of(choice):
            return True
    return (count(usage_of(chunk), "completion_tokens") or 0) > tokens_before
