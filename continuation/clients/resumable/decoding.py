"""Events out of bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import NotUnderstood

# An event that is longer is no event of a chat.
EVENT_BYTES = 64 * 2**20
_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of an event stream that has data. id: its own field, None if it has none."""

    data: str
    id: str | None = None
    name: str = ""


class BlockDecoder:
    """Bytes in reads of any size -> blocks. Lines end in LF, CR or CRLF and nothing else: U+2028, at which
    `str.splitlines` and httpx's `iter_lines` also break, stands in the middle of JSON. Raises NotUnderstood."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line without its end
        self._rest_size = 0
        self._started = False
        self._after_cr = False
        self._size = 0  # of the data lines so far
        self._data: list[bytes] = []
        self._id: str | None = None
        self._name = ""

    def feed(self, read: bytes) -> Iterator[Block]:
        if self._after_cr and read:
            self._after_cr, read = False, read.removeprefix(b"\n")
        if self._started and not _LINE.search(read):
            self._keep(read)
            return
        data, looked_at = b"".join([*self._rest, read]), self._rest_size
        self._rest, self._rest_size = [], 0
        if not self._started:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._keep(data)
                return
            self._started, data, looked_at = True, data.removeprefix(_BOM), 0
        at = 0
        for end in _LINE.finditer(data, looked_at):
            line, at = data[at : end.start()], end.end()
            self._after_cr = end.group() == b"\r" and at == len(data)
            if line:
                self._field(line)
            elif block := self._block():
                yield block
        self._keep(data[at:])

    def _keep(self, rest: bytes) -> None:
        if rest:
            self._rest.append(rest)
        self._rest_size += len(rest)
        if self._size + self._rest_size > EVENT_BYTES:
            raise NotUnderstood(f"an event of more than {EVENT_BYTES} bytes")

    def _field(self, line: bytes) -> None:
        name, _colon, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(line) + 1
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")

    def _block(self) -> Block | None:
        lines, id, name = self._data, self._id, self._name
        self._data, self._id, self._name, self._size = [], None, "", 0
        return Block(b"\n".join(lines).decode("utf-8", "replace"), id, name) if lines else None
