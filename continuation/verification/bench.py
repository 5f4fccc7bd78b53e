"""A strategy held against a live engine: greedy answers, cut at every kind of place, continued by the gateway's own
code in every way that the strategy could be set, and compared with the uninterrupted answer.

Probes come first: what the engine is and what its chat template does. Then each prompt is answered once in full. A
cut is a recording of that answer that breaks off; Splice, Relay and the token route do with it what they would do
with a real one, but leave no audit rows. Equal continuation requests are sent once: their answers are kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from os.path import commonprefix
from typing import Any
from uuid import uuid4

import httpx

from continuation.downstream.client import Upstream
from continuation.downstream.transport import AiohttpTransport
from continuation.downstream.troubles import describe
from continuation.http.headers import RawHeaders
from continuation.plan import Guarded
from continuation.relay import Relay
from continuation.shapes.chat.asking import asking_for_ids
from continuation.shapes.chat.chunks import JSON, choices, count, dump, error_object, parse, text_of
from continuation.shapes.chat.usage import Estimator
from continuation.shapes.sse import Event
from continuation.splice.machine import OpenLeg, OpenTokens, Options, Send, Splice
from continuation.token_route.route import COMPLETIONS, DERENDER, GENERATE, RENDER, open_tokens
from continuation.verification import verdicts
from continuation.verification.variants import (
    GENERIC_TOKENS,
    Knowledge,
    Measured,
    Probe,
    Recommendation,
    Variant,
    finalists,
    recommend,
    variants,
)
from continuation.verification.verdicts import Cut, Finding, Place, Told, Verdict
from continuation.vocabulary import Decision, Reason, StreamRecord
from strategies.types import CompiledStrategy, Engine

__all__ = ["DEFAULT_PROMPTS", "Order", "Progress", "Report", "Trouble", "prompts_in", "verify"]

CHAT_PATH = "/v1/chat/completions"
ANSWER_BYTES = 2**26
# Cuts of each kind that decide which combinations of chat-continue are looked at more closely.
SCREENING_CUTS = 2
PROBE_SECONDS = 30.0
MISSING = (403, 404, 405, 501)
MOST_PROMPTS = 200

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Look up the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def _question(text: str, **fields: Any) -> JSON:
    return {"messages": [{"role": "user", "content": text}], **fields}


DEFAULT_PROMPTS: tuple[JSON, ...] = (
    _question("Why is the sky blue? Answer in two short paragraphs."),
    _question("用中文介绍一下杭州，再加几个表情符号。"),
    _question("Write a Python function that adds two numbers, in a code block, and show how it is called."),
    _question(
        "List three fruits, each on a line of its own with an emoji, then say which one is the sweetest."
    ),
    _question("Use the tool: what is the weather in Paris?", tools=[WEATHER]),
)


class Trouble(Exception):
    """A verification that cannot be done; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be verified, and against what.

    engine      "vllm" or "sglang"; "" to find out. model: "" for the one that the engine serves
    prompts     chat bodies; none for the built-in ones
    cuts        cut places of each kind, 0 for all; max_tokens: of an answer, where the prompt sets none
    parallel    continuations at a time; more than one may make an engine's greedy answers vary
    seconds     that an answer may take
    """

    strategy: CompiledStrategy
    base_url: str
    model: str = ""
    engine: str = ""
    prompts: tuple[JSON, ...] = ()
    cuts: int = 4
    max_tokens: int = 1024
    parallel: int = 1
    api_key: str = ""
    seconds: float = 300.0
    batch_chunks: int = 8
    estimator: Estimator = field(default_factory=Estimator)
    connect_timeout: float = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """total is 0 while it is not known."""

    done: int
    total: int
    says: str


@dataclass(frozen=True, slots=True)
class Report:
    known: Knowledge
    probes: tuple[Probe, ...]
    measured: tuple[Measured, ...]
    recommendation: Recommendation
    cuts: Mapping[Place, int]

    @property
    def configured(self) -> Measured:
        return next(one for one in self.measured if one.variant.configured)


def prompts_in(text: str) -> tuple[JSON, ...]:
    """The chat bodies of a prompts file: a question, or a JSON chat body, per line. Raises Trouble."""
    found = tuple(_prompt(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
    if not found:
        raise Trouble("there is no prompt in it; a question, or a JSON chat body, per line is allowed")
    if len(found) > MOST_PROMPTS:
        raise Trouble(f"{len(found)} prompts are too many; {MOST_PROMPTS} are allowed")
    return found


def _prompt(number: int, line: str) -> JSON:
    if not line.lstrip().startswith("{"):
        return _question(line.strip())
    try:
        body = parse(line.encode())
    except ValueError:
        raise Trouble(f"line {number} begins with a brace, but is no JSON") from None
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise Trouble(f'line {number} is no chat body: it needs "messages", a list that is not empty')
    return body


async def verify(order: Order) -> AsyncGenerator[Progress | Report, None]:
    """Progress now and then, and the Report last. Raises Trouble."""
    async with _Door(order) as door:
        yield Progress(0, 0, "asking the engine")
        known, probes = await _Probing(door, order).found()
        answers: list[_Answer] = []
        bodies = [_body(prompt, order, known) for prompt in order.prompts or DEFAULT_PROMPTS]
        for number, body in enumerate(bodies, 1):
            yield Progress(0, 0, f"answering prompt {number} of {len(bodies)}")
            answers.append(await _answered(door, body, known))
        known, more = await _learnt(door, known, answers, order.strategy)
        bench = _Bench(door, order, known, answers)
        async with aclosing(bench.run()) as rounds:
            async for progress in rounds:
                yield progress
        recommendation = recommend(bench.measured, order.strategy, known)
        yield Report(known, (*probes, *more), tuple(bench.measured), recommendation, bench.cuts_by_place)


def _body(prompt: JSON, order: Order, known: Knowledge) -> JSON:
    """The prompt as a greedy streamed request; thinking is switched on where the model needs telling."""
    room = known.max_model_len // 2 if known.max_model_len else order.max_tokens
    body = {"max_tokens": min(order.max_tokens, room), **prompt}
    if known.thinking_switch and not known.on_by_default:
        switches = body.get("chat_template_kwargs")
        told = switches if isinstance(switches, dict) else {}
        body["chat_template_kwargs"] = {known.thinking_switch: True, **told}
    body.pop("n", None)
    forced = {"model": known.model, "temperature": 0, "stream": True}
    return {**body, **forced, "stream_options": {"include_usage": True}}


# -- the engine ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Heard:
    """A whole answer."""

    status: int
    headers: RawHeaders
    data: bytes

    @property
    def json(self) -> JSON:
        try:
            value = parse(self.data)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def message(self) -> str:
        """What an error says, in a line."""
        text = str(error_object(self.json).get("message") or "") if self.json else ""
        return f"status {self.status}" + (f": {text.splitlines()[0][:160]}" if text.strip() else "")


class _Door:
    """The engine's endpoints. A client of its own: the gateway's belongs to another event loop."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._url = httpx.URL(order.base_url)
        transport = AiohttpTransport(limit=0, connect_timeout=order.connect_timeout)
        self._client = httpx.AsyncClient(transport=transport, trust_env=False, timeout=None)
        self._headers: RawHeaders = [
            (b"content-type", b"application/json"),
            (b"accept-encoding", b"identity"),
        ]
        if order.api_key:
            self._headers.append((b"authorization", b"Bearer " + order.api_key.encode()))

    async def __aenter__(self) -> _Door:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def open(self, path: str, body: bytes | None = None) -> Upstream:
        """POST the body, or GET without one. Raises httpx.HTTPError."""
        prefix = self._url.raw_path.rstrip(b"/")
        request = httpx.Request(
            "GET" if body is None else "POST",
            self._url.copy_with(raw_path=prefix or b"/"),
            headers=self._headers,
            content=body,
            extensions={"target": prefix + path.encode()},
        )
        answer = await self._client.send(request, stream=True)
        return Upstream(answer.status_code, list(answer.headers.raw), answer.extensions["body"])

    async def heard(self, path: str, body: bytes | None = None, seconds: float = PROBE_SECONDS) -> _Heard:
        """The whole answer. Raises httpx.HTTPError, TimeoutError."""
        async with asyncio.timeout(seconds):
            upstream = await self.open(path, body)
            read = b""
            try:
                while len(read) < ANSWER_BYTES and (more := await upstream.body.read()):
                    read += more
            finally:
                upstream.body.close()
        return _Heard(upstream.status, upstream.headers, read)

    async def asked(self, path: str, value: JSON | None = None) -> _Heard:
        """A probe: status 0 where the engine did not answer it."""
        return await self.asked_raw(path, None if value is None else dump(value))

    async def asked_raw(self, path: str, body: bytes | None) -> _Heard:
        try:
            return await self.heard(path, body)
        except (httpx.HTTPError, TimeoutError) as trouble:
            return _Heard(0, [], dump({"error": {"message": describe(trouble)}}))

    async def streamed(self, body: bytes) -> bytes:
        """An answer that must come. Raises Trouble."""
        seconds = self._order.seconds
        try:
            heard = await self.heard(CHAT_PATH, body, seconds)
        except TimeoutError:
            raise Trouble(f"no whole answer to a prompt within {seconds:g} seconds") from None
        except httpx.HTTPError as trouble:
            raise Trouble(f"the engine at {self._order.base_url} broke off: {describe(trouble)}") from trouble
        if heard.status != 200:
            raise Trouble(f"the engine refused a prompt with {heard.message}")
        return heard.data

    async def is_there(self) -> bool:
        return (await self.asked("/v1/models")).status == 200


