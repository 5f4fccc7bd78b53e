"""What a request says of itself, exactly as its client sent it."""

from __future__ import annotations

import os
import re
import string
import uuid
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from django.http import HttpRequest

from continuation.http.headers import RawHeaders, end_to_end
from continuation.http.response import TARGET

# Characters of a request id: a longer one is cut.
ID_CHARACTERS = 128
# Times that a path is decoded. A path that changes even after that is refused: nobody means it.
DECODINGS = 3
TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
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
    """Path and query as they were sent; the `?` before an empty query is lost where the server does not tell."""
    scope = scope_of(request)
    told: bytes | None = (scope.get("extensions") or {}).get(TARGET)
    if told is not None:
        return told
    path: bytes = scope.get("raw_path") or request.path.encode()
    query: bytes = scope.get("query_string", b"")
    return path + (b"?" + query if query else b"")


def unsendable_line(request: HttpRequest) -> str:
    """Why the client's request line cannot be sent on; "" where it can."""
    if not TOKEN.fullmatch((request.method or "").encode("latin-1", "replace")):
        return "The method of the request holds a character that no method may hold."
    if CONTROL.search(target_of(request)):
        return "The target of the request holds a control character."
    return ""


def unsendable_header(request: HttpRequest) -> str:
    """Why a header of the client's cannot be sent on; "" where all can."""
    for name, value in headers_of(request):
        if not TOKEN.fullmatch(name):
            return "The name of a header of the request holds a character that no name may hold."
        if CONTROL.search(value):
            return "A header of the request holds a control character."
    return ""


def leads_out(target: bytes) -> bool:
    """Whether some server behind may read the path of `target` as another one than it seems to be.

    Servers differ in how often they decode, in what ends a path or a segment of it (`#`, `;`, a NUL), and in taking
    a backslash for a slash. Whatever is a segment of dots to any of them counts, and so does what needs no decoding.
    """
    path = target.partition(b"?")[0]
    if b"#" in path:
        return True
    for _ in range(DECODINGS):
        if _has_dots(path):
            return True
        decoded = unquote_to_bytes(path)
        if decoded == path:
            return False
        path = decoded
    return True


def _has_dots(path: bytes) -> bool:
    if b"\\" in path or CONTROL.search(path) or b"\t" in path:
        return True
    segments = (re.split(rb"[;?#]", segment)[0].strip() for segment in path.split(b"/"))
    return any(segment in (b".", b"..") for segment in segments)


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
