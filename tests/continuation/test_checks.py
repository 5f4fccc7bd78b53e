from collections.abc import Sequence
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks

from continuation import checks


def ids(messages: Sequence[CheckMessage]) -> list[str | None]:
    return [message.id for message in messages]


@pytest.fixture(autouse=True)
def nothing_idle_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in checks.NOT_YET:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(f"{name}_FILE", raising=False)


def test_the_site_with_a_downstream_and_a_key_passes_every_check(settings: Any) -> None:
    settings.DOWNSTREAM_URL = "http://router:8000"
    settings.SECRET_KEY_IS_RANDOM = False
    assert run_checks(databases=[]) == []


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


@pytest.mark.parametrize("name", ["RESUME_MODE", "REDIS_URL_FILE", "METRICS_TOKEN"])
def test_a_variable_that_does_nothing_yet_is_warned_of(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "secret")
    (message,) = checks.nothing_is_set_in_vain()
    assert (message.id, message.is_serious()) == ("continuation.W002", False)
    assert message.msg == f"{name} is set, but this version does not support it; it has no effect."


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


def test_a_variable_that_is_set_to_nothing_is_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "")
    assert checks.nothing_is_set_in_vain() == []
