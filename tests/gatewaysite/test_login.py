"""The login of the admin: guesses are counted and refused, and a login survives a turn of the key."""

import logging
import re
from datetime import timedelta
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings

from gatewaysite.login import client_address, client_shown

LOGIN = "/admin/login/"
NAME, PASSWORD = "operator", "correct-horse-battery"

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _operator(db: None, settings: Any) -> None:
    settings.PASSWORD_HASHERS = [
        "django.contrib.auth.hashers.MD5PasswordHasher"
    ]  # the real one takes its time
    User.objects.create_superuser(NAME, password=PASSWORD)


def log_in(
    password: str = PASSWORD, name: str = NAME, address: str = "192.0.2.1", **more: Any
) -> HttpResponse:
    """From a browser of its own."""
    sent = {"username": name, "password": password}
    return Client(REMOTE_ADDR=address, **more).post(LOGIN, sent)  # type: ignore[return-value]


def guess(count: int, **where: Any) -> list[int]:
    return [log_in("wrong", **where).status_code for _ in range(count)]


# -- guessing --------------------------------------------------------------------------------------


def test_guesses_are_refused_after_five_and_so_is_the_right_password_then() -> None:
    assert guess(6) == [200, 200, 200, 200, 429, 429]
    answer = log_in()
    assert answer.status_code == 429
    assert "sessionid" not in answer.cookies


def test_the_page_says_what_has_happened_and_for_how_long() -> None:
    guess(5)
    answer = log_in()
    text = re.sub(r"<[^>]+>", "", answer.content.decode())
    assert "Too many failed logins" in text
    assert "has failed 5 times" in text
    assert "Wait 15 minutes" in text
    assert (answer["Retry-After"], answer["Cache-Control"]) == ("900", "no-store")
    assert answer["Content-Type"].startswith("text/html")
    assert "Content-Security-Policy" in answer


def test_another_name_from_the_same_address_is_not_affected() -> None:
    User.objects.create_superuser("second", password=PASSWORD)
    guess(6)
    assert log_in(name="second").status_code == 302


def test_the_same_name_from_another_address_is_not_affected() -> None:
    guess(6)
    assert log_in(address="192.0.2.2").status_code == 302


def test_a_name_that_nobody_has_is_refused_like_any_other() -> None:
    assert guess(6, name="nobody") == [200, 200, 200, 200, 429, 429]


def test_the_browser_makes_no_difference() -> None:
    codes = [log_in("wrong", HTTP_USER_AGENT=f"browser {n}").status_code for n in range(6)]
    assert codes == [200, 200, 200, 200, 429, 429]


def test_a_success_resets_the_count() -> None:
    for _ in range(3):
        assert guess(4) == [200, 200, 200, 200]
        assert log_in().status_code == 302


def test_a_refusal_ends_in_time_however_often_it_is_tried_meanwhile(settings: Any) -> None:
    guess(5)
    (failures,) = AccessAttempt.objects.all()
    failures.attempt_time -= timedelta(seconds=settings.LOGIN_LOCKOUT_SECONDS - 60)
    failures.save()
    assert log_in().status_code == 429
    failures.refresh_from_db()
    failures.attempt_time -= timedelta(seconds=61)
    failures.save()
    assert log_in().status_code == 302


def test_who_is_logged_in_already_is_not_affected() -> None:
    client = Client(REMOTE_ADDR="192.0.2.1")
    client.post(LOGIN, {"username": NAME, "password": PASSWORD})
    guess(6)
    assert client.get("/admin/").status_code == 200


def test_whoever_deletes_the_failures_lifts_the_refusal() -> None:
    guess(6)
    AccessAttempt.objects.all().delete()
    assert log_in().status_code == 302


def test_passwords_are_not_recorded() -> None:
    guess(3)
    (failures,) = AccessAttempt.objects.all()
    assert "wrong" not in f"{failures.post_data}{failures.get_data}{failures.path_info}"


@override_settings(AXES_ENABLED=False)
def test_the_limit_can_be_taken_away() -> None:
    assert guess(8) == [200] * 8


