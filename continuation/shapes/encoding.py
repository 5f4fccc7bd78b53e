"""JSON as engines and clients write it: read leniently, and written again without loss."""

from __future__ import annotations

import json
from typing import Any

import orjson

from continuation.shapes.sse import data_event

JSON = dict[str, Any]


def parse(data: bytes) -> Any:
    """The JSON value of `data`; ValueError if it is none.

    orjson is strict where engines and clients are not: NaN, lone surrogates, bytes that are no UTF-8.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except RecursionError as deep:
        raise ValueError("nested too deeply") from deep


def parse_exact(data: bytes) -> Any:
    """As `parse`, with whole numbers of any size kept exact; for a body that is written again."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except RecursionError as deep:
        raise ValueError("nested too deeply") from deep


def dump(value: Any) -> bytes:
    """Compact JSON; lone surrogates, which UTF-8 cannot hold, are written as escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def dump_exact(value: Any) -> bytes:
    """For a request that is sent on: NaN and whole numbers of any size stay what they are."""
    return json.dumps(value, separators=(",", ":")).encode()


def event_of(value: Any) -> bytes:
    return data_event(dump(value))
