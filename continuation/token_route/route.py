"""The token route to vLLM: render, tokenize, generate, derender - and the last resort where those are switched off.

What comes out reads like a chat stream, so the rest of the gateway does not know the difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from continuation.downstream.client import Readable, Upstream
from continuation.http.headers import RawHeaders
from continuation.http.threads import worked_out
from continuation.shapes.chat.chunks import choices, count, error_object, finish_of, is_error, text_of
from continuation.shapes.chat.usage import Delivered
from continuation.shapes.encoding import JSON, dump, event_of, parse
from continuation.shapes.members import Members
from continuation.shapes.sse import DONE, DONE_EVENT, Event, EventDecoder
from continuation.splice.actions import OpenTokens
from continuation.splice.rewrite import finish_choice
from continuation.splice.seam import overlap
from continuation.token_route.ids import (
    Batch,
    Batches,
    ChatChunks,
    Ids,
    ends_with_opening,
    generate_body,
    generate_usage,
    seeded_state,
    thoughts_before,
)
from strategies.builders import whole_number, without_lone_surrogates
from strategies.types import CompiledStrategy, Fallback

RENDER = "/v1/chat/completions/render"
DERENDER = "/v1/chat/completions/derender"
GENERATE = "/inference/v1/generate"
TOKENIZE = ("/tokenize", "/v1/tokenize")
COMPLETIONS = "/v1/completions"
EVENT_STREAM: RawHeaders = [(b"content-type", b"text/event-stream")]
NOT_THERE = (403, 404, 405)
# Seconds after which a missing endpoint is asked for again: servers are restarted with other flags.
MISSING_SECONDS = 300.0
ANSWER_BYTES = 2**25
EVENT_BYTES = 2**25
QUEUED_PIECES = 4
# Fields of a chat request that a completion request understands as well.
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words", "allowed_token_ids", "ignore_eos",
    "include_stop_str_in_output", "priority", "cache_salt",
)  # fmt: skip

Post = Callable[[str, bytes], Awaitable[Upstream]]
REMEMBERED_TEXTS = 1000


class Endpoints:
    """What is known of the servers that were asked, by their base URL: whether the endpoints of the token route are
    missing, and the ids of control tokens."""

    def __init__(self) -> None:
        self._missing_until: dict[str, float] = {}  # time.monotonic()
        self._ids: dict[tuple[str, str, str], tuple[int, ...]] = {}

    def note_missing(self, base: str) -> None:
        """Other continuations need not find it out again."""
        self._missing_until[base] = time.monotonic() + MISSING_SECONDS

    def are_missing(self, base: str) -> bool:
        return self._missing_until.get(base, 0) > time.monotonic()

    def ids_of(self, base: str, model: str, text: str) -> tuple[int, ...] | None:
        return self._ids.get((base, model, text))

    def note_ids(self, base: str, model: str, text: str, ids: Sequence[int]) -> tuple[int, ...]:
        if len(self._ids) >= REMEMBERED_TEXTS:
            self._ids.clear()
        found = self._ids[base, model, text] = tuple(ids)
        return found


class ScaleOutMissing(Exception):
    """The server does not have an endpoint that the token route needs."""


class Refused(Exception):
    """An endpoint answered with an error."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class TokenBody:
    """Reads like the body of an event stream; a task of its own produces it."""

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], name: str, source: Readable | None = None
    ) -> None:
        """source is closed with it, also if no piece has been asked for yet."""
        self._source = source
        self._queue: asyncio.Queue[bytes | Exception] = asyncio.Queue(QUEUED_PIECES)
        self._ended = False
        self._trouble: Exception | None = None
        self._task = asyncio.create_task(self._produce(pieces), name=name)

    async def _produce(self, pieces: AsyncGenerator[bytes, None]) -> None:
        last: bytes | Exception = b""
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    await self._queue.put(piece)
        except Exception as trouble:
            last = trouble
        await self._queue.put(last)

    async def read(self) -> bytes:
        return b"" if self._ended else self._taken(self._trouble or await self._queue.get())

    def read_nowait(self) -> bytes:
        return b"" if self._ended or self._queue.empty() else self._taken(self._queue.get_nowait())

    def _taken(self, item: bytes | Exception) -> bytes:
        if isinstance(item, Exception):
            self._trouble = item
            raise item
        self._ended = not item
        return item

    @property
    def at_end(self) -> bool:
        return self._ended

    def close(self) -> None:
        self._task.cancel()
        if self._source is not None:
            self._source.close()

    async def aclose(self) -> None:
        self.close()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def open_tokens(
    job: OpenTokens, endpoints: Endpoints, base: str, post: Post, batch_chunks: int
) -> Upstream:
    """The continuation on the token route, or on the last resort where the strategy names that.

    Raises ScaleOutMissing, Refused, httpx.HTTPError.
    """
    route = _Route(job, endpoints, base, post)
    last_resort = job.strategy.without_scale_out is Fallback.COMPLETIONS
    if last_resort:
        last_resort = not (await worked_out(job.size, lambda: job.request)).get("tools")
    if not endpoints.are_missing(base):
        try:
            return await route.generate(batch_chunks)
        except ScaleOutMissing:
            endpoints.note_missing(base)
            if not last_resort:
                raise
    if not last_resort:
        raise ScaleOutMissing("this server was without the scale-out endpoints a moment ago")
    return await route.complete()


