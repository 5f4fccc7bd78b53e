"""What the tiny models recite: chosen for what breaks when an answer is cut - white space, CJK, emoji, code, tools."""

from __future__ import annotations

from typing import Any, NamedTuple


class Dialogue(NamedTuple):
    """What the user asks, with which tools, and what the model thinks and then writes."""

    user: str
    tools: list[dict[str, Any]] | None
    thought: str
    answer: str


GET_WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Look up the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}

DIALOGUES = [
    Dialogue(
        "Why is the sky blue?",
        None,
        "The user wants a short physical reason.\nSunlight holds every colour.  Air molecules scatter short "
        "waves far more than long ones.\n\nSo I will name Rayleigh scattering, then answer in two sentences.",
        "Sunlight is a mix of colours, and air scatters blue light about ten times more than red.\n\n"
        "That is why blue reaches your eyes from every direction:  the effect is called *Rayleigh scattering*.\n",
    ),
    Dialogue(
        "用中文介绍一下杭州。",
        None,
        "用户想了解杭州，我应该提到西湖、龙井茶和互联网公司。\n先写地理位置，再写特色，最后加一个表情。",
        "杭州是浙江省的省会，位于钱塘江下游。🌊\n\n这里有美丽的西湖、清香的龙井茶🍵，还有繁忙的互联网公司。"
        "欢迎你来杭州做客！👩‍💻🎉",
    ),
    Dialogue(
        "Write a Python function that adds two numbers.",
        None,
        "A tiny function is enough: def add(a, b).\n"
        "I should show it in a code block with four spaces of indent.",
        'Here it is:\n\n```python\ndef add(a, b):\n    """Return the sum."""\n    total = a + b\n    return total\n'
        "\n\nprint(add(2, 3))   # 5\n```\n\nCall it with any two numbers.",
    ),
    Dialogue(
        "List three fruits.",
        None,
        "Simple: apple, banana, cherry. A list with dashes and a blank line will do.",
        "- apple 🍎\n- banana 🍌\n- cherry 🍒\n\n\nAll three are sweet;   none needs cooking.  \n",
    ),
    Dialogue(
        "What is the weather in Paris?",
        [GET_WEATHER],
        "I have a tool for this: get_weather. The city is Paris.",
        'Let me check.\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris, France"}}\n</tool_call>',
    ),
    Dialogue(
        "Compare Paris and Rome weather.",
        [GET_WEATHER],
        "Two calls are needed, one for each city.",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>',
    ),
]

# More text for the tokenizer to be trained on.
FILLER = (
    "A stream is a sequence of server-sent events. Each event carries a small piece of text, and the last "
    "one tells why the model stopped. When the connection breaks, the client keeps what it has received. "
    "数据流由许多小片段组成，每个片段只包含几个字符。连接中断以后，网关会重新发送请求，让模型继续写下去。"
)
