"""What is to be verified: an order, its prompts, and the progress of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from continuation.shapes.chat.usage import Estimator
from continuation.shapes.encoding import JSON, parse
from continuation.verification.knowledge import Knowledge
from strategies.types import CompiledStrategy

MOST_PROMPTS = 200
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Look up the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def question(text: str, **fields: Any) -> JSON:
    return {"messages": [{"role": "user", "content": text}], **fields}


DEFAULT_PROMPTS: tuple[JSON, ...] = (
    question("Why is the sky blue? Answer in two short paragraphs."),
    question("用中文介绍一下杭州，再加几个表情符号。"),
    question("Write a Python function that adds two numbers, in a code block, and show how it is called."),
    question(
        "List three fruits, each on a line of its own with an emoji, then say which one is the sweetest."
    ),
    question("Use the tool: what is the weather in Paris?", tools=[WEATHER]),
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
    """How far a run is. total is 0 while it is not known."""

    done: int
    total: int
    says: str


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
        return question(line.strip())
    try:
        body = parse(line.encode())
    except ValueError:
        raise Trouble(f"line {number} begins with a brace, but is no JSON") from None
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise Trouble(f'line {number} is no chat body: it needs "messages", a list that is not empty')
    return body


def greedy_body(prompt: JSON, order: Order, known: Knowledge) -> JSON:
    """The prompt as a greedy streamed request; thinking is switched on if it is off by default."""
    room = known.max_model_len // 2 if known.max_model_len else order.max_tokens
    body = {"max_tokens": min(order.max_tokens, room), **prompt}
    if known.thinking_switch and not known.on_by_default:
        switches = body.get("chat_template_kwargs")
        asked = switches if isinstance(switches, dict) else {}
        body["chat_template_kwargs"] = {known.thinking_switch: True, **asked}
    body.pop("n", None)
    forced = {"model": known.model, "temperature": 0, "stream": True}
    return {**body, **forced, "stream_options": {"include_usage": True}}
