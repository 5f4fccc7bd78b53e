"""What the gateway asks of each leg: the client's request with a few fields changed, its other bytes as they are.

For a continuation by carried ids the engine is asked to report the ids of its prompt and of each chunk, and to
count as it goes, beyond the client's request. Chunks are then shown as they would have been without that.
"""

from __future__ import annotations

from continuation.shapes.chat.chunks import choices, delta_of, finish_of, usage_of
from continuation.shapes.encoding import JSON, dump_exact, event_of
from continuation.shapes.members import Members
from strategies.builders import FIELDS_READ, continuation_fields, final_message
from strategies.types import CompiledStrategy, Partial


def asking_for_ids(body: bytes) -> bytes:
    """The body of leg 1: the client's with ids and running usage asked for."""
    sent = Members.of(body)
    options = sent.read(["stream_options"]).get("stream_options")
    told = options if isinstance(options, dict) else {}
    wanted = {**told, "include_usage": True, "continuous_usage_stats": True}
    return sent.changed({"return_token_ids": b"true", "stream_options": dump_exact(wanted)})


def asking_to_continue(body: bytes, strategy: CompiledStrategy, partial: Partial, spent: int) -> bytes:
    """The body of leg 2, of the client's `body`: as strategies.builders.continuation_body says."""
    sent = Members.of(body)
    fields = continuation_fields(sent.read(FIELDS_READ), strategy, partial, spent)
    messages = _with_last(sent.value("messages"), final_message(strategy, partial))
    return sent.changed({"messages": messages} | {name: dump_exact(value) for name, value in fields.items()})


def _with_last(array: bytes, value: JSON) -> bytes:
    """The JSON array and one more value; what is no array counts as an empty one."""
    before = array.rstrip()[:-1].rstrip() if array.startswith(b"[") else b"["
    return before + (b"" if before == b"[" else b",") + dump_exact(value) + b"]"


class Unasked:
    """Takes out of a chunk what only the gateway asked for."""

    def __init__(self, *, ids: bool, usage: bool, running_usage: bool) -> None:
        """What the client itself asked for."""
        self._ids, self._usage, self._running = ids, usage, running_usage

    def shown(self, chunk: JSON) -> bytes | None:
        """The event for the client; None if there would have been none."""
        found = choices(chunk)
        if not found:
            return event_of(chunk) if self._usage or usage_of(chunk) is None else None
        if not self._ids and not any(_tells(choice) for choice in found):
            return None
        kept = chunk if self._ids else _without_ids(chunk)
        if not self._running:
            kept = {key: value for key, value in kept.items() if key != "usage"}
        return event_of(kept)


def _tells(choice: JSON) -> bool:
    """Ids whose text is still held back come in chunks of their own."""
    return bool(delta_of(choice)) or finish_of(choice) is not None or bool(choice.get("logprobs"))


def _without_ids(chunk: JSON) -> JSON:
    kept = {**chunk, "choices": [_null(choice, "token_ids") for choice in choices(chunk)]}
    return _null(kept, "prompt_token_ids")


def _null(value: JSON, key: str) -> JSON:
    return {**value, key: None} if key in value else value
