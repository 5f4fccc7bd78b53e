"""The application that an ASGI server loads: `daphne gatewaysite.asgi:application`, uvicorn, `manage.py serve`.

To import this module does nothing. The start is when a server asks it for `application`, which each does before it
listens; daphne tells of no other moment. The system checks run then, and the strategies begin to load. Wrong settings
stop the start; a database that is away, or not migrated, does not: requests are proxied, and `/ready` tells.
What waits for the event loop begins with the first request. See continuation.lifecycle for the rest of the life.
"""

import codecs
import functools
import logging
import os
from typing import Any

logger = logging.getLogger(__name__)

# The first requests should find the strategies; a database that is away must not keep the rest from being proxied.
STRATEGIES_SECONDS = 5.0

application: Any


def __getattr__(name: str) -> Any:
    if name != "application":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _started()


@functools.cache
def _started() -> Any:
    """The application, once for the process. Raises ImproperlyConfigured."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gatewaysite.settings")
    from django.core.asgi import get_asgi_application

    django_application = get_asgi_application()

    # Only now, because these need the application registry.
    from channels.routing import ProtocolTypeRouter  # type: ignore[import-untyped]

    from gatewaysite.server import websocket
    from gatewaysite.server.edge import Edge
    from gatewaysite.server.lifespan import lifespan
    from gatewaysite.server.stopping import leaving_cleanly

    check_settings()
    # Django logs errors with it: once no descriptor is left, no module can be loaded.
    codecs.lookup("unicode_escape")
    _start_process()
    http = Edge(leaving_cleanly(django_application))
    return ProtocolTypeRouter({"http": http, "websocket": websocket.refuse, "lifespan": lifespan})


def check_settings() -> None:
    """Log the warnings of the system checks; raise ImproperlyConfigured that lists the errors."""
    from django.core import checks
    from django.core.exceptions import ImproperlyConfigured

    found = [message for message in checks.run_checks(databases=[]) if not message.is_silenced()]
    for message in found:
        if checks.WARNING <= message.level < checks.ERROR:
            logger.warning("%s", _in_one_line(message))
    errors = [_in_one_line(message) for message in found if message.level >= checks.ERROR]
    if errors:
        raise ImproperlyConfigured("the system checks found errors:\n  " + "\n  ".join(errors))


def _in_one_line(message: Any) -> str:
    hint = f" Hint: {message.hint}" if message.hint else ""
    subject = f"{message.obj}: " if message.obj is not None else ""
    return f"({message.id}) {subject}{message.msg}{hint}"


def _start_process() -> None:
    from django.conf import settings

    from continuation import lifecycle
    from strategies import cache

    if not lifecycle.current().start(STRATEGIES_SECONDS):
        logger.warning("the strategies are not loaded yet; streams are not guarded until they are")
    elif settings.GATEWAY_ROLE != "admin" and not (
        settings.CONTINUATION_MODEL or any(row.served_names for row in cache.current().strategies)
    ):
        logger.warning(
            "CONTINUATION_MODEL is not set and no strategy has served names: every request is passed through, and "
            "nothing is continued"
        )
