"""The client for threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Unpack

import httpx

from .core import Ask, Core, Ended, Read, Wait, body_of, status_of
from .errors import Disconnected
from .shared import REFUSAL_BYTES, HttpStream
from .values import Event, Options, Position


class ChatStream(HttpStream):
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
        return status_of(answer.status_code, answer.content)

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
    return ChatStream(Core(base_url, body=body_of(body), **options), client, sleep)


def resume(
    position: Position,
    *,
    client: httpx.Client | None = None,
    sleep: Callable[[float], None] = time.sleep,
    **options: Unpack[Options],
) -> ChatStream:
    """Go on with a stream behind `position`. The Authorization in `headers` must be that of the first request."""
    return ChatStream(Core(position.base_url, position=position, **options), client, sleep)
