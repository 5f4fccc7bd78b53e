"""What of an engine's message is quoted to clients and operators."""

from __future__ import annotations

import re
from collections.abc import Iterable

from continuation.shapes.openings import opening_of

MESSAGE_CHARS = 200
# Behind these words some engines repeat the request or the conversation in their errors.
_REPEATS = re.compile(
    r"Final message to continue|Rendered chat|'input':|\"input\":|Received:|messages=\[", re.I
)
# Characters of a line that are looked at. An error may be megabytes long, and only its beginning is quoted.
_LINE_CHARS = 2 * MESSAGE_CHARS
_LEAST_PROBE = 4


def first_line(message: str, conversation: Iterable[str]) -> str:
    """The first line of an engine's message, cut before it repeats any of the conversation; 200 characters at most."""
    line = message.lstrip().partition("\n")[0][:_LINE_CHARS].strip()
    ends = [found.start()] if (found := _REPEATS.search(line)) else []
    for text in conversation:
        probe = opening_of(text)
        if len(probe) >= _LEAST_PROBE and (at := line.find(probe)) >= 0:
            ends.append(at)
    return line[: min(ends, default=len(line))].rstrip(" :,{'\"")[:MESSAGE_CHARS]
