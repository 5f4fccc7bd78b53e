"""Faults on demand: what there is, how it is asked for, and when it strikes.

Grammar of a header value (and of a fault in words): `name; option=value; option=value`, several faults separated by
commas. As JSON: {"fault": name, option: value, ...}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

HEADER = "X-Simulate-Fault"
LEGS = ("1", "2", "any")
CHANNELS = ("reasoning", "content", "tool")
FORMS = ("length", "no_done")
FIRST = ("event", "headers")


class FaultError(ValueError):
    """What is wrong with the wording of a fault; names what is allowed."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A fault that can be asked for. Options name the fields of Fault that mean something to it."""

    text: str
    options: tuple[str, ...] = ()
    leg: str = "1"
    mid_stream: bool = True

    @property
    def all_options(self) -> tuple[str, ...]:
        return ("leg", *(("after", "in") if self.mid_stream else ()), *self.options)


KINDS: dict[str, FaultKind] = {
    "reset": FaultKind("the connection is reset (RST)"),
    "disconnect": FaultKind(
        "the connection is closed without the closing chunk, as by SIGKILL of the API process"
    ),
    "half_closed": FaultKind("the engine's side is closed (FIN), the other side stays open"),
    "eof": FaultKind("a clean end without finish_reason"),
    "done_without_finish": FaultKind("[DONE] and a clean end without finish_reason"),
    "cut_inside_event": FaultKind("the connection is closed in the middle of an event"),
    "cut_inside_character": FaultKind("the connection is closed in the middle of a multi-byte character"),
    "stall": FaultKind(
        "silence, the connection stays open; `for` seconds, then it goes on (default: for ever)", ("for",)
    ),
    "stall_with_pings": FaultKind("no data but a comment line each `every` seconds (1)", ("for", "every")),
    "error_event": FaultKind(
        "the engine's error event and [DONE]; `code` is another error code than the engine's", ("code",)
    ),
    "error_event_named": FaultKind("`event: error` whose data has no `error` key, and [DONE]"),
    "client_error_event": FaultKind(
        "an error event that blames the request: code 400 (or `code`), and [DONE]", ("code",)
    ),
    "aborted": FaultKind('finish_reason "abort", usage, [DONE]'),
    "malformed": FaultKind("a data line that is no JSON; the stream goes on after it"),
    "truncated": FaultKind(
        "form=length: shorter than its Content-Length; form=no_done: whole, but [DONE] is missing", ("form",)
    ),
    "refuse": FaultKind(
        "an error status instead of an answer: `status` (503)", ("status",), mid_stream=False
    ),
    "empty": FaultKind("status 200 and a clean end without any event", mid_stream=False),
    "slow_first_token": FaultKind(
        "silence of `delay` seconds (2) before the first event, or before=headers",
        ("delay", "before"),
        mid_stream=False,
    ),
    "no_usage": FaultKind("usage is never told", mid_stream=False),
    "ending_lost": FaultKind("cut after the finish_reason: no usage, no [DONE]", mid_stream=False),
    "hold_open": FaultKind("the connection stays open after [DONE]", mid_stream=False),
    "restart": FaultKind(
        "the prefix is ignored: the answer starts over; after `depart` characters with another text",
        ("depart",),
        leg="2",
        mid_stream=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """after counts events sent (those of `channel` only, where given); it strikes before the finish at the latest.

    Seconds in delay, every and lasts (None: until the client leaves). depart is in characters.
    """

    name: str
    leg: str = "1"
    after: int = 12
    channel: str | None = None
    status: int = 503
    code: int | None = None
    delay: float = 2.0
    before: str = "event"
    every: float = 1.0
    lasts: float | None = None
    form: str = "length"
    depart: int | None = None

    @property
    def kind(self) -> FaultKind:
        return KINDS[self.name]

    def concerns(self, leg: int) -> bool:
        return self.leg in ("any", str(leg))


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
            raise FaultError(f"a whole number from {least} to {most}")
        return int(text)

    return read


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 86400:
        raise FaultError("seconds, from 0 to 86400")
    return seconds


def _one_of(options: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in options:
            raise FaultError(" | ".join(options))
        return text.lower()

    return read


# option -> (field of Fault, reader)
_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "leg": ("leg", _one_of(LEGS)),
    "after": ("after", _whole(0, 1_000_000)),
    "in": ("channel", _one_of(CHANNELS)),
    "status": ("status", _whole(400, 599)),
    "code": ("code", _whole(400, 599)),
    "delay": ("delay", _seconds),
    "before": ("before", _one_of(FIRST)),
    "every": ("every", _seconds),
    "for": ("lasts", _seconds),
    "form": ("form", _one_of(FORMS)),
    "depart": ("depart", _whole(0, 1_000_000)),
}


def build(name: str, options: Mapping[str, str]) -> Fault:
    """Raises FaultError, which names what is allowed."""
    if name not in KINDS:
        raise FaultError(f"unknown fault {name!r}; allowed: {', '.join(KINDS)}")
    kind = KINDS[name]
    fault = Fault(name, leg=kind.leg, code=400 if name == "client_error_event" else None)
    for option, text in options.items():
        if option not in kind.all_options:
            allowed = ", ".join(kind.all_options)
            raise FaultError(f"fault {name!r} has no option {option!r}; allowed: {allowed}")
        field, read = _OPTIONS[option]
        try:
            fault = replace(fault, **{field: read(text)})
        except FaultError as error:
            raise FaultError(
                f"option {option}={text!r} of fault {name!r} is wrong; allowed: {error}"
            ) from None
    return fault


def parse_header(value: str) -> tuple[Fault, ...]:
    """`name; option=value, name; ...`. Raises FaultError."""
    return tuple(_parse_one(part) for part in value.split(",") if part.strip())


def _parse_one(text: str) -> Fault:
    name, *words = (part.strip() for part in text.split(";"))
    options: dict[str, str] = {}
    for word in filter(None, words):
        option, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not value or option in options:
            raise FaultError(f"{word!r} is not understood; the grammar is `name; option=value; option=value`")
        options[option.lower()] = value
    return build(name.lower(), options)


@dataclass(slots=True)
class Armed:
    """A fault that waits for requests; times is how many it will still strike (None: all of them)."""

    fault: Fault
    times: int | None = 1

    def shown(self) -> dict[str, Any]:
        return shown(self.fault) | {"times": "always" if self.times is None else self.times}


def read_armed(value: object) -> list[Armed]:
    """From the JSON of POST /simulator/faults: an object or a list of them. Raises FaultError."""
    rows = value if isinstance(value, list) else [value]
    if not rows:
        raise FaultError(
            'an object such as {"fault": "reset", "after": 12, "times": 1, "leg": 1}, or a list of them'
        )
    return [_read_one(row) for row in rows]


def _read_one(row: object) -> Armed:
    if not isinstance(row, dict) or not isinstance(row.get("fault"), str):
        raise FaultError(f'each fault is an object with the key "fault", one of: {", ".join(KINDS)}')
    options = {str(key): str(value) for key, value in row.items() if key not in ("fault", "times")}
    if "after_events" in options:
        options["after"] = options.pop("after_events")
    times = row.get("times", 1)
    if times != "always" and (type(times) is not int or times < 1):
        raise FaultError(f'times={times!r} is wrong; allowed: a whole number from 1, or "always"')
    return Armed(build(row["fault"], options), None if times == "always" else times)


def shown(fault: Fault) -> dict[str, Any]:
    """The fault with the options that mean something to it."""
    values = {option: getattr(fault, _OPTIONS[option][0]) for option in fault.kind.all_options}
    return {"fault": fault.name} | {option: value for option, value in values.items() if value is not None}


def help_text() -> str:
    """A line for each fault with its options, for --help and for errors."""
    width = max(map(len, KINDS))
    return "\n".join(
        f"  {name:<{width}}  {kind.text} [{', '.join(kind.all_options)}]" for name, kind in KINDS.items()
    )
