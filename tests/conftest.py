"""For all tests: how long an example takes depends on how busy the machine is, and proves nothing. And what tests
over sockets have in common, be their client this suite's own or a package."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings as site
from django.db import connections
from hypothesis import settings

from continuation.lifecycle import Process, standing_in
from strategies.models import Strategy, StrategyRevision
from tests.harness.gateway import TROUBLE, Gateway
from tests.harness.postgres import run_sql, server_in_use
from tests.harness.upstream import Refusing, Unanswering, Upstream
from tests.postgresql import is_chosen

# Few examples here: `make fuzz` goes deep.
settings.register_profile("gateway", deadline=None, max_examples=40)
settings.load_profile("gateway")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL only what depends on the database is run; on SQLite all but what is about PostgreSQL alone."""

    def is_run(item: pytest.Item) -> bool:
        return is_chosen(item.path) if server_in_use() else item.get_closest_marker("postgresql") is None

    config.hook.pytest_deselected(items=[item for item in items if not is_run(item)])
    items[:] = [item for item in items if is_run(item)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which database it was, so that nobody takes one for the other."""
    if server := server_in_use():
        (row,) = run_sql(server, "SHOW server_version")
        terminalreporter.write_line(f"database: PostgreSQL {row['server_version']}")
        return
    terminalreporter.write_line(f"database: SQLite {sqlite3.sqlite_version}")
    if site.DATABASE_URL_GIVEN:
        terminalreporter.write_line("DATABASE_URL is not for this run: see docs/development.md")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any, written: list[Any]) -> Iterator[None]:
    with django_db_blocker.unblock():
        written += [*Strategy.objects.all(), *StrategyRevision.objects.all()]
    yield
    # Those of the thread that asynchronous tests ask the database in: a database that is in use cannot be dropped.
    with django_db_blocker.unblock():
        asyncio.run(sync_to_async(connections.close_all)())


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
def process() -> Iterator[Process]:
    """What the code under test finds as its process: one for the test alone."""
    with standing_in(Process()) as own:
        yield own
    own.audit.stop()


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
