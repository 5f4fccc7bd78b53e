"""At every event of an answer: the right continuation request gives the rest of it, a wrong one does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from continuation.testbed.simulator.engine import Answer, SimulatedEvent
from tests.continuation.testbed.simulator.helpers import QUESTION, Told, answer, ask, chunks, engine, told

K3_OPEN, K3_CLOSE, K3_RESPONSE = "<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>"


@dataclass(frozen=True)
class Way:
    """How a prefix is written for one engine and template. switch: the thinking key set to false in content."""

    engine: str
    template: str
    open: str
    close: str
    switch: str = ""
    structured: bool = False
    trims: bool = False

    def __str__(self) -> str:
        return f"{self.engine}-{self.template}{'-structured' if self.structured else ''}"

    def body(self, partial: Told) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.open + partial.reasoning}
        if partial.content:
            message["content"] += self.close + partial.content
        if partial.content and self.structured:
            message = {"role": "assistant", "reasoning": partial.reasoning, "content": partial.content}
        return continued(message, {self.switch: False} if self.switch and partial.content else {})


def continued(message: dict[str, Any], kwargs: dict[str, bool], question: str = QUESTION) -> dict[str, Any]:
    body = ask(question)
    flags = {"continue_final_message": True, "add_generation_prompt": False, "chat_template_kwargs": kwargs}
    return {**body, "messages": [*body["messages"], message], **flags}


WAYS = [
    Way("vllm", "qwen", "<think>\n", "</think>", trims=True),
    Way("vllm", "qwen", "<think>\n", "</think>", "enable_thinking", structured=True, trims=True),
    Way("vllm", "generic", "<think>", "</think>", "thinking"),
    Way("vllm", "qwen", "<think>", "</think>", "enable_thinking", structured=True, trims=True),
    Way("sglang", "qwen", "", "</think>"),
    Way("sglang", "qwen", "", "</think>", "enable_thinking"),
    Way("sglang", "generic", "<think>", "</think>", "thinking"),
    Way("sglang", "generic", "<think>", "</think>"),
    Way("sglang", "kimi-k3", K3_OPEN, K3_CLOSE + K3_RESPONSE, "thinking"),
    Way("sglang", "deepseek-v4", "", "</think>"),
]


@cache
def leg1(name: str, template: str) -> list[SimulatedEvent]:
    return list(answer(engine(name, template)).events())


def partials(name: str, template: str) -> list[Told]:
    """What a client has after each event that brought text."""
    found, partial = [], Told()
    for event in leg1(name, template):
        if event.kind in ("reasoning", "content"):
            partial = Told(partial.reasoning, partial.content).add(chunks([event])[0])
            found.append(partial)
    return found


def spliced(partial: Told, rest: Told, *, trims: bool) -> tuple[str, str]:
    """The client's text; where the template trims, white space that is written again is dropped once."""
    reasoning, content = rest.reasoning, rest.content
    if trims and partial.content:
        content = without_repeated_blanks(partial.content, content)
    elif trims:
        reasoning = without_repeated_blanks(partial.reasoning, reasoning)
    return partial.reasoning + reasoning, partial.content + content


def without_repeated_blanks(before: str, after: str) -> str:
    blanks = before[len(before.rstrip()) :]
    return after.removeprefix(blanks)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_right_prefix_continues_identically_at_every_event(way: Way) -> None:
    one, whole = engine(way.engine, way.template), told(leg1(way.engine, way.template))
    for partial in partials(way.engine, way.template):
        rest = told(answer(one, way.body(partial)).events())
        assert spliced(partial, rest, trims=way.trims) == (whole.reasoning, whole.content), partial
        assert rest.finish == "stop"


def without_a_newline(way: Way, partial: Told) -> dict[str, Any]:
    return Way(way.engine, way.template, way.open.rstrip() or "\n", way.close).body(partial)


def with_thinking_closed(way: Way, partial: Told) -> dict[str, Any]:
    return continued({"role": "assistant", "content": way.open + partial.reasoning + way.close}, {})


def with_another_question(way: Way, partial: Told) -> dict[str, Any]:
    return way.body(partial) | {
        "messages": [ask(QUESTION + " ")["messages"][0], way.body(partial)["messages"][1]]
    }


def with_content_alone(way: Way, partial: Told) -> dict[str, Any]:
    switch = way.switch or {"qwen": "enable_thinking"}.get(way.template, "thinking")
    return continued({"role": "assistant", "content": partial.content}, {switch: False})


def with_lost_blanks(way: Way, partial: Told) -> dict[str, Any]:
    body = way.body(partial)
    body["messages"][1]["content"] = body["messages"][1]["content"].rstrip()
    return body


