"""The token route's arithmetic: which ids are sent where, and what comes back as chat chunks. No I/O.

    render    -> the prompt's ids and the sampling parameters
    tokenize  -> the partial's ids, where leg 1 did not carry them
    generate  -> chunks of new ids
    derender  -> those ids as chat chunks, several generate chunks to a call

A generation's ids reach the client late by as much as a batch, so batches begin with one chunk and grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from continuation.shapes.chat.chunks import (
    REASONING_NAMES,
    choices,
    count,
    delta_of,
    finish_of,
    has_tool_call,
    ids_in,
    text_of,
    usage_of,
)
from continuation.shapes.encoding import JSON
from continuation.splice.pieces import (
    Field,
    Pieces,
    Token,
    TokenLedger,
    as_told,
    first,
    text_in,
    without_first,
)

# The first batches, in generate chunks: the first one goes out at once.
EARLY_BATCHES = (1, 2, 4)
# Derendering works through all of the answer again at each call, so batches grow with it, up to this many times.
LARGEST_GROWTH = 4
TOKENS_PER_GROWTH = 1000

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """Generate chunks that are derendered in one call. ids is without the end-of-turn token."""

    chunk: JSON
    ids: tuple[int, ...]
    finish: str | None
    stop: str | None


class Batches:
    """Gathers generate chunks; `take` gives a batch when one is due."""

    def __init__(self, size: int, markers: Sequence[Ids]) -> None:
        self._size = size
        self._markers = [tuple(marker) for marker in markers if len(marker) > 1]
        self._ids: list[int] = []
        self._logprobs: list[Any] = []  # one for each of the ids, where they were asked for
        self._chunks = 0
        self._early = [early for early in EARLY_BATCHES if early < size]
        self.generated = 0

    def take(self, chunk: JSON) -> Batch | None:
        choice = next(iter(choices(chunk)), None)
        if choice is None:
            return None
        ids = ids_in(choice.get("token_ids"))
        self.generated += len(ids)
        self._ids += ids
        self._logprobs += _logprobs_of(choice)
        self._chunks += 1
        finish = finish_of(choice)
        if finish is None and self._chunks < self._due():
            return None
        return self._batch(chunk, choice, finish)

    def _due(self) -> int:
        grown = min(LARGEST_GROWTH, 1 + self.generated // TOKENS_PER_GROWTH)
        return self._early[0] if self._early else self._size * grown

    def _batch(self, chunk: JSON, choice: JSON, finish: str | None) -> Batch | None:
        ids, held, stop = self._ids, [], choice.get("stop_reason")
        if finish is None:
            keep = self._start_of_marker(ids)
            ids, held = ids[: len(ids) - keep], ids[len(ids) - keep :]
        elif finish == "stop" and not isinstance(stop, str):
            ids = ids[:-1]  # the end of the turn, which derendering would print
        if not ids and finish is None:
            return None
        logprobs, self._logprobs = self._logprobs[: len(ids)], self._logprobs[len(ids) :]
        self._ids, self._chunks = held, 0
        if self._early:
            self._early.pop(0)
        told = {"token_ids": list(ids), "logprobs": {"content": logprobs} if logprobs else None}
        whole = {**chunk, "choices": [{**choice, **told}]}
        return Batch(whole, tuple(ids), finish, stop if isinstance(stop, str) else None)

    def _start_of_marker(self, ids: list[int]) -> int:
        """How many ids at the end may be the start of a marker: derendering must see it whole."""
        longest = max((len(marker) for marker in self._markers), default=1) - 1
        for length in range(min(longest, len(ids)), 0, -1):
            if any(
                marker[:length] == tuple(ids[-length:]) for marker in self._markers if len(marker) > length
            ):
                return length
        return 0


def _logprobs_of(choice: JSON) -> list[Any]:
    logprobs = choice.get("logprobs")
    found = logprobs.get("content") if isinstance(logprobs, dict) else None
    return found if isinstance(found, list) else []


class StopText:
    """Ends the text at the stop string that ended the generation: derendering shows it and what came with it."""

    def __init__(self, stops: Sequence[str], *, shown: bool) -> None:
        self._keep = max(map(len, stops), default=1) - 1
        self._shown = shown
        self._held: Pieces = []

    def feed(self, pieces: Pieces) -> Pieces:
        held = self._held + pieces
        certain = max(0, len(text_in(held)) - self._keep)
        self._held = without_first(held, certain)
        return first(held, certain)

    def end(self, pieces: Pieces, stop: str | None) -> Pieces:
        """The last of the text, up to `stop` if the generation ended there."""
        rest, self._held = self._held + pieces, []
        at = text_in(rest).find(stop) if stop else -1
        if at < 0 or stop is None:
            return rest
        return first(rest, at + len(stop) if self._shown else at)


class ChatChunks:
    """Derendered chunks as an engine would have streamed them: one kind of delta each, the finish on the last."""

    def __init__(
        self, stops: Sequence[str], *, stop_shown: bool, tool_call_seen: bool, ids_shown: bool = False
    ) -> None:
        """ids_shown: the client asked for token ids."""
        self._ids_shown = ids_shown
        self._stops = {field: StopText(stops, shown=stop_shown) for field in Field}
        self._tool_call_seen = tool_call_seen
        self._fields_seen: set[Field] = set()
        self._reasoning_name = REASONING_NAMES[0]
        self._tokens = TokenLedger()

    def of(self, derendered: JSON, batch: Batch) -> list[JSON]:
        choice = next(iter(choices(derendered)), {})
        delta = _without_nulls(delta_of(choice))
        self._tool_call_seen = self._tool_call_seen or has_tool_call(delta)
        ids = list(batch.ids) if self._ids_shown else None
        found = self._texts({"logprobs": choice.get("logprobs"), "token_ids": ids}, delta, batch)
        finish = self._finish(batch)
        found += [({"tool_calls": [call]}, self._tokens.rest()) for call in _calls(delta)]
        if not found and finish:
            found = [({}, [])]
        if finish and batch.stop is None:  # what comes behind a stop string is not shown
            found[-1][1].extend(self._tokens.rest())
        told = [_choice(one, tokens) for one, tokens in found]
        if told:
            told[-1]["finish_reason"] = finish
        shell = _without_nulls({key: value for key, value in derendered.items() if key != "choices"})
        return [{**shell, "choices": [one]} for one in told]

    def _texts(self, choice: JSON, delta: JSON, batch: Batch) -> list[tuple[JSON, list[Token]]]:
        """Deltas of one kind each, with the tokens of their texts."""
        name = next((name for name in REASONING_NAMES if delta.get(name)), self._reasoning_name)
        self._reasoning_name = name
        told = ((Field.REASONING, text_of(delta.get(name))), (Field.CONTENT, text_of(delta.get("content"))))
        pieces = self._tokens.pieces(choice, [(field, text) for field, text in told if text])
        self._fields_seen |= {piece.field for piece in pieces}
        found = []
        for field in (field for field in Field if field in self._fields_seen):
            own, stop = [piece for piece in pieces if piece.field is field], self._stops[field]
            ended = batch.finish is not None or self._is_over(field, delta)
            shown = stop.end(own, batch.stop) if ended else stop.feed(own)
            if shown:
                key = name if field is Field.REASONING else "content"
                found.append(({key: text_in(shown)}, self._tokens.take(shown)))
        return found

    def _is_over(self, field: Field, delta: JSON) -> bool:
        """Text of one kind ends where another kind begins."""
        return has_tool_call(delta) or (field is Field.REASONING and bool(delta.get("content")))

    def _finish(self, batch: Batch) -> str | None:
        """Generate's own, but for a stop after a tool call: derendering calls any ending after one tool_calls."""
        if batch.finish == "stop" and batch.stop is None and self._tool_call_seen:
            return "tool_calls"
        return batch.finish


