"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Unpack, cast

import httpx

from .core import Ask, Core, Ended, Read, Wait, body_of, status_of
from .errors import Disconnected
from .shared import REFUSAL_BYTES, HttpStream
from .values import Event, Options, Position


class AsyncChatStream(HttpStream):
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
        return status_of(answer.status_code, answer.content)

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


def astream_chat(
    base_url: str,
    body: Mapping[str, Any] | bytes,
    *,
    client: httpx.AsyncClient | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    **options: Unpack[Options],
) -> AsyncChatStream:
    """As `stream_chat`, to be used by `async with`."""
    return AsyncChatStream(Core(base_url, body=body_of(body), **options), client, sleep)


def aresume(
    position: Position,
    *,
    client: httpx.AsyncClient | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    **options: Unpack[Options],
) -> AsyncChatStream:
    """As `resume`, to be used by `async with`."""
    return AsyncChatStream(Core(position.base_url, position=position, **options), client, sleep)
