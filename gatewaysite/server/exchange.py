"""One request on a client's connection, and its answer: daphne's, with answers of the server's own and ends that a
client can tell from whole answers.
"""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Callable
from functools import cached_property
from http import HTTPStatus
from typing import Any

from daphne.http_protocol import WebRequest  # type: ignore[import-untyped]
from daphne.utils import INVALID_HEADER_VALUE_BYTES  # type: ignore[import-untyped]
from django.http import HttpResponse

from continuation import lifecycle
from continuation.downstream.shortage import RETRY_SECONDS
from continuation.http.ending import CLOSE_CONNECTION, ON_SHUTDOWN
from continuation.http.incoming import quoted_id
from continuation.http.response import TARGET, json_error

logger = logging.getLogger(__name__)

# A body above this is in a file while it arrives, be its length said in advance or not; so one that is only begun has
# neither a file nor a descriptor.
BODY_IN_MEMORY_BYTES = 100_000
ROOT_PATH = b"daphne-root-path"
REFUSED = {400: ("invalid_request_error", "bad_request"), 503: ("unavailable_error", "shutting_down")}
BROKEN = ("internal_error", "internal_error")
CLOSE = (b"connection", b"close")


class Exchange(WebRequest):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Nobody here asks Twisted for the fields of a form; it would read uploads into memory to find them.
        self._parsePOSTFormSubmission = False
        self._broken = False
        self._set_aside: list[tuple[bytes, bytes]] = []
        self._end_itself: Callable[[], None] | None = None

    # -- the request -------------------------------------------------------------------------------

    def gotLength(self, length: int | None) -> None:
        """Twisted opens a file for each body whose length is not said or is large, before a byte of it has come."""
        self.content = tempfile.SpooledTemporaryFile(BODY_IN_MEMORY_BYTES)  # noqa: SIM115  closed when it has been read

    def process(self) -> Any:
        """daphne takes the root path from a header of the client's. Here it is a header as any other."""
        given = self.requestHeaders.getRawHeaders(ROOT_PATH, [])
        if not any(INVALID_HEADER_VALUE_BYTES.intersection(value) for value in given):
            self._set_aside = [(ROOT_PATH, value) for value in given]
            self.requestHeaders.removeHeader(ROOT_PATH)
        return super().process().addBoth(self._put_file_away)

    def _put_file_away(self, done: Any) -> Any:
        """The application has the body now; its file would stay open for as long as the answer lasts."""
        if self.content is not None:  # one that was broken off has none
            self.content.close()
        return done

    def complete(self, scope: dict[str, Any]) -> None:
        """Add to what the application gets."""
        scope["headers"] += self._set_aside
        scope["extensions"] = {
            CLOSE_CONNECTION: self.break_off,
            ON_SHUTDOWN: self.on_shutdown,
            TARGET: self.uri,
        }

    # -- the answer --------------------------------------------------------------------------------

    def handle_reply(self, message: Any) -> None:
        if self._broken:
            return
        super().handle_reply(message)
        if message["type"] != "http.response.start" or self.channel is None:
            return
        if self.server.is_stopping or not self.channel.persistent:
            self.channel.persistent = 0
            self.setHeader(b"connection", b"close")

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        """The server's own answer, while there is none yet; else the answer is broken off."""
        if self._response_started:
            self.break_off()
        else:
            self._answer(json_error(status, f"{body.rstrip('.')}.", *REFUSED.get(status, BROKEN)))

    def refuse_size(self) -> None:
        limit = self.server.limits.body
        message = f"The request body is larger than {limit / 2**20:g} MB."
        self._log_refusal("request_too_large: more than %d bytes", limit)
        answer = json_error(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, "invalid_request_error", "request_too_large"
        )
        self._answer(answer, CLOSE)

    def refuse_pace(self) -> None:
        slowest = self.server.limits.slowest
        self._log_refusal("request_timeout: fewer than %g bytes a second came", slowest.rate)
        message = f"The request body came too slowly: less than {slowest.rate:g} bytes a second."
        answer = json_error(HTTPStatus.REQUEST_TIMEOUT, message, "invalid_request_error", "request_timeout")
        self._answer(answer, CLOSE)

    def refuse_for_want_of_a_file(self) -> None:
        message = "The gateway has no room for the request body now; try again."
        answer = json_error(HTTPStatus.SERVICE_UNAVAILABLE, message, "unavailable_error", "overloaded")
        self._answer(answer, CLOSE, (b"Retry-After", b"%d" % RETRY_SECONDS))

    def _log_refusal(self, why: str, figure: float) -> None:
        logger.warning(f"request %s: {why}", self._request_id.decode("latin-1"), figure)

    def _answer(self, answer: HttpResponse, *more: tuple[bytes, bytes]) -> None:
        headers = [(name.encode(), value.encode("latin-1")) for name, value in answer.items()]
        headers += [
            (b"X-Request-Id", self._request_id),
            (b"Content-Length", b"%d" % len(answer.content)),
            *more,
        ]
        self.handle_reply({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        self.handle_reply({"type": "http.response.body", "body": answer.content})

    @cached_property
    def _request_id(self) -> bytes:
        """The client's, quoted, or a new one; for the log and for an answer of the server's own."""
        given = self.requestHeaders.getRawHeaders(b"x-request-id", [b""])
        return (quoted_id(given[0].decode("latin-1")) or uuid.uuid4().hex).encode()

    def handleContentChunk(self, data: bytes) -> None:
        """The size of a chunked body is known only as it comes."""
        if self.is_over:
            return
        if self.content.tell() + len(data) > self.server.limits.body:
            self.channel.refuse(self, Exchange.refuse_size)
            return
        try:
            super().handleContentChunk(data)
        except OSError as trouble:
            lifecycle.current().shortage.say(
                f"overloaded: a request body cannot be put into a file: {trouble}"
            )
            self.channel.refuse(self, Exchange.refuse_for_want_of_a_file)

    # -- its end -----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return bool(self.finished or self._disconnected or self._broken)

    def break_off(self) -> None:
        """End the answer so that its client can tell that it is not whole; the application learns that it is over."""
        if self.is_over:
            return
        self._broken = True
        if self.chunked or self.responseHeaders.hasHeader(b"content-length"):
            self.channel.loseConnection()
        else:
            self.channel.reset()  # the end of the connection would be taken for the end of the answer
        if self.application_queue:
            self.send_disconnect()

    def application_ended(self, failed: bool) -> None:
        """Nobody will write to this answer any more."""
        if not self.is_over:
            trouble = "The gateway met an unexpected error" if failed else "The request was given up"
            self.basic_error(500, b"Internal Server Error", trouble)

    def on_shutdown(self, end: Callable[[], None]) -> None:
        """The answer can end in a way that its client understands, and will soon after a call of `end`."""
        self._end_itself = end

    def shut_down(self) -> None:
        """The server waits no longer."""
        if self.is_over:
            return
        if self._end_itself is not None:
            self._end_itself()
        elif self._response_started:
            self.break_off()
        elif self.application_queue is None:  # the request has not come whole
            self.channel.transport.abortConnection()
        else:
            self.basic_error(503, b"Service Unavailable", "The gateway is shutting down")
