"""From messages to the prompt text, with the manners of each engine."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from jinja2 import FileSystemLoader, StrictUndefined, Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from continuation.testbed.simulator.dialects import Dialect
from continuation.testbed.simulator.model import settled, split
from continuation.testbed.simulator.requests import ChatRequest, Message

_TEMPLATES = Path(__file__).parent / "templates"
# Marks where the final message ends. A template that trims takes the blank away, and then the text before it is
# trimmed as well: white space at the end of a prefix is lost there.
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class ConversationRefused(Exception):
    """The engine refuses the conversation (status 400). The message can hold the whole of it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param = message, param


@dataclass(frozen=True, slots=True)
class Prompt:
    """text goes to the model; in_reasoning and in_call are where the parser starts.

    fresh           the same turn without its prefix, and whether it thinks: where an engine that starts over starts
    content_missing SGLang was told to continue a message without content, and will fail after its first event.
    """

    text: str
    thinking: bool
    in_reasoning: bool
    fresh: tuple[str, bool]
    in_call: bool = False
    content_missing: bool = False

    def restarted(self) -> Prompt:
        text, thinking = self.fresh
        return replace(self, text=text, in_reasoning=thinking, in_call=False, content_missing=False)


def render(messages: tuple[Message, ...], request: ChatRequest, dialect: Dialect, *, generation: bool) -> str:
    """The chat template alone."""
    rows = [
        {
            "index": index,
            "role": m.role,
            "content": m.content or "",
            "reasoning": m.reasoning,
            "calls": m.calls,
        }
        for index, m in enumerate(messages)
    ]
    return _template(dialect.name).render(
        messages=rows,
        tools=list(request.tools),
        add_generation_prompt=generation,
        thinking=request.thinking(dialect.thinking_keys),
    )


@cache
def _template(name: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.filters["plain"] = lambda text: text.replace("<|", "<\u2060|")
    return environment.get_template(f"{name}.jinja")


# -- vLLM ------------------------------------------------------------------------------------------


def render_vllm(request: ChatRequest, dialect: Dialect) -> Prompt:
    if request.chat_template:
        raise ConversationRefused(
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template."
        )
    if not request.messages:
        raise ConversationRefused("Conversation must contain at least one message.", "messages")
    if request.continue_final_message and dialect.reads_flag:
        text = _continued(request, dialect)
    else:
        text = render(request.messages, request, dialect, generation=request.add_generation_prompt)
    thinking = request.thinking(dialect.thinking_keys)
    in_reasoning, in_call = _vllm_state(text, thinking, dialect)
    return Prompt(text, thinking, in_reasoning, _fresh(text, thinking, dialect), in_call)


def _continued(request: ChatRequest, dialect: Dialect) -> str:
    """The prompt up to the end of the final message, or the refusal that says all it knows."""
    *history, last = request.messages
    if last.content is None:
        raise ConversationRefused(
            "continue_final_message is set but we could not find any text to continue in the final message!"
        )
    tagged = (*history, replace(last, content=last.content + _TAG))
    rendered = render(tagged, request, dialect, generation=False)
    at = rendered.rfind(_TAG.strip())
    if at < 0 or last.content.strip() not in rendered:
        raise ConversationRefused(
            "continue_final_message is set but the final message does not appear in the chat after applying the "
            "chat template! This can happen if the chat template deletes portions of the final message. Please "
            "verify the chat template and final message in your chat to ensure they are compatible."
            f"Final message to continue: {last.content}\nRendered chat:\n{rendered.rstrip()}"
        )
    kept = rendered[:at]
    return kept if rendered.startswith(_TAG, at) else kept.rstrip()


def _vllm_state(text: str, thinking: bool, dialect: Dialect) -> tuple[bool, bool]:
    """(in reasoning, in a tool call): the newest marker back to the turn boundary, else the switch."""
    turn = split(text, dialect).text.rpartition(dialect.eos)[2]
    markers = (dialect.think, dialect.close, dialect.content_open, dialect.call_open, dialect.call_close)
    found = [(turn.rfind(marker), marker) for marker in markers if marker and marker in turn]
    if not found:
        return thinking, False
    newest = max(found)[1]
    return newest == dialect.think, newest == dialect.call_open


# -- SGLang ----------------------------------------------------------------------------------------


def render_sglang(request: ChatRequest, dialect: Dialect) -> Prompt:
    """The final assistant text is appended raw after the generation prompt; without the flag it is a user's."""
    if not request.messages:
        raise ConversationRefused("Messages cannot be empty.")
    *history, last = request.messages
    thinking = request.thinking(dialect.thinking_keys)
    if last.role != "assistant":
        return _sglang_prompt(request.messages, "", request, dialect, thinking)
    if not request.continue_final_message:
        return _sglang_prompt((*history, replace(last, role="user")), "", request, dialect, thinking)
    return _sglang_prompt(tuple(history), last.content, request, dialect, thinking)


def _sglang_prompt(
    messages: tuple[Message, ...], prefix: str | None, request: ChatRequest, dialect: Dialect, thinking: bool
) -> Prompt:
    text = render(messages, request, dialect, generation=True) + (prefix or "")
    in_reasoning = _sglang_state(prefix or "", thinking, dialect)
    fresh = _fresh(text, thinking, dialect)
    return Prompt(text, thinking, in_reasoning, fresh, content_missing=prefix is None)


def _sglang_state(prefix: str, thinking: bool, dialect: Dialect) -> bool:
    """Only the prefix and the switch count: a literal opening marker in it sends what follows to reasoning."""
    if dialect.close in prefix:
        return False
    return dialect.think in prefix or thinking


def _fresh(text: str, thinking: bool, dialect: Dialect) -> tuple[str, bool]:
    """(the prompt of the same turn before anything was written in it, whether it thinks), as leg 1 had it."""
    turn = split(text, dialect)
    begun = settled(turn.text, dialect)
    thinking = not begun.startswith(dialect.off) if begun else thinking
    opening = dialect.opening if dialect.prompt_opens else ""
    return turn.base + (opening if thinking else dialect.off), thinking
