"""What each engine writes: events, whole answers and errors, key for key as the real ones do.

vLLM 0.32 and SGLang 0.5.23 are the models. SGLang's tool-call deltas follow its source, the rest was recorded.
"""

from __future__ import annotations

import json
import secrets
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from continuation.testbed.simulator.parsing import Delta, Step, Strand

DONE = "data: [DONE]\n\n"
FINGERPRINT = "vllm-0.32.0-simulated"
VLLM_VERSION, SGLANG_VERSION = "0.32.0", "0.5.23"


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def event(value: object) -> str:
    return f"data: {compact(value)}\n\n"


@dataclass(frozen=True, slots=True)
class TokenCounts:
    prompt: int
    completion: int
    reasoning: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error before the stream."""

    status: int
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shapes(ABC):
    """One answer's identity and options; methods return whole SSE blocks."""

    id: str
    model: str
    include_usage: bool = False
    continuous_usage: bool = False
    prompt_ids: Sequence[int] | None = None  # given where the request asks for token ids
    created: int = field(default_factory=lambda: int(time.time()))
    usage_after_error: ClassVar[bool]

    def _chunk(self, choices: list[dict[str, Any]], **rest: Any) -> str:
        head = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
        }
        return event({**head, "choices": choices, **rest})

    @abstractmethod
    def role(self, index: int, counts: TokenCounts) -> str: ...

    @abstractmethod
    def step(self, index: int, step: Step, ids: list[int], counts: TokenCounts) -> list[tuple[str, str]]:
        """(kind, block) pairs; kinds are those of engine.Event."""

    @abstractmethod
    def usage(self, counts: TokenCounts) -> str: ...

    @abstractmethod
    def aborted(self, counts: TokenCounts) -> str: ...

    @abstractmethod
    def error(self, code: int | None) -> str:
        """The event of an engine that broke; with a code, of one that blames the request."""

    @abstractmethod
    def whole(self, steps: Iterable[Sequence[Step]], counts: TokenCounts) -> dict[str, Any]:
        """The answer to a request that does not stream; one sequence of steps for each choice."""


def kind_of(deltas: Iterable[Delta]) -> str:
    """Where an event's text belongs: reasoning, content, tool, or idle for none."""
    channels = [delta.channel for delta in deltas]
    if Strand.CONTENT in channels:
        return "content"
    if Strand.REASONING in channels:
        return "reasoning"
    return "tool" if channels else "idle"


def _text(steps: Iterable[Step], channel: Strand, call: int = 0) -> str:
    return "".join(d.text for step in steps for d in step.deltas if (d.channel, d.call) == (channel, call))


def _whole_calls(steps: Sequence[Step], prefix: str) -> list[dict[str, Any]]:
    names = [delta for step in steps for delta in step.deltas if delta.channel == Strand.CALL_NAME]
    return [
        {
            "id": f"{prefix}{secrets.token_hex(8)}",
            "type": "function",
            "function": {"name": name.text, "arguments": _text(steps, Strand.CALL_ARGUMENTS, name.call)},
        }
        for name in names
    ]


# -- vLLM ------------------------------------------------------------------------------------------


