from collections.abc import Sequence
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.checks import CheckMessage, run_checks
from django.utils.module_loading import import_string

from continuation import checks


def ids(messages: Sequence[CheckMessage]) -> list[str | None]:
    return [message.id for message in messages]


def test_the_site_with_a_downstream_and_a_key_passes_every_check(settings: Any) -> None:
    settings.DOWNSTREAM_URL = "http://router:8000"
    settings.SECRET_KEY_IS_RANDOM = False
    assert [message for message in run_checks(databases=[]) if not message.is_silenced()] == []


@pytest.mark.parametrize("role", ["all", "proxy"])
def test_a_proxy_needs_a_downstream(settings: Any, role: str) -> None:
    settings.GATEWAY_ROLE = role
    settings.DOWNSTREAM_URL = ""
    (message,) = checks.downstream_is_named()
    assert (message.id, message.is_serious()) == ("continuation.E001", True)
    assert message.msg == "DOWNSTREAM_URL is not set."
    assert "http://router:8000" in str(message.hint)


def test_an_admin_alone_needs_no_downstream(settings: Any) -> None:
    settings.GATEWAY_ROLE = "admin"
    settings.DOWNSTREAM_URL = ""
    assert checks.downstream_is_named() == []


@pytest.mark.parametrize(
    "continued, whole, found", [(10, 100, []), (5, 5, []), (5.5, 5, ["continuation.E002"])]
)
def test_a_body_that_is_refused_cannot_be_continued(
    settings: Any, continued: float, whole: float, found: list[str]
) -> None:
    settings.MAX_CONTINUATION_BODY_MB = continued
    settings.MAX_REQUEST_BODY_MB = whole
    messages = checks.body_limits_are_in_order()
    assert ids(messages) == found
    for message in messages:
        assert message.msg == "MAX_CONTINUATION_BODY_MB (5.5) is above MAX_REQUEST_BODY_MB (5)."


@pytest.mark.parametrize(
    "random, role, found",
    [
        (True, "all", ["continuation.W001"]),
        (True, "admin", ["continuation.W001"]),
        (True, "proxy", []),
        (False, "all", []),
    ],
)
def test_a_random_secret_key_is_warned_of_where_people_log_in(
    settings: Any, random: bool, role: str, found: list[str]
) -> None:
    settings.SECRET_KEY_IS_RANDOM = random
    settings.GATEWAY_ROLE = role
    messages = checks.secret_key_is_kept()
    assert ids(messages) == found
    assert not any(message.is_serious() for message in messages)


@pytest.mark.parametrize(
    "identity, base",
    [
        ("axes.W002", "axes.middleware.AxesMiddleware"),
        ("security.W001", "django.middleware.security.SecurityMiddleware"),
        ("security.W002", "django.middleware.clickjacking.XFrameOptionsMiddleware"),
    ],
)
def test_a_check_that_is_silenced_looks_for_a_middleware_that_ours_derive_from(
    settings: Any, identity: str, base: str
) -> None:
    assert identity in settings.SILENCED_SYSTEM_CHECKS
    ours = [import_string(name) for name in settings.MIDDLEWARE]
    assert any(issubclass(one, import_string(base)) for one in ours)


@pytest.mark.parametrize("role", ["all", "admin"])
def test_with_deploy_an_admin_that_is_served_without_tls_is_warned_of(settings: Any, role: str) -> None:
    settings.GATEWAY_ROLE = role
    expected = ["continuation.W010", "continuation.W011", "continuation.W012"]
    assert ids(checks.admin_is_served_with_tls_only()) == expected
    settings.SECURE_COOKIES = settings.SECURE_SSL_REDIRECT = True
    (message,) = checks.admin_is_served_with_tls_only()
    assert message.msg.startswith("SECURE_HSTS_SECONDS is not set. ")
    settings.SECURE_HSTS_SECONDS = 1
    assert checks.admin_is_served_with_tls_only() == []


def test_a_proxy_alone_has_no_login_to_protect(settings: Any) -> None:
    settings.GATEWAY_ROLE = "proxy"
    assert checks.admin_is_served_with_tls_only() == []


@pytest.mark.parametrize(
    "held, enabled, found",
    [(True, False, ["continuation.W003"]), (True, True, []), (False, False, [])],
)
def test_holding_tool_calls_without_continuation_is_warned_of(
    settings: Any, held: bool, enabled: bool, found: list[str]
) -> None:
    settings.BUFFER_TOOL_CALLS = held
    settings.CONTINUATION_ENABLED = enabled
    messages = checks.tool_calls_are_held_for_a_purpose()
    assert ids(messages) == found
    assert not any(message.is_serious() for message in messages)


# -- resuming --------------------------------------------------------------------------------------