class _Route:
    def __init__(self, job: OpenTokens, endpoints: Endpoints, base: str, post: Post) -> None:
        self._job = job
        self._endpoints = endpoints
        self._base = base
        self._post = post
        self._model = job.plan.model

    # -- token route -------------------------------------------------------------------------------

    async def generate(self, batch_chunks: int) -> Upstream:
        job = self._job
        # Also where the ids were carried: only the server knows the model's default sampling parameters.
        rendered = await self._answered(RENDER, job.plan.body)
        if not isinstance(rendered.get("sampling_params"), dict):
            raise Refused(200, b"render gave no sampling parameters")
        prompt = list(job.carried_prompt) or _ids(rendered, "token_ids")
        prefix = await self._prefix(prompt, rendered.get("reasoning_ended"), job.carried_ids)
        thought = await self._thought(prefix)
        told = Delivered(len(prefix), thought, exact=True, prompt=len(prompt))
        body = generate_body(rendered, prompt, prefix)
        if body is None:
            return self._opened(_at_its_limit(), told)
        answer = await self._post(GENERATE, dump(body))
        try:
            await self._check(GENERATE, answer)
            markers = [await self._ids_of(marker) for marker in job.strategy.markers]
            closing = await self._ids_of(job.strategy.close.strip())
        except BaseException:
            answer.body.close()
            raise
        pieces = self._derendered(answer, prompt, prefix, Batches(batch_chunks, markers), closing)
        return self._opened(pieces, told, answer.body)

    async def _prefix(self, prompt: Ids, reasoning_ended: Any, carried: Ids | None) -> list[int]:
        """The partial's ids: those of leg 1, or the text's where `carried` is None."""
        job, strategy = self._job, self._job.strategy
        if carried is not None:
            return list(carried)
        reasoning, content = map(without_lone_surrogates, (job.partial.reasoning, job.partial.content))
        opening = await self._ids_of(strategy.open.strip()) if reasoning else ()
        opened = ends_with_opening(prompt, opening)
        if not reasoning or (reasoning_ended is True and not opened):
            return list(await self._tokenize(content)) if content else []
        closing = strategy.close + strategy.content_open + content if content else ""
        return list(await self._tokenize(("" if opened else strategy.open) + reasoning + closing))

    async def _thought(self, prefix: Ids) -> int:
        """How many tokens of the prefix were reasoning."""
        if not self._job.partial.reasoning:
            return 0
        before = thoughts_before(prefix, await self._ids_of(self._job.strategy.close.strip()))
        return len(prefix) if before is None else before

    async def _derendered(
        self, answer: Upstream, prompt: Ids, prefix: Ids, batches: Batches, closing: Ids
    ) -> AsyncGenerator[bytes, None]:
        job = self._job
        chat = ChatChunks(
            job.stops,
            stop_shown=job.stop_shown,
            tool_call_seen=bool(job.tool_ids),
            ids_shown=job.plan.asks_ids,
        )
        # Ids may be ahead of the text that was shown: half a character, a token that a parser waits with, a tool call.
        seeded = job.carried_ids is not None
        fixed = {
            "stream": True,
            "model": self._model,
            "prompt_token_ids": list(prompt) if seeded else [*prompt, *prefix],
            "prompt_tokens": len(prompt),
        }
        # It serves the parsers only. Stop strings are cut below; vLLM from 0.33 on refuses them here.
        request = await worked_out(job.size, lambda: Members.of(job.plan.body).changed({"stop": None}))
        chat_request = b',"chat_request":' + request + b"}"
        state: JSON | None = seeded_state(prefix, job.tool_ids) if seeded else None
        closed = thoughts_before(prefix, closing) is not None
        counts = _Counts(len(prompt), closing, thinking=bool(job.partial.reasoning) and not closed)
        finished = False
        async for chunk in _generated(answer):
            if isinstance(chunk, bytes):
                yield chunk  # an error event, or what cannot be read: the splice knows what to do with it
                return
            counts.told(generate_usage(chunk))
            batch = batches.take(chunk)
            if batch is None:
                continue
            asked = dump({**fixed, "generate_chunk": batch.chunk, "stream_state": state})
            reply = await self._derender(asked[:-1] + chat_request)
            state = reply.get("stream_state")
            if not isinstance(reply.get("chunk"), dict):
                raise Refused(200, b"derender gave no chunk")
            counts.add(batch)
            finished = batch.finish is not None
            shown = chat.of(reply["chunk"], batch)
            if shown:  # half a character shows nothing yet
                yield b"".join(event_of({**one, "usage": counts.usage}) for one in shown)
        if finished:
            yield event_of({"choices": [], "usage": counts.usage}) + DONE_EVENT

    # -- the last resort ---------------------------------------------------------------------------

    async def complete(self) -> Upstream:
        job = self._job
        known = ("model", "messages", "chat_template_kwargs", "chat_template", "mm_processor_kwargs")
        request = await worked_out(job.size, lambda: job.request)
        asked = {key: request[key] for key in known if key in request}
        rendered = await self._call_any(TOKENIZE, {**asked, "add_generation_prompt": True})
        prompt = _ids(rendered, "tokens")
        # Ids that end inside a character make vLLM show the text of the whole prompt with the rest of it.
        prefix = await self._prefix(prompt, None, job.shown_ids)
        left_out = len(job.carried_ids or ()) - len(prefix) if job.shown_ids is not None else 0
        thought = await self._thought(prefix)
        told = Delivered(len(prefix), thought, exact=True, prompt=len(prompt), left_out=left_out)
        limits = [whole_number(request.get(name)) for name in ("max_tokens", "max_completion_tokens")]
        longest = count(rendered, "max_model_len")
        allowed = [limit for limit in limits if limit is not None]
        allowed += [longest - len(prompt)] if longest is not None else []
        if not allowed:
            raise Refused(200, b"the length of the model is not known, and the request has no limit")
        left = min(allowed) - len(prefix)
        if left < 1:
            return self._opened(_at_its_limit(), told)
        body = {
            **{key: request[key] for key in SAMPLING if request.get(key) is not None},
            "model": self._model,
            "prompt": [*prompt, *prefix],
            "max_tokens": left,
            "skip_special_tokens": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        answer = await self._post(COMPLETIONS, dump(body))
        try:
            await self._check(COMPLETIONS, answer)
        except BaseException:
            answer.body.close()
            raise
        return self._opened(self._chatted(answer), told, answer.body)

    async def _chatted(self, answer: Upstream) -> AsyncGenerator[bytes, None]:
        """Completion chunks as chat chunks; a closing token in the text is left for the seam to find."""
        strategy, partial = self._job.strategy, self._job.partial
        field = "content" if partial.content or not partial.reasoning else "reasoning"
        text = _UpToMarker(strategy, thinking=field == "reasoning")
        finished = False
        async for chunk in _generated(answer):
            if isinstance(chunk, bytes):
                yield chunk
                return
            for choice in choices(chunk):
                finish = finish_of(choice)
                told = text.feed(text_of(choice.get("text"))) + (text.end() if finish else "")
                shown = {"index": 0, "delta": {field: told} if told else {}, "finish_reason": finish}
                finished = finished or finish is not None
                yield event_of({"object": "chat.completion.chunk", "choices": [shown]})
            if not choices(chunk):
                yield event_of({"choices": [], "usage": chunk.get("usage")})
        if finished:
            yield DONE_EVENT

    # -- calls -------------------------------------------------------------------------------------

    async def _ids_of(self, text: str) -> tuple[int, ...]:
        """The ids of a control token; asked for once per server and model."""
        if not text:
            return ()
        known = self._endpoints.ids_of(self._base, self._model, text)
        if known is not None:
            return known
        return self._endpoints.note_ids(self._base, self._model, text, await self._tokenize(text))

    async def _tokenize(self, text: str) -> list[int]:
        asked = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return _ids(await self._call_any(TOKENIZE, asked), "tokens")

    async def _call_any(self, paths: tuple[str, ...], value: JSON) -> JSON:
        """The first of several paths that is there; a router may offer only one."""
        for path in paths[:-1]:
            with contextlib.suppress(ScaleOutMissing):
                return await self._call(path, value)
        return await self._call(paths[-1], value)

    async def _derender(self, body: bytes) -> JSON:
        """The last endpoint to be asked for, when the generation is under way."""
        try:
            return await self._answered(DERENDER, body)
        except ScaleOutMissing:
            self._endpoints.note_missing(self._base)
            raise

    async def _call(self, path: str, value: JSON) -> JSON:
        return await self._answered(path, dump(value))

    async def _answered(self, path: str, body: bytes) -> JSON:
        answer = await self._post(path, body)
        try:
            await self._check(path, answer)
            found = parse(await _whole(answer))
        except ValueError:
            found = None
        finally:
            answer.body.close()
        if not isinstance(found, dict):
            raise Refused(answer.status, path.encode() + b" gave no JSON object")
        return found

    async def _check(self, path: str, answer: Upstream) -> None:
        if answer.status in NOT_THERE:
            raise ScaleOutMissing(f"{path} answered {answer.status}")
        if answer.status != 200:
            raise Refused(answer.status, await _whole(answer))

    def _opened(
        self, pieces: AsyncGenerator[bytes, None], told: Delivered, source: Readable | None = None
    ) -> Upstream:
        return Upstream(200, EVENT_STREAM, TokenBody(pieces, "token route", source), told)


class _Counts:
    """The usage of leg 2 so far. Thoughts are counted up to the closing token."""

    def __init__(self, prompt: int, closing: Ids, *, thinking: bool) -> None:
        self._prompt = prompt
        self._closing = closing
        self._thinking = thinking
        self._ids: list[int] = []
        self._thoughts = 0
        self._total: int | None = None

    def add(self, batch: Batch) -> None:
        start = max(0, len(self._ids) - len(self._closing))
        self._ids += batch.ids
        if self._thinking:
            closed = thoughts_before(self._ids[start:], self._closing)
            self._thinking = closed is None
            self._thoughts = len(self._ids) if closed is None else start + closed

    def told(self, total: int | None) -> None:
        self._total = total if total is not None else self._total

    @property
    def usage(self) -> JSON:
        completion = self._total if self._total is not None else len(self._ids)
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": completion,
            "total_tokens": self._prompt + completion,
            "completion_tokens_details": {"reasoning_tokens": self._thoughts},
        }