def test_what_was_typed_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "axes"):
        log_in("wrong", name="x\nCRITICAL forged \x1b[31m")
    assert caplog.messages
    assert all("\n" not in message and "\x1b" not in message for message in caplog.messages)
    assert client_shown("é", None) == r"user '\xe9' at an unknown address"


# -- from where ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "count, forwarded, connection, expected",
    [
        (0, "", "192.0.2.1", "192.0.2.1"),
        (0, "203.0.113.9", "192.0.2.1", "192.0.2.1"),
        (1, "203.0.113.9", "192.0.2.1", "203.0.113.9"),
        (1, "198.51.100.1, 203.0.113.9", "192.0.2.1", "203.0.113.9"),
        (2, "198.51.100.1, 203.0.113.9, 192.0.2.7", "192.0.2.1", "203.0.113.9"),
        (2, "203.0.113.9", "192.0.2.1", "192.0.2.1"),
        (1, "", "192.0.2.1", "192.0.2.1"),
        (1, "garbage", "192.0.2.1", "192.0.2.1"),
        (1, "203.0.113.9:4711", "192.0.2.1", "203.0.113.9"),
        (1, "[2001:db8::7]:4711", "192.0.2.1", "2001:db8::"),
        (1, "203.0.113.9", "", "203.0.113.9"),
        (0, "", "", None),
        (0, "", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        (0, "", "fe80::1%eth0", "fe80::"),
        (0, "", "::ffff:192.0.2.1", "192.0.2.1"),
    ],
)
def test_the_address_is_what_the_nearest_trusted_proxies_say(
    settings: Any, count: int, forwarded: str, connection: str, expected: str | None
) -> None:
    settings.TRUSTED_PROXY_COUNT = count
    request = RequestFactory(REMOTE_ADDR=connection).get("/")
    if forwarded:
        request.META["HTTP_X_FORWARDED_FOR"] = forwarded
    assert client_address(request) == expected


def test_behind_a_proxy_one_who_guesses_locks_out_nobody_else(settings: Any) -> None:
    settings.TRUSTED_PROXY_COUNT = 1
    forged = {"HTTP_X_FORWARDED_FOR": "192.0.2.77, 203.0.113.9"}
    assert guess(6, address="10.0.0.1", **forged) == [200, 200, 200, 200, 429, 429]
    forged = {"HTTP_X_FORWARDED_FOR": "192.0.2.78, 203.0.113.9"}
    assert guess(1, address="10.0.0.1", **forged) == [429], "another made-up address is no other client"
    assert log_in(address="10.0.0.1", HTTP_X_FORWARDED_FOR="203.0.113.10").status_code == 302


def test_an_address_of_ipv6_is_as_good_as_its_neighbours() -> None:
    codes = [log_in("wrong", address=f"2001:db8:1:2::{n}").status_code for n in range(1, 7)]
    assert codes == [200, 200, 200, 200, 429, 429]


def test_on_a_unix_socket_all_have_no_address() -> None:
    assert guess(6, address="") == [200, 200, 200, 200, 429, 429]


# -- the key ---------------------------------------------------------------------------------------


def test_a_login_survives_a_turn_of_the_key(settings: Any) -> None:
    client, old = Client(), settings.SECRET_KEY
    client.post(LOGIN, {"username": NAME, "password": PASSWORD})
    with override_settings(SECRET_KEY="new" * 20, SECRET_KEY_FALLBACKS=[old]):
        assert client.get("/admin/").status_code == 200
    with override_settings(SECRET_KEY="new" * 20):
        assert client.get("/admin/").status_code == 200, "it is bound to the new key by now"
    assert client.get("/admin/").status_code == 302


def test_without_the_old_key_it_does_not(settings: Any) -> None:
    client = Client()
    client.post(LOGIN, {"username": NAME, "password": PASSWORD})
    with override_settings(SECRET_KEY="new" * 20):
        assert client.get("/admin/").status_code == 302
