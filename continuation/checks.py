"""System checks of the gateway. Errors stop the start (`gatewaysite.asgi` runs them), warnings are logged."""

import os
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

# Variables of the full settings table that this version does not act on yet.
NOT_YET = (
    "METRICS_TOKEN",
    "REDIS_URL",
)


@register()
def downstream_is_named(**kwargs: Any) -> Sequence[CheckMessage]:
    if settings.DOWNSTREAM_URL or settings.GATEWAY_ROLE == "admin":
        return []
    return [
        Error(
            "DOWNSTREAM_URL is not set.",
            hint="Set it to the base URL of the routing gateway, for example http://router:8000.",
            id="continuation.E001",
        )
    ]


@register()
def body_limits_are_in_order(**kwargs: Any) -> Sequence[CheckMessage]:
    if settings.MAX_CONTINUATION_BODY_MB <= settings.MAX_REQUEST_BODY_MB:
        return []
    return [
        Error(
            f"MAX_CONTINUATION_BODY_MB ({settings.MAX_CONTINUATION_BODY_MB:g}) is above "
            f"MAX_REQUEST_BODY_MB ({settings.MAX_REQUEST_BODY_MB:g}).",
            hint="A body above MAX_REQUEST_BODY_MB is refused, so the first must not be larger.",
            id="continuation.E002",
        )
    ]


@register()
def secret_key_is_kept(**kwargs: Any) -> Sequence[CheckMessage]:
    if not settings.SECRET_KEY_IS_RANDOM or settings.GATEWAY_ROLE == "proxy":
        return []
    return [
        Warning(
            "SECRET_KEY is not set: a random one is used, so admin logins end with this process.",
            hint="Set SECRET_KEY, or SECRET_KEY_FILE, to a long random text.",
            id="continuation.W001",
        )
    ]


@register()
def tool_calls_are_held_for_a_purpose(**kwargs: Any) -> Sequence[CheckMessage]:
    if not settings.BUFFER_TOOL_CALLS or settings.CONTINUATION_ENABLED:
        return []
    return [
        Warning(
            "BUFFER_TOOL_CALLS has no effect while CONTINUATION_ENABLED is false.",
            hint="Tool calls are held so that an answer can be continued from before them.",
            id="continuation.W003",
        )
    ]


def _is_idle(name: str) -> bool:
    return name.removesuffix("_FILE") in NOT_YET or name.startswith("RESUME_")


@register()
def nothing_is_set_in_vain(**kwargs: Any) -> Sequence[CheckMessage]:
    idle = sorted(name for name, value in os.environ.items() if value and _is_idle(name))
    return [
        Warning(
            f"{name} is set, but this version does not support it; it has no effect.", id="continuation.W002"
        )
        for name in idle
    ]
