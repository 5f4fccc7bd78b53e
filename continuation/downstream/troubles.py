"""Foreign exceptions, translated once: what httpx, aiohttp and the operating system raise, in the gateway's words."""

from __future__ import annotations

import httpx
from aiohttp.http import HttpProcessingError

from continuation.downstream.shortage import is_shortage


def describe(trouble: BaseException) -> str:
    """One line for operators: the innermost cause with its type, 200 characters at most."""
    while trouble.__cause__ is not None:
        trouble = trouble.__cause__
    # aiohttp's errors of framing put the status before what they have to say.
    said = trouble.message if isinstance(trouble, HttpProcessingError) else str(trouble)
    return f"{type(trouble).__name__}: {' '.join(said.split())}".rstrip(": ")[:200]


def status_for(trouble: httpx.HTTPError) -> int:
    """The status of an answer whose request could not be delivered: 504 when connecting took too long, 500 where the
    gateway could not write it down, 503 where no descriptor was left for the connection, else 502."""
    if isinstance(trouble, httpx.LocalProtocolError):
        return 500
    if is_shortage(trouble):
        return 503
    return 504 if isinstance(trouble, httpx.TimeoutException) else 502
