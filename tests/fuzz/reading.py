"""What a stream says, read by other means than the gateway's own: the whole of it at once, as the standards have it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

LINE_END = re.compile(rb"\r\n|\n|\r")
WORD = re.compile(r"w(\d+)\.")
FINISH = re.compile(rb'"finish_reason" ?: ?"([^"\\]{1,64})"')
FAILED = ("abort", "error", "insufficient_system_resource", "network_error")


@dataclass(frozen=True)
class Block:
    """size: bytes before its blank line. whole: whether the blank line is there."""

    size: int
    raw: bytes
    data: bytes | None
    name: str
    whole: bool = True


def blocks(stream: bytes) -> list[Block]:
    """Those with at least one line; the last may lack its blank line."""
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    found: list[Block] = []
    start = at = 0
    lines: list[bytes] = []
    for end in LINE_END.finditer(stream):
        line = stream[at : end.start()]
        if line:
            lines.append(line)
        else:
            if lines:
                found.append(_block(lines, stream[start : end.end()], at - start, whole=True))
            lines, start = [], end.end()
        at = end.end()
    if stream[at:]:
        lines.append(stream[at:])
    if lines:
        found.append(_block(lines, stream[start:], len(stream) - start, whole=False))
    return found


def _block(lines: list[bytes], raw: bytes, size: int, *, whole: bool) -> Block:
    data, name = [], ""
    for line in lines:
        key, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value.decode("utf-8", "replace")
    return Block(size, raw, b"\n".join(data) if data else None, name, whole)


@dataclass
class Said:
    """What one leg said in events that are complete, until it failed or finished."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    usages: int = 0  # events of nothing else, after the finish
    counted: bool = False  # usage behind the finish, or with it, in a chunk that has choices
    roles: int = 0
    finish: str | None = None
    failure: str | None = None
    done: bool = False
    lost: bool = False
    before_calls: tuple[int, int] | None = None

    @property
    def words(self) -> list[int]:
        return words("".join(self.reasoning) + "".join(self.content))

    def without_calls(self) -> tuple[str, str]:
        reasoning, content = self.before_calls or (len(self.reasoning), len(self.content))
        return "".join(self.reasoning[:reasoning]), "".join(self.content[:content])


def words(text: str) -> list[int]:
    return [int(number) for number in WORD.findall(text)]


def said(stream: bytes, limit: int, *, ended: bool, to_the_finish: bool = False) -> Said:
    """ended: the stream is over, so that a last event without its blank line counts if it can be read.

    to_the_finish: what comes after a finish_reason is not read, nor what comes after an event that is too large.
    """
    told = Said()
    for block in blocks(stream):
        if not block.whole and (not ended or block.size > limit):
            told.lost = told.lost or block.size > limit
            break
        if block.size > limit:
            told.lost = True
            if to_the_finish:
                break
            finishes = (found.decode("latin-1") for found in FINISH.findall(block.raw))
            told.finish = told.finish or next((one for one in finishes if one not in (*FAILED, "null")), None)
            continue
        _take(told, block)
        if told.failure or told.done or (to_the_finish and told.finish):
            break
    return told


def _take(told: Said, block: Block) -> None:
    if not block.data:
        told.failure = "error_event" if block.name == "error" else None
        return
    if block.data == b"[DONE]":
        told.done, told.failure = told.finish is not None, None if told.finish else "eof"
        return
    try:
        value = json.loads(block.data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        cut = None if not block.whole else "malformed"
        told.failure = "error_event" if block.name == "error" else cut or "cut"
        return
    if block.name == "error":
        told.failure = "error_event"
        return
    if not isinstance(value, dict):
        return
    if value.get("error") or value.get("object") == "error":
        told.failure = "error_event"
        return
    chosen = [one for one in value.get("choices") or [] if isinstance(one, dict) and not one.get("index")]
    if any(one.get("finish_reason") in FAILED for one in chosen):
        told.failure = "aborted"
        return
    for one in chosen:
        _choice(told, one)
    if told.finish and value.get("usage") and isinstance(value["usage"], dict):
        if value.get("choices"):
            told.counted = True
        else:
            told.usages += 1


def _choice(told: Said, choice: dict[str, Any]) -> None:
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    calls = delta.get("tool_calls") or ([delta["function_call"]] if delta.get("function_call") else [])
    if calls and told.before_calls is None:
        told.before_calls = (len(told.reasoning), len(told.content))
    told.calls += calls
    told.roles += bool(delta.get("role"))
    reasoning, content = delta.get("reasoning") or delta.get("reasoning_content"), delta.get("content")
    told.reasoning += [reasoning] if isinstance(reasoning, str) and reasoning else []
    told.content += [content] if isinstance(content, str) and content else []
    finish = choice.get("finish_reason")
    if isinstance(finish, str) and finish not in ("", "null"):
        told.finish = told.finish or finish
