"""A tokenizer in the manner of Kimi-K3: messages become segments whose markers are ids, and whose text never is.

It is copied into the model's directory and loaded from there (trust_remote_code).
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerFast


class XtmlTokenizer(PreTrainedTokenizerFast):
    """`continue_final_message` is not among what its template reads: every message is closed."""

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        tokenize: bool = False,
        add_generation_prompt: bool = True,
        thinking: bool = True,
        **_unread: Any,
    ) -> str | list[int]:
        segments = [segment for message in conversation for segment in _closed(message, thinking)]
        if add_generation_prompt:
            segments += [
                *_opened("message", ' role="assistant"'),
                *_opened("think" if thinking else "response"),
            ]
        if not tokenize:
            return "".join(text for text, _marker in segments)
        return [token for text, marker in segments for token in self._ids(text, marker)]

    def _ids(self, text: str, marker: bool) -> list[int]:
        """Markers inside a message's own text are spelt out as ordinary characters."""
        self._tokenizer.encode_special_tokens = not marker
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        finally:
            self._tokenizer.encode_special_tokens = False


Segment = tuple[str, bool]


def _opened(tag: str, attributes: str = "") -> list[Segment]:
    return [("<|open|>", True), (tag + attributes, False), ("<|sep|>", True)]


def _ended(tag: str) -> list[Segment]:
    return [("<|close|>", True), (tag, False), ("<|sep|>", True)]


def _closed(message: dict[str, Any], thinking: bool) -> list[Segment]:
    segments = _opened("message", f' role="{message["role"]}"')
    if message["role"] == "assistant":
        if thinking:
            thought = message.get("reasoning_content") or message.get("reasoning") or ""
            segments += [*_opened("think"), (thought, False), *_ended("think")]
        segments += [*_opened("response"), (_text(message), False), *_ended("response")]
    else:
        segments.append((_text(message), False))
    return [segment for segment in [*segments, *_ended("message"), ("<|end_of_msg|>", True)] if segment[0]]


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