class _UpToMarker:
    """Raw text up to the first control token that belongs to neither side of the thinking: there the turn ends."""

    def __init__(self, strategy: CompiledStrategy, *, thinking: bool) -> None:
        self._closing = (strategy.close + strategy.content_open).strip() if thinking else ""
        self._markers = strategy.markers
        self._held = ""
        self._over = False

    def feed(self, text: str) -> str:
        if self._over:
            return ""
        self._held += text
        before = ""
        if self._closing:
            before, found, rest = self._held.partition(self._closing)
            if not found:
                return self._release(self._closing)
            before, self._held, self._closing = before + found, rest, ""
        ends = [at for marker in self._markers if (at := self._held.find(marker)) >= 0]
        if ends:
            self._over = True
            told, self._held = self._held[: min(ends)], ""
            return before + told
        return before + self._release(*self._markers)

    def end(self) -> str:
        told, self._held = self._held, ""
        return told

    def _release(self, *tokens: str) -> str:
        keep = max((overlap(self._held, token) for token in tokens), default=0)
        told = self._held[: len(self._held) - keep]
        self._held = self._held[len(told) :]
        return told


def _ids(answer: JSON, name: str) -> list[int]:
    """Token ids, at least one; anything else would continue something that was never said."""
    found = answer.get(name)
    if not isinstance(found, list) or not found or not all(type(token) is int for token in found):
        raise Refused(200, f"{name} are not token ids".encode())
    return found


