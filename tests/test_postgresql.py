"""The servers that the tests bring along, and the run on PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.harness import postgres, redis
from tests.harness.gateway import ROOT
from tests.harness.postgres import PostgresDatabase, run_sql, running_server


@pytest.fixture
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine with python3, make and pip alone."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "INSTALLED", tmp_path)


def test_where_no_postgresql_is_installed_a_wheel_has_one_which_leaves_nothing_behind(
    nothing_is_installed: None, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert "site-packages" in str(postgres.programs())
    place = tmp_path_factory.getbasetemp()  # which nobody else may enter
    monkeypatch.setattr("tempfile.tempdir", str(place))
    before = set(place.iterdir())
    with running_server() as url:
        (row,) = run_sql(url, "SELECT current_setting('server_version_num')::int AS version")
        assert row["version"] >= 180000
    with pytest.raises(psycopg.OperationalError):
        run_sql(url, "SELECT 1")
    assert set(place.iterdir()) == before


def test_where_no_redis_is_installed_a_wheel_has_one(nothing_is_installed: None, tmp_path: Path) -> None:
    assert "site-packages" in redis.program()
    server = redis.RedisServer(tmp_path)
    try:
        assert server.ask("PING") == b"+PONG\r\n"
    finally:
        server.stop()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    unwanted = (postgres.SERVER_VARIABLE, postgres.TEMPLATE_VARIABLE, "DATABASE_URL")
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    command = [sys.executable, *arguments, "-p", "no:cacheprovider"]
    return subprocess.run(
        command, cwd=ROOT, env={**env, **environment}, text=True, capture_output=True, timeout=300
    )


def test_tests_that_need_no_database_are_not_run_on_postgresql() -> None:
    done = run("-m", "tests.postgresql", "tests/continuation/shapes/test_sse.py")
    assert (done.returncode, done.stdout) == (0, "PostgreSQL: none of these tests is run on it\n")


def test_a_database_url_has_no_effect_on_the_run_on_sqlite_which_says_so() -> None:
    asked = ["-m", "pytest", "tests/gatewaysite/server/test_stopping.py"]
    said = run(*asked, DATABASE_URL="postgres://nobody@127.0.0.1:9/none").stdout
    assert "database: SQLite" in said
    assert "DATABASE_URL is not for this run" in said
    assert "DATABASE_URL" not in run(*asked).stdout


@pytest.mark.postgresql
def test_a_server_that_database_url_names_is_used_and_has_no_database_more_afterwards() -> None:
    given = PostgresDatabase.template()
    before = databases(given)
    named = given.empty()
    try:
        done = run(
            "-m", "tests.postgresql", "tests/continuation/audit/test_retention.py", DATABASE_URL=named.url
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "database: PostgreSQL" in done.stdout
        assert run_sql(named.url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == []
    finally:
        named.drop()
    assert databases(given) <= before


def databases(of: PostgresDatabase) -> set[str]:
    """Those of other processes of this run come and go."""
    found = {row["datname"] for row in run_sql(of.server, "SELECT datname FROM pg_database")}
    return {name for name in found if not name.startswith(of.name)}
