"""The application that an ASGI server loads: `daphne gatewaysite.asgi:application`, uvicorn, `manage.py serve`.

Loading it runs the system checks and begins to load the strategies. Wrong settings stop the start here;
a database that is away, or not migrated, does not: requests are proxied, and `/ready` tells.
"""

import codecs
import functools
import logging
import os
import sys
import uuid
from http import HTTPStatus
from typing import Any

from channels.routing import ProtocolTypeRouter  # type: ignore[import-untyped]
from django.conf import settings
from django.core import checks
from django.core.asgi import get_asgi_application
from django.core.exceptions import ImproperlyConfigured

from gatewaysite.server.stopping import leaving_cleanly

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gatewaysite.settings")
django_application = leaving_cleanly(get_asgi_application())

# Only now, because these need the application registry.
from continuation.http.ending import CLOSE_CONNECTION, ON_SHUTDOWN, daphne_closer, on_shutdown  # noqa: E402
from continuation.http.headers import framing_fault  # noqa: E402
from continuation.http.incoming import quoted_id  # noqa: E402
from continuation.http.response import json_error, let_none_follow  # noqa: E402
from continuation.resume.store import chosen  # noqa: E402
from gatewaysite.server import websocket  # noqa: E402
from gatewaysite.server.lifespan import lifespan  # noqa: E402
from strategies import cache  # noqa: E402

logger = logging.getLogger(__name__)

# The first requests should find the strategies; a database that is away must not keep the rest from being proxied.
STRATEGIES_SECONDS = 5.0


def check_settings() -> None:
    """Log the warnings of the system checks; raise ImproperlyConfigured that lists the errors."""
    found = [message for message in checks.run_checks(databases=[]) if not message.is_silenced()]
    for message in found:
        if checks.WARNING <= message.level < checks.ERROR:
            logger.warning("%s", _in_one_line(message))
    errors = [_in_one_line(message) for message in found if message.level >= checks.ERROR]
    if errors:
        raise ImproperlyConfigured("the system checks found errors:\n  " + "\n  ".join(errors))


def _in_one_line(message: checks.CheckMessage) -> str:
    hint = f" Hint: {message.hint}" if message.hint else ""
    subject = f"{message.obj}: " if message.obj is not None else ""
    return f"({message.id}) {subject}{message.msg}{hint}"


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


@functools.cache
def _begin() -> None:
    """With the first request of any kind, often a health check: some servers do not tell when the loop runs, and some
    load what they need only after the application."""
    name_statuses()
    chosen.open_early()


async def http(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Django, with a way to break the client's connection off where the server has none of its own."""
    _begin()
    if fault := framing_fault(scope.get("http_version", ""), scope["headers"]):
        await _refuse(scope, send, fault)
        return
    scope = scope | {"root_path": ""}  # daphne takes it from a header, which any client may send
    extensions = scope.get("extensions") or {}
    if CLOSE_CONNECTION not in extensions and (close := daphne_closer(send)):
        scope = scope | {"extensions": {**extensions, CLOSE_CONNECTION: close}}
    on_shutdown.set(extensions.get(ON_SHUTDOWN))
    await django_application(scope, receive, send)


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


check_settings()
# Django logs errors with it: once no descriptor is left, no module can be loaded.
codecs.lookup("unicode_escape")
cache.start()
if not cache.wait_until_loaded(STRATEGIES_SECONDS):
    logger.warning("the strategies are not loaded yet; streams are not guarded until they are")
elif settings.GATEWAY_ROLE != "admin" and not (
    settings.CONTINUATION_MODEL or any(row.served_names for row in cache.current().strategies)
):
    logger.warning(
        "CONTINUATION_MODEL is not set and no strategy has served names: every request is passed through, and nothing "
        "is continued"
    )
application = ProtocolTypeRouter({"http": http, "websocket": websocket.refuse, "lifespan": lifespan})
