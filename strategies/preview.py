"""The continuation request for a sample partial, for the admin's live preview."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError

from strategies.builders import continuation_body, final_message, whole_number
from strategies.types import CompiledStrategy, Partial

LONGEST_SAMPLE = 20_000


def sample_partial(sent: Mapping[str, Any]) -> Partial:
    return Partial(_sample_text(sent, "sample_reasoning"), _sample_text(sent, "sample_content"))


def preview(
    strategy: CompiledStrategy, partial: Partial, max_tokens: int | None, spent: int
) -> dict[str, Any]:
    """The final message in both cases, and the whole body of the continuation for this partial."""
    client_body: dict[str, Any] = {
        "model": "any-name",
        "messages": [{"role": "user", "content": "Say hello to the world."}],
        "stream": True,
    }
    if max_tokens is not None:
        client_body["max_tokens"] = max_tokens
    return {
        "case": partial.case,
        "token_route": strategy.render_generate,
        "thinking_partial": final_message(strategy, Partial(partial.reasoning)),
        "content_done": final_message(strategy, partial) if partial.content else None,
        "body": continuation_body(client_body, strategy, partial, spent),
    }


def sample_number(sent: Mapping[str, Any], key: str, label: str) -> int | None:
    """Read a whole number of the sample; None if the field is empty."""
    raw = str(sent.get(key) or "").strip()
    number = whole_number(raw)
    if raw and (number is None or number < 0):
        raise ValidationError({label: f"{raw[:40]!r} is no whole number; 0 or more, or nothing, is allowed."})
    return number


def _sample_text(sent: Mapping[str, Any], key: str) -> str:
    # Browsers send the line breaks of a text area as CRLF.
    return str(sent.get(key) or "").replace("\r\n", "\n")[:LONGEST_SAMPLE]
