"""Logins over real sockets: without TLS by default, and counted by all processes together."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.client import call
from tests.harness.gateway import ROOT, Gateway, environment, migrated_database
from tests.harness.upstream import Upstream, json_reply

NAME, PASSWORD = "operator", "only-for-tests"
LOGIN = "/admin/login/?next=/admin/"

Start = Callable[..., Gateway]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a login for the admin."""
    path = migrated_database(tmp_path_factory.mktemp("database") / "shared.sqlite3")
    env = environment({"DOWNSTREAM_URL": "http://127.0.0.1:9"}, path) | {
        "DJANGO_SUPERUSER_PASSWORD": PASSWORD
    }
    names = ["--username", NAME, "--email", "operator@localhost"]
    command = [sys.executable, "manage.py", "createsuperuser", "--no-input", *names]
    subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True)
    return path


@pytest.fixture
def start(database: Path, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """start(server, NAME="value", ...): a gateway on the database that all of them share."""
    started: list[Gateway] = []

    def starting(server: str = "daphne", **settings: str) -> Gateway:
        chosen = {"DOWNSTREAM_URL": upstream.url, "DATABASE_URL": f"sqlite:///{database}", **settings}
        started.append(Gateway(chosen, database, tmp_path_factory.mktemp("gateway"), server))
        return started[-1]

    yield starting
    for one in started:
        one.terminate()
    assert {one.stop(60) for one in started} <= {0, -15}


def log_in(at: Gateway, password: str = PASSWORD, name: str = NAME) -> httpx.Response:
    """From a browser of its own, with the token of the form."""
    with httpx.Client(base_url=at.url, timeout=60) as browser:
        assert browser.get(LOGIN).status_code == 200
        form = {"username": name, "password": password, "csrfmiddlewaretoken": browser.cookies["csrftoken"]}
        answer = browser.post(LOGIN, data=form)
        if answer.status_code == 302:
            assert browser.get("/admin/").status_code == 200
        return answer


def test_two_processes_count_guesses_together_and_proxy_meanwhile(start: Start, upstream: Upstream) -> None:
    daphne, serve = start("daphne"), start("serve")
    assert [log_in(one).status_code for one in (daphne, serve)] == [302, 302]
    codes = [log_in(one, "wrong").status_code for one in (daphne, serve, daphne, serve, daphne, serve)]
    assert codes == [200, 200, 200, 200, 429, 429]
    refused = log_in(daphne)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "900")
    assert "Too many failed logins" in refused.text
    assert log_in(serve, "wrong", name="somebody").status_code == 200
    upstream.script(json_reply({"ok": True}))
    assert call(daphne.port, "GET", "/v1/models").json() == {"ok": True}


def test_a_proxy_needs_no_database_for_any_of_it(
    start: Start, upstream: Upstream, database: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copy(database, tmp_path / "own.sqlite3"))
    one = start(
        "daphne", GATEWAY_ROLE="proxy", DATABASE_URL=f"sqlite:///{own}", STRATEGY_REFRESH_SECONDS="600"
    )
    for file in tmp_path.iterdir():
        file.unlink()
    assert call(one.port, "GET", LOGIN).status == 404
    upstream.script(json_reply({"ok": True}))
    answer = call(one.port, "GET", "/v1/models", [("X-Forwarded-For", "192.0.2.1")])
    assert answer.json() == {"ok": True}
    assert answer.header("Content-Security-Policy") is None
    script = call(one.port, "GET", "/static/continuation/resumable.js")
    assert (script.status, script.header("X-Content-Type-Options")) == (200, "nosniff")
    assert list(tmp_path.iterdir()) == [], "nobody has opened a database"