class VllmShapes(Shapes):
    usage_after_error = False

    @classmethod
    def begin(cls, model: str, **options: Any) -> VllmShapes:
        return cls(f"chatcmpl-{secrets.token_hex(8)}", model, **options)

    def role(self, index: int, counts: TokenCounts) -> str:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._chunk(
            [choice],
            **self._so_far(TokenCounts(counts.prompt, 0, 0)),
            prompt_token_ids=self.prompt_ids,
            prompt_text=None,
        )

    def step(self, index: int, step: Step, ids: list[int], counts: TokenCounts) -> list[tuple[str, str]]:
        parts = self._parts(step.deltas)
        if not parts and not step.finish and self.prompt_ids is None:
            return []
        parts = parts or [("idle", {})]
        blocks = []
        for number, (kind, delta) in enumerate(parts, start=1):
            last = number == len(parts)
            own = ids if number == 1 else []
            finish = step.finish if last else None
            blocks.append(
                ("finish" if finish else kind, self._delta(index, delta, finish, step.stop, own, counts))
            )
        return blocks

    def _delta(
        self,
        index: int,
        delta: dict[str, Any],
        finish: str | None,
        stop: str | None,
        ids: list[int],
        counts: TokenCounts,
    ) -> str:
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        if finish:
            choice["stop_reason"] = stop
        choice["token_ids"] = None if self.prompt_ids is None else ids
        closing = {"system_fingerprint": FINGERPRINT} if finish and not self.include_usage else {}
        return self._chunk([choice], **self._so_far(counts), **closing)

    def _so_far(self, counts: TokenCounts) -> dict[str, Any]:
        return {"usage": self._counts(counts)} if self.include_usage and self.continuous_usage else {}

    @staticmethod
    def _counts(counts: TokenCounts) -> dict[str, Any]:
        return {
            "prompt_tokens": counts.prompt,
            "total_tokens": counts.prompt + counts.completion,
            "completion_tokens": counts.completion,
            "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
        }

    @staticmethod
    def _parts(deltas: tuple[Delta, ...]) -> list[tuple[str, dict[str, Any]]]:
        """One delta for text (both channels can be in it), one for each piece of a tool call."""
        parts: list[tuple[str, dict[str, Any]]] = []
        plain = {delta.channel: delta.text for delta in deltas if delta.channel in ("content", "reasoning")}
        if plain:
            text = {str(channel): plain[channel] for channel in sorted(plain)}
            parts.append((kind_of(deltas), text))
        for delta in deltas:
            if delta.channel == Strand.CALL_NAME:
                call = {
                    "id": f"chatcmpl-tool-{secrets.token_hex(8)}",
                    "type": "function",
                    "index": delta.call,
                }
                parts.append(
                    ("tool", {"content": None, "tool_calls": [{**call, "function": {"name": delta.text}}]})
                )
            elif delta.channel == Strand.CALL_ARGUMENTS:
                piece = {"index": delta.call, "function": {"arguments": delta.text}}
                parts.append(("tool", {"content": None, "tool_calls": [piece]}))
        return parts

    def usage(self, counts: TokenCounts) -> str:
        return self._chunk([], usage=self._counts(counts), system_fingerprint=FINGERPRINT)

    def aborted(self, counts: TokenCounts) -> str:
        return self._delta(0, {}, "abort", None, [], counts)

    def error(self, code: int | None) -> str:
        """Written with blanks after colons and commas, unlike all other events."""
        message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
        kind = "InternalServerError"
        if code is not None:
            message, kind = "The request cannot be served as it is.", "BadRequestError"
        error = {"message": message, "type": kind, "param": None, "code": code or 500}
        return f"data: {json.dumps({'error': error}, ensure_ascii=False)}\n\n"

    def whole(self, steps: Iterable[Sequence[Step]], counts: TokenCounts) -> dict[str, Any]:
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(steps)]
        head = {"id": self.id, "object": "chat.completion", "created": self.created, "model": self.model}
        usage = self._counts(counts) | {"prompt_tokens_details": None}
        ids = None if self.prompt_ids is None else list(self.prompt_ids)
        rest = {"prompt_logprobs": None, "prompt_token_ids": ids, "kv_transfer_params": None}
        return {
            **head,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage,
            **rest,
        }

    @staticmethod
    def _whole_choice(index: int, steps: Sequence[Step]) -> dict[str, Any]:
        message = {
            "role": "assistant",
            "content": _text(steps, Strand.CONTENT) or None,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": _whole_calls(steps, "chatcmpl-tool-"),
            "reasoning": _text(steps, Strand.REASONING) or None,
        }
        ending = {"finish_reason": steps[-1].finish, "stop_reason": steps[-1].stop, "token_ids": None}
        return {"index": index, "message": message, "logprobs": None, **ending}


def vllm_refusal(
    status: int, message: str, kind: str = "BadRequestError", param: str | None = None
) -> Refusal:
    return Refusal(status, {"error": {"message": message, "type": kind, "param": param, "code": status}})


