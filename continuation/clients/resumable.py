"""A client whose stream survives its own connection: it comes back with its token and the number of the last event.

    from continuation.clients.resumable import stream_chat

    with stream_chat("http://gateway:8000", {"model": "chat", "messages": [...]}) as stream:
        for event in stream:
            print(event.data["choices"])          # each event once and in order, however often the line broke

    async with astream_chat(...) as stream:       # the same, with `async for` and `await stream.stop()`
        async for event in stream: ...

It needs httpx and nothing else of this project. `for` ends with the answer's `[DONE]`, which is not an event; an answer
that ends otherwise raises:

    Failed          the gateway's failed ending: the answer is not whole, and nothing more will come
    Refused         a status that asking again does not change; on the way back BadCursor, NotFound or Gone
    Disconnected    the connection broke and there is no way back: the answer was not resumable
    GaveUp          there was one, but it was not found within the limits of `Retries`
    NotUnderstood   the answer is not what a gateway sends

All are StreamErrors; their `position` is where one can go on, as is `stream.position` at any time, in this process or
another, now or later (until the gateway's log of the stream expires):

    saved = stream.position.to_json()             # it holds the token: who has it, and the same Authorization, can read
    ...
    with resume(Position.from_json(saved), headers={"Authorization": ...}) as stream: ...

Leaving the `with` block closes the connection and no more: the generation goes on, and one can come back to it, as long
as the gateway waits for a reader. `stream.stop()` ends the generation itself, for all its readers.

The question is sent once: if it gets no answer, only the caller knows whether asking it twice is harmless. What is
tried again is the way back to an answer that has begun.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, TypedDict, Unpack, cast

import httpx

__all__ = [
    "AsyncChatStream",
    "BadCursor",
    "ChatStream",
    "Disconnected",
    "Event",
    "Failed",
    "GaveUp",
    "Gone",
    "NotFound",
    "NotUnderstood",
    "Options",
    "Position",
    "Refused",
    "Retries",
    "StreamError",
    "aresume",
    "astream_chat",
    "resume",
    "stream_chat",
]

# An event that is longer is no event of a chat.
EVENT_BYTES = 64 * 2**20
# Of a refusal no more is read.
REFUSAL_BYTES = 2**16
READ_SECONDS = 120.0
CONNECT_SECONDS = 10.0
# No server is waited for longer than this.
MOST_WAIT_SECONDS = 86_400.0
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"\r\n|\r|\n")
# Statuses that say: not now.
_LATER = {408, 425, 429, 500, 502, 503, 504}


# -- values ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the answer. id: its number, 1, 2, 3 ...; None in an answer that is not resumable. data: its JSON,
    or its text if that is none. name: its `event:` field, mostly empty. replayed: it was there already when this
    client came back for it."""

    id: int | None
    data: Any
    name: str = ""
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """Where one is in a stream. last_id: the last event that was handed out, 0 for none. The token lets its holder
    read and stop the stream, together with the Authorization that asked for it: keep it like a password."""

    base_url: str
    stream_id: str
    token: str = field(repr=False)
    last_id: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Position:
        """Raises ValueError."""
        found = json.loads(text)
        kinds = {"base_url": str, "stream_id": str, "token": str, "last_id": int}
        if not isinstance(found, dict) or {name: type(value) for name, value in found.items()} != kinds:
            raise ValueError(f"a position has the fields {', '.join(kinds)}")
        if found["last_id"] < 0:
            raise ValueError("last_id is a number from 0")
        return cls(**found)


@dataclass(frozen=True, slots=True)
class Retries:
    """How long the way back is looked for.

    attempts     in a row, without a new event between them
    seconds      of an outage, from the break to an answer that can be read
    first, most  before attempt n is a random time of up to first * 2 ** (n - 1) seconds, and never more than most, on
                 top of what the server's Retry-After asks for
    clock        tells seconds; uniform draws a number between two
    """

    attempts: int = 10
    seconds: float = 120.0
    first: float = 0.25
    most: float = 10.0
    clock: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform


class Options(TypedDict, total=False):
    """What all ways in take by name.

    headers       go with every request: Authorization stands here
    retries       the limits of the way back
    read_timeout  seconds of silence after which a connection counts as broken, before the answer's headers too; None
                  waits for ever. Of a resumable answer silence is no failure: it is come back to
    checkpoints   have the gateway send new tokens while it streams, so that `position` stays good for longer
    """

    headers: Mapping[str, str]
    retries: Retries
    read_timeout: float | None
    checkpoints: bool