KEY = Fernet.generate_key().decode()
SET: dict[str, Any] = {
    "RESUME_MODE": "opt-in",
    "GATEWAY_ROLE": "all",
    "REDIS_URL": "redis://:secret@host:6379/0",
    "RESUME_ENCRYPTION_KEYS": [KEY],
    "SECRET_KEY_IS_RANDOM": False,
}


def resuming(settings: Any, **changes: Any) -> list[CheckMessage]:
    """What the checks of resuming find."""
    for name, value in {**SET, **changes}.items():
        setattr(settings, name, value)
    found = [
        *checks.resuming_has_what_it_needs(),
        *checks.redis_can_be_asked_for(),
        *checks.resuming_is_set_for_a_purpose(),
        *checks.resume_tokens_are_shared(),
    ]
    assert not any(secret in str(message) for message in found for secret in ("secret", KEY))
    return found


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As in an environment where these are not installed."""
    there = checks.find_spec
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name in packages else there(name))


@pytest.mark.parametrize("mode", ["off", "opt-in", "always"])
@pytest.mark.parametrize("keys", [[], [KEY]])
def test_resuming_by_redis_or_by_memory_with_a_kept_key_is_in_order(
    settings: Any, mode: str, keys: list[str]
) -> None:
    if mode != "off":
        assert resuming(settings, RESUME_MODE=mode, RESUME_ENCRYPTION_KEYS=keys) == []
    assert resuming(settings, RESUME_MODE=mode, REDIS_URL="", RESUME_ENCRYPTION_KEYS=[]) == []


@pytest.mark.parametrize("missing", ["redis", "cryptography"])
def test_a_setting_whose_package_is_not_installed_is_an_error_that_names_the_extra(
    settings: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    without(monkeypatch, missing)
    (message,) = resuming(settings)
    name, identity = {
        "redis": ("REDIS_URL", "continuation.E003"),
        "cryptography": ("RESUME_ENCRYPTION_KEYS", "continuation.E004"),
    }[missing]
    assert (message.id, message.is_serious()) == (identity, True)
    assert message.msg == f"{name} is set, but the package {missing} is not installed."
    assert "pip install -e '.[redis]'" in str(message.hint)


@pytest.mark.parametrize("changes", [{"RESUME_MODE": "off"}, {"GATEWAY_ROLE": "admin"}], ids=str)
def test_where_no_stream_is_resumed_no_package_is_missed(
    settings: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    without(monkeypatch, "redis", "cryptography")
    assert not any(message.is_serious() for message in resuming(settings, **changes))


def test_without_its_settings_no_package_is_missed(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "redis", "cryptography")
    assert resuming(settings, REDIS_URL="", RESUME_ENCRYPTION_KEYS=[]) == []


def test_an_option_of_the_redis_url_that_is_wrong_is_an_error_without_the_url(settings: Any) -> None:
    (message,) = resuming(settings, REDIS_URL="redis://:secret@host?socket_timeout=soon")
    assert (message.id, message.is_serious()) == ("continuation.E005", True)
    assert message.msg == "REDIS_URL cannot be used: Invalid value for 'socket_timeout' in connection URL."


@pytest.mark.parametrize(
    "changes, idle, reason",
    [
        ({"REDIS_URL": ""}, ["RESUME_ENCRYPTION_KEYS"], "REDIS_URL is not set"),
        ({"RESUME_MODE": "off"}, ["REDIS_URL", "RESUME_ENCRYPTION_KEYS"], "RESUME_MODE is off"),
        (
            {"RESUME_MODE": "off", "REDIS_URL": "", "SECRET_KEY_IS_RANDOM": True},
            ["RESUME_ENCRYPTION_KEYS"],
            "RESUME_MODE is off",
        ),
    ],
)
def test_what_is_set_in_vain_is_warned_of(
    settings: Any, changes: dict[str, Any], idle: list[str], reason: str
) -> None:
    found = resuming(settings, **changes)
    assert [message.id for message in found] == ["continuation.W004"] * len(idle)
    for message, name in zip(found, idle, strict=True):
        assert message.msg.startswith(f"{name} has no effect while {reason}")
    assert not any(message.is_serious() for message in found)


@pytest.mark.parametrize(
    "changes, found",
    [
        ({}, ["continuation.W005"]),
        ({"GATEWAY_ROLE": "proxy"}, ["continuation.W005"]),
        ({"GATEWAY_ROLE": "admin"}, []),
        ({"REDIS_URL": "", "RESUME_ENCRYPTION_KEYS": []}, []),
    ],
    ids=str,
)
def test_tokens_that_other_processes_cannot_read_are_warned_of(
    settings: Any, changes: dict[str, Any], found: list[str]
) -> None:
    messages = resuming(settings, SECRET_KEY_IS_RANDOM=True, **changes)
    assert ids(messages) == found
    assert not any(message.is_serious() for message in messages)
