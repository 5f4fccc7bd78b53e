"""manage.py serve: the gateway as a service runs it."""

from __future__ import annotations

import signal
import sys
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from continuation.management.arguments import descriptor, port

MB = 2**20


class Command(BaseCommand):
    help = (
        "Serve the gateway. SIGTERM or Ctrl-C stops it: new connections are refused, open streams run to their end for "
        "up to GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS, then the status is 0. A second signal ends it at once, with status "
        "128 + the signal's number."
    )
    requires_system_checks = []  # loading the application runs them, as it does under every server

    def add_arguments(self, parser: CommandParser) -> None:
        where = parser.add_mutually_exclusive_group()
        where.add_argument("-b", "--bind", default="127.0.0.1", metavar="HOST", help="address (127.0.0.1)")
        where.add_argument("-u", "--unix-socket", default="", metavar="PATH", help="a socket file instead")
        where.add_argument("--fd", type=descriptor, help="a listening socket that was inherited, instead")
        parser.add_argument("-p", "--port", type=port, default=8000, help="TCP port (8000); 0: a free one")
        parser.add_argument(
            "--access-log", metavar="FILE", help="write a line for each request; - for stdout (no log)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        # Not before the settings are known to be right.
        from gatewaysite.server.listener import Listener
        from gatewaysite.server.pace import Slowest
        from gatewaysite.server.server import Server, ServerLimits

        address = _address(options)
        try:
            listener = Listener(options["bind"], options["port"], options["unix_socket"], options["fd"])
        except OSError as trouble:
            raise CommandError(f"cannot listen on {address}: {trouble.strerror or trouble}") from trouble
        limits = ServerLimits(
            body=int(settings.MAX_REQUEST_BODY_MB * MB),
            patience=settings.GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS,
            stall=settings.CLIENT_STALL_TIMEOUT_SECONDS,
            slowest=Slowest(
                head=settings.CLIENT_HEAD_TIMEOUT_SECONDS,
                window=settings.CLIENT_BODY_TIMEOUT_SECONDS,
                rate=settings.CLIENT_BODY_BYTES_PER_SECOND,
            ),
        )
        try:
            server = Server(_application(), listener, limits, _access_log(options["access_log"]))
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
        status = server.run()
        if server.trouble is not None:
            why = getattr(server.trouble, "socketError", server.trouble)
            step = f"listen on {address}" if server.at_the_door else "start"
            raise CommandError(f"cannot {step}: {getattr(why, 'strerror', None) or why}")
        if status:
            sys.exit(status)


def _address(options: dict[str, Any]) -> str:
    if options["fd"] is not None:
        return f"descriptor {options['fd']}"
    return options["unix_socket"] or f"{options['bind']}:{options['port']}"


def _application() -> Any:
    """Runs the system checks and loads the strategies."""
    try:
        from gatewaysite.asgi import application
    except ImproperlyConfigured as trouble:
        raise CommandError(str(trouble)) from None
    return application


def _access_log(name: str | None) -> Any:
    if name is None:
        return None
    from gatewaysite.server.access import AccessLog

    try:
        return AccessLog(sys.stdout if name == "-" else open(name, "a", buffering=1))
    except OSError as trouble:
        raise CommandError(f"cannot write {name}: {trouble.strerror}") from trouble