# -- probes ----------------------------------------------------------------------------------------


class _Probing:
    """Asks what can be asked before any answer is generated."""

    def __init__(self, door: _Door, order: Order) -> None:
        self._door = door
        self._order = order
        self._model = order.model
        self._probes: list[Probe] = []

    async def found(self) -> tuple[Knowledge, tuple[Probe, ...]]:
        known = await self._engine()
        if known.engine is not Engine.SGLANG:
            known = replace(known, scale_out=await self._scale_out())
        known = replace(known, ids=await self._ids())
        known = await self._continued(known)
        known = await self._thinking(known)
        return known, tuple(self._probes)

    def _note(self, name: str, value: Any, says: str) -> None:
        self._probes.append(Probe(name, value, says))

    async def _engine(self) -> Knowledge:
        models = await self._door.asked("/v1/models")
        if models.status != 200:
            what = models.message.removeprefix("status 0: ")
            raise Trouble(
                f"no engine answers at {self._order.base_url}/v1/models ({what}); --base-url or CONTINUATION_URL "
                "must be the root of an engine, such as http://127.0.0.1:8000"
            )
        served = [row for row in models.json.get("data") or [] if isinstance(row, dict)]
        names = [text_of(row.get("id")) for row in served]
        self._model = self._model or next(iter(names), "")
        if not self._model or (names and self._model not in names):
            raise Trouble(
                f"the engine serves no model {self._model!r}; it serves {', '.join(names) or 'none'}"
            )
        mine: JSON = next((row for row in served if row.get("id") == self._model), {})
        engine, version = await self._engine_and_version(text_of(mine.get("owned_by")))
        length = count(mine, "max_model_len")
        return Knowledge(engine, version, self._model, length)

    async def _engine_and_version(self, owner: str) -> tuple[Engine, str]:
        info, version = await self._door.asked("/server_info"), await self._door.asked("/version")
        told = {
            Engine.SGLANG: text_of(info.json.get("version")) if info.status == 200 else "",
            Engine.VLLM: text_of(version.json.get("version")) if version.status == 200 else "",
        }
        found = next((e for e in told if owner == e), None) or next((e for e in told if told[e]), Engine.ANY)
        asked = self._order.engine
        engine = Engine(asked) if asked else found
        where = told.get(engine, "")
        if engine is Engine.ANY:
            self._note("engine", None, "Which engine this is could not be found out; name it with --engine.")
        elif found is not Engine.ANY and found is not engine:
            self._note("engine", f"{engine}", f"It was said to be {engine}, but it answers like {found}.")
        else:
            self._note("engine", f"{engine} {where}".strip(), f"The engine is {engine} {where}".strip() + ".")
        return engine, where

    async def _scale_out(self) -> bool | None:
        heard = await self._door.asked(RENDER, {"model": self._model, **_question("Hello.")})
        others = [await self._door.asked(path, {}) for path in (GENERATE, DERENDER)]
        if any(answer.status in MISSING for answer in (heard, *others)):
            self._note("scale-out", False, "The scale-out endpoints are missing: no token route here.")
            return False
        if heard.status != 200:
            self._note(
                "scale-out", None, f"Whether there are scale-out endpoints is not known: {heard.message}."
            )
            return None
        self._note("scale-out", True, "The scale-out endpoints are there: the token route can be taken.")
        return True

    async def _ids(self) -> bool | None:
        request = {"model": self._model, "max_tokens": 4, "temperature": 0, "stream": True}
        heard = await self._door.asked_raw(
            CHAT_PATH, asking_for_ids(dump({**request, **_question("Hello.")}))
        )
        if heard.status != 200:
            known = False if heard.status in (400, 422) else None
            self._note("token ids", known, f"Token ids are not reported while streaming ({heard.message}).")
            return known
        found = b'"token_ids":[' in heard.data and b'"prompt_token_ids":[' in heard.data
        says = "are" if found else "are not"
        self._note("token ids", found, f"Token ids {says} reported while streaming.")
        return found

    async def _continued(self, known: Knowledge) -> Knowledge:
        if known.engine is Engine.SGLANG:
            self._note(
                "continue_final_message",
                True,
                "SGLang appends the last message raw to the generation prompt: no template rewrites or trims it.",
            )
            return replace(known, honours_flag=True, trims=False)
        ids, text = await self._final("ok")
        if ids is None:
            self._note(
                "continue_final_message", None, f"Whether the renderer honours it is not known: {text}."
            )
            return known
        ends = await self._ids_of("ok")
        honours = text.endswith("ok") if text else bool(ends) and ids[-len(ends) :] == ends
        trims = (await self._final("ok\n\n"))[0] == ids if honours else None
        self._note(
            "continue_final_message",
            honours,
            "The renderer honours continue_final_message."
            if honours
            else "The renderer ignores continue_final_message: it closes the turn, whatever the request says.",
        )
        if trims is not None:
            says = "trims white space from the end of" if trims else "keeps"
            self._note("template", trims, f"The chat template {says} the prefix.")
        return replace(known, honours_flag=honours, trims=trims)

    async def _final(self, text: str) -> tuple[list[int] | None, str]:
        """The ids and the text of a prompt that ends with an assistant's `text`; (None, why) without them."""
        messages = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": text}]
        flags = {"add_generation_prompt": False, "continue_final_message": True}
        heard = await self._door.asked("/tokenize", {"model": self._model, "messages": messages, **flags})
        ids = heard.json.get("tokens")
        if heard.status != 200 or not isinstance(ids, list):
            return None, f"/tokenize of messages answered with {heard.message}"
        return ids, await self._text_of(ids)

    async def _thinking(self, known: Knowledge) -> Knowledge:
        plain = await self._generation_prompt({})
        if plain is None:
            self._note("thinking", None, "Whether the generation prompt opens the thinking is not known: "
                       "/tokenize or /detokenize did not answer.")  # fmt: skip
            return known
        switch, on, off = await self._switch(plain)
        thinking = plain if on is None else on
        opening, token = self._opening_of(thinking)
        if opening:
            self._note(
                "generation prompt", opening, f"The generation prompt opens the thinking with {opening!r}."
            )
        else:
            self._note("generation prompt", "", "The generation prompt does not open the thinking.")
        if switch:
            default = "on" if thinking == plain else "off"
            says = f"The key {switch!r} of chat_template_kwargs switches the thinking; it is {default} by default."
            self._note("thinking key", switch, says)
        else:
            self._note(
                "thinking key", "", "No known key of chat_template_kwargs changes the generation prompt."
            )
        known = replace(known, opening=opening, thinking_switch=switch, on_by_default=thinking == plain)
        closing = _closing_in(off, token) if off and token else ""
        if opening and closing:
            known = replace(known, tokens=(opening, closing, self._order.strategy.content_open))
        return known

    async def _switch(self, plain: str) -> tuple[str, str | None, str | None]:
        """The key that changes the generation prompt, and the prompts with the thinking on and off."""
        for key in dict.fromkeys([self._order.strategy.thinking_key, "enable_thinking", "thinking"]):
            if not key:
                continue
            off = await self._generation_prompt({key: False})
            on = await self._generation_prompt({key: True})
            if off is not None and on is not None and off != on:
                return key, on, off
        return "", None, None

    def _opening_of(self, prompt: str) -> tuple[str, str]:
        """(OPEN as the prompt ends with it, its bare token); ("", the token) where it does not."""
        row = self._order.strategy
        known = [row.open.strip(), GENERIC_TOKENS[0], "<|open|>think<|sep|>"]
        for token in filter(None, dict.fromkeys(known)):
            at = prompt.rfind(token)
            if at >= 0 and not prompt[at + len(token) :].strip():
                return prompt[at:], token
        return "", known[0]

    async def _generation_prompt(self, switches: JSON) -> str | None:
        asked = {"model": self._model, **_question("Hello."), "add_generation_prompt": True}
        heard = await self._door.asked("/tokenize", {**asked, "chat_template_kwargs": switches})
        ids = heard.json.get("tokens")
        return (await self._text_of(ids) or None) if heard.status == 200 and isinstance(ids, list) else None

    async def _ids_of(self, text: str) -> list[int]:
        asked = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return list((await self._door.asked("/tokenize", asked)).json.get("tokens") or [])

    async def _text_of(self, ids: Sequence[int]) -> str:
        return await _detokenized(self._door, self._model, ids)


