"""What the engine is asked: short and long, several scripts, with and without thinking, with tools and with history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSON = dict[str, Any]

_WEATHER: JSON = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place"],
        },
    },
}
_CLOCK: JSON = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time of day at a place.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def _user(text: str) -> JSON:
    return {"role": "user", "content": text}


_NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}
# Each a part of a request body.
QUESTIONS: tuple[Mapping[str, Any], ...] = (
    {"messages": [_user("How do I carry on after a broken connection?")]},
    {"messages": [_user("为什么流会中断？请用两三句话说明。")]},
    {"messages": [_user("Write a short function that adds two numbers, and explain it.")]},
    {"messages": [_user("Count from one to twenty in words.")]},
    {"messages": [_user("OK")]},
    {"messages": [_user("Name three rivers 🌊 and three mountains ⛰️.")], "max_tokens": 8000},
    {"messages": [_user("What is a seam?")], "max_completion_tokens": 9000, "temperature": 0.0},
    {"messages": [{"role": "system", "content": "You are brief."}, _user("Tell me about tea.\n\nAnd cups.")]},
    {
        "messages": [
            _user("Say yes."),
            {"role": "assistant", "content": "Yes.\n"},
            _user("And once more, with reasons."),
        ]
    },
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "A question in parts."}]}]},
    {"messages": [_user("No thinking now: what is a lantern?")], **_NO_THINKING},
    {"messages": [_user("不用思考，直接回答：西湖在哪里？")], **_NO_THINKING},
    {"messages": [_user("What is the weather in Paris?")], "tools": [_WEATHER]},
    {"messages": [_user("Use both tools for Rome: its weather, its time.")], "tools": [_WEATHER, _CLOCK]},
    {"messages": [_user("天气怎么样？请调用工具。")], "tools": [_WEATHER, _CLOCK], **_NO_THINKING},
    {"messages": [_user("A plain question, although there is a function to call.")], "tools": [_CLOCK]},
    # Stop strings that end the simulated answer, each with one that it only begins to write. They go over many tokens,
    # so that cuts fall inside them, and before text that the engine holds back.
    {"messages": [_user("List three things.")], "stop": ["杭州的西湖和river都", "由753个片段，"]},
    {
        "messages": [_user("Explain the difference between a river and a lake, in a list.")],
        "stop": ["waits\n- last, the", "- the rest 🍎"],
    },
    {
        "messages": [_user("Where do streams end?")],
        "stop": ["row of large", "carries number 881.  That"],
        "max_tokens": 9000,
    },
)


def body_of(question: Mapping[str, Any], model: str, usage: str) -> JSON:
    """usage: none, asked (one event at the end) or running (on every event as well)."""
    body: JSON = {"model": model, "temperature": 0, "stream": True, **question}
    if usage != "none":
        running = {"continuous_usage_stats": True} if usage == "running" else {}
        body["stream_options"] = {"include_usage": True, **running}
    return body
