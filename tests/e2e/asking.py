"""What the tests ask for, and what they expect to be counted."""

from __future__ import annotations

import math
from typing import Any

QUESTION = {"role": "user", "content": "List three fruits."}


def body(**changes: Any) -> dict[str, Any]:
    """A streamed chat request."""
    return {"model": "any-name", "messages": [QUESTION], "stream": True, **changes}


def asking_usage(**changes: Any) -> dict[str, Any]:
    return body(stream_options={"include_usage": True}, **changes)


def estimate(text: str) -> int:
    """Han characters at 1.6 to the token, all others at 4."""
    han = sum("\u4e00" <= char <= "\u9fff" for char in text)
    return math.ceil(round(han / 1.6 + (len(text) - han) / 4, 9))