async def _detokenized(door: _Door, model: str, ids: Sequence[int]) -> str:
    """ "" where the engine does not say."""
    answer = (await door.asked("/detokenize", {"model": model, "tokens": list(ids)})).json
    return text_of(answer.get("prompt")) or text_of(answer.get("text"))


def _closing_in(off: str, token: str) -> str:
    """CLOSE, from the empty thinking that a prompt without thinking ends with."""
    at = off.rfind(token)
    rest = off[at + len(token) :].strip() if at >= 0 else ""
    return rest if len(rest) <= 64 else ""


# -- answers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Recording:
    """One whole answer as it came, event by event, and as a client understands it."""

    events: tuple[Event, ...]
    steps: tuple[verdicts.Step, ...]
    told: Told

    @classmethod
    def of(cls, stream: bytes) -> _Recording:
        events = verdicts.events_of(stream)
        return cls(tuple(events), tuple(verdicts.steps_of(events)), verdicts.told(stream))


@dataclass(frozen=True, slots=True)
class _Answer:
    """A prompt and its answer: as a client asks for it, and asked for again, with ids where the engine reports them."""

    body: JSON
    plain: _Recording
    again: _Recording


async def _answered(door: _Door, body: JSON, known: Knowledge) -> _Answer:
    plain = _Recording.of(await door.streamed(dump(body)))
    if plain.told.error is not None:
        raise Trouble(f"the engine broke off: {plain.told.error.get('message')}")
    stops = bool(body.get("stop"))
    again = await door.streamed(asking_for_ids(dump(body)) if known.ids and not stops else dump(body))
    return _Answer(body, plain, _Recording.of(again))


