"""Plan a chat request: guard it with a strategy, or pass it through for a reason. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from continuation.shapes.chat.asking import asking_for_ids
from continuation.shapes.chat.steps import Read, TooManyValuesError, read_in_steps
from continuation.shapes.chat.usage import Conversation, Estimator
from continuation.shapes.encoding import parse
from continuation.shapes.members import has_more_values
from continuation.vocabulary import PassReason
from strategies.builders import remaining_budget, truth, whole_number
from strategies.types import CompiledStrategy, StrategyBook

DEEPEST = 200
# JSON values. A request with more is passed through: it would take too much memory and time to parse.
MOST_VALUES = 100_000
# Bytes. A larger body is read and written in a thread, because it would hold up the other streams.
INLINE_BYTES = 2**16
# Bytes. A larger body is parsed in steps: that takes longer, but other streams go on between them.
WHOLE_BYTES = 2**20
STRUCTURED_KEYS = ("structured_outputs", "regex", "ebnf", "json_schema")


@dataclass(frozen=True, slots=True)
class Passthrough:
    reason: PassReason


@dataclass(frozen=True, slots=True)
class Guarded:
    """A request whose stream is watched: its bytes, and the fields that are needed while the stream lives.

    The parsed body is not stored: it may take 24 times the memory of its bytes.

    strategy        stays the same for this request when the book is swapped
    stops           its stop strings; stop_shown: whether the engine shows them
    choices         number of choices asked for (`n`); 1 if it cannot be read
    budget          tokens: the smaller of its limits, None without one
    asks_ids        whether the client asked for token ids
    asks_usage      whether it asked for the usage event at the end; asks_usage_always: for usage on every chunk
    conversation    read already if the body is above INLINE_BYTES; else None, and read when it is needed
    """

    body: bytes
    strategy: CompiledStrategy
    model: str = ""
    stops: tuple[str, ...] = ()
    stop_shown: bool = False
    choices: int = 1
    budget: int | None = None
    asks_ids: bool = False
    asks_usage: bool = False
    asks_usage_always: bool = False
    conversation: Conversation | None = None

    @classmethod
    def of(
        cls,
        body: bytes,
        request: Mapping[str, Any],
        strategy: CompiledStrategy,
        conversation: Conversation | None = None,
    ) -> Guarded:
        """request: the parsed `body`."""
        model, options = request.get("model"), request.get("stream_options")
        asked = options if isinstance(options, dict) else {}
        return cls(
            body,
            strategy,
            model=model if isinstance(model, str) else "",
            stops=_stops(request.get("stop")),
            stop_shown=any(
                truth(request.get(name)) for name in ("include_stop_str_in_output", "no_stop_trim")
            ),
            choices=max(1, whole_number(request.get("n")) or 1),
            budget=remaining_budget(request, 0),
            asks_ids=truth(request.get("return_token_ids")) is True,
            asks_usage=truth(asked.get("include_usage")) is True,
            asks_usage_always=truth(asked.get("continuous_usage_stats")) is True,
            conversation=conversation,
        )

    @property
    def carries_ids(self) -> bool:
        """Whether leg 1 is asked for token ids. They cannot be used with stop strings, which hold back text; several
        choices are never continued."""
        return self.strategy.token_exact and not self.stops and self.choices == 1

    @property
    def leg1_body(self) -> bytes:
        """The client's bytes, with the request for token ids added if leg 1 carries them."""
        if not self.carries_ids:
            return self.body
        return asking_for_ids(self.body)

    def read_conversation(self, estimator: Estimator) -> Conversation:
        """The conversation. This parses the body if that has not been done yet."""
        return self.conversation or Conversation.of(parse(self.body), estimator)

    def remaining(self, spent: int) -> int | None:
        """Tokens that are left of the budget after `spent`; None without one."""
        return None if self.budget is None else self.budget - spent


def _stops(stop: object) -> tuple[str, ...]:
    found = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    return tuple(word for word in found if isinstance(word, str) and word)


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings for planning: CONTINUATION_MODEL and _ENGINE, the largest body in bytes, the token estimate."""

    model: str
    engine: str
    largest_body: int
    estimator: Estimator = field(default_factory=Estimator)


def plan(body: bytes, opted_out: bool, book: StrategyBook, choice: Choice) -> Guarded | Passthrough:
    if len(body) > choice.largest_body:
        return Passthrough(PassReason.BODY_TOO_LARGE)
    try:
        found = _read(body)
    except TooManyValuesError:
        return Passthrough(PassReason.BODY_TOO_LARGE)
    except ValueError:
        return Passthrough(PassReason.NOT_JSON)
    request = found.value
    if not isinstance(request, dict) or _is_deep(request):
        return Passthrough(PassReason.NOT_JSON)
    if reason := _pass_reason(request, opted_out):
        return Passthrough(reason)
    model = request.get("model")
    strategy = book.select(model if isinstance(model, str) else "", choice.model, choice.engine).strategy
    if strategy is None:
        return Passthrough(PassReason.NO_STRATEGY)
    is_large = len(body) > INLINE_BYTES
    conversation = Conversation.of(request, choice.estimator, found.long) if is_large else None
    return Guarded.of(body, request, strategy, conversation)


def _read(body: bytes) -> Read:
    if len(body) > WHOLE_BYTES:
        return read_in_steps(body, MOST_VALUES)
    if len(body) > MOST_VALUES and has_more_values(body, MOST_VALUES):
        raise TooManyValuesError
    return Read(parse(body))


def _is_deep(request: dict[str, Any]) -> bool:
    """Whether the request is nested too deeply to be written again. No real request is."""
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
    return None


def _is_structured(request: dict[str, Any]) -> bool:
    """Whether a grammar shapes the answer. It restarts at its root in a continuation, so the answer cannot go on."""
    shape = request.get("response_format")
    if isinstance(shape, dict) and shape.get("type") not in (None, "text"):
        return True
    return any(
        value is not None and (key in STRUCTURED_KEYS or key.startswith("guided_"))
        for key, value in request.items()
    )
