"""What to do next, without a socket or a clock of its own: the same for both clients."""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, Unpack

import httpx

from .decoding import Block, BlockDecoder
from .errors import (
    BadCursor,
    Disconnected,
    Failed,
    GaveUp,
    Gone,
    NotFound,
    NotUnderstood,
    Refused,
    StreamError,
)
from .values import Event, Options, Position, Retries

READ_SECONDS = 120.0
# No server is waited for longer than this.
MOST_WAIT_SECONDS = 86_400.0
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
# Statuses that say: not now.
_LATER = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this request; `answered` takes what comes. A broken connection is passed to `broke`."""

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
    """What the two clients share: `todo` says what is next, and the client reports what came of it. Raises
    StreamErrors."""

    def __init__(
        self,
        base_url: str,
        *,
        body: bytes | None = None,
        position: Position | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.base_url = base_url_of(base_url)
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
            # This reader cannot have what comes next: who asks again learns what there is, or gets it elsewhere.
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


def base_url_of(text: str) -> str:
    """Without the /v1 behind it. Raises ValueError."""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError) as error:
        raise ValueError(f"base_url {text!r} is no URL of a gateway: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"base_url {text!r} is no URL of a gateway, such as http://127.0.0.1:8000")
    return text.rstrip("/").removesuffix("/v1")


def body_of(body: Mapping[str, Any] | bytes) -> bytes:
    return body if isinstance(body, bytes) else json.dumps({**body, "stream": True}).encode()


def status_of(status: int, body: bytes) -> dict[str, Any]:
    """Of an answer to a question about the stream. Raises Refused."""
    found = _parsed(body.decode("utf-8", "replace"))
    if status == 200 and isinstance(found, dict):
        return found
    error = _error_object(body)
    raises = {404: NotFound, 410: Gone}.get(status, Refused)
    raise raises(status, str(error.get("code") or ""), str(error.get("message") or _reason(status)), error)
