"""An event stream as a client reads it: what it says, and everything about its form that can be wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Any

import orjson

JSON = dict[str, Any]
BOM = b"\xef\xbb\xbf"
_BLOCK_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"[^"]')
_NAMES = ("reasoning", "reasoning_content")


@dataclass(slots=True)
class Call:
    """One tool call; ids: all that came for it."""

    ids: list[str] = field(default_factory=list)
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Told:
    """kinds has a word for each event with data: role, reasoning, content, tool, idle, finish, usage, done, error.

    running: the completion tokens that each event told, in order. identities: (id, created, model) of all chunks.
    """

    reasoning: str = ""
    content: str = ""
    calls: dict[int, Call] = field(default_factory=dict)
    finishes: list[str] = field(default_factory=list)
    roles: int = 0
    usages: list[JSON] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    errors: list[JSON] = field(default_factory=list)
    identities: set[tuple[Any, ...]] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    kinds: list[str] = field(default_factory=list)
    unreadable: list[bytes] = field(default_factory=list)

    @property
    def dones(self) -> int:
        return self.kinds.count("done")

    @property
    def has_text(self) -> bool:
        return bool(self.reasoning or self.content)

    @property
    def said(self) -> tuple[Any, ...]:
        """All that a reader sees of it, but for ids."""
        calls = [(call.name, call.arguments) for _, call in sorted(self.calls.items())]
        return self.reasoning, self.content, calls, self.finishes

    # -- reading -----------------------------------------------------------------------------------

    def take(self, name: str, data: bytes) -> None:
        if data == b"[DONE]":
            self.kinds.append("done")
            return
        try:
            value = orjson.loads(data)
        except ValueError:
            self.unreadable.append(data)
            return
        if (
            name == "error"
            or not isinstance(value, dict)
            or value.get("error")
            or value.get("object") == "error"
        ):
            self._error(value)
        else:
            self._chunk(value)

    def _error(self, value: Any) -> None:
        error = value.get("error", value) if isinstance(value, dict) else value
        self.errors.append(error if isinstance(error, dict) else {"message": error})
        self.kinds.append("error")

    def _chunk(self, chunk: JSON) -> None:
        self.identities.add((chunk.get("id"), chunk.get("created"), chunk.get("model")))
        usage, choices = chunk.get("usage"), chunk.get("choices") or []
        if usage:
            self.running.append(usage.get("completion_tokens"))
            self.usages += [usage] if not choices else []
        self.kinds.append("usage" if usage and not choices else "idle")
        for choice in choices:
            self._choice(choice)

    def _choice(self, choice: JSON) -> None:
        delta = choice.get("delta") or {}
        if delta.get("role"):
            self.roles += 1
            self.kinds[-1] = "role"
        present = [name for name in _NAMES if delta.get(name)]
        self.names.update(present)
        if present:
            self.reasoning += delta[present[0]]
            self.kinds[-1] = "reasoning"
        if delta.get("content"):
            self.content += delta["content"]
            self.kinds[-1] = "content"
        for piece in delta.get("tool_calls") or []:
            self._call(piece)
        if finish := choice.get("finish_reason"):
            self.finishes.append(finish)
            self.kinds[-1] = "finish"

    def _call(self, piece: JSON) -> None:
        self.kinds[-1] = "tool"
        call = self.calls.setdefault(piece.get("index", 0), Call())
        function = piece.get("function") or {}
        call.ids += [piece["id"]] if piece.get("id") else []
        call.name += function.get("name") or ""
        call.arguments += function.get("arguments") or ""


def read(stream: bytes) -> Told:
    """All events of a stream; a last one without its blank line counts."""
    told = Told()
    for name, data in _events(stream):
        told.take(name, data)
    return told


def _events(stream: bytes) -> Iterator[tuple[str, bytes]]:
    text, plain = stream.removeprefix(BOM), b"\r" not in stream
    for block in text.split(b"\n\n") if plain else _BLOCK_END.split(text):
        name, data = "", []
        for line in block.split(b"\n") if plain else _LINE_END.split(block):
            field_, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field_ == b"data":
                data.append(value)
            elif field_ == b"event":
                name = value.decode("utf-8", "replace")
        if data:
            yield name, b"\n".join(data)


def has_finish(event: bytes) -> bool:
    """Whether an event of an engine holds a finish_reason. In text the quotes would be escaped."""
    return _FINISH.search(event) is not None


def difference(what: str, want: Any, got: Any) -> str:
    """One line; "" if they are equal."""
    return "" if want == got else f"{what}: wanted {want!r:.160}, got {got!r:.160}"


def text_difference(what: str, want: str, got: str) -> str:
    """One line that says where two texts part; "" if they are equal."""
    if want == got:
        return ""
    at = len(commonprefix([want, got]))  # noqa: RUF071 - character by character is what is wanted
    before = want[max(0, at - 16) : at]
    ends = [repr(text[at : at + 24]) if text[at:] else "its end" for text in (want, got)]
    return f"{what}, character {at}: after {before!r} wanted {ends[0]}, got {ends[1]}"