async def _learnt(
    door: _Door, known: Knowledge, answers: Sequence[_Answer], row: CompiledStrategy
) -> tuple[Knowledge, tuple[Probe, ...]]:
    """What the answers themselves tell: whether they repeat, and how the thinking is written."""
    repeats = all(_same(answer.plain.told, answer.again.told) for answer in answers)
    says = "gives the same greedy answer" if repeats else "does not give the same greedy answer"
    probes = [Probe("repeats", repeats, f"Asked twice, the engine {says}.")]
    tokens = next(filter(None, [await _written(door, known, row, one) for one in answers]), None)
    if tokens:
        known = replace(known, tokens=tokens)
    if known.tokens:
        opening, *closing = known.tokens
        written = (
            f"The engine writes OPEN as {opening!r}, and {''.join(closing)!r} between reasoning and content."
        )
        probes.append(Probe("control tokens", list(known.tokens), written))
    else:
        probes.append(
            Probe("control tokens", None, "How the thinking is opened and closed could not be seen.")
        )
    end = _common_end([answer.plain.told.reasoning for answer in answers])
    if end:
        probes.append(Probe("reasoning end", end, f"Every reasoning ends with {end!r}."))
    return replace(known, repeats=repeats, reasoning_end=end), tuple(probes)


def _common_end(reasonings: Sequence[str]) -> str:
    """The white space that all of them end with, but for empty ones."""
    ends = [text[len(text.rstrip()) :][::-1] for text in reasonings if text]
    return commonprefix(ends)[::-1]  # noqa: RUF071 - character by character is what is wanted


