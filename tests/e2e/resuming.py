"""What the tests of resuming share: who comes back, with what, and what is read of it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.e2e.asking import body
from tests.harness.client import Answer, Stream, parse_sse, request_id
from tests.harness.gateway import Gateway
from tests.harness.upstream import PATIENCE, Headers

RESUMABLE: Headers = [("X-Resumable", "1")]
_BLOCK = re.compile(rb"(?:: [^\n]*\n)*id: (\d+)\n(?:[^\n]+\n)+\n")


@dataclass(frozen=True, slots=True)
class Places:
    """runs: the gateway that runs the stream; serves: the one that those who come back ask. The same, or another
    process with the same Redis."""

    runs: Gateway
    serves: Gateway


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a client has that wants to come back. headers: with which it asked, such as Authorization."""

    stream_id: str
    token: str
    headers: Headers = ()

    @classmethod
    def of(cls, stream: Stream, headers: Headers = ()) -> Ticket:
        """Of an answer that can be resumed."""
        stream.read_head()
        stream_id, token = stream.header("X-Stream-Id"), stream.header("X-Resume-Token")
        assert stream.status == 200, (stream.status, stream.read_rest().body)
        assert stream_id, stream.headers
        assert token, stream.headers
        assert re.fullmatch("[0-9a-f]{32}", stream_id)
        assert stream.header("X-Resume") is None
        return cls(stream_id, token, headers)

    @property
    def address(self) -> str:
        return f"/v1/streams/{self.stream_id}"


def ask(to: Gateway, headers: Headers = (), timeout: float = PATIENCE, **changes: Any) -> Stream:
    """A request for a stream that can be resumed, under way."""
    own = [("Content-Type", "application/json"), ("X-Request-Id", request_id()), *RESUMABLE, *headers]
    sent = json.dumps(body(**changes)).encode()
    return _kept(Stream(to.port, "POST", "/v1/chat/completions", own, sent, timeout))


def come_back(
    to: Gateway,
    ticket: Ticket,
    cursor: int | str | None = None,
    headers: Headers = (),
    timeout: float = PATIENCE,
) -> Stream:
    """By GET with headers, under way."""
    told = [] if cursor is None else [("Last-Event-ID", str(cursor))]
    own = [("X-Resume-Token", ticket.token), *told, *ticket.headers, *headers]
    return _kept(Stream(to.port, "GET", ticket.address, own, timeout=timeout))


_opened: list[Stream] = []


def _kept(stream: Stream) -> Stream:
    _opened.append(stream)
    return stream


def close_all() -> None:
    """Of those that came by `ask` and `come_back`, what a test has left open."""
    while _opened:
        _opened.pop().drop()


def rest(to: Gateway, ticket: Ticket, cursor: int | str | None = None, headers: Headers = ()) -> Stream:
    """All that comes to one who comes back, to the end."""
    with come_back(to, ticket, cursor, headers) as stream:
        return stream.read_rest()


def about(to: Gateway, ticket: Ticket, method: str = "GET", path: str = "/status") -> Stream:
    with Stream(
        to.port, method, ticket.address + path, [("X-Resume-Token", ticket.token), *ticket.headers]
    ) as stream:
        return stream.read_rest()


def status(to: Gateway, ticket: Ticket) -> dict[str, Any]:
    answer = about(to, ticket)
    assert answer.status == 200, answer.body
    found = answer.json()
    assert isinstance(found, dict)
    return found


def stop(to: Gateway, ticket: Ticket) -> Stream:
    return about(to, ticket, "DELETE", "")


def error_code(stream: Stream) -> tuple[int, str]:
    stream.read_rest()
    return stream.status, stream.json()["error"]["code"]


# -- what was read ---------------------------------------------------------------------------------


def blocks(body: bytes, first: int = 1) -> list[bytes]:
    """The numbered blocks of an answer, which has nothing else: numbers go up by one from `first` on. Nothing is
    forgiven, but that comments stand before a block."""
    found, at = [], 0
    while at < len(body):
        match = _BLOCK.match(body, at)
        assert match is not None, f"no numbered block: {body[at : at + 200]!r}"
        assert int(match[1]) == first + len(found), f"event {first + len(found)} is awaited: {match[0]!r}"
        found.append(match[0])
        at = match.end()
    return found


def newest(body: bytes) -> int:
    """The number of the last whole event."""
    whole = body[: body.rfind(b"\n\n") + 2]
    ids = [block.id for block in parse_sse(whole) if block.id is not None]
    return int(ids[-1]) if ids else 0


def answer_of(*parts: bytes) -> Answer:
    """What the parts of one answer make together, as its client has read them one after the other."""
    body = b"".join(parts)
    blocks(body)
    return Answer.of(body)


def read_to(stream: Stream, number: int) -> bytes:
    """What a reader has when that event has come whole, and no more."""
    mark = b"id: %d\n" % number
    while (at := stream.body.find(mark)) < 0 or (end := stream.body.find(b"\n\n", at)) < 0:
        assert stream.read_piece(), f"the answer ended before event {number}: {stream.body[-300:]!r}"
    return stream.body[: end + 2]


def whole_events(body: bytes) -> bytes:
    """Without an event that was not read to its end."""
    return body[: body.rfind(b"\n\n") + 2]


# -- waiting ---------------------------------------------------------------------------------------


def wait_until(
    what: Callable[[], Any], told: Callable[[], Any] = str, seconds: float = 30.0, every: float = 0.02
) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, told()
        time.sleep(every)


def wait_for_state(to: Gateway, ticket: Ticket, state: str, seconds: float = 30.0) -> dict[str, Any]:
    wait_until(lambda: status(to, ticket)["state"] == state, lambda: status(to, ticket), seconds)
    return status(to, ticket)


def tasks(one: Gateway) -> int:
    with Stream(one.port, "GET", "/health") as stream:
        return int(stream.read_rest().json()["tasks"])


def metric(one: Gateway, name: str, labels: str = "") -> float:
    """What /metrics says; labels as they stand there, such as '{outcome="ok"}'. 0 if it is not told."""
    with Stream(one.port, "GET", "/metrics") as stream:
        text = stream.read_rest().body.decode()
    found = re.search(rf"^{re.escape(name + labels)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def at_once(jobs: Iterable[Callable[[], Any]], workers: int = 32) -> list[Any]:
    """What the jobs return, each run in a thread."""
    with ThreadPoolExecutor(workers) as pool:
        return [one.result() for one in [pool.submit(job) for job in jobs]]