def _calls(delta: JSON) -> list[Any]:
    calls = delta.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _choice(delta: JSON, tokens: Sequence[Token]) -> JSON:
    return {"index": 0, "delta": delta, **as_told(tokens), "finish_reason": None}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def seeded_state(carried: Ids, tool_ids: Sequence[str]) -> JSON:
    """The state of a derendering that has already shown `carried`, so that it goes on inside a tool call."""
    return {
        "role_sent": True,
        "output_token_ids": list(carried),
        "output_chunk_lens": [1] * len(carried),
        "tools_streamed": bool(tool_ids),
        "last_tool_call_ids": list(tool_ids),
    }


def generate_body(rendered: JSON, prompt: Ids, prefix: Ids) -> JSON | None:
    """Render's object with the prefix in it and what is left of the budget; None if nothing is left."""
    sampling = dict(rendered.get("sampling_params") or {})
    for name, least in (("max_tokens", 1), ("min_tokens", 0)):
        limit = count(sampling, name)
        if limit is not None:
            sampling[name] = max(limit - len(prefix), 0)
            if sampling[name] < least:
                return None
    return {
        **rendered,
        "token_ids": [*prompt, *prefix],
        "sampling_params": sampling,
        "output_mode": "tokens",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def ends_with_opening(prompt: Ids, opening: Ids) -> bool:
    """Whether the prompt ends with the thinking's opening; white space behind it may be a token or two."""
    tail, size = list(prompt[-(len(opening) + 2) :]), len(opening)
    return size > 0 and any(tail[at : at + size] == list(opening) for at in range(len(tail) - size + 1))


def thoughts_before(ids: Ids, closing: Ids) -> int | None:
    """How many of `ids` come before the closing token; None if it is not among them."""
    size = len(closing)
    found = (at for at in range(len(ids) - size + 1) if list(ids[at : at + size]) == list(closing))
    return next(found, None) if size else None


def generate_usage(chunk: JSON) -> int | None:
    """completion_tokens of generate's usage chunk."""
    return count(usage_of(chunk), "completion_tokens")