def _same(one: Told, other: Told) -> bool:
    def shape(of: Told) -> tuple[Any, ...]:
        return of.reasoning, of.content, of.finish, [(call.name, call.arguments) for call in of.calls]

    return shape(one) == shape(other)


async def _written(
    door: _Door, known: Knowledge, row: CompiledStrategy, answer: _Answer
) -> tuple[str, str, str] | None:
    """OPEN, CLOSE and CONTENT_OPEN, from the ids of an answer with reasoning and content."""
    told, ids = answer.again.told, _ids_in(answer.again)
    if not (ids and told.reasoning and told.content):
        return None
    raw = await _detokenized(door, known.model, ids)
    before, found, rest = raw.partition(told.reasoning)
    between, found_too, _ = rest.partition(told.content[:40])
    opening = before or known.opening or ""
    if not (found and found_too and opening and between):
        return None
    if row.content_open and between.endswith(row.content_open):
        return opening, between.removesuffix(row.content_open), row.content_open
    return opening, between, ""


def _ids_in(recording: _Recording) -> list[int]:
    ids: list[int] = []
    for event in recording.events:
        value = verdicts.value_in(event)
        for choice in choices(value) if isinstance(value, dict) else ():
            ids += [token for token in choice.get("token_ids") or [] if isinstance(token, int)]
    return ids


