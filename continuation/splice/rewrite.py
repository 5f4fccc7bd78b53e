"""Leg 2's chunks as the client sees them: leg 1's identity and field names, one role, one usage, the joined text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from continuation.shapes.chat.chunks import (
    REASONING_NAMES,
    choices,
    delta_of,
    finish_of,
    has_tool_call,
    index_of,
    reasoning_of,
    text_of,
    usage_of,
)
from continuation.shapes.encoding import JSON, event_of
from continuation.splice.leg import Leg
from continuation.splice.pieces import Field, Pieces, TokenLedger, as_told, text_in
from continuation.splice.seam import Seam

# What an engine reports of the continuation's prompt, which is not the client's.
PROMPT_KEYS = ("prompt_token_ids", "prompt_text", "prompt_logprobs")


class Rewriter:
    """Turns one chunk of leg 2 into the events to be sent, in order."""

    def __init__(self, leg1: Leg, seam: Seam, usage_in_chunk: Callable[[JSON], JSON] | None) -> None:
        """usage_in_chunk gives the joined usage for a leg-2 usage; None where the client asked for no running usage."""
        self._leg1 = leg1
        self._seam = seam
        self._usage_in_chunk = usage_in_chunk
        self._role_seen = leg1.role_seen
        self._names = leg1.reasoning_names
        self._last: JSON = {}
        self._tokens = TokenLedger()
        self.text_seen = False
        self.finish_sent = False

    def chunk(self, chunk: JSON) -> tuple[list[bytes], list[bytes]]:
        """The events before the first tool call in this chunk, and those from it on. Raises RestartDeparted."""
        told: list[bytes] = []
        calls_from: int | None = None
        for choice in (choice for choice in choices(chunk) if index_of(choice) == 0):
            if self.finish_sent:
                break
            told += self._choice(self._shell(chunk), choice)
            if calls_from is None and has_tool_call(delta_of(choice)):
                calls_from = max(0, len(told) - 1)  # text that was held goes before the call
        at = len(told) if calls_from is None else calls_from
        return told[:at], told[at:]

    def last_words(self) -> list[bytes]:
        """Leg 2 has broken off: the text that the seam still holds. Raises RestartDeparted."""
        shell = {key: value for key, value in self._last.items() if key != "usage"}
        events = self._texts(shell, {}, self._seam.flush())
        return [*events, self._finish("stop")] if self._seam.stopped_at is not None else events

    def _choice(self, shell: JSON, choice: JSON) -> list[bytes]:
        self._last = shell
        delta = delta_of(choice)
        self._names = self._names or tuple(name for name in REASONING_NAMES if name in delta)
        waited, undecided = self._tokens.is_waiting, self._seam.is_undecided
        told = self._tokens.pieces(choice, _told(delta))
        shown = [piece for one in told for piece in self._seam.feed(one)]
        rest = self._rest(delta)
        finish = finish_of(choice)
        ends_text = finish is not None or has_tool_call(delta)
        if ends_text:
            shown += self._seam.flush()
        if self._seam.stopped_at is not None:
            return [*self._texts(shell, choice, shown), self._finish("stop")]
        self.finish_sent = self.finish_sent or finish is not None
        if shown == told and not waited and (told or ends_text or not undecided):
            self._tokens.rest()
            return self._whole(shell, choice, rest, shown)
        events = self._texts(shell, choice, shown)
        if ends_text or any(rest.values()):
            told_with = as_told(self._tokens.rest() if ends_text else [])
            events.append(event_of(shell | {"choices": [_bare(choice) | told_with | {"delta": rest}]}))
        return events

    def _whole(self, shell: JSON, choice: JSON, rest: JSON, shown: Pieces) -> list[bytes]:
        """The usual case: the chunk as it came, under leg 1's names; none if it holds nothing."""
        delta = self._delta(shown) | rest
        if not (
            any(delta.values()) or finish_of(choice) or choice.get("token_ids") or choice.get("logprobs")
        ):
            return []
        return [event_of(shell | {"choices": [choice | {"delta": delta}]})]

    def _texts(self, shell: JSON, choice: JSON, pieces: Pieces) -> list[bytes]:
        plain = {"index": 0, **_bare(choice), "finish_reason": None}
        found = []
        for some in _told_together(pieces):
            tokens = as_told(self._tokens.take(some))
            found.append(event_of(shell | {"choices": [plain | tokens | {"delta": self._delta(some)}]}))
        return found

    def _finish(self, finish: str) -> bytes:
        self.finish_sent = True
        return event_of(self._last | {"choices": [finish_choice(finish)]})

    def _delta(self, pieces: Pieces) -> JSON:
        self.text_seen = self.text_seen or bool(pieces)
        reasoning, content = (text_in(p for p in pieces if p.field is field) for field in Field)
        delta: JSON = dict.fromkeys(self._names or REASONING_NAMES[1:], reasoning) if reasoning else {}
        return delta | ({"content": content} if content else {})

    def _rest(self, delta: JSON) -> JSON:
        """A delta without its text, and without the role unless leg 1 never gave one."""
        rest = {
            key: value for key, value in delta.items() if key not in (*REASONING_NAMES, "content", "role")
        }
        if delta.get("role") and not self._role_seen:
            self._role_seen = True
            rest["role"] = delta["role"]
        return rest

    def _shell(self, chunk: JSON) -> JSON:
        dropped = (*PROMPT_KEYS, "usage", "choices", "system_fingerprint")
        shell = {key: value for key, value in chunk.items() if key not in dropped}
        shell = {"object": "chat.completion.chunk"} | shell
        shell |= {"id": self._leg1.id, "created": self._leg1.created, "model": self._leg1.model}
        if self._leg1.fingerprint is not None:
            shell["system_fingerprint"] = self._leg1.fingerprint
        usage = usage_of(chunk)
        if usage is not None and self._usage_in_chunk:
            shell["usage"] = self._usage_in_chunk(usage)
        return shell


def finish_choice(finish: str) -> JSON:
    return {"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish}


def _told_together(pieces: Pieces) -> list[Pieces]:
    """Held text of which no tokens are known is one event; else there may be very many."""
    found: list[Pieces] = []
    for piece in pieces:
        before = found[-1][-1] if found else None
        if before and not (before.tokens or piece.tokens) and before.field is piece.field:
            found[-1].append(piece)
        else:
            found.append([piece])
    return found


def _bare(choice: JSON) -> JSON:
    """A choice without its tokens."""
    return {**choice, "logprobs": None} | ({"token_ids": None} if "token_ids" in choice else {})


def _told(delta: JSON) -> list[tuple[Field, str]]:
    told = ((Field.REASONING, reasoning_of(delta)), (Field.CONTENT, text_of(delta.get("content"))))
    return [(field, text) for field, text in told if text]


def chunk_like(leg: Leg, **more: Any) -> JSON:
    """A chunk of our own with the identity of `leg`."""
    shell = {"id": leg.id, "object": "chat.completion.chunk", "created": leg.created, "model": leg.model}
    if leg.fingerprint is not None:
        shell["system_fingerprint"] = leg.fingerprint
    return shell | more
