"""What browsers are told of the admin's pages and files, and what TLS in front of them changes."""

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from strategies.models import Strategy
from tests.harness.gateway import ROOT, environment
from tests.harness.nursery import run_python
from tests.harness.pages import block

PLAYGROUND = "/admin/continuation/continuationevent/playground/"
STRICT = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def policy(answer: Any) -> dict[str, str]:
    parts = answer["Content-Security-Policy"].split("; ")
    return dict(part.split(" ", 1) for part in parts)


class InPlace(HTMLParser):
    """What of a page the policy would stop."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        runs = given.get("type") in (None, "module", "text/javascript")
        if (tag == "script" and "src" not in given and runs) or tag == "style":
            self.found.append(tag)
        self.found += [name for name in given if name.startswith("on") or name == "style"]
        address = given.get("src") if tag != "link" else given.get("href")
        if address and not re.match(r"/(?!/)", address):
            self.found.append(address)


@pytest.fixture
def pages(admin_client: Client) -> list[str]:
    """Every kind of page that the admin has."""
    strategy = Strategy.objects.order_by("pk")[0]
    lists = [f"/admin/{name}/" for name in ("strategies/strategy", "auth/user", "auth/group")]
    lists += ["/admin/continuation/continuationevent/", "/admin/axes/accessattempt/"]
    user = User.objects.get(username="admin")
    rows = [f"/admin/strategies/strategy/{strategy.pk}/{part}/" for part in ("change", "delete", "history")]
    rows += [f"/admin/strategies/strategy/{strategy.pk}/verify/", f"/admin/auth/user/{user.pk}/change/"]
    return ["/admin/", PLAYGROUND, "/admin/password_change/", "/admin/auth/user/add/", *lists, *rows]


def test_every_page_of_the_admin_has_a_strict_policy_and_nothing_that_it_would_stop(
    admin_client: Client, pages: list[str]
) -> None:
    for page in pages:
        answer = admin_client.get(page)
        assert answer.status_code == 200, page
        expected = STRICT | ({"connect-src": "'self' http: https:"} if page == PLAYGROUND else {})
        assert policy(answer) == expected, page
        assert InPlace(answer.content.decode()).found == [], page
        assert {name: answer[name] for name in HEADERS} == HEADERS, page


@pytest.mark.django_db
def test_the_login_has_it_too(client: Client) -> None:
    answer = client.get("/admin/login/")
    assert policy(answer) == STRICT
    assert InPlace(answer.content.decode()).found == []
    assert policy(client.get("/admin/nowhere/")) == STRICT


@pytest.mark.parametrize(
    "path, status",
    [
        ("admin/css/base.css", 200),
        ("continuation/resumable.js", 200),
        ("admin/img/search.svg", 200),
        ("nothing.js", 404),
        ("../settings.py", 404),
    ],
)
def test_static_files_have_the_headers_of_the_pages(client: Client, path: str, status: int) -> None:
    answer = client.get(f"/static/{path}")
    assert answer.status_code == status
    assert policy(answer) == STRICT
    assert {name: answer[name] for name in HEADERS} == HEADERS


async def test_the_gateways_other_paths_have_none_of_it(async_client: Any) -> None:
    for path in ("/metrics", "/health", "/v1/streams/x"):
        answer = await async_client.get(path)
        assert "Content-Security-Policy" not in answer, path
        assert not set(HEADERS) & set(answer.headers), path


# -- TLS -------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_by_default_a_login_works_without_tls(client: Client) -> None:
    User.objects.create_superuser("operator", password="correct-horse")
    answer = client.post("/admin/login/", {"username": "operator", "password": "correct-horse"})
    assert answer.status_code == 302
    assert not any(cookie["secure"] for cookie in answer.cookies.values())
    assert client.get("/admin/").status_code == 200


@pytest.fixture
def behind_tls(settings: Any) -> None:
    settings.SESSION_COOKIE_SECURE = settings.CSRF_COOKIE_SECURE = True
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_HSTS_SECONDS = 600
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")


@pytest.mark.django_db
@pytest.mark.usefixtures("behind_tls")
def test_behind_tls_the_cookies_are_secure_and_browsers_are_told_to_stay() -> None:
    client = Client(HTTP_X_FORWARDED_PROTO="https")
    User.objects.create_superuser("operator", password="correct-horse")
    page = client.get("/admin/login/")
    assert page["Strict-Transport-Security"] == "max-age=600"
    answer = client.post("/admin/login/", {"username": "operator", "password": "correct-horse"})
    assert {"sessionid", "csrftoken"} <= set(answer.cookies)
    assert all(cookie["secure"] for cookie in answer.cookies.values())
    assert client.get("/static/admin/css/base.css")["Strict-Transport-Security"] == "max-age=600"


@pytest.mark.usefixtures("behind_tls")
def test_behind_tls_the_admin_redirects_who_comes_without_and_nothing_else_does(client: Client) -> None:
    answer = client.get("/admin/?q=1")
    assert (answer.status_code, answer["Location"]) == (301, "https://testserver/admin/?q=1")
    assert client.get("/static/continuation/resumable.js").status_code == 200
    assert client.get("/health").status_code == 200


# -- check --deploy --------------------------------------------------------------------------------


def documented() -> dict[str, str]:
    """The settings that the documentation names for an admin behind TLS."""
    found = re.findall(r"^([A-Z_]+)=(.*?)(?:\s+#.*)?$", block("admin-settings"), re.MULTILINE)
    return {**dict(found), "SECRET_KEY": "".join(chr(33 + n) for n in range(60))}


def deployed(tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    command = ["manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    chosen = {"DOWNSTREAM_URL": "http://127.0.0.1:9", **settings}
    env = environment(chosen, tmp_path / "db.sqlite3")
    return run_python(command, cwd=ROOT, env=env, timeout=120)


@pytest.mark.parametrize("role", ["all", "admin", "proxy"])
def test_check_deploy_has_nothing_to_say_to_the_documented_settings(tmp_path: Path, role: str) -> None:
    settings = documented()
    assert len(settings) >= 7
    done = deployed(tmp_path, **settings, GATEWAY_ROLE=role)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_check_deploy_names_what_is_missing_by_our_names(tmp_path: Path) -> None:
    done = deployed(tmp_path)
    assert done.returncode == 1
    for name in ("SECURE_COOKIES", "SECURE_SSL_REDIRECT", "SECURE_HSTS_SECONDS", "SECRET_KEY"):
        assert name in done.stderr
    assert "SESSION_COOKIE_SECURE" not in done.stderr


def test_the_settings_are_those_of_django(tmp_path: Path) -> None:
    code = (
        "from django.conf import settings as s; print(s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, "
        "s.SECURE_SSL_REDIRECT, s.SECURE_HSTS_SECONDS, s.SECURE_PROXY_SSL_HEADER, s.SECRET_KEY_FALLBACKS)"
    )
    chosen = documented() | {"DOWNSTREAM_URL": "http://127.0.0.1:9", "SECRET_KEY_FALLBACKS": "one, two"}
    env = environment(chosen, tmp_path / "db.sqlite3") | {"DJANGO_SETTINGS_MODULE": "gatewaysite.settings"}
    told = run_python(["-c", code], cwd=ROOT, env=env, timeout=120)
    expected = "True True True 31536000 ('HTTP_X_FORWARDED_PROTO', 'https') ['one', 'two']"
    assert told.stdout.strip() == expected, told.stderr
