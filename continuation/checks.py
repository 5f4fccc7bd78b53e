"""System checks of the gateway. Errors stop the start (`gatewaysite.asgi` runs them), warnings are logged."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register


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
            "SECRET_KEY is not set: a random one is used, so admin logins and resume tokens end with this process.",
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


@register()
def resuming_has_what_it_needs(**kwargs: Any) -> Sequence[CheckMessage]:
    """Check the extra `redis`, if a setting needs it."""
    from continuation.resume.store.chosen import REDIS_PACKAGES

    if not _resumes():
        return []
    wanted = [
        *(("REDIS_URL", package, settings.REDIS_URL, "continuation.E003") for package in REDIS_PACKAGES),
        ("RESUME_ENCRYPTION_KEYS", "cryptography", settings.RESUME_ENCRYPTION_KEYS, "continuation.E004"),
    ]
    return [
        Error(
            f"{name} is set, but the package {package} is not installed.",
            hint="Install it: pip install -e '.[redis]'.",
            id=identity,
        )
        for name, package, value, identity in wanted
        if value and find_spec(package) is None
    ]


@register()
def redis_can_be_asked_for(**kwargs: Any) -> Sequence[CheckMessage]:
    """Check the options of the URL, without connecting."""
    if not settings.REDIS_URL or not _resumes() or find_spec("redis") is None:
        return []
    from redis.asyncio.connection import parse_url

    try:
        parse_url(settings.REDIS_URL)
    except ValueError as trouble:
        return [Error(f"REDIS_URL cannot be used: {trouble}", id="continuation.E005")]
    return []


@register()
def resuming_is_set_for_a_purpose(**kwargs: Any) -> Sequence[CheckMessage]:
    if settings.RESUME_MODE == "off":
        idle = [name for name in ("REDIS_URL", "RESUME_ENCRYPTION_KEYS") if getattr(settings, name)]
        reason = "RESUME_MODE is off"
    else:
        idle = (
            ["RESUME_ENCRYPTION_KEYS"] if settings.RESUME_ENCRYPTION_KEYS and not settings.REDIS_URL else []
        )
        reason = "REDIS_URL is not set: only what is kept in Redis is encrypted"
    return [Warning(f"{name} has no effect while {reason}.", id="continuation.W004") for name in idle]


@register()
def resume_tokens_are_shared(**kwargs: Any) -> Sequence[CheckMessage]:
    """Without Redis streams end with the process too, so nothing is lost."""
    if not (settings.REDIS_URL and settings.SECRET_KEY_IS_RANDOM and _resumes()):
        return []
    return [
        Warning(
            "SECRET_KEY is not set: resume tokens are good in the process alone that issued them, although "
            "REDIS_URL keeps the streams for all processes.",
            hint="Set SECRET_KEY, or SECRET_KEY_FILE, to the same long random text for all processes.",
            id="continuation.W005",
        )
    ]


# Name of a setting, id of its warning, and the consequence while the setting is false or 0.
WANTED_IN_SERVICE = (
    ("SECURE_COOKIES", "continuation.W010", "The cookies of a login are sent without TLS too."),
    ("SECURE_SSL_REDIRECT", "continuation.W011", "The admin is served without TLS too."),
    ("SECURE_HSTS_SECONDS", "continuation.W012", "Browsers do not learn that the admin has TLS only."),
)


@register(Tags.security, deploy=True)
def admin_is_served_with_tls_only(**kwargs: Any) -> Sequence[CheckMessage]:
    """With `check --deploy` only: the defaults are for a gateway on the same machine."""
    if settings.GATEWAY_ROLE == "proxy":
        return []
    return [
        Warning(f"{name} is not set. {consequence}", id=identity)
        for name, identity, consequence in WANTED_IN_SERVICE
        if not getattr(settings, name)
    ]


def _resumes() -> bool:
    """An admin alone serves no streams."""
    return settings.RESUME_MODE != "off" and settings.GATEWAY_ROLE != "admin"