class StreamError(Exception):
    """position: where one can go on; None where there is no coming back."""

    position: Position | None = None


class Refused(StreamError):
    """status, and what the body's error object says; code is "" and message the reason phrase where there is none."""

    def __init__(self, status: int, code: str, message: str, error: Mapping[str, Any]) -> None:
        super().__init__(f"{status} {code}: {message}" if code else f"{status}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.error = error


class BadCursor(Refused):
    """400: the position lies outside the stream."""


class NotFound(Refused):
    """404: there is no such stream, or not for this caller or this token."""


class Gone(Refused):
    """410: the code is "expired" or "trimmed"."""

    @property
    def available(self) -> tuple[int, int] | None:
        """The first and the last event that can be had still."""
        found = self.error.get("available")
        if not isinstance(found, Mapping):
            return None
        first, last = found.get("first"), found.get("last")
        return (first, last) if isinstance(first, int) and isinstance(last, int) else None


class Failed(StreamError):
    """The stream has ended with an error; error is its object."""

    def __init__(self, error: Any) -> None:
        known = error if isinstance(error, Mapping) else {"message": str(error)}
        self.code = known.get("code")
        self.type = known.get("type")
        self.message = str(known.get("message") or "")
        self.error = error
        super().__init__(f"{self.code}: {self.message}" if self.code else self.message)


class Disconnected(StreamError):
    """The connection broke, or never was; the cause is httpx's exception, if there is one."""


class GaveUp(Disconnected):
    """attempts: how many were made since the last new event. What the last of them met is in the message."""

    def __init__(self, why: str, attempts: int) -> None:
        super().__init__(why)
        self.attempts = attempts


class NotUnderstood(StreamError):
    """An answer that breaks the rules: trying again would not mend it."""


# -- events out of bytes ---------------------------------------------------------------------------


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


# -- what to do next, without a socket or a clock of its own ----------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this request; `answered` takes what comes. A broken connection is told to `broke`."""

    method: str
    url: str
    headers: httpx.Headers
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """Read on; `received` takes the bytes, `broke` the end of them."""


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class Ended:
    pass


class Core:
    """What the two clients share: `todo` says what is next, and the client tells what came of it. Raises
    StreamErrors."""

    def __init__(
        self,
        base_url: str,
        *,
        body: bytes | None = None,
        position: Position | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.base_url = _base_url(base_url)
        self.position = position
        self.answer_headers = httpx.Headers()
        self._body = body
        self._headers = httpx.Headers(dict(options.get("headers") or {}))
        self._retries = options.get("retries") or Retries()
        self._checkpoints = options.get("checkpoints", False)
        self.read_timeout = options.get("read_timeout", READ_SECONDS)
        self._decoder = BlockDecoder()
        self._blocks: deque[Block] = deque()
        self._asked = False
        self._reading = False
        self._ended = False
        self._ending_asked_for = False
        self._replayed_to = 0
        self._attempts = 0
        self._outage_since: float | None = None
        self._wait = 0.0

    # -- what is next ------------------------------------------------------------------------------

    def todo(self) -> Event | Ask | Read | Wait | Ended:
        while self._blocks and not self._ended:
            if event := self._event(self._blocks.popleft()):
                return event
        if self._ended:
            return Ended()
        if self._reading:
            return Read()
        if self._asked and self.position is None:
            raise Disconnected("the reading was broken off, and the answer is not resumable")
        if self._wait:
            seconds, self._wait = self._wait, 0.0
            return Wait(seconds)
        return self._ask()

    def _ask(self) -> Ask:
        headers = self._headers.copy()
        headers["Accept"] = "text/event-stream"
        headers["Accept-Encoding"] = "identity"
        if self._checkpoints:
            headers["X-Resume-Events"] = "1"
        if self.position is None:
            self._asked = True
            headers["X-Resumable"] = "1"
            headers.setdefault("Content-Type", "application/json")
            return Ask("POST", f"{self.base_url}/v1/chat/completions", headers, self._body)
        headers["Last-Event-ID"] = str(self.position.last_id)
        return replace(self.about_stream("GET"), headers=self._with_token(headers))

    def about_stream(self, method: str, path: str = "") -> Ask:
        """A request about the stream itself: `GET` with "/status", `DELETE`. Raises StreamError where it has no id."""
        if self.position is None:
            raise StreamError("the answer is not resumable, so it has no address")
        url = f"{self.base_url}/v1/streams/{self.position.stream_id}{path}"
        return Ask(method, url, self._with_token(self._headers.copy()))

    def _with_token(self, headers: httpx.Headers) -> httpx.Headers:
        assert self.position is not None
        headers["X-Resume-Token"] = self.position.token
        return headers

    # -- what came of it ---------------------------------------------------------------------------

    def answered(self, status: int, headers: httpx.Headers) -> bool:
        """Whether it can be read; if not, its body goes to `refused`."""
        self.answer_headers = headers
        returned = self.position is not None
        if self.position is not None and status == 204:
            self._all_was_read(self.position)
            return True
        kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if status != 200 or kind != "text/event-stream":
            return False
        self._take_up(headers)
        self._decoder = BlockDecoder()
        self._reading, self._outage_since = True, None
        self._replayed_to = _number(headers.get("X-Last-Event-Id", "")) or 0 if returned else 0
        return True

    def _all_was_read(self, position: Position) -> None:
        """The stream has ended, and its last event has been handed out: it is asked for once more, for it says how."""
        self._ended = self._ending_asked_for or not position.last_id
        if not self._ended:
            self._ending_asked_for = True
            self.position = replace(position, last_id=position.last_id - 1)

    @property
    def reading(self) -> bool:
        """Whether there is an answer to be read on."""
        return self._reading

    def _take_up(self, headers: httpx.Headers) -> None:
        stream_id, token = headers.get("X-Stream-Id"), headers.get("X-Resume-Token")
        if self.position is None:
            if stream_id and token:
                self.position = Position(self.base_url, stream_id, token)
            return
        if stream_id not in (None, self.position.stream_id):
            raise self._error(NotUnderstood(f"another stream came back: {stream_id}"))
        if token:
            self.position = replace(self.position, token=token)

    def refused(self, status: int, headers: httpx.Headers, body: bytes) -> None:
        """Raises Refused, unless it may be otherwise later."""
        error = _error_object(body)
        code, message = str(error.get("code") or ""), str(error.get("message") or "")
        if self.position is None or (status not in _LATER and status != 200):
            if status == 200:
                kind = headers.get("Content-Type", "")
                raise self._error(
                    NotUnderstood(f"the answer is no event stream but {kind or 'without a type'}")
                )
            kinds: dict[int, type[Refused]] = {404: NotFound, 410: Gone}
            if code == "bad_cursor":
                kinds[400] = BadCursor
            raises = kinds.get(status, Refused) if self.position else Refused
            raise self._error(raises(status, code, message or _reason(status), error))
        self._later(f"{status} {code}".rstrip(), None, _retry_after(headers))

    def received(self, read: bytes) -> None:
        try:
            self._blocks.extend(self._decoder.feed(read))
        except NotUnderstood as error:
            self._finish()
            raise self._error(error) from None

    def broke(self, trouble: Exception | None = None) -> None:
        """The connection is gone; None: its end came without the answer's. Raises Disconnected, unless there is a way
        back."""
        self._reading = False
        if self._ended:
            return
        why = f"{type(trouble).__name__}: {trouble}" if trouble else "the answer ended before its end"
        if self.position is None:
            raise self._error(Disconnected(why)) from trouble
        self._later(why, trouble, 0.0)

    def left(self) -> None:
        """The reading was broken off by this side: to go on is to come back."""
        self._reading = False

    def _later(self, why: str, cause: Exception | None, server_asks: float) -> None:
        """Raises GaveUp."""
        now = self._retries.clock()
        if self._outage_since is None:
            self._outage_since = now
        tried = self._attempts
        backoff = min(self._retries.most, self._retries.first * 2 ** min(tried, 60))
        self._wait = min(MOST_WAIT_SECONDS, server_asks + self._retries.uniform(0.0, backoff))
        over = now + self._wait - self._outage_since > self._retries.seconds
        if tried >= self._retries.attempts or over:
            what = f"{tried} attempts" if not over else f"{self._retries.seconds:g} s"
            raise self._error(GaveUp(f"no way back within {what}; the last trouble: {why}", tried)) from cause
        self._attempts += 1

    # -- events ------------------------------------------------------------------------------------

    def _event(self, block: Block) -> Event | None:
        data = _parsed(block.data)
        if block.name == "resume_token" and self.position:
            self._take_checkpoint(self.position, data)
            return None
        tells_error = block.name == "error" or _tells_error(data)
        number = self._new_number(block, tells_error) if self.position else None
        if number is not None and not number:
            return None
        if number and self.position:
            self.position, self._attempts = replace(self.position, last_id=number), 0
        if block.data == "[DONE]":
            self._finish()
            return None
        if tells_error and number is None and self.position and _code(data) == "resume_gap":
            # This reader cannot have what comes next: who asks again is told what there is, or has it elsewhere.
            self._reading = False
            self._blocks.clear()
            self._later(f"resume_gap: {_error_in(data).get('message')}", None, 0.0)
            return None
        if tells_error:
            self._finish()
            raise self._error(Failed(_error_in(data)))
        return Event(number, data, block.name, bool(number and number <= self._replayed_to))

    def _new_number(self, block: Block, tells_error: bool) -> int | None:
        """The number of an event that comes next, 0 for one that was handed out before, None for an error without one.
        Raises NotUnderstood."""
        assert self.position is not None
        number, last = _number(block.id or ""), self.position.last_id
        if number is None and block.id is None and tells_error:
            return None
        if number is None or number > last + 1:
            self._finish()
            raise self._error(NotUnderstood(f"after event {last} comes one with the id {block.id!r}"))
        return number if number > last else 0

    def _take_checkpoint(self, position: Position, data: Any) -> None:
        token = data.get("token") if isinstance(data, dict) else None
        if isinstance(token, str) and token:
            self.position = replace(position, token=token)

    def _finish(self) -> None:
        self._ended, self._reading = True, False
        self._blocks.clear()

    def _error(self, error: StreamError) -> StreamError:
        error.position = self.position
        return error


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _tells_error(data: Any) -> bool:
    return isinstance(data, dict) and bool(data.get("error") or data.get("object") == "error")


def _error_in(data: Any) -> Any:
    return data.get("error") or data if isinstance(data, dict) else data


def _code(data: Any) -> Any:
    error = _error_in(data)
    return error.get("code") if isinstance(error, dict) else None


def _error_object(body: bytes) -> Mapping[str, Any]:
    found = _parsed(body.decode("utf-8", "replace"))
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, dict) else {}


def _reason(status: int) -> str:
    if 300 <= status < 400:
        return "a redirect, which is not followed: the token is for this gateway"
    return httpx.codes.get_reason_phrase(status) or "no reason given"


def _retry_after(headers: httpx.Headers) -> float:
    """Seconds; of a date as far as it lies behind the answer's own, or this machine's, clock."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit() and len(value) < 10:
        return float(value)
    try:
        then = parsedate_to_datetime(value).timestamp()
        now = parsedate_to_datetime(headers["Date"]).timestamp() if "Date" in headers else time.time()
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, then - now)


def _base_url(text: str) -> str:
    """Without the /v1 behind it. Raises ValueError."""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError) as error:
        raise ValueError(f"base_url {text!r} is no URL of a gateway: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"base_url {text!r} is no URL of a gateway, such as http://127.0.0.1:8000")
    return text.rstrip("/").removesuffix("/v1")


def _body(body: Mapping[str, Any] | bytes) -> bytes:
    return body if isinstance(body, bytes) else json.dumps({**body, "stream": True}).encode()


def _status(status: int, body: bytes) -> dict[str, Any]:
    """Of an answer to a question about the stream. Raises Refused."""
    found = _parsed(body.decode("utf-8", "replace"))
    if status == 200 and isinstance(found, dict):
        return found
    error = _error_object(body)
    raises = {404: NotFound, 410: Gone}.get(status, Refused)
    raise raises(status, str(error.get("code") or ""), str(error.get("message") or _reason(status)), error)


# -- over httpx ------------------------------------------------------------------------------------


class _Shared:
    """What needs no waiting."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._timeout = httpx.Timeout(CONNECT_SECONDS, read=core.read_timeout)
        self._closed = False

    @property
    def position(self) -> Position | None:
        """Behind the last event that was handed out; None if the answer is not resumable."""
        return self._core.position

    @property
    def resumable(self) -> bool:
        return self._core.position is not None

    @property
    def headers(self) -> httpx.Headers:
        """Of the last answer."""
        return self._core.answer_headers

    def _request(self, client: httpx.Client | httpx.AsyncClient, ask: Ask) -> httpx.Request:
        return client.build_request(
            ask.method, ask.url, headers=ask.headers, content=ask.content, timeout=self._timeout
        )


class ChatStream(_Shared):
    """An answer that is being read; a context manager and an iterator of Events. `stop` and `status` may be called from
    other threads."""

    def __init__(
        self,
        core: Core,
        client: httpx.Client | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(core)
        self._own = client is None
        self._client = client or httpx.Client()
        self._sleep = sleep
        self._response: httpx.Response | None = None
        self._reads: Iterator[bytes] = iter(())

    def __enter__(self) -> ChatStream:
        """Asks, and has the answer's headers when it returns. Raises StreamError."""
        try:
            while isinstance(todo := self._core.todo(), Ask | Wait):
                self._do(todo)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> ChatStream:
        return self

    def __next__(self) -> Event:
        while not self._closed:
            todo = self._core.todo()
            if isinstance(todo, Event):
                return todo
            if isinstance(todo, Ended):
                self._leave()
                break
            self._do(todo)
        raise StopIteration

    def close(self) -> None:
        """Leave; the generation goes on as long as the gateway waits for a reader."""
        self._closed = True
        self._leave()
        if self._own:
            self._client.close()

    def stop(self) -> dict[str, Any]:
        """End the generation, for all its readers: they get the failed ending, code "stopped". The stream's status, as
        the gateway tells it. Raises StreamError."""
        return self._about("DELETE")

    def status(self) -> dict[str, Any]:
        """Raises StreamError."""
        return self._about("GET", "/status")

    def _about(self, method: str, path: str = "") -> dict[str, Any]:
        client = httpx.Client() if self._own else self._client  # an own one may be closed already
        request = self._request(client, self._core.about_stream(method, path))
        try:
            answer = client.send(request, follow_redirects=False)
        except httpx.RequestError as trouble:
            raise Disconnected(f"{type(trouble).__name__}: {trouble}") from trouble
        finally:
            if self._own:
                client.close()
        return _status(answer.status_code, answer.content)

    def _do(self, todo: Ask | Read | Wait) -> None:
        try:
            match todo:
                case Ask():
                    self._ask(todo)
                case Read():
                    self._read()
                case Wait(seconds):
                    self._sleep(seconds)
        except httpx.RequestError as trouble:
            self._leave()
            if not self._closed:
                self._core.broke(trouble)
        except BaseException:  # an interrupt, or an error of the stream
            self._leave()
            raise

    def _ask(self, ask: Ask) -> None:
        response = self._client.send(self._request(self._client, ask), stream=True, follow_redirects=False)
        self._response, self._reads = response, response.iter_bytes()
        if not self._core.answered(response.status_code, response.headers):
            body = bytearray()
            for read in self._reads:
                body += read
                if len(body) > REFUSAL_BYTES:
                    break
            self._close_response()
            self._core.refused(response.status_code, response.headers, bytes(body))
        elif not self._core.reading:
            self._close_response()

    def _read(self) -> None:
        read = next(self._reads, None)
        if read is None:
            self._close_response()
            self._core.broke()
        else:
            self._core.received(read)

    def _leave(self) -> None:
        self._core.left()
        self._close_response()

    def _close_response(self) -> None:
        response, self._response, self._reads = self._response, None, iter(())
        if response is not None:
            response.close()


class AsyncChatStream(_Shared):
    """As ChatStream, for asyncio. A wait for the next event may be cancelled: to go on is to come back."""

    def __init__(
        self,
        core: Core,
        client: httpx.AsyncClient | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(core)
        self._own = client is None
        self._client = client or httpx.AsyncClient()
        self._sleep = sleep
        self._response: httpx.Response | None = None
        self._reads: AsyncGenerator[bytes, None] | None = None
        self._doing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncChatStream:
        """Asks, and has the answer's headers when it returns. Raises StreamError."""
        try:
            while not self._closed and isinstance(todo := self._core.todo(), Ask | Wait):
                await self._do(todo)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncChatStream:
        return self

    async def __anext__(self) -> Event:
        while not self._closed:
            todo = self._core.todo()
            if isinstance(todo, Event):
                return todo
            if isinstance(todo, Ended):
                await self._leave()
                break
            await self._do(todo)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Leave; the generation goes on as long as the gateway waits for a reader. Another task that waits for the next
        event has come to the end then."""
        self._closed = True
        if self._doing is not None and not self._doing.done():
            self._doing.cancel()
            await asyncio.wait([self._doing])
        await self._leave()
        if self._own:
            await self._client.aclose()

    async def stop(self) -> dict[str, Any]:
        """End the generation, for all its readers: they get the failed ending, code "stopped". The stream's status, as
        the gateway tells it. Raises StreamError."""
        return await self._about("DELETE")

    async def status(self) -> dict[str, Any]:
        """Raises StreamError."""
        return await self._about("GET", "/status")

    async def _about(self, method: str, path: str = "") -> dict[str, Any]:
        client = httpx.AsyncClient() if self._own else self._client  # an own one may be closed already
        request = self._request(client, self._core.about_stream(method, path))
        try:
            answer = await client.send(request, follow_redirects=False)
        except httpx.RequestError as trouble:
            raise Disconnected(f"{type(trouble).__name__}: {trouble}") from trouble
        finally:
            if self._own:
                await client.aclose()
        return _status(answer.status_code, answer.content)

    async def _do(self, todo: Ask | Read | Wait) -> None:
        """In a task of its own, which `aclose` can end without ending the caller's."""
        self._doing = asyncio.create_task(self._done(todo))
        try:
            await self._doing
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise

    async def _done(self, todo: Ask | Read | Wait) -> None:
        try:
            match todo:
                case Ask():
                    await self._ask(todo)
                case Read():
                    await self._read()
                case Wait(seconds):
                    await self._sleep(seconds)
        except httpx.RequestError as trouble:
            await self._leave()
            if not self._closed:
                self._core.broke(trouble)
        except BaseException:  # a cancellation, or an error of the stream
            await self._leave()
            raise

    async def _ask(self, ask: Ask) -> None:
        request = self._request(self._client, ask)
        response = await self._client.send(request, stream=True, follow_redirects=False)
        self._response, self._reads = response, cast(AsyncGenerator[bytes, None], response.aiter_bytes())
        if not self._core.answered(response.status_code, response.headers):
            body = bytearray()
            async for read in self._reads:
                body += read
                if len(body) > REFUSAL_BYTES:
                    break
            await self._close_response()
            self._core.refused(response.status_code, response.headers, bytes(body))
        elif not self._core.reading:
            await self._close_response()

    async def _read(self) -> None:
        assert self._reads is not None
        read = await anext(self._reads, None)
        if read is None:
            await self._close_response()
            self._core.broke()
        else:
            self._core.received(read)

    async def _leave(self) -> None:
        self._core.left()
        await self._close_response()

    async def _close_response(self) -> None:
        response, self._response = self._response, None
        reads, self._reads = self._reads, None
        if reads is not None:
            await reads.aclose()
        if response is not None:
            await response.aclose()


# -- the ways in -----------------------------------------------------------------------------------


def stream_chat(
    base_url: str,
    body: Mapping[str, Any] | bytes,
    *,
    client: httpx.Client | None = None,
    sleep: Callable[[float], None] = time.sleep,
    **options: Unpack[Options],
) -> ChatStream:
    """Ask for an answer, and read it; to be used by `with`.

    base_url  of the gateway, with or without /v1 behind it
    body      of the chat request; of a mapping `stream` is set to true, bytes are sent as they are
    client    is used and left open, redirects are not followed; else one is made, and closed. `stop` and `status` take
              a second connection of it while the first one reads
    options   as in Options

    Raises ValueError for a URL or a header that cannot be sent.
    """
    return ChatStream(Core(base_url, body=_body(body), **options), client, sleep)


def resume(
    position: Position,
    *,
    client: httpx.Client | None = None,
    sleep: Callable[[float], None] = time.sleep,
    **options: Unpack[Options],
) -> ChatStream:
    """Go on with a stream behind `position`. The Authorization in `headers` must be that of the first request."""
    return ChatStream(Core(position.base_url, position=position, **options), client, sleep)


def astream_chat(
    base_url: str,
    body: Mapping[str, Any] | bytes,
    *,
    client: httpx.AsyncClient | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    **options: Unpack[Options],
) -> AsyncChatStream:
    """As `stream_chat`, to be used by `async with`."""
    return AsyncChatStream(Core(base_url, body=_body(body), **options), client, sleep)


def aresume(
    position: Position,
    *,
    client: httpx.AsyncClient | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    **options: Unpack[Options],
) -> AsyncChatStream:
    """As `resume`, to be used by `async with`."""
    return AsyncChatStream(Core(position.base_url, position=position, **options), client, sleep)
