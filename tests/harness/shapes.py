"""Streams as vLLM and SGLang write them, built from pieces of text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tests.harness.upstream import DONE, Send, event


@dataclass(frozen=True, slots=True)
class Engine:
    """One completion of one engine. Methods return the steps of a reply."""

    id: str
    created: int = 1795977243
    model: str = "tiny-qwen3"
    fingerprint: str = ""

    def another(self, id: str, created: int = 1795977999, **changes: Any) -> Any:
        """The same engine writing another completion, as leg 2 is one."""
        return replace(self, id=id, created=created, **changes)

    def _event(self, choices: list[dict[str, Any]], extra: dict[str, Any]) -> Send:
        payload: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **extra,
        }
        return event(json.dumps(payload, separators=(",", ":"), ensure_ascii=False))


class Vllm(Engine):
    """`reasoning`, `token_ids: null` on every delta but the first, `stop_reason` on the last, a fingerprint
    on the usage event."""

    __slots__ = ()
    field = "reasoning"

    def delta(self, delta: dict[str, Any], **extra: Any) -> Send:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": None}
        return self._event([choice], extra)

    def role(self, **extra: Any) -> Send:
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return self._event([choice], {"prompt_token_ids": None, "prompt_text": None, **extra})

    def reasoning(self, text: str, **extra: Any) -> Send:
        return self.delta({"reasoning": text}, **extra)

    def content(self, text: str, **extra: Any) -> Send:
        return self.delta({"content": text}, **extra)

    def tool(self, index: int, name: str = "", id: str = "", arguments: str = "") -> Send:
        call: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
        if name:
            call = {"id": id, "type": "function", "index": index, "function": {"name": name, "arguments": ""}}
        return self.delta({"content": None, "tool_calls": [call]})

    def finish(self, reason: str = "stop", **extra: Any) -> Send:
        choice = {
            "index": 0,
            "delta": {},
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": None,
        }
        return self._event([choice], extra)

    def usage(self, prompt: int, completion: int, reasoning: int = 0) -> Send:
        counts = self.counts(prompt, completion, reasoning)
        return self._event([], {"usage": counts, "system_fingerprint": self.fingerprint})

    def counts(self, prompt: int, completion: int, reasoning: int = 0) -> dict[str, Any]:
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }


class Sglang(Engine):
    """`reasoning_content`, null beside content; `matched_stop` on every delta; reasoning_tokens twice."""

    __slots__ = ()
    field = "reasoning_content"

    def delta(self, delta: dict[str, Any], finish: str | None = None, **extra: Any) -> Send:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": None}
        return self._event([choice], extra)

    def role(self, **extra: Any) -> Send:
        return self.delta({"reasoning_content": None, "role": "assistant", "content": ""}, **extra)

    def reasoning(self, text: str, **extra: Any) -> Send:
        return self.delta({"reasoning_content": text}, **extra)

    def content(self, text: str, **extra: Any) -> Send:
        return self.delta({"reasoning_content": None, "content": text}, **extra)

    def tool(self, index: int, name: str = "", id: str = "", arguments: str = "") -> Send:
        function: dict[str, Any] = {"name": name or None, "arguments": arguments}
        call = {"id": id or None, "index": index, "type": "function", "function": function}
        return self.delta({"reasoning_content": None, "content": None, "tool_calls": [call]})

    def finish(self, reason: str = "stop", **extra: Any) -> Send:
        return self.delta({"reasoning_content": None}, reason, **extra)

    def usage(self, prompt: int, completion: int, reasoning: int = 0) -> Send:
        return self._event([], {"usage": self.counts(prompt, completion, reasoning)})

    def counts(self, prompt: int, completion: int, reasoning: int = 0) -> dict[str, Any]:
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": None,
            "reasoning_tokens": reasoning,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }


VLLM = Vllm("chatcmpl-a15a32e582704e11", fingerprint="vllm-0.32.0-c416c9d2")
SGLANG = Sglang("6b9f85e974e946139cce24d690de72b7")
VLLM_LEG2 = Vllm("chatcmpl-second0000000000", created=1795977999, fingerprint="vllm-0.32.0-another")
SGLANG_LEG2 = Sglang("second0000000000000000000000000", created=1795977999)


def started(engine: Vllm | Sglang, reasoning: Iterable[str] = (), content: Iterable[str] = ()) -> list[Send]:
    """The role chunk and the text so far: a leg without its end."""
    return [
        engine.role(),
        *(engine.reasoning(piece) for piece in reasoning),
        *(engine.content(piece) for piece in content),
    ]


def ended(
    engine: Vllm | Sglang, reason: str = "stop", usage: tuple[int, int, int] | None = None
) -> list[Send]:
    """finish_reason, usage where given (prompt, completion, reasoning tokens), `[DONE]`."""
    counts = [engine.usage(*usage)] if usage else []
    return [engine.finish(reason), *counts, DONE]


def joined(steps: Iterable[Send]) -> bytes:
    """The body that the steps send."""
    return b"".join(step.data for step in steps)
