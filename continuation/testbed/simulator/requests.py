"""A chat request, read the way the engines read it: lenient types, and an error that names the field."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")
MAX_CHOICES = 16


class Invalid(Exception):
    """A field that does not validate: pydantic's kind of error, its place, message and (repr of the) input."""

    def __init__(self, kind: str, place: str, message: str, given: object = None, context: str = "") -> None:
        super().__init__(f"{place}: {message}")
        self.kind, self.place, self.message, self.given, self.context = kind, place, message, given, context

    @property
    def shown(self) -> str:
        """The input as the engines print it: containers by size only, text cut to what a log line holds."""
        match self.given:
            case dict() | list():
                kind = "dict" if isinstance(self.given, dict) else "list"
                return repr(f"<{kind} of {len(self.given)} items>")
            case _:
                text = repr(self.given)
                return text if len(text) <= 100 else text[:97] + "..."


@dataclass(frozen=True, slots=True)
class Message:
    """content is None where it is null or absent; calls are JSON texts {"name", "arguments"}."""

    role: str
    content: str | None
    reasoning: str
    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    model: str | None
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    stream: bool
    choices: int
    max_tokens: int | None
    stop: tuple[str, ...]
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    continue_final_message: bool
    add_generation_prompt: bool
    generation_prompt_given: bool
    template_kwargs: dict[str, Any]
    chat_template: bool

    def thinking(self, keys: tuple[str, ...]) -> bool:
        return all(self.template_kwargs.get(key) is not False for key in keys)


def read_json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except RecursionError:
        raise Invalid("json_invalid", "body", "JSON decode error", {}, "Nesting too deep") from None
    except json.JSONDecodeError as error:
        raise Invalid("json_invalid", f"body.{error.pos}", "JSON decode error", {}, error.msg) from None
    except ValueError as error:  # no UTF-8, or a number of thousands of digits
        raise Invalid("json_invalid", "body", "JSON decode error", {}, str(error)) from None
    if not isinstance(value, dict):
        raise Invalid("model_attributes_type", "body", "Input should be a valid dictionary or object", value)
    return value


def read_chat(body: bytes) -> ChatRequest:
    """Raises Invalid."""
    fields = read_json(body)
    stream = _optional(fields, "stream", _boolean) or False
    options = _optional(fields, "stream_options", _mapping) or {}
    if options and not stream:
        message = "Value error, Stream options can only be defined when `stream=True`."
        raise Invalid("value_error", "body.stream_options", message, options)
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        _optional(fields, name, _number)
    for name in ("seed", "min_tokens", "top_k"):
        _optional(fields, name, _integer)
    limit = _optional(fields, "max_completion_tokens", _integer)
    plain_limit = _optional(fields, "max_tokens", _integer)
    return ChatRequest(
        model=_optional(fields, "model", _string),
        messages=_messages(fields),
        tools=_tools(fields),
        stream=stream,
        choices=_choices(fields),
        max_tokens=plain_limit if limit is None else limit,
        stop=_stop(fields),
        include_usage=_optional(options, "include_usage", _boolean, "body.stream_options.") or False,
        continuous_usage=_optional(options, "continuous_usage_stats", _boolean, "body.stream_options.")
        or False,
        return_token_ids=_optional(fields, "return_token_ids", _boolean) or False,
        continue_final_message=_optional(fields, "continue_final_message", _boolean) or False,
        add_generation_prompt=_optional(fields, "add_generation_prompt", _boolean) is not False,
        generation_prompt_given=fields.get("add_generation_prompt") is not None,
        template_kwargs=_optional(fields, "chat_template_kwargs", _mapping) or {},
        chat_template=fields.get("chat_template") is not None,
    )


def _optional(
    fields: dict[str, Any], name: str, read: Callable[[Any, str], _T], prefix: str = "body."
) -> _T | None:
    value = fields.get(name)
    return None if value is None else read(value, prefix + name)


