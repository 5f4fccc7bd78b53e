"""A chat request is planned: guarded with a strategy, or passed through for a reason. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from continuation.asking import asking_for_ids
from continuation.chunks import parse, parse_exact
from strategies.builders import truth, whole_number
from strategies.types import CompiledStrategy, StrategyBook

DEEPEST = 200
STRUCTURED_KEYS = ("structured_outputs", "regex", "ebnf", "json_schema")


class PassReason(StrEnum):
    """Why a chat request is passed through, in the order in which they are looked for."""

    BODY_TOO_LARGE = "body_too_large"
    NOT_JSON = "not_json"
    NOT_STREAM = "not_stream"
    CLIENT_OPT_OUT = "client_opt_out"
    CLIENT_CONTINUATION = "client_continuation"
    STRUCTURED_OUTPUT = "structured_output"
    MULTIPLE_CHOICES = "multiple_choices"
    NO_STRATEGY = "no_strategy"
    CONTENT_ENCODED = "content_encoded"  # found only when the answer arrives: it cannot be read


@dataclass(frozen=True, slots=True)
class Passthrough:
    reason: PassReason


@dataclass(frozen=True, slots=True)
class Guarded:
    """A request whose stream is watched. `request` is the parsed `body`; the strategy stays pinned to it."""

    body: bytes
    request: Mapping[str, Any]
    strategy: CompiledStrategy

    @property
    def carries_ids(self) -> bool:
        """Whether leg 1 is asked for token ids. With stop strings they run ahead of the text, and are no use."""
        return self.strategy.token_exact and not self.stops

    @property
    def asks_ids(self) -> bool:
        return truth(self.request.get("return_token_ids")) is True

    @property
    def leg1_body(self) -> bytes:
        """The client's own bytes, unless ids are to be carried."""
        if not self.carries_ids:
            return self.body
        return asking_for_ids(parse_exact(self.body))

    @property
    def model(self) -> str:
        model = self.request.get("model")
        return model if isinstance(model, str) else ""

    @property
    def asks_usage(self) -> bool:
        """Whether the client asked for the usage event at the end."""
        return self._asks("include_usage")

    @property
    def asks_usage_always(self) -> bool:
        """Whether the client asked for usage on every chunk."""
        return self._asks("continuous_usage_stats")

    @property
    def stops(self) -> tuple[str, ...]:
        stop = self.request.get("stop")
        found = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
        return tuple(word for word in found if isinstance(word, str) and word)

    @property
    def stop_shown(self) -> bool:
        switches = (self.request.get(name) for name in ("include_stop_str_in_output", "no_stop_trim"))
        return any(map(truth, switches))

    def _asks(self, option: str) -> bool:
        options = self.request.get("stream_options")
        return isinstance(options, dict) and truth(options.get(option)) is True


@dataclass(frozen=True, slots=True)
class Choice:
    """What the operator configured: CONTINUATION_MODEL, CONTINUATION_ENGINE, and the largest body in bytes."""

    model: str
    engine: str
    largest_body: int


def plan(body: bytes, opted_out: bool, book: StrategyBook, choice: Choice) -> Guarded | Passthrough:
    if len(body) > choice.largest_body:
        return Passthrough(PassReason.BODY_TOO_LARGE)
    try:
        request = parse(body)
    except ValueError:
        return Passthrough(PassReason.NOT_JSON)
    if not isinstance(request, dict) or _is_deep(request):
        return Passthrough(PassReason.NOT_JSON)
    if reason := _pass_reason(request, opted_out):
        return Passthrough(reason)
    model = request.get("model")
    strategy = book.select(model if isinstance(model, str) else "", choice.model, choice.engine).strategy
    return Guarded(body, request, strategy) if strategy else Passthrough(PassReason.NO_STRATEGY)


def _is_deep(request: dict[str, Any]) -> bool:
    """Whether it is nested beyond what can be written again; no real request is."""
    level: list[Any] = [request]
    for _ in range(DEEPEST):
        inner = (part.values() if isinstance(part, dict) else part for part in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return False
    return True


def _pass_reason(request: dict[str, Any], opted_out: bool) -> PassReason | None:
    if truth(request.get("stream")) is not True:
        return PassReason.NOT_STREAM
    if opted_out:
        return PassReason.CLIENT_OPT_OUT
    if truth(request.get("continue_final_message")) or truth(request.get("add_generation_prompt")) is False:
        return PassReason.CLIENT_CONTINUATION
    if _is_structured(request):
        return PassReason.STRUCTURED_OUTPUT
    if (whole_number(request.get("n")) or 1) > 1:
        return PassReason.MULTIPLE_CHOICES
    return None


def _is_structured(request: dict[str, Any]) -> bool:
    """A grammar restarts at its root in a continuation, so what it wrote cannot be continued."""
    shape = request.get("response_format")
    if isinstance(shape, dict) and shape.get("type") not in (None, "text"):
        return True
    return any(
        value is not None and (key in STRUCTURED_KEYS or key.startswith("guided_"))
        for key, value in request.items()
    )
