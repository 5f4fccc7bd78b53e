"""The openai client, unmodified, as a reader of answers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from openai import OpenAI

from tests.engines.reading import MODEL, REASONING, chat


@dataclass
class Reading:
    """What the client's chunks said together."""

    reasoning: str = ""
    content: str = ""
    finishes: list[str] = field(default_factory=list)
    usages: list[tuple[int, int]] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    request_id: str = field(default_factory=lambda: str(uuid.uuid4()))


def read(port: int, dialogue: int, on_chunk: Callable[[Reading], None] | None = None) -> Reading:
    """usages are (prompt_tokens, completion_tokens)."""
    found = Reading()
    body = chat(dialogue)
    with (
        OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.create(
            model=MODEL,
            messages=body["messages"],
            temperature=0,
            max_tokens=body["max_tokens"],
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"X-Request-Id": found.request_id},
        ) as stream,
    ):
        for chunk in stream:
            found.ids.add(chunk.id)
            if chunk.usage:
                found.usages.append((chunk.usage.prompt_tokens, chunk.usage.completion_tokens))
            for choice in chunk.choices:
                extra = choice.delta.model_extra or {}
                found.reasoning += "".join(extra.get(name) or "" for name in REASONING)
                found.content += choice.delta.content or ""
                found.finishes += [choice.finish_reason] if choice.finish_reason else []
            if on_chunk:
                on_chunk(found)
    return found
