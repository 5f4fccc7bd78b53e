"""The engine without its sockets: a request body in, events or an error out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from continuation.testbed.simulator import vocabulary
from continuation.testbed.simulator.dialects import DIALECTS, Dialect
from continuation.testbed.simulator.model import next_tokens
from continuation.testbed.simulator.parsing import Decoding, Parser, Step, StopStrings, merged
from continuation.testbed.simulator.render import (
    ConversationRefused,
    Prompt,
    render,
    render_sglang,
    render_vllm,
)
from continuation.testbed.simulator.requests import ChatRequest, Invalid, read_chat, read_json
from continuation.testbed.simulator.shapes import (
    DONE,
    SGLANG_VERSION,
    VLLM_VERSION,
    Refusal,
    SglangShapes,
    Shapes,
    TokenCounts,
    VllmShapes,
    sglang_refusal,
    vllm_refusal,
)

ENGINES = ("vllm", "sglang")


@dataclass(frozen=True, slots=True)
class Config:
    """What an engine is started with. port 0: a free one. scale multiplies the length of answers."""

    engine: Literal["vllm", "sglang"] = "vllm"
    template: str = "qwen"
    model: str = "simulated-model"
    host: str = "127.0.0.1"
    port: int = 0
    token_delay_ms: float = 0.0
    scale: float = 1.0
    max_model_len: int = 32768

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.template]


@dataclass(frozen=True, slots=True)
class SimulatedEvent:
    """One SSE block. kind: role, reasoning, content, tool, idle (no text), finish, usage, done or cut.

    A `cut` carries nothing: the engine itself breaks the connection there.
    """

    kind: str
    data: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a fault changes about an answer before it is written."""

    without_usage: bool = False
    start_over: bool = False
    depart_after: int | None = None  # with start_over: characters after which another answer follows


@dataclass(slots=True)
class Answer:
    """An answer to be streamed (or sent at once). Counts grow while the events are taken."""

    shapes: Shapes
    request: ChatRequest
    dialect: Dialect
    prompt: Prompt
    prompt_tokens: int
    max_tokens: int
    scale: float
    changes: Changes
    completion: int = 0
    reasoning: int = 0

    @property
    def counts(self) -> TokenCounts:
        return TokenCounts(self.prompt_tokens, self.completion, self.reasoning)

    def events(self) -> Iterator[SimulatedEvent]:
        choices = range(self.request.choices)
        for index in choices:
            yield SimulatedEvent("role", self.shapes.role(index, self.counts))
        if self.prompt.content_missing:
            yield SimulatedEvent("cut")
            return
        # All choices are greedy, hence equal: sent in turns, as concurrent sequences would be.
        for step, tokens in self._grouped():
            for index in choices:
                self.completion += len(tokens)
                self.reasoning += step.reasoning
                ids = vocabulary.ids(tokens)
                for kind, block in self.shapes.step(index, step, ids, self.counts):
                    yield SimulatedEvent(kind, block)
        if self.request.include_usage and not self.changes.without_usage:
            yield SimulatedEvent("usage", self.shapes.usage(self.counts))
        yield SimulatedEvent("done", DONE)

    def whole(self) -> dict[str, Any]:
        steps = list(self._decoding().steps(self._tokens()))
        self.completion = steps[-1].completion * self.request.choices
        self.reasoning = steps[-1].reasoning * self.request.choices
        return self.shapes.whole([steps] * self.request.choices, self.counts)

    def _grouped(self) -> Iterator[tuple[Step, list[bytes]]]:
        """Steps with counts of their own; on SGLang now and then several tokens share one."""
        before, held, tokens = 0, [], []
        for step in self._decoding().steps(self._tokens()):
            held.append(step)
            tokens.append(step.token)
            if not step.finish and self._waits(step, len(tokens)):
                continue
            deltas = tuple(chain.from_iterable(step.deltas for step in held))
            yield replace(step, deltas=merged(deltas), reasoning=step.reasoning - before), tokens
            before, held, tokens = step.reasoning, [], []

    def _waits(self, step: Step, held: int) -> bool:
        return isinstance(self.shapes, SglangShapes) and held < 3 and sum(step.token) % 5 == 0

    def _tokens(self) -> Iterator[bytes]:
        prompt = self.prompt.restarted() if self.changes.start_over else self.prompt
        tokens = next_tokens(prompt.text, self.dialect, self.scale)
        if self.changes.depart_after is None:
            return tokens
        return self._departing(prompt, tokens, self.changes.depart_after)

    def _departing(self, prompt: Prompt, tokens: Iterator[bytes], after: int) -> Iterator[bytes]:
        """The same beginning, then an answer to something else."""
        told = b""
        for token in tokens:
            if len(told.decode("utf-8", "ignore")) >= after:
                break
            told += token
            yield token
        text = prompt.text + told.decode("utf-8", "ignore") + " wait,"
        yield from vocabulary.encode(" wait,")
        yield from next_tokens(text, self.dialect, self.scale)

    def _decoding(self) -> Decoding:
        prompt = self.prompt.restarted() if self.changes.start_over else self.prompt
        parser = Parser(self.dialect, prompt.in_reasoning, prompt.in_call)
        counts = prompt.thinking if isinstance(self.shapes, SglangShapes) else None
        return Decoding(self.dialect, parser, StopStrings(self.request.stop), self.max_tokens, counts)


