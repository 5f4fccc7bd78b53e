"""A stream's record as a row of the audit: every value is made to fit its column."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.db import models
from django.utils import timezone

from continuation.models import ContinuationEvent
from continuation.splice.record import StreamRecord

TEXT_CHARACTERS = 1_000_000
MESSAGE_CHARACTERS = 200
JSON_DEPTH = 8
JSON_CHARACTERS = 20_000
WHOLE_LIMIT = 2**63 - 1


def event_of(row: StreamRecord) -> ContinuationEvent:
    """The row as any database takes it: without NUL, lone surrogates, NaN, numbers beyond 64 bits."""
    values = {
        field.attname: _clean(field, getattr(row, field.attname))
        for field in ContinuationEvent._meta.concrete_fields
        if not field.primary_key
    }
    return ContinuationEvent(**values)


def _clean(field: Any, value: Any) -> Any:
    match field:
        case models.CharField(name="leg2_message"):
            return _text(first_line(_text(value, TEXT_CHARACTERS)), MESSAGE_CHARACTERS)
        case models.CharField():
            return _text(value, field.max_length or TEXT_CHARACTERS)
        case models.TextField():
            return _text(value, TEXT_CHARACTERS)
        case models.JSONField():
            return _short_json(value) if value is not None or field.null else {}
        case models.BooleanField():
            return bool(value)
        case models.FloatField():
            return _finite(value)
        case models.DateTimeField():
            return _aware(value)
        case _:
            return _whole(value) if value is not None or field.null else 0


def _text(value: Any, most: int) -> str:
    text = "" if value is None else str(value)
    if len(text) > most:
        text = text[: most - 1] + "…"
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "").rstrip()


def _finite(value: Any) -> float | None:
    try:
        return float(value) if math.isfinite(value) else None
    except (TypeError, OverflowError):
        return None


def _whole(value: Any) -> int | None:
    return max(-WHOLE_LIMIT, min(WHOLE_LIMIT, int(value))) if isinstance(value, int) else None


def _aware(value: Any) -> datetime:
    if not isinstance(value, datetime):
        return timezone.now()
    return value if timezone.is_aware(value) else value.replace(tzinfo=UTC)


def _short_json(value: Any) -> Any:
    cleaned = _json(value, JSON_DEPTH)
    length = len(json.dumps(cleaned, ensure_ascii=False))
    return cleaned if length <= JSON_CHARACTERS else {"left_out": f"{length} characters"}


def _json(value: Any, depth: int) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return _whole(value)
        case float():
            return _finite(value)
        case dict() | list() | tuple() if not depth:
            return "…"
        case dict():
            return {_text(key, 200): _json(item, depth - 1) for key, item in value.items()}
        case list() | tuple():
            return [_json(item, depth - 1) for item in value]
        case _:
            return _text(value, JSON_CHARACTERS)


def without_text(row: StreamRecord) -> StreamRecord:
    return replace(row, partial_text="", continued_text="") if characters_of(row) else row


def characters_of(row: StreamRecord) -> int:
    return len(row.partial_text) + len(row.continued_text)
