"""What stands before Django in each HTTP request, whatever the server."""

from __future__ import annotations

import logging
import sys
import uuid
from http import HTTPStatus
from typing import Any

from continuation import lifecycle
from continuation.http.ending import CLOSE_CONNECTION, daphne_closer
from continuation.http.headers import framing_fault
from continuation.http.incoming import quoted_id
from continuation.http.response import json_error, let_none_follow
from gatewaysite.server.stopping import Application

logger = logging.getLogger(__name__)


def name_statuses() -> None:
    """Twisted, under daphne and serve, has no words for some, and some clients show the words of the status line.
    uvicorn breaks off answers with one above 599, which a downstream may send all the same."""
    twisted: Any = sys.modules.get("twisted.web.http")
    if twisted is not None:
        for status in HTTPStatus:
            twisted.RESPONSES.setdefault(status.value, status.phrase.encode())
    of_uvicorn = "uvicorn.protocols.http"
    phrases = getattr(sys.modules.get(f"{of_uvicorn}.h11_impl"), "STATUS_PHRASES", {})
    lines = getattr(sys.modules.get(f"{of_uvicorn}.httptools_impl"), "STATUS_LINE", {})
    for odd in range(600, 1000):
        phrases.setdefault(odd, b"")
        lines.setdefault(odd, b"HTTP/1.1 %d \r\n" % odd)


class Edge:
    """An application, with a way to break the client's connection off where the server has none of its own."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._has_begun = False

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self._begin()
        if fault := framing_fault(scope.get("http_version", ""), scope["headers"]):
            await _refuse(scope, send, fault)
            return
        scope = scope | {"root_path": ""}  # daphne takes it from a header, which any client may send
        extensions = scope.get("extensions") or {}
        if CLOSE_CONNECTION not in extensions and (close := daphne_closer(send)):
            scope = scope | {"extensions": {**extensions, CLOSE_CONNECTION: close}}
        await self._application(scope, receive, send)

    def _begin(self) -> None:
        """With the first request of any kind, often a health check: some servers do not tell when the loop runs, and
        some load what they need only after the application."""
        if not self._has_begun:
            self._has_begun = True
            name_statuses()
            lifecycle.current().begin_serving()


async def _refuse(scope: dict[str, Any], send: Any, message: str) -> None:
    """Answer 400 and close: what follows on this connection may be the rest of this request."""
    given = next((value for name, value in scope["headers"] if name.lower() == b"x-request-id"), b"")
    known = quoted_id(given.decode("latin-1")) or uuid.uuid4().hex
    logger.warning("request %s: bad_request: %s", known, message)
    answer = json_error(HTTPStatus.BAD_REQUEST, message, "invalid_request_error", "bad_request")
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.items()]
    headers += [
        (b"content-length", b"%d" % len(answer.content)),
        (b"x-request-id", known.encode()),
        (b"connection", b"close"),
    ]
    let_none_follow(send)
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.content})