# -- cutting and continuing ------------------------------------------------------------------------


class _Whole:
    """A body that has been received already; with `cut` it breaks off instead of ending."""

    def __init__(self, data: bytes, *, cut: bool = False) -> None:
        self._data = data
        self._cut = cut

    async def read(self) -> bytes:
        data, self._data = self._data, b""
        if not data and self._cut:
            raise httpx.ReadError("cut for the verification")
        return data

    def read_nowait(self) -> bytes:
        return b""

    @property
    def at_end(self) -> bool:
        return not self._data

    def close(self) -> None:
        self._data = b""

    async def aclose(self) -> None:
        self.close()


class _Bench:
    """Every variant at every cut."""

    def __init__(self, door: _Door, order: Order, known: Knowledge, answers: Sequence[_Answer]) -> None:
        self._door = door
        self._order = order
        self._known = known
        self._answers = answers
        self.measured = [Measured(variant) for variant in variants(order.strategy, known)]
        every = [
            cut
            for number, answer in enumerate(answers)
            for cut in verdicts.cuts_of(number, answer.again.steps, answer.again.told)
        ]
        self._cuts = verdicts.choose(every, order.cuts)
        if not self._cuts:
            raise Trouble("no answer had anything to cut; give other prompts, or a larger --max-tokens")
        self._kept: dict[bytes, asyncio.Task[_Heard]] = {}
        self._uninterrupted: dict[tuple[int, bool], Told] = {}
        self._done = self._total = 0
        self._gone = ""
        # Under a name of its own, for what is remembered of missing endpoints here is nothing to the gateway or to
        # another run.
        self._name = f"verification {uuid4()}"

    @property
    def cuts_by_place(self) -> dict[Place, int]:
        return {place: n for place in Place if (n := sum(cut.place is place for cut in self._cuts))}

    async def run(self) -> AsyncGenerator[Progress, None]:
        first = verdicts.choose(self._cuts, SCREENING_CUTS)
        rest = [cut for cut in self._cuts if cut not in first]
        self._total = len(self.measured) * len(first)
        async with aclosing(self._round(self.measured, first)) as screening:
            async for progress in screening:
                yield progress
        chosen = finalists(self.measured, self._order.strategy, self._known)
        for one in chosen:
            one.finalist = True
        self._total += len(chosen) * len(rest)
        async with aclosing(self._round(chosen, rest)) as closer_look:
            async for progress in closer_look:
                yield progress

    async def _round(
        self, measured: Iterable[Measured], cuts: Sequence[Cut]
    ) -> AsyncGenerator[Progress, None]:
        """Cut by cut, so that equal requests come together."""
        places = asyncio.Semaphore(self._order.parallel)

        async def one(of: Measured, cut: Cut) -> None:
            async with places:
                of.tally(cut.place).add(await self._finding(of.variant, cut))

        jobs = [(of, cut) for cut in cuts for of in measured]
        tasks = [asyncio.create_task(one(*job), name="verification") for job in jobs]
        try:
            for task in tasks:
                await task
                self._done += 1
                if self._gone:
                    await self._check_engine()
                yield Progress(self._done, self._total, "continuing at the cuts")
        finally:
            started: list[asyncio.Task[Any]] = [*tasks, *self._kept.values()]
            for left in started:
                left.cancel()
            await asyncio.gather(*started, return_exceptions=True)

    async def _check_engine(self) -> None:
        """A continuation that could not be had counts as refused, an engine that has gone ends the run."""
        if not await self._door.is_there():
            raise Trouble(f"the engine at {self._order.base_url} went away during the run: {self._gone}")
        self._gone = ""

    async def _finding(self, variant: Variant, cut: Cut) -> Finding:
        answer = self._answers[cut.prompt]
        plan = Guarded.of(dump(answer.body), answer.body, variant.strategy)
        recording = answer.again if plan.carries_ids else answer.plain
        events = verdicts.events_at(cut, recording.steps)
        if not events:
            return Finding(Verdict.NOT_TRIED, "nothing had been told by then")
        want = self._whole(cut.prompt, plan, recording)
        beginning = b"".join(event.raw for event in recording.events[:events])
        splice = self._splice(plan)
        try:
            async with asyncio.timeout(self._order.seconds):
                got = await self._continued(splice, beginning, variant)
        except TimeoutError:
            return Finding(Verdict.REFUSED, f"no ending within {self._order.seconds:g} seconds")
        record = splice.record()
        if record is None:
            return Finding(Verdict.NOT_TRIED, "the answer was whole already")
        return verdicts.judge(
            want,
            verdicts.told(got),
            verdicts.told(beginning),
            decided=record.decision == Decision.CONTINUE,
            counts_exact=record.tokens_exact,
            reason=_reason(record),
        )

    def _whole(self, prompt: int, plan: Guarded, recording: _Recording) -> Told:
        """What a client is shown of the answer when nothing breaks."""
        key = prompt, plan.carries_ids
        if key not in self._uninterrupted:
            splice = self._splice(plan)
            splice.leg1_opened(time.monotonic())
            actions = splice.received(b"".join(event.raw for event in recording.events), time.monotonic())
            self._uninterrupted[key] = verdicts.told(b"".join(a.data for a in actions if isinstance(a, Send)))
        return self._uninterrupted[key]

    def _splice(self, plan: Guarded) -> Splice:
        options = Options(estimator=self._order.estimator)
        return Splice(plan, options, "verification", datetime.now(UTC), time.monotonic())

    async def _continued(self, splice: Splice, beginning: bytes, variant: Variant) -> bytes:
        async def open_continuation(action: OpenLeg | OpenTokens) -> Upstream:
            if isinstance(action, OpenTokens):
                base = f"{self._name}, {variant.hides_scale_out}"
                return await open_tokens(action, base, self._post_for(variant), self._order.batch_chunks)
            heard = await self._once(action.body)
            return Upstream(heard.status, heard.headers, _Whole(heard.data))

        upstream = Upstream(200, [], _Whole(beginning, cut=True))
        relay = Relay(
            splice,
            upstream,
            open_continuation,
            keepalive=0,
            silence=self._order.seconds,
            keeps_record=False,  # no client was there
        )
        pieces = relay.pieces()
        try:
            return b"".join([piece async for piece in pieces])
        finally:
            await pieces.aclose()

    def _post_for(self, variant: Variant) -> Callable[[str, bytes], Awaitable[Upstream]]:
        async def post(path: str, body: bytes) -> Upstream:
            if variant.hides_scale_out and path not in ("/tokenize", "/v1/tokenize", COMPLETIONS):
                return Upstream(403, [], _Whole(b""))
            try:
                return await self._door.open(path, body)
            except httpx.HTTPError as trouble:
                self._gone = describe(trouble)
                raise

        return post

    async def _once(self, body: bytes) -> _Heard:
        """The answer to a continuation request; an equal one is not sent again."""
        key = hashlib.blake2b(body).digest()
        if key not in self._kept:
            asking = self._door.heard(CHAT_PATH, body, self._order.seconds)
            self._kept[key] = asyncio.create_task(asking, name="continuation of a verification")
        try:
            return await asyncio.shield(self._kept[key])
        except httpx.HTTPError as trouble:
            self._kept.pop(key, None)
            self._gone = describe(trouble)
            raise
        except TimeoutError as trouble:
            self._kept.pop(key, None)
            raise httpx.ReadTimeout(f"no answer within {self._order.seconds:g} seconds") from trouble


def _reason(record: StreamRecord) -> str:
    told = str(record.reason)
    if record.reason == Reason.TOOL_CALL_SEEN:
        told = "this route does not continue after a tool call has begun"
    status = f", status {record.leg2_status}" if record.leg2_status not in (None, 200) else ""
    return f"{told}{status}" + (f": {record.leg2_message}" if record.leg2_message else "")