def _boolean(value: Any, place: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false", "1", "0"):
        return value.lower() in ("true", "1")
    raise Invalid("bool_parsing", place, "Input should be a valid boolean, unable to interpret input", value)


def _integer(value: Any, place: str) -> int:
    number = _number(value, place, "int", "integer")
    if number != int(number):
        raise Invalid(
            "int_from_float",
            place,
            "Input should be a valid integer, got a number with a fractional part",
            value,
        )
    return value if isinstance(value, int) else int(number)


def _number(value: Any, place: str, kind: str = "float", name: str = "number") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Invalid(f"{kind}_type", place, f"Input should be a valid {name}", value)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        wanted = "an integer" if kind == "int" else "a number"
        message = f"Input should be a valid {name}, unable to parse string as {wanted}"
        raise Invalid(f"{kind}_parsing", place, message, value) from None
    if not math.isfinite(number):
        raise Invalid("finite_number", place, "Input should be a finite number", value)
    return number


def _string(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise Invalid("string_type", place, "Input should be a valid string", value)
    return value


def _mapping(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Invalid("dict_type", place, "Input should be a valid dictionary", value)
    return value


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise Invalid("list_type", place, "Input should be a valid list", value)
    return value


def _choices(fields: dict[str, Any]) -> int:
    count = _optional(fields, "n", _integer)
    if count is not None and not 1 <= count <= MAX_CHOICES:
        raise Invalid("value_error", "body.n", f"Input should be between 1 and {MAX_CHOICES}", count)
    return count or 1


def _stop(fields: dict[str, Any]) -> tuple[str, ...]:
    value = fields.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else _list(value, "body.stop")
    return tuple(_string(stop, f"body.stop.{index}") for index, stop in enumerate(stops) if stop != "")


def _tools(fields: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    tools = _optional(fields, "tools", _list) or []
    for index, tool in enumerate(tools):
        function = _mapping(tool, f"body.tools.{index}").get("function")
        _string(
            _mapping(function, f"body.tools.{index}.function").get("name"),
            f"body.tools.{index}.function.name",
        )
    return () if fields.get("tool_choice") == "none" else tuple(tools)


def _messages(fields: dict[str, Any]) -> tuple[Message, ...]:
    if "messages" not in fields:
        raise Invalid("missing", "body.messages", "Field required", fields)
    messages = _list(fields["messages"], "body.messages")
    return tuple(_message(message, f"body.messages.{index}") for index, message in enumerate(messages))


def _message(value: Any, place: str) -> Message:
    fields = _mapping(value, place)
    thought = fields.get("reasoning")
    thought = fields.get("reasoning_content") if thought is None else thought
    return Message(
        role=_string(fields.get("role"), f"{place}.role"),
        content=_content(fields.get("content"), f"{place}.content"),
        reasoning="" if thought is None else _string(thought, f"{place}.reasoning"),
        calls=tuple(_past_calls(fields, place)),
    )


def _content(value: Any, place: str) -> str | None:
    """Parts are joined by newlines; a part that is no text stands as its type."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise Invalid("string_type", place, "Input should be a valid string", value)
    parts = []
    for index, part in enumerate(value):
        kind = _mapping(part, f"{place}.{index}").get("type")
        is_text = kind in ("text", "input_text", None)
        parts.append(_string(part.get("text"), f"{place}.{index}.text") if is_text else f"<|{kind}|>")
    return "\n".join(parts)


def _past_calls(fields: dict[str, Any], place: str) -> list[str]:
    """Calls of an earlier turn, as the envelope that the templates print."""
    envelopes = []
    for index, call in enumerate(_optional(fields, "tool_calls", _list, f"{place}.") or []):
        where = f"{place}.tool_calls.{index}"
        function = _mapping(_mapping(call, where).get("function"), f"{where}.function")
        name, arguments = function.get("name"), function.get("arguments")
        shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        name = json.dumps(_string(name, f"{where}.function.name"), ensure_ascii=False)
        envelopes.append(f'{{"name": {name}, "arguments": {shown}}}')
    return envelopes
