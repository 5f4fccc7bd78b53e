"""`python -m tests.postgresql ARGUMENTS`: pytest on PostgreSQL, for the tests that depend on the database.

One server is started for the run, and each test process has databases of its own on it. Where DATABASE_URL names a
PostgreSQL, that server is used instead and none is started: its user must be allowed to create databases. The database
that the URL names is not touched; those of the run begin with `gateway_tests_` and are dropped when it ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from tests.harness.gateway import ROOT, migrate
from tests.harness.postgres import (
    SERVER_VARIABLE,
    TEMPLATE_VARIABLE,
    NotInstalled,
    PostgresDatabase,
    running_server,
)

TESTS = ROOT / "tests"
# Files and folders whose tests depend on the database.
CHOSEN = (
    "tests/strategies",
    "tests/continuation/test_admin.py",
    "tests/continuation/audit/test_writer.py",
    "tests/continuation/test_health.py",
    "tests/continuation/management/test_migrate.py",
    "tests/continuation/test_playground.py",
    "tests/continuation/audit/test_retention.py",
    "tests/continuation/verification/test_command.py",
    "tests/test_postgresql.py",
    "tests/gatewaysite/test_login.py",
    "tests/gatewaysite/test_nul.py",
    "tests/e2e/test_database.py",
    "tests/e2e/test_login.py",
    "tests/e2e/test_rescue.py",
)
NO_TESTS = 5  # pytest's status where none was selected


def is_chosen(path: Path) -> bool:
    """Whether a file is run on PostgreSQL."""
    return any(path.is_relative_to(ROOT / name) for name in CHOSEN)


def is_given() -> bool:
    """Whether DATABASE_URL names a PostgreSQL."""
    return urlsplit(os.environ.get("DATABASE_URL", "")).scheme in ("postgres", "postgresql", "psql", "pgsql")


def main(arguments: list[str]) -> int:
    """pytest's status, or 0 where none of the tests that the arguments name is run on PostgreSQL."""
    named = [path for path in map(_path_of, arguments) if path.is_relative_to(TESTS) and path.exists()]
    if not named:
        arguments = [*arguments, *CHOSEN]
    elif not any(is_chosen(path) or _leads_to_chosen(path) for path in named):
        print("PostgreSQL: none of these tests is run on it")
        return 0
    try:
        with _server() as server, _template(server) as template:
            return _pytest(arguments, template)
    except NotInstalled as missing:
        print(f"PostgreSQL: tests cannot be run, {missing}", file=sys.stderr)
        return 1


def _path_of(argument: str) -> Path:
    return ROOT / argument.partition("::")[0]


def _leads_to_chosen(path: Path) -> bool:
    return any((ROOT / name).is_relative_to(path.resolve()) for name in CHOSEN)


@contextlib.contextmanager
def _server() -> Iterator[str]:
    if is_given():
        yield os.environ["DATABASE_URL"]
        return
    with running_server() as url:
        yield url


@contextlib.contextmanager
def _template(server: str) -> Iterator[PostgresDatabase]:
    template = PostgresDatabase(server, f"gateway_tests_{secrets.token_hex(4)}").create()
    try:
        migrate(template)
        yield template
    finally:
        template.drop_copies()


def _pytest(arguments: list[str], template: PostgresDatabase) -> int:
    """A signal to end is passed on as an interrupt, so that the tests end what they have started."""
    env = {**os.environ, SERVER_VARIABLE: template.server, TEMPLATE_VARIABLE: template.name}
    running = subprocess.Popen([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=env)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:  # a terminal sends that one to both
            running.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        status = running.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0 if status == NO_TESTS else status


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)  # else it would end this process alone, and leave the server behind
    sys.exit(main(sys.argv[1:]))
