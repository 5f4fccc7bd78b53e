"""Header rules and JSON errors of the HTTP edge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

RawHeaders = list[tuple[bytes, bytes]]


HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


# Headers that say where a body ends. Each hop writes its own.
FRAMING = frozenset({b"content-length", b"transfer-encoding"})


def field_name(name: bytes) -> bytes:
    """A header's name as the most lenient recipient reads it: some take an underscore for a hyphen."""
    return name.lower().replace(b"_", b"-")


def framing_fault(version: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Why a request's length is not certain, "" where it is. version: of HTTP, such as "1.1".

    RFC 9112, section 6: of two lengths a server in front may have taken the other one, and sends what it takes for
    the rest of the body as the next request. So nothing that follows on that connection may be read.
    """
    told = [(name.lower(), value.strip().lower()) for name, value in headers]
    codings = [value for name, value in told if name == b"transfer-encoding"]
    lengths = {value for name, value in told if name == b"content-length"}
    if codings and lengths:
        return "The request has both a Transfer-Encoding and a Content-Length."
    if codings and (version == "1.0" or codings != [b"chunked"]):
        return "The Transfer-Encoding of the request is not one that is understood here."
    if len(lengths) > 1 or not all(length.isdigit() for length in lengths):
        return "The request has no Content-Length that is one number."
    return ""


def end_to_end(headers: Iterable[tuple[bytes, bytes]], *dropped: bytes) -> RawHeaders:
    """Without hop-by-hop headers, those that Connection names, and `dropped` (lower-case names).

    Under each of these names a header is dropped also where it is written with underscores.
    """
    kept = [(name, value) for name, value in headers]
    named = {
        field_name(word.strip())
        for name, value in kept
        if name.lower() == b"connection"
        for word in value.split(b",")
    }
    gone = HOP_BY_HOP | named | set(dropped)
    return [(name, value) for name, value in kept if field_name(name) not in gone]


def with_headers(headers: RawHeaders, new: Mapping[bytes, bytes]) -> RawHeaders:
    """`headers` with each of `new` (lower-case names) in place of what was there under that name."""
    return [(name, value) for name, value in headers if name.lower() not in new] + list(new.items())


def with_own(headers: RawHeaders, own: Mapping[str, str]) -> RawHeaders:
    """Downstream's `headers` with what middleware has added, which is CORS alone.

    So the gateway speaks of origins, and downstream does not: its Access-Control-* go, also where nothing takes their
    place. Vary tells what both vary by.
    """
    if not own:
        return list(headers)
    kept = [(name, value) for name, value in headers if not name.lower().startswith(b"access-control-")]
    added = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in own.items()}
    vary = b",".join([*(value for name, value in kept if name.lower() == b"vary"), added.get(b"vary", b"")])
    if words := {word.strip().lower(): word.strip() for word in vary.split(b",") if word.strip()}:
        added[b"vary"] = b", ".join(words.values())
    return with_headers(kept, added)


def is_named(name: bytes, patterns: Sequence[str]) -> bool:
    """Whether a header's name, compared without case, is one of `patterns`: lower-case names, `*` for anything."""
    lower = name.decode("latin-1").lower()
    return any(fnmatchcase(lower, pattern) for pattern in patterns)
