"""Logins over real sockets: without TLS by default, and counted by all processes together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.operating import LOGIN, add_operator, log_in
from tests.harness.client import call
from tests.harness.gateway import Database, Gateway, copied
from tests.harness.upstream import Upstream, json_reply

Start = Callable[..., Gateway]


@pytest.fixture(scope="module")
def database(migrated: Database, tmp_path_factory: pytest.TempPathFactory) -> Database:
    """With a login for the admin."""
    own = copied(migrated, tmp_path_factory.mktemp("shared"))
    add_operator(own)
    return own


@pytest.fixture
def start(
    database: Database, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Start]:
    """start(server, NAME="value", ...): a gateway on the database that all of them share."""
    started: list[Gateway] = []

    def starting(server: str = "daphne", on: Database = database, **settings: str) -> Gateway:
        chosen = {"DOWNSTREAM_URL": upstream.url, **settings}
        started.append(Gateway(chosen, on, tmp_path_factory.mktemp("gateway"), server, shared=True))
        return started[-1]

    yield starting
    for one in started:
        one.terminate()
    assert {one.stop(60) for one in started} <= {0, -15}


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
    start: Start, upstream: Upstream, migrated: Database, tmp_path: Path
) -> None:
    own = copied(migrated, tmp_path)
    one = start("daphne", own, GATEWAY_ROLE="proxy", STRATEGY_REFRESH_SECONDS="600")
    own.drop()
    assert call(one.port, "GET", LOGIN).status == 404
    upstream.script(json_reply({"ok": True}))
    answer = call(one.port, "GET", "/v1/models", [("X-Forwarded-For", "192.0.2.1")])
    assert answer.json() == {"ok": True}
    assert answer.header("Content-Security-Policy") is None
    script = call(one.port, "GET", "/static/continuation/resumable.js")
    assert (script.status, script.header("X-Content-Type-Options")) == (200, "nosniff")
    assert list(tmp_path.iterdir()) == [], "nobody has opened a database"
