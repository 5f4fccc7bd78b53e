"""A client on a bare socket, and what it checks of the answers.

Nothing is pooled, followed, decoded or retried: what is seen is what was sent. Times are `time.monotonic()`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from tests.harness.upstream import PATIENCE, Headers

READ_SIZE = 65536


class Stream:
    """One request and its answer, read as slowly as a test likes. `complete`: the framing's end was seen."""

    def __init__(
        self,
        port: int,
        method: str,
        target: str,
        headers: Headers = (),
        body: bytes | Sequence[bytes] = b"",
        timeout: float = PATIENCE,
    ) -> None:
        """A body given in parts is sent chunked. Target and headers are sent as they are (Latin-1)."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._received = bytearray()
        self._method = method
        self.request_id = dict(headers).get("X-Request-Id", "")
        self._head_read = False
        self.status = 0
        self.reason = ""
        self.headers: list[tuple[str, str]] = []
        self.pieces: list[tuple[float, bytes]] = []
        self.complete = False
        self.reset = False
        self._pieces_to_come: Iterator[bytes] = iter(())
        self._send(port, method, target, headers, body)

    def _send(
        self, port: int, method: str, target: str, headers: Headers, body: bytes | Sequence[bytes]
    ) -> None:
        lines = [f"{method} {target} HTTP/1.1"]
        given = {name.lower() for name, _value in headers}
        if "host" not in given:
            lines.append(f"Host: 127.0.0.1:{port}")
        lines += [f"{name}: {value}" for name, value in headers]
        if isinstance(body, bytes):
            if (body or method in ("POST", "PUT", "PATCH")) and "content-length" not in given:
                lines.append(f"Content-Length: {len(body)}")
        else:
            lines.append("Transfer-Encoding: chunked")
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in body) + b"0\r\n\r\n"
        # A body that is refused before it was read whole has an answer to be read all the same.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)

    # -- reading -----------------------------------------------------------------------------

    def read_head(self) -> Stream:
        if self._head_read:
            return self
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            assert self._more(), "the connection ended before the headers did"
        head = bytes(self._received[:end]).decode("latin-1")
        del self._received[: end + 4]
        first, *lines = head.split("\r\n")
        _version, status, *reason = first.split(" ", 2)
        self.status, self.reason = int(status), "".join(reason)
        pairs = [line.partition(":") for line in lines]
        self.headers = [(name, value.strip()) for name, _colon, value in pairs]
        self._head_read = True
        self._pieces_to_come = self._frames()
        return self

    def read_piece(self) -> bytes:
        """The next piece of the body: one chunk, or one read; b"" at the end."""
        self.read_head()
        piece = next(self._pieces_to_come, b"")
        if piece:
            self.pieces.append((time.monotonic(), piece))
        return piece

    def read_until(self, mark: bytes | str) -> bytes:
        """Read on until the body holds the mark; the whole body so far."""
        wanted = mark.encode() if isinstance(mark, str) else mark
        while wanted not in self.body:
            assert self.read_piece(), f"the body ended without {wanted!r}: {self.body!r}"
        return self.body

    def read_rest(self) -> Stream:
        while self.read_piece():
            pass
        return self

    def _more(self) -> bool:
        try:
            data = self._socket.recv(READ_SIZE)
        except ConnectionResetError:
            self.reset = True
            return False
        self._received += data
        return bool(data)

    def _frames(self) -> Iterator[bytes]:
        if self._method == "HEAD" or self.status in (204, 304) or self.status < 200:
            self.complete = True
        elif "chunked" in (self.header("Transfer-Encoding") or ""):
            yield from self._chunks()
        elif (length := self.header("Content-Length")) is not None:
            yield from self._counted(int(length))
        else:
            yield from self._to_the_end()

    def _chunks(self) -> Iterator[bytes]:
        while True:
            while (end := self._received.find(b"\r\n")) < 0:
                if not self._more():
                    return
            size = int(bytes(self._received[:end]), 16)
            while len(self._received) < end + 2 + size + 2:
                if not self._more():
                    return
            data = bytes(self._received[end + 2 : end + 2 + size])
            assert self._received[end + 2 + size : end + 4 + size] == b"\r\n"
            del self._received[: end + 4 + size]
            if size == 0:
                self.complete = True
                return
            yield data

    def _counted(self, left: int) -> Iterator[bytes]:
        while left:
            if not self._received and not self._more():
                return
            data = bytes(self._received[:left])
            del self._received[: len(data)]
            left -= len(data)
            yield data
        self.complete = True

    def _to_the_end(self) -> Iterator[bytes]:
        while self._received or self._more():
            data = bytes(self._received)
            self._received.clear()
            yield data
        self.complete = not self.reset

    # -- what was read -----------------------------------------------------------------------

    @property
    def body(self) -> bytes:
        return b"".join(piece for _at, piece in self.pieces)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        values = self.all(name)
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)

    # -- leaving -----------------------------------------------------------------------------

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def drop(self) -> float:
        """Leave; when that was."""
        at = time.monotonic()
        self._socket.close()
        return at

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._socket.close()


def call(
    port: int,
    method: str,
    target: str,
    headers: Headers = (),
    body: bytes | Sequence[bytes] = b"",
) -> Stream:
    """The whole answer to one request."""
    with Stream(port, method, target, headers, body) as stream:
        return stream.read_rest()


# -- server-sent events ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """One SSE block: its data as parsed JSON, or the str "[DONE]", or None where it has none."""

    data: Any
    event: str | None = None
    id: str | None = None
    comments: tuple[str, ...] = ()


def parse_sse(body: bytes) -> list[Block]:
    """Strict: UTF-8, known fields only, each block ended by its blank line, each data JSON or [DONE]."""
    assert not body.startswith(b"\xef\xbb\xbf"), "the answer begins with a BOM"
    text = body.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    assert text == "" or text.endswith("\n\n"), f"the last event has no blank line: {text[-200:]!r}"
    return [_block(part.split("\n")) for part in text.split("\n\n") if part]


def _block(lines: list[str]) -> Block:
    data: list[str] = []
    comments: list[str] = []
    found: dict[str, str] = {}
    for line in lines:
        name, _colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "":
            comments.append(value)
        elif name == "data":
            data.append(value)
        else:
            assert name in ("event", "id", "retry"), f"no SSE field: {line!r}"
            found[name] = value
    text = "\n".join(data)
    parsed = None if not data else text if text == "[DONE]" else json.loads(text, parse_constant=_no_json)
    return Block(parsed, found.get("event"), found.get("id"), tuple(comments))


def _no_json(word: str) -> Any:
    raise AssertionError(f"{word} is no JSON")


@dataclass(slots=True)
class Answer:
    """What a client makes of a stream of chat completion chunks with one choice."""

    reasoning: str = ""
    content: str = ""
    ids: set[Any] = field(default_factory=set)
    created: set[Any] = field(default_factory=set)
    models: set[Any] = field(default_factory=set)
    fingerprints: set[Any] = field(default_factory=set)
    reasoning_fields: set[str] = field(default_factory=set)
    roles: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    usages: list[dict[str, Any]] = field(default_factory=list)
    errors: list[Any] = field(default_factory=list)
    tool_deltas: list[dict[str, Any]] = field(default_factory=list)
    chunks: list[dict[str, Any]] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    done: int = 0

    @classmethod
    def of(cls, body: bytes) -> Answer:
        answer = cls()
        for block in parse_sse(body):
            assert answer.done == 0 or block.data is None, f"after [DONE]: {block}"
            answer.comments += block.comments
            answer._take(block)
        return answer

    def _take(self, block: Block) -> None:
        if block.data == "[DONE]":
            self.done += 1
        elif isinstance(block.data, dict) and block.data.get("error"):
            self.errors.append(block.data["error"])
        elif isinstance(block.data, dict):
            assert block.event in (None, "message"), block
            self._take_chunk(block.data)
        else:
            assert block.data is None, f"no chunk: {block}"

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        assert chunk.get("object") == "chat.completion.chunk", chunk
        assert not self.errors, f"after the error: {chunk}"
        self.chunks.append(chunk)
        self.ids.add(chunk.get("id"))
        self.created.add(chunk.get("created"))
        self.models.add(chunk.get("model"))
        if chunk.get("system_fingerprint") is not None:
            self.fingerprints.add(chunk["system_fingerprint"])
        if chunk.get("usage") is not None:
            self.usages.append(chunk["usage"])
        for choice in chunk.get("choices") or []:
            self._take_choice(choice)

    def _take_choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or {}
        self.roles += bool(delta.get("role"))
        fields = [name for name in ("reasoning", "reasoning_content") if delta.get(name)]
        self.reasoning_fields.update(fields)
        if fields:
            self.reasoning += delta[fields[0]]
        self.content += delta.get("content") or ""
        text_or_call = fields or delta.get("content") or delta.get("tool_calls")
        assert not (text_or_call and self.finish_reasons), f"text after the finish: {choice}"
        self.tool_deltas += delta.get("tool_calls") or []
        if choice.get("finish_reason") not in (None, "", "null"):
            self.finish_reasons.append(choice["finish_reason"])

    @property
    def usage(self) -> dict[str, Any]:
        assert len(self.usages) == 1, self.usages
        return self.usages[0]


def one_whole_answer(
    stream: Stream,
    *,
    reasoning: str,
    content: str,
    like: Any,
    finish: str = "stop",
    usage: bool = False,
) -> Answer:
    """A rescued or untouched answer: complete, of one completion (`like`: id, created, model), ended once."""
    assert stream.status == 200
    assert stream.complete, "the body was cut"
    answer = Answer.of(stream.body)
    assert (answer.reasoning, answer.content) == (reasoning, content)
    assert answer.errors == []
    assert answer.roles == 1
    assert answer.finish_reasons == [finish]
    assert answer.done == 1
    assert (answer.ids, answer.created, answer.models) == ({like.id}, {like.created}, {like.model})
    assert len(answer.fingerprints) <= 1
    assert answer.reasoning_fields <= {like.field}
    assert len(answer.usages) == usage, answer.usages
    return answer


def one_failed_ending(
    stream: Stream, *, reasoning: str = "", content: str = "", code: set[Any] | None = None
) -> Answer:
    """A failed answer: the text so far, one error, no [DONE], no finish. `code`: the codes it may have."""
    assert stream.status == 200
    assert stream.complete, "the body was cut"
    answer = Answer.of(stream.body)
    assert (answer.reasoning, answer.content) == (reasoning, content)
    assert len(answer.errors) == 1, answer
    assert answer.finish_reasons == []
    assert answer.done == 0
    assert parse_sse(stream.body)[-1].data["error"] == answer.errors[0], "the error is not the last event"
    if code is not None:
        error = answer.errors[0]
        assert error["type"] == "stream_interrupted", error
        assert error["code"] in code, error
        assert isinstance(error["message"], str)
        assert error["message"]
    return answer


def request_id() -> str:
    return f"test-{uuid.uuid4().hex}"