# -- SGLang ----------------------------------------------------------------------------------------


class SglangShapes(Shapes):
    usage_after_error = True

    @classmethod
    def begin(cls, model: str, **options: Any) -> SglangShapes:
        return cls(uuid.uuid4().hex, model, **options)

    def role(self, index: int, counts: TokenCounts) -> str:
        return self._delta(index, {"reasoning_content": None, "role": "assistant", "content": ""})

    def step(self, index: int, step: Step, ids: list[int], counts: TokenCounts) -> list[tuple[str, str]]:
        so_far = counts if self.include_usage and self.continuous_usage else None
        blocks = [
            (kind_of([delta]), self._delta(index, self._shown(delta), so_far=so_far)) for delta in step.deltas
        ]
        if step.finish:
            matched = step.stop if step.stop or step.finish == "length" else ids[-1]
            blocks.append(("finish", self._delta(index, {"reasoning_content": None}, step.finish, matched)))
        return blocks

    def _delta(
        self,
        index: int,
        delta: dict[str, Any],
        finish: str | None = None,
        matched: str | int | None = None,
        so_far: TokenCounts | None = None,
    ) -> str:
        ending = {"logprobs": None, "finish_reason": finish, "matched_stop": matched}
        usage = {"usage": self._counts(so_far)} if so_far else {}
        return self._chunk([{"index": index, "delta": delta, **ending}], **usage)

    @staticmethod
    def _shown(delta: Delta) -> dict[str, Any]:
        if delta.channel == Strand.REASONING:
            return {"reasoning_content": delta.text}
        if delta.channel == Strand.CONTENT:
            return {"reasoning_content": None, "content": delta.text}
        begins = delta.channel == Strand.CALL_NAME
        function = {"name": delta.text if begins else None, "arguments": "" if begins else delta.text}
        number = f"call_{secrets.token_hex(12)}" if begins else None
        call = {"id": number, "index": delta.call, "type": "function", "function": function}
        return {"reasoning_content": None, "tool_calls": [call]}

    @staticmethod
    def _counts(counts: TokenCounts) -> dict[str, Any]:
        return {
            "prompt_tokens": counts.prompt,
            "total_tokens": counts.prompt + counts.completion,
            "completion_tokens": counts.completion,
            "prompt_tokens_details": None,
            "reasoning_tokens": counts.reasoning,
            "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
        }

    def usage(self, counts: TokenCounts) -> str:
        return self._chunk([], usage=self._counts(counts))

    def aborted(self, counts: TokenCounts) -> str:
        return self._delta(0, {"reasoning_content": None}, "abort")

    def error(self, code: int | None) -> str:
        message, kind = "Request running timeout reached.", "SERVICE_UNAVAILABLE"
        if code is not None:
            message, kind = "The request cannot be served as it is.", "BadRequestError"
        error = {"object": "error", "message": message, "type": kind, "param": None, "code": code or 503}
        return f"data: {json.dumps({'error': error}, ensure_ascii=False)}\n\n"

    def whole(self, steps: Iterable[Sequence[Step]], counts: TokenCounts) -> dict[str, Any]:
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(steps)]
        head = {"id": self.id, "object": "chat.completion", "created": self.created, "model": self.model}
        return {
            **head,
            "choices": choices,
            "usage": self._counts(counts),
            "metadata": {"weight_version": "default"},
        }

    @staticmethod
    def _whole_choice(index: int, steps: Sequence[Step]) -> dict[str, Any]:
        message = {
            "role": "assistant",
            "content": _text(steps, Strand.CONTENT) or None,
            "reasoning_content": _text(steps, Strand.REASONING) or None,
            "tool_calls": _whole_calls(steps, "call_") or None,
        }
        ending = {"finish_reason": steps[-1].finish, "matched_stop": steps[-1].stop}
        return {"index": index, "message": message, "logprobs": None, **ending}


def sglang_refusal(
    status: int, message: str, kind: str = "BadRequestError", param: str | None = None
) -> Refusal:
    return Refusal(
        status, {"object": "error", "message": message, "type": kind, "param": param, "code": status}
    )
