"""What a reader of a stream gets and gives."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the answer. id: its number, 1, 2, 3 ...; None in an answer that is not resumable. data: its JSON,
    or its text if that is none. name: its `event:` field, mostly empty. replayed: it was there already when this
    client came back for it."""

    id: int | None
    data: Any
    name: str = ""
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """Where one is in a stream. last_id: the last event that was handed out, 0 for none. The token lets its holder
    read and stop the stream, together with the Authorization that asked for it: keep it like a password."""

    base_url: str
    stream_id: str
    token: str = field(repr=False)
    last_id: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Position:
        """Raises ValueError."""
        found = json.loads(text)
        kinds = {"base_url": str, "stream_id": str, "token": str, "last_id": int}
        if not isinstance(found, dict) or {name: type(value) for name, value in found.items()} != kinds:
            raise ValueError(f"a position has the fields {', '.join(kinds)}")
        if found["last_id"] < 0:
            raise ValueError("last_id is a number from 0")
        return cls(**found)


@dataclass(frozen=True, slots=True)
class Retries:
    """How long the way back is looked for.

    attempts     in a row, without a new event between them
    seconds      of an outage, from the break to an answer that can be read
    first, most  before attempt n is a random time of up to first * 2 ** (n - 1) seconds, and never more than most, on
                 top of what the server's Retry-After asks for
    clock        tells seconds; uniform draws a number between two
    """

    attempts: int = 10
    seconds: float = 120.0
    first: float = 0.25
    most: float = 10.0
    clock: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform


class Options(TypedDict, total=False):
    """What all ways in take by name.

    headers       go with every request: Authorization stands here
    retries       the limits of the way back
    read_timeout  seconds of silence after which a connection counts as broken, before the answer's headers too; None
                  waits for ever. Of a resumable answer silence is no failure: it is come back to
    checkpoints   have the gateway send new tokens while it streams, so that `position` stays good for longer
    """

    headers: Mapping[str, str]
    retries: Retries
    read_timeout: float | None
    checkpoints: bool
