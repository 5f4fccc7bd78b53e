"""The one client of the process that talks to downstream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import httpx
from django.conf import settings

from continuation.downstream.transport import AiohttpTransport
from continuation.http.headers import RawHeaders
from continuation.shapes.chat.usage import Delivered


class Readable(Protocol):
    """The body of an answer. `read` may be cancelled without losing any; b"" is the clean end."""

    async def read(self) -> bytes: ...
    def read_nowait(self) -> bytes: ...
    @property
    def at_end(self) -> bool: ...
    def close(self) -> None: ...
    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Upstream:
    """An answer that has begun: its status and headers as received, and its body still to be read."""

    status: int
    headers: RawHeaders
    body: Readable
    delivered: Delivered | None = None  # exact counts of the partial, where the route found them

    def header(self, name: bytes) -> str:
        """The first value of a header, lower-case name; "" if there is none."""
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == name), "")

    @property
    def is_event_stream(self) -> bool:
        return self.header(b"content-type").partition(";")[0].strip().lower() == "text/event-stream"

    @property
    def is_encoded(self) -> bool:
        return self.header(b"content-encoding").strip().lower() not in ("", "identity")


@dataclass(frozen=True, slots=True)
class Upload:
    """A body that is read while it is sent. size: bytes of all pieces together."""

    size: int
    pieces: AsyncIterator[bytes]


class Downstream:
    """The one client of the process. It is opened at its first use, and once it is closed it stays so."""

    def __init__(self) -> None:
        self._opened: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None
        self._closed: asyncio.AbstractEventLoop | None = None

    def client(self) -> httpx.AsyncClient:
        """That of the running event loop. Raises httpx.ConnectError once it is closed."""
        loop = asyncio.get_running_loop()
        if self._closed is loop:
            raise httpx.ConnectError("the gateway is shutting down")
        if self._opened is None or self._opened[0] is not loop:
            transport = AiohttpTransport(
                limit=settings.DOWNSTREAM_CONNECTION_LIMIT,
                connect_timeout=settings.CONNECT_TIMEOUT_SECONDS,
                keepalive=settings.DOWNSTREAM_KEEPALIVE_SECONDS,
            )
            self._opened = loop, httpx.AsyncClient(transport=transport, trust_env=False, timeout=None)
        return self._opened[1]

    async def open_early(self) -> None:
        """Before the first request, where a server says when it starts: certificates are read then."""
        await self.client().__aenter__()

    async def close(self) -> None:
        self._closed = asyncio.get_running_loop()
        if self._opened is not None and self._opened[0] is asyncio.get_running_loop():
            client, self._opened = self._opened[1], None
            await client.aclose()

    async def send(
        self,
        base: str,
        method: str,
        target: bytes,
        headers: RawHeaders,
        body: bytes | Upload | None,
        apart: bool = False,
    ) -> Upstream:
        """Send a request and wait for the headers of its answer. Raises httpx.HTTPError: httpx.LocalProtocolError where
        the request cannot be written down, httpx.RemoteProtocolError where a kept connection closed as it was used.

        `target` is the path and query as the client sent them; `base` may have a path of its own, which comes before.
        Of `headers`, Content-Length tells nothing but that there is a body, however short: its size is the body's own.
        apart: on a connection of its own, for a request that follows a failure.
        """
        url = httpx.URL(base)
        prefix = url.raw_path.rstrip(b"/")
        size = {"size": body.size} if isinstance(body, Upload) else {}
        request = httpx.Request(
            method,
            url.copy_with(raw_path=prefix or b"/"),
            headers=headers,
            content=body.pieces if isinstance(body, Upload) else body,
            extensions={"target": prefix + target, "apart": apart, **size},
        )
        answer = await self.client().send(request, stream=True)
        return Upstream(answer.status_code, list(answer.headers.raw), answer.extensions["body"])
