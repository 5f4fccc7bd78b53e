"""What the gateway asks of leg 1 beyond the client's request, and keeps from the client.

For a continuation by carried ids the engine is asked to report the ids of its prompt and of each chunk, and to
count as it goes. Chunks are then shown as they would have been without that.
"""

from __future__ import annotations

from continuation.chunks import JSON, choices, delta_of, dump_exact, event_of, finish_of, usage_of


def asking_for_ids(request: JSON) -> bytes:
    """The body of leg 1: `request` with ids and running usage asked for."""
    options = request.get("stream_options")
    told = options if isinstance(options, dict) else {}
    wanted = {**told, "include_usage": True, "continuous_usage_stats": True}
    return dump_exact({**request, "return_token_ids": True, "stream_options": wanted})


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