class SimulatedEngine:
    """One engine; stateless but for its configuration."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.dialect = config.dialect
        self.started = int(time.time())
        self._refuse = vllm_refusal if config.engine == "vllm" else sglang_refusal

    @property
    def is_vllm(self) -> bool:
        return self.config.engine == "vllm"

    def chat(self, body: bytes, changes: Changes | None = None) -> Answer | Refusal:
        try:
            return self._answer(read_chat(body), changes or Changes())
        except Invalid as error:
            return self.invalid(error)
        except ConversationRefused as error:
            return self._refuse(400, error.message, param=error.param)
        except RecursionError:
            return self._refuse(400, "The request is nested too deeply.")

    def _answer(self, request: ChatRequest, changes: Changes) -> Answer | Refusal:
        if refusal := self._flags(request) or self._model(request.model):
            return refusal
        prompt = (render_vllm if self.is_vllm else render_sglang)(request, self.dialect)
        ids = self._ids(prompt.text)
        if isinstance(ids, Refusal):
            return ids
        limit = self._limit(request.max_tokens, len(ids))
        if isinstance(limit, Refusal):
            return limit
        shapes = (VllmShapes if self.is_vllm else SglangShapes).begin(
            (request.model if not self.is_vllm else None) or self.config.model,
            include_usage=request.include_usage and not changes.without_usage,
            continuous_usage=request.continuous_usage,
            prompt_ids=ids if request.return_token_ids else None,
        )
        return Answer(shapes, request, self.dialect, prompt, len(ids), limit, self.config.scale, changes)

    def _flags(self, request: ChatRequest) -> Refusal | None:
        """vLLM wants the pair of flags to agree; SGLang cannot tell token ids while it streams."""
        if not self.is_vllm:
            if request.return_token_ids and request.stream:
                return self._refuse(400, "return_token_ids is not supported with stream.")
            return None
        if request.continue_final_message and request.add_generation_prompt:
            return self._refuse(400, _BOTH_FLAGS if request.generation_prompt_given else _DEFAULT_FLAG)
        return None

    def _model(self, name: str | None) -> Refusal | None:
        if not self.is_vllm or name is None or name == self.config.model:
            return None
        message = f"The model `{name}` does not exist. Valid aliases: {self.config.model}."
        return self._refuse(404, message, kind="NotFoundError", param="model")

    def _ids(self, text: str) -> list[int] | Refusal:
        longest = self.config.max_model_len
        if len(text) <= longest * vocabulary.LONGEST:
            ids = vocabulary.ids(vocabulary.encode(text))
            if len(ids) < longest:
                return ids
        count = "more" if len(text) > longest * vocabulary.LONGEST else len(ids)
        message = (
            f"This model's maximum context length is {longest} tokens. However, your request has {count} input tokens. "
            "Please reduce the length of the input messages."
        )
        return self._refuse(400, message, param="input_tokens" if self.is_vllm else None)

    def _limit(self, wanted: int | None, prompt_tokens: int) -> int | Refusal:
        room = self.config.max_model_len - prompt_tokens
        if wanted is None:
            return room
        if wanted < 1:
            message = f"max_tokens must be at least 1, got {wanted}. (parameter=max_tokens, value={wanted})"
            return self._refuse(400, message, param="max_tokens" if self.is_vllm else None)
        if wanted > self.config.max_model_len:
            message = (
                f"max_tokens={wanted} cannot be greater than max_model_len={self.config.max_model_len}. "
                f"Please request fewer output tokens. (parameter=max_tokens, value={wanted})"
            )
            return self._refuse(400, message, param="max_tokens" if self.is_vllm else None)
        return min(wanted, room)

    def invalid(self, error: Invalid) -> Refusal:
        if self.is_vllm:
            detail = f"{{'type': '{error.kind}', 'loc': '{error.place}', 'msg': '{error.message}', "
            detail += f"'input': {error.shown}"
            detail += f", 'ctx': {{'error': '{error.context}'}}}}" if error.context else "}"
            return vllm_refusal(400, f"1 validation error:\n  {detail}", "Bad Request", error.place)
        where = tuple(error.place.split("."))
        detail = (
            f"{{'type': '{error.kind}', 'loc': {where}, 'msg': '{error.message}', 'input': {error.shown}}}"
        )
        return sglang_refusal(400, f"1 validation error: [{detail}]", "Bad Request")

    # -- the other endpoints -----------------------------------------------------------------------

    def models(self) -> dict[str, Any]:
        model: dict[str, Any] = {"id": self.config.model, "object": "model", "created": self.started}
        model |= {"owned_by": self.config.engine, "root": self.config.model, "parent": None}
        model["max_model_len"] = self.config.max_model_len
        if self.is_vllm:
            model["permission"] = []
        return {"object": "list", "data": [model]}

    def version(self) -> dict[str, Any]:
        return {"version": VLLM_VERSION if self.is_vllm else SGLANG_VERSION}

    def server_info(self) -> dict[str, Any]:
        config = self.config
        return {
            "model_path": config.model,
            "served_model_name": config.model,
            "context_length": config.max_model_len,
            "chat_template": config.template,
            "reasoning_parser": config.template,
            "version": SGLANG_VERSION,
            "simulated": True,
        }

    def tokenize(self, body: bytes) -> dict[str, Any] | Refusal:
        """Of a prompt text, or of messages as chat renders them."""
        try:
            fields = read_json(body)
            if not self.is_vllm and "stream" in fields:
                return self._refuse(501, "tokenize does not take `stream`.", "NotImplementedError")
            text = fields.get("prompt")
            if "messages" in fields:
                request = read_chat(body)
                if refusal := self._flags(request) or self._model(request.model):
                    return refusal
                text = self._tokenized_chat(request)
            elif not isinstance(text, str):
                raise Invalid("missing", "body.prompt", "Field required", fields)
        except Invalid as error:
            return self.invalid(error)
        except ConversationRefused as error:
            return self._refuse(400, error.message, param=error.param)
        except RecursionError:
            return self._refuse(400, "The request is nested too deeply.")
        ids = self._ids(text)
        if isinstance(ids, Refusal):
            return ids
        if self.is_vllm:
            return {
                "count": len(ids),
                "max_model_len": self.config.max_model_len,
                "tokens": ids,
                "token_strs": None,
            }
        return {"tokens": ids, "count": len(ids), "max_model_len": self.config.max_model_len}

    def _tokenized_chat(self, request: ChatRequest) -> str:
        if self.is_vllm:
            return render_vllm(request, self.dialect).text
        return render(request.messages, request, self.dialect, generation=True)

    def detokenize(self, body: bytes) -> dict[str, Any] | Refusal:
        try:
            numbers = read_json(body).get("tokens")
            if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
                raise Invalid("list_type", "body.tokens", "Input should be a valid list", numbers)
            return {"prompt" if self.is_vllm else "text": vocabulary.decode(numbers)}
        except Invalid as error:
            return self.invalid(error)
        except KeyError as error:
            return self._refuse(400, f"Token id {error.args[0]} is out of vocabulary.")

    def not_found(self) -> Refusal:
        return Refusal(404, {"detail": "Not Found"})

    def not_allowed(self) -> Refusal:
        return Refusal(405, {"detail": "Method Not Allowed"})

    def scale_out_disabled(self) -> Refusal:
        message = (
            "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
        )
        return self._refuse(403, message, "PermissionDeniedError")

    def too_large(self) -> Refusal:
        return self._refuse(413, "Request body too large.", "RequestEntityTooLarge")

    def refused(self, status: int) -> Refusal:
        """An answer that the engine does not give, for the fault of that name."""
        if status < 500:
            return self._refuse(status, "The request cannot be served as it is.")
        if status == 503:
            return self._refuse(
                status, "The engine is overloaded, try again later.", "ServiceUnavailableError"
            )
        return self._refuse(status, "Internal server error", "InternalServerError")


_DEFAULT_FLAG = (
    "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you want "
    "the model to continue the final message, and add_generation_prompt when you want to add a header that will "
    "prompt it to start a new assistant message instead."
)
_BOTH_FLAGS = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
