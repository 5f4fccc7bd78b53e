"""What the two clients over httpx share."""

from __future__ import annotations

import httpx

from .core import Ask, Core
from .values import Position

CONNECT_SECONDS = 10.0
# Bytes of a refusal that are read.
REFUSAL_BYTES = 2**16


class HttpStream:
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