async def _at_its_limit() -> AsyncGenerator[bytes, None]:
    """The partial has used all of the budget: nothing is left to be generated."""
    yield event_of({"choices": [finish_choice("length")]})
    yield event_of({"choices": [], "usage": {"completion_tokens": 0}}) + DONE_EVENT


async def _generated(answer: Upstream) -> AsyncGenerator[JSON | bytes, None]:
    """The chunks of an event stream up to [DONE]; the raw event where it is an error or cannot be read."""
    decoder = EventDecoder(EVENT_BYTES)
    try:
        while read := await answer.body.read():
            for event in decoder.feed(read):
                if event.data == DONE:
                    return
                chunk = _chunk_of(event)
                if chunk is not None:
                    yield chunk
            if decoder.overflowed:
                yield decoder.pending
                return
        last = decoder.finish()
        if last is not None and last.data != DONE and (chunk := _chunk_of(last)) is not None:
            yield chunk
    finally:
        answer.body.close()


def _chunk_of(event: Event) -> JSON | bytes | None:
    if not event.data:
        return None
    try:
        value = parse(event.data)
    except ValueError:
        return event.raw
    if is_error(event, value):
        return event_of({"error": error_object(value)})
    return value if isinstance(value, dict) else None


async def _whole(answer: Upstream) -> bytes:
    read = bytearray()
    while more := await answer.body.read():
        read += more
        if len(read) > ANSWER_BYTES:
            raise Refused(answer.status, b"an answer that is too large")
    return bytes(read)
