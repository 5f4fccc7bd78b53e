"""Read a streamed answer, find what is wrong with its form, and compare it with the uninterrupted one."""

from __future__ import annotations

import http.client
import json
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engines.dialogues import DIALOGUES

MODEL = "tiny-qwen3"
REASONING = ("reasoning", "reasoning_content")
PATIENCE = 180.0


@dataclass
class Answer:
    """What one request was answered with: the events as received, and what they say together."""

    request_id: str
    status: int = 0
    events: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    broken: str = ""
    _read: int = 0
    _data: list[Any] = field(default_factory=list)

    @property
    def data(self) -> list[Any]:
        """Each data line: JSON, or "[DONE]". Events are parsed once, for this is asked for after each of them."""
        for event in self.events[self._read :]:
            texts = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            self._data += ["[DONE]" if text == b"[DONE]" else json.loads(text) for text in texts]
        self._read = len(self.events)
        return self._data

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [value for value in self.data if isinstance(value, dict) and "error" not in value]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [value["error"] for value in self.data if isinstance(value, dict) and "error" in value]

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for chunk in self.chunks for choice in chunk.get("choices") or []]

    def _joined(self, *names: str) -> str:
        return "".join(choice["delta"].get(name) or "" for choice in self.choices for name in names)

    @property
    def reasoning(self) -> str:
        return self._joined(*REASONING)

    @property
    def content(self) -> str:
        return self._joined("content")

    @property
    def finishes(self) -> list[str]:
        return [choice["finish_reason"] for choice in self.choices if choice.get("finish_reason")]

    @property
    def usage(self) -> dict[str, Any]:
        """The last one; empty if there is none."""
        return next((chunk["usage"] for chunk in reversed(self.chunks) if chunk.get("usage")), {})

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """id, name and arguments of each, in order; `ids` are all that were told for it."""
        calls: dict[int, dict[str, Any]] = {}
        for choice in self.choices:
            for piece in choice["delta"].get("tool_calls") or []:
                call = calls.setdefault(piece["index"], {"ids": [], "name": "", "arguments": ""})
                call["ids"] += [piece["id"]] if piece.get("id") else []
                function = piece.get("function") or {}
                call["name"] += function.get("name") or ""
                call["arguments"] += function.get("arguments") or ""
        return [calls[index] for index in sorted(calls)]

    @property
    def said(self) -> tuple[Any, ...]:
        """All that a reader sees of it, but for ids."""
        calls = [(call["name"], call["arguments"]) for call in self.tool_calls]
        return self.reasoning, self.content, calls, self.finishes

    def faults(self) -> list[str]:
        """What an answer that was finished has to have, and this one has not."""
        chunks, choices = self.chunks, self.choices
        roles = [choice["delta"]["role"] for choice in choices if choice["delta"].get("role")]
        usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        names = {name for choice in choices for name in choice["delta"] if name in REASONING}
        carried = any(choice.get("token_ids") or choice.get("prompt_token_ids") for choice in choices)
        checks = {
            f"broken: {self.broken}": bool(self.broken),
            f"errors: {self.errors}": bool(self.errors),
            "more than one id, created or model": len({(c["id"], c["created"], c["model"]) for c in chunks})
            != 1,
            f"roles {roles}": len(roles) != 1,
            f"finishes {self.finishes}": len(self.finishes) != 1,
            "[DONE] not once, or not last": [i for i, d in enumerate(self.data) if d == "[DONE]"]
            != [len(self.data) - 1],
            f"{len(usages)} usages": len(usages) != 1,
            f"a total that is no sum: {self.usage}": not _adds_up(self.usage),
            f"reasoning under {names}": len(names) > 1,
            "token ids that nobody asked for": carried or any(c.get("prompt_token_ids") for c in chunks),
            "a tool call with more than one id": any(len(call["ids"]) != 1 for call in self.tool_calls),
        }
        return [fault for fault, there in checks.items() if there]


def _adds_up(usage: dict[str, Any]) -> bool:
    parts = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    return bool(usage.get("total_tokens") == parts)


def chat(dialogue: int, **more: Any) -> dict[str, Any]:
    """The request for one of the dialogues."""
    asked = DIALOGUES[dialogue]
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": asked.user}],
        "temperature": 0,
        "max_tokens": 400,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return body | ({"tools": asked.tools} if asked.tools else {}) | more


def ask(
    port: int,
    body: dict[str, Any] | bytes,
    headers: dict[str, str] | None = None,
    on_event: Callable[[Answer], None] | None = None,
) -> Answer:
    """POST the chat request and read to the end; `on_event` is called after each event."""
    answer = Answer(str(uuid.uuid4()))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    sent = {"Content-Type": "application/json", "X-Request-Id": answer.request_id, **(headers or {})}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    pending = b""
    try:
        connection.request("POST", "/v1/chat/completions", raw, sent)
        response = connection.getresponse()
        answer.status = response.status
        while piece := response.read1(65536):
            pending += piece
            while b"\n\n" in pending:
                event, mark, pending = pending.partition(b"\n\n")
                answer.events.append(event + mark)
                answer.times.append(time.monotonic())
                if on_event:
                    on_event(answer)
    except (http.client.IncompleteRead, ConnectionError, TimeoutError) as trouble:
        answer.broken = repr(trouble)
    finally:
        connection.close()
    answer.broken = answer.broken or (f"an unfinished event {pending!r}" if pending else "")
    return answer


def verdict(got: Answer, want: Answer) -> str:
    """identical, space (equal but for white space), moved (into the other field), diverged or failed."""
    if got.errors or not got.finishes:
        return "failed"
    if got.said == want.said:
        return "identical"
    if got.said[2:] != want.said[2:]:
        return "diverged"
    a, b = (
        [re.sub(r"\s+", "", text) for text in (answer.reasoning, answer.content)] for answer in (got, want)
    )
    if a == b:
        return "space"
    return "moved" if "".join(a) == "".join(b) else "diverged"


def kind_of(first: Answer, want: Answer, inside_character: bool) -> str:
    """Where in the answer `want` its beginning `first` ends. R is inside the reasoning, C inside the content."""
    reasoning, content = first.reasoning, first.content
    if first.tool_calls:
        return "in a tool call"
    if not reasoning and not content:
        return "before any text"
    if (reasoning, content) == (want.reasoning, want.content) and not want.tool_calls:
        return "complete"
    if not content and reasoning == want.reasoning:
        return "R at its end"
    field_, text, whole = ("C", content, want.content) if content else ("R", reasoning, want.reasoning)
    if field_ == "C" and not content.strip():
        return "C only line breaks"
    if inside_character:
        return f"{field_} inside a character"
    if text[-1].isspace():
        return f"{field_} after white space"
    if text[-1].isalnum() and whole[len(text) : len(text) + 1].isalnum():
        return f"{field_} inside a word"
    return f"{field_} word boundary"
