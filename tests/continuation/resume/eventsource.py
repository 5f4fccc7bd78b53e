"""A reader of event streams after the letter of the WHATWG HTML standard, of the whole of a stream at once."""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class Dispatched:
    """What a browser would hand to its page. id: the last one seen; told: how often its own block names one."""

    data: bytes
    name: bytes
    id: bytes
    told: int
    retry: bytes | None = None

    @property
    def said(self) -> tuple[bytes, bytes, bytes | None]:
        return self.name, self.data, self.retry


def dispatched(stream: bytes) -> list[Dispatched]:
    """A last block without its blank line counts for nothing, as does one without data."""
    found: list[Dispatched] = []
    data, name, last, told, retry = b"", b"", b"", 0, None
    for line in LINE_END.split(stream.removeprefix(b"\xef\xbb\xbf"))[:-1]:
        field, colon, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if not line:
            if data:
                found.append(Dispatched(data[:-1], name, last, told, retry))
            data, name, told, retry = b"", b"", 0, None
        elif colon and not field:
            continue
        elif field == b"data":
            data += value + b"\n"
        elif field == b"event":
            name = value
        elif field == b"id" and b"\0" not in value:
            last, told = value, told + 1
        elif field == b"retry" and value.isdigit():
            retry = value
    return found


def blocks_without_data(stream: bytes) -> int:
    """Blocks of lines that a browser ignores, and that some clients fail on once there is an id; blank lines too many
    are such blocks. Comments alone do not make a block, nor does the last if it has no blank line."""
    empty, has_data, ended = 0, False, 0
    for line in LINE_END.split(stream.removeprefix(b"\xef\xbb\xbf"))[:-1]:
        if not line:
            ended += 1
            empty += not has_data
            has_data = False
        has_data = has_data or line.partition(b":")[0] == b"data"
    return empty
