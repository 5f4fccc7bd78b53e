"""A recorded numbered answer, a server that gives it as a gateway does, and both clients behind one call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from continuation.clients.resumable import (
    Event,
    Position,
    Retries,
    StreamError,
    aresume,
    astream_chat,
    resume,
    stream_chat,
)
from tests.harness.upstream import (
    EVENT_STREAM,
    Cut,
    Headers,
    Reply,
    Request,
    Send,
    Step,
    Upstream,
    json_reply,
)

STREAM_ID = "0123456789abcdef0123456789abcdef"
BODY = {"model": "any-name", "messages": [{"role": "user", "content": "Hi"}]}
# What line splitters, JSON readers and UTF-8 decoders stumble over.
TEXTS = ["so ", "Hallo ", "\u2028\u0085\x1d", "渐", "😀", 'data: "\n\nid: 99\n\n', "", "\r\n", "\\", "Welt"]


def chunk(text: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [{"delta": {"content": text}}]}


def block(number: int, data: Any, *, end: str = "\n", before: str = "") -> bytes:
    """data: JSON, or text that is sent as it is. end: of its lines. before: lines of the same block, whole."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"{before}id: {number}{end}data: {text}{end}{end}".encode()


def recorded() -> list[bytes]:
    """The blocks of an answer, the first of which has the number 1; the last is [DONE]."""
    ends = ["\n", "\n", "\r\n", "\n", "\r", "\n"]
    blocks = [
        block(n, chunk(text), end=ends[n % len(ends)], before=": keepalive\n" if n % 4 == 0 else "")
        for n, text in enumerate(TEXTS, 1)
    ]
    return [*blocks, block(len(TEXTS) + 1, "[DONE]")]


RECORDED = recorded()


def names(token: str = "token-1", last: int | None = None) -> Headers:
    newest = [] if last is None else [("X-Last-Event-Id", str(last))]
    return [*EVENT_STREAM, ("X-Stream-Id", STREAM_ID), ("X-Resume-Token", token), *newest]


def whole(*blocks: bytes, headers: Headers | None = None) -> Reply:
    return Reply([Send(b"".join(blocks))], headers=headers or names())


def cut(data: bytes, how: Step | None = None, headers: Headers | None = None) -> Reply:
    return Reply([Send(data), how or Cut()] if data else [how or Cut()], headers=headers or names())


def refusal(status: str, code: str, headers: Headers = (), **more: Any) -> Reply:
    reply = json_reply({"error": {"message": f"it is {code}", "type": "t", "code": code, **more}}, status)
    return Reply(reply.steps, reply.status, [*reply.headers, *headers], reply.framing, reply.length)


def last_id(request: Request) -> int:
    return int(request.header("Last-Event-ID") or "-1")


def resumed_whole(request: Request) -> Reply:
    """All that is behind the cursor."""
    return whole(*RECORDED[last_id(request) :], headers=names("token-2", len(RECORDED)))


# -- both clients ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Read:
    """What came of a stream. waits: the seconds that the client has slept."""

    events: list[Event] = field(default_factory=list)
    error: StreamError | None = None
    position: Position | None = None
    waits: list[float] = field(default_factory=list)

    @property
    def ids(self) -> list[int | None]:
        return [event.id for event in self.events]

    @property
    def text(self) -> str:
        return "".join(event.data["choices"][0]["delta"]["content"] for event in self.events)

    def is_whole(self) -> None:
        assert self.error is None, self.error
        assert self.ids == list(range(1, len(TEXTS) + 1))
        assert [event.data for event in self.events] == [chunk(text) for text in TEXTS]


class Clock:
    """Time that passes only in sleeps. Jitter is drawn as `share` of what it may be."""

    def __init__(self, share: float = 1.0) -> None:
        self.now = 0.0
        self.share = share
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)
        await asyncio.sleep(0)

    def uniform(self, least: float, most: float) -> float:
        assert least == 0.0
        return most * self.share

    def retries(self, **changes: Any) -> Retries:
        return Retries(**{"clock": self, "uniform": self.uniform, **changes})


Reader = Callable[..., Read]


def read_sync(
    where: str | Position, *, clock: Clock | None = None, retries: Any = None, **options: Any
) -> Read:
    """Ask the server at a URL, or go on at a position, and read to the end."""
    clock = clock or Clock()
    given = {"sleep": clock.sleep, "retries": clock.retries(**(retries or {})), **options}
    found = Read(waits=clock.waits)
    try:
        with (
            resume(where, **given)
            if isinstance(where, Position)
            else stream_chat(where, BODY, **given) as stream
        ):
            try:
                for event in stream:
                    found.events.append(event)
            finally:
                found.position = stream.position
    except StreamError as error:
        found.error = error
    return found


async def aread(
    where: str | Position, *, clock: Clock | None = None, retries: Any = None, **options: Any
) -> Read:
    clock = clock or Clock()
    given = {"sleep": clock.asleep, "retries": clock.retries(**(retries or {})), **options}
    found = Read(waits=clock.waits)
    try:
        async with (
            aresume(where, **given)
            if isinstance(where, Position)
            else astream_chat(where, BODY, **given) as stream
        ):
            try:
                async for event in stream:
                    found.events.append(event)
            finally:
                found.position = stream.position
    except StreamError as error:
        found.error = error
    return found


def read_async(where: str | Position, **options: Any) -> Read:
    return asyncio.run(aread(where, **options))


READERS = {"sync": read_sync, "async": read_async}


def at(upstream: Upstream, last: int = 0, token: str = "token-1") -> Position:
    return Position(upstream.url, STREAM_ID, token, last)
