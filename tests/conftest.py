"""For all tests: how long an example takes depends on how busy the machine is, and proves nothing. And what tests
over sockets have in common, be their client this suite's own or a package."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from strategies.models import Strategy, StrategyRevision
from tests.harness.gateway import TROUBLE, Gateway
from tests.harness.postgres import is_chosen, run_sql, url_in_use
from tests.harness.upstream import Refusing, Unanswering, Upstream

settings.register_profile("gateway", deadline=None)
settings.load_profile("gateway")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """On PostgreSQL only what depends on the database is run again."""
    if url_in_use() and not is_chosen(collection_path, Path(__file__).parent):
        return True
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which database it was, so that nobody takes one for the other."""
    if server := url_in_use():
        (row,) = run_sql(server, "SHOW server_version")
        used = f"PostgreSQL {row['server_version']}"
    else:
        used = f"SQLite {sqlite3.sqlite_version}"
        if os.environ.get("DATABASE_URL"):
            used += "; DATABASE_URL is for the run on PostgreSQL"
    terminalreporter.write_line(f"database: {used}")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any, written: list[Any]) -> None:
    with django_db_blocker.unblock():
        written += [*Strategy.objects.all(), *StrategyRevision.objects.all()]


@pytest.fixture(scope="session")
def written() -> list[Any]:
    """The rows that the migrations have written, once there is a database."""
    return []


@pytest.fixture(autouse=True, scope="module")
def _what_the_migrations_wrote_is_there(django_db_blocker: Any, written: list[Any]) -> None:
    """Also after another module, whose tests have committed: these leave empty tables behind."""
    with django_db_blocker.unblock():
        if written and not Strategy.objects.exists():
            for row in written:
                row.save_base(raw=True)


@pytest.fixture(scope="session")
def session_upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.stop()


@pytest.fixture(scope="session")
def refusing_url() -> Iterator[str]:
    """Nobody listens there."""
    nobody = Refusing()
    yield nobody.url
    nobody.stop()


@pytest.fixture(scope="session")
def unanswering_url() -> Iterator[str]:
    """A connect to it neither succeeds nor fails."""
    mute = Unanswering()
    yield mute.url
    mute.stop()


@pytest.fixture
def watched() -> Iterator[Callable[[Gateway], Gateway]]:
    """watched(gateway): the same one; when the test is over it must still run and have logged no trouble, but for
    what the test itself has taken out of `new_log`."""
    used: list[Gateway] = []

    def watching(one: Gateway) -> Gateway:
        if one not in used:  # what it logs between two uses is looked at too
            one.new_log()
            used.append(one)
        return one

    yield watching
    for one in used:
        assert one.is_running(), one.log
        text = one.new_log()
        assert not TROUBLE.search(text), text
