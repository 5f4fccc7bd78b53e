"""What a request says of itself, exactly as its client sent it."""

from __future__ import annotations

import os
import string
import uuid
from typing import Any
from urllib.parse import quote

from django.http import HttpRequest

from continuation.http import RawHeaders, end_to_end

# Characters of a request id: a longer one is cut.
ID_CHARACTERS = 128
# These stand in a request id as they are: all that ASCII can print, but for the space.
_PLAIN = string.ascii_letters + string.digits + string.punctuation


def request_id(request: HttpRequest) -> str:
    """The client's X-Request-Id, quoted, or a new one that stays with the request."""
    found = quoted_id(request.META.get("HTTP_X_REQUEST_ID", "")) or uuid.uuid4().hex
    request.META["HTTP_X_REQUEST_ID"] = found
    return found


def quoted_id(given: str) -> str:
    """A client's id (Latin-1, as it stood in the header), fit to stand in a log line and in a header.

    Spaces, control characters and bytes beyond ASCII are percent-encoded, then the whole is cut to ID_CHARACTERS. So
    an id can neither end a log line nor look like the words around it. Of printable ASCII up to that length nothing
    is changed, which makes it safe to quote an id twice.
    """
    return quote(given[:ID_CHARACTERS], safe=_PLAIN, encoding="latin-1", errors="replace")[:ID_CHARACTERS]


def scope_of(request: HttpRequest) -> dict[str, Any]:
    """Of ASGI; empty for a request that has not come over it."""
    scope: dict[str, Any] = getattr(request, "scope", {})
    return scope


def target_of(request: HttpRequest) -> bytes:
    """Path and query."""
    scope = scope_of(request)
    path: bytes = scope.get("raw_path") or request.path.encode()
    query: bytes = scope.get("query_string", b"")
    return path + (b"?" + query if query else b"")


def headers_of(request: HttpRequest, *dropped: bytes) -> RawHeaders:
    """End to end. Host is downstream's own; the server has already answered any Expect."""
    return end_to_end(scope_of(request).get("headers", []), b"host", b"expect", *dropped)


def body_size(request: HttpRequest) -> int:
    """Bytes of the body, which the server has received whole; Django keeps a large one on disk."""
    stream = request._stream
    if not hasattr(stream, "seek"):
        return int(request.META.get("CONTENT_LENGTH") or 0)
    at = stream.tell()
    size: int = stream.seek(0, os.SEEK_END)
    stream.seek(at)
    return size