QWEN_VLLM, GENERIC_VLLM, QWEN_SGLANG, GENERIC_SGLANG, K3_SGLANG = WAYS[0], WAYS[2], WAYS[4], WAYS[6], WAYS[8]
Wrong = Callable[[Way, Told], dict[str, Any]]


@pytest.mark.parametrize(
    ("way", "wrong", "concerns"),
    [
        (QWEN_VLLM, without_a_newline, "content"),
        (QWEN_SGLANG, without_a_newline, "both"),
        (QWEN_SGLANG, with_thinking_closed, "reasoning"),
        (GENERIC_VLLM, with_thinking_closed, "reasoning"),
        (GENERIC_SGLANG, with_thinking_closed, "reasoning"),
        (K3_SGLANG, with_thinking_closed, "reasoning"),
        (GENERIC_VLLM, with_another_question, "both"),
        (K3_SGLANG, with_another_question, "both"),
        (QWEN_VLLM, with_content_alone, "content"),
        (QWEN_SGLANG, with_content_alone, "content"),
        (GENERIC_VLLM, with_content_alone, "content"),
        (K3_SGLANG, with_content_alone, "content"),
        (GENERIC_VLLM, with_lost_blanks, "blanks"),
        (GENERIC_SGLANG, with_lost_blanks, "blanks"),
        (QWEN_SGLANG, with_lost_blanks, "blanks"),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_a_wrong_prefix_never_continues_identically(way: Way, wrong: Wrong, concerns: str) -> None:
    one, whole = engine(way.engine, way.template), told(leg1(way.engine, way.template))
    tried = 0
    for partial in partials(way.engine, way.template)[:: 1 if concerns == "blanks" else 3]:
        kind = "content" if partial.content else "reasoning"
        ends_blank = (partial.content or partial.reasoning)[-1:].isspace()
        if concerns in (kind, "both") or (concerns == "blanks" and ends_blank):
            # A thinking that is over is closed rightly.
            if wrong is with_thinking_closed and partial.reasoning == whole.reasoning:
                continue
            tried += 1
            found = one.chat(json.dumps(wrong(way, partial)).encode())
            if isinstance(found, Answer):
                rest = told(found.events())
                assert spliced(partial, rest, trims=False) != (whole.reasoning, whole.content), partial
            else:
                assert found.status == 400
    assert tried > 2


@pytest.mark.parametrize("template", ["kimi-k3", "deepseek-v4"])
def test_a_renderer_that_ignores_the_flag_answers_200_with_garbage_or_nothing(template: str) -> None:
    one, whole = engine("vllm", template), told(leg1("vllm", template))
    rests = []
    for partial in partials("vllm", template):
        way = Way(
            "vllm", template, one.dialect.opening, one.dialect.close + one.dialect.content_open, "thinking"
        )
        rest = told(answer(one, way.body(partial)).events())
        rests.append(rest.reasoning + rest.content)
        assert spliced(partial, rest, trims=False) != (whole.reasoning, whole.content) or not rest.content
        assert len(rests[-1]) < 300
    assert "" in rests
    assert any(rests)


def test_a_doubled_opening_is_seen() -> None:
    one, whole = engine("sglang", "qwen"), told(leg1("sglang", "qwen"))
    partial = Told(whole.reasoning[:40])
    rest = told(answer(one, Way("sglang", "qwen", "<think>\n", "</think>").body(partial)).events())
    assert spliced(partial, rest, trims=False) != (whole.reasoning, whole.content)


def test_an_answer_without_reasoning_continues_from_its_content_alone() -> None:
    for name, template, key in (
        ("vllm", "qwen", "enable_thinking"),
        ("vllm", "generic", "thinking"),
        ("sglang", "qwen", "enable_thinking"),
        ("sglang", "kimi-k3", "thinking"),
        ("sglang", "deepseek-v4", "thinking"),
    ):
        one = engine(name, template)
        whole = told(answer(one, ask(chat_template_kwargs={key: False})).events())
        for cut in range(1, len(whole.content), 7):
            partial = Told("", whole.content[:cut])
            body = continued({"role": "assistant", "content": partial.content}, {key: False})
            rest = told(answer(one, body).events())
            assert spliced(partial, rest, trims=template == "qwen" and name == "vllm") == ("", whole.content)


def test_a_text_held_back_for_a_stop_string_continues_from_inside_a_token() -> None:
    one, whole = engine("vllm", "generic"), told(leg1("vllm", "generic"))
    body = ask(stop=["a stop string that never comes"])
    partial = Told()
    for event in answer(one, body).events():
        if event.kind not in ("reasoning", "content"):
            continue
        partial = Told(partial.reasoning, partial.content).add(chunks([event])[0])
        rest = told(answer(one, GENERIC_VLLM.body(partial)).events())
        assert spliced(partial, rest, trims=False) == (whole.reasoning, whole.content)
