"""The gateway as a process, with its log, its audit rows and its open files.

It runs under daphne, or under another server where a test says so, or where GATEWAY_SERVER=serve does for all.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.harness.client import call
from tests.harness.nursery import INTERPRETER, Started, run_python, start_python
from tests.harness.postgres import PostgresDatabase, server_in_use
from tests.harness.upstream import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
START_PATIENCE = 60.0  # two cores may be shared by many
SERVER = os.environ.get("GATEWAY_SERVER", "daphne")
COMMANDS = {
    "daphne": ["-m", "daphne", "gatewaysite.asgi:application", "-b", "127.0.0.1", "-p"],
    "serve": ["manage.py", "serve", "-b", "127.0.0.1", "-p"],
    "uvicorn-h11": ["-m", "uvicorn", "gatewaysite.asgi:application", "--http", "h11", "--port"],
    "uvicorn-httptools": ["-m", "uvicorn", "gatewaysite.asgi:application", "--http", "httptools", "--port"],
}
# Set to nothing, so that neither a developer's shell nor a .env file decides a test.
SETTINGS = (
    "ALLOWED_HOSTS",
    "AUDIT_RETENTION_DAYS",
    "AUDIT_STORE_TEXT",
    "BUFFER_TOOL_CALLS",
    "BUFFER_TOOL_CALLS_MAX_BYTES",
    "CJK_CHARS_PER_TOKEN",
    "CLIENT_BODY_BYTES_PER_SECOND",
    "CLIENT_BODY_TIMEOUT_SECONDS",
    "CLIENT_HEAD_TIMEOUT_SECONDS",
    "CLIENT_STALL_TIMEOUT_SECONDS",
    "CONNECT_TIMEOUT_SECONDS",
    "CONTINUATION_API_KEY",
    "CONTINUATION_ENABLED",
    "CONTINUATION_ENGINE",
    "CONTINUATION_MODEL",
    "CONTINUATION_URL",
    "CORS_ALLOWED_ORIGINS",
    "CREDENTIAL_HEADERS",
    "CSRF_TRUSTED_ORIGINS",
    "DATABASE_URL",
    "DEBUG",
    "DOWNSTREAM_CONNECTION_LIMIT",
    "DOWNSTREAM_KEEPALIVE_SECONDS",
    "DOWNSTREAM_URL",
    "GATEWAY_ROLE",
    "GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS",
    "KEEPALIVE_SECONDS",
    "LOG_FORMAT",
    "LOGIN_FAILURE_LIMIT",
    "LOGIN_LOCKOUT_SECONDS",
    "MAX_CONTINUATION_BODY_MB",
    "MAX_REQUEST_BODY_MB",
    "METRICS_TOKEN",
    "OTHER_CHARS_PER_TOKEN",
    "PASSTHROUGH_PATHS",
    "PROMETHEUS_MULTIPROC_DIR",
    "REDIS_URL",
    "RESUME_CHECKPOINT_SECONDS",
    "RESUME_ENCRYPTION_KEYS",
    "RESUME_GRACE_SECONDS",
    "RESUME_MAX_BYTES",
    "RESUME_MAX_EVENTS",
    "RESUME_MAX_STREAMS",
    "RESUME_MAX_TOTAL_BYTES",
    "RESUME_MODE",
    "RESUME_TTL_SECONDS",
    "SECRET_KEY",
    "SECRET_KEY_FALLBACKS",
    "SECURE_COOKIES",
    "SECURE_HSTS_INCLUDE_SUBDOMAINS",
    "SECURE_HSTS_SECONDS",
    "SECURE_PROXY_SSL_HEADER",
    "SECURE_SSL_REDIRECT",
    "STALL_IDLE_TIMEOUT_SECONDS",
    "STRATEGY_REFRESH_SECONDS",
    "TRUSTED_PROXY_COUNT",
)
# What no run may write into its log, whatever the clients and the upstream do.
TROUBLE = re.compile(
    r"Traceback|never retrieved|ignored GeneratorExit|was never awaited|was destroyed but it is pending"
    r"|ResourceWarning|Unclosed (?:client|connection|response)|Exception ignored|database is locked"
)
EVENT_TABLE = "continuation_continuationevent"


@dataclass(frozen=True)
class SqliteDatabase:
    """A file, for a gateway of its own."""

    path: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def copy(self, directory: Path) -> SqliteDatabase:
        return SqliteDatabase(Path(shutil.copyfile(self.path, directory / "gateway.sqlite3")))

    def drop(self) -> None:
        for file in self.path.parent.glob(f"{self.path.name}*"):  # and what lies beside it
            file.unlink()

    def rows(self, table: str, request_id: str) -> list[dict[str, Any]]:
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=5)
        try:
            connection.row_factory = sqlite3.Row
            found = connection.execute(
                f"SELECT * FROM {table} WHERE request_id = ? ORDER BY id", (request_id,)
            )
            return [dict(row) for row in found]
        finally:
            connection.close()


Database = SqliteDatabase | PostgresDatabase


def environment(settings: Mapping[str, str], database: Path | Database) -> dict[str, str]:
    """database: a path names a SQLite file."""
    url = SqliteDatabase(database).url if isinstance(database, Path) else database.url
    kept = {name: value for name, value in os.environ.items() if not _is_setting(name)}
    return {
        **kept,
        **dict.fromkeys(SETTINGS, ""),
        "SECRET_KEY": "tests-only",
        **INTERPRETER,
        "DATABASE_URL": url,
        **settings,
    }


def _is_setting(name: str) -> bool:
    return name.removesuffix("_FILE") in SETTINGS or name.startswith(("DJANGO_", "PYTEST_"))


def empty_database(directory: Path) -> Database:
    """Without tables, of the kind that this run of the tests is on."""
    if server_in_use():
        return PostgresDatabase.template().empty()
    return SqliteDatabase(directory / "empty.sqlite3")


def migrated_template(directory: Path) -> Database:
    """A database with every migration applied, to be copied: of the kind that this run of the tests is on."""
    if server_in_use():
        return PostgresDatabase.template()
    return SqliteDatabase(migrated_database(directory / "template.sqlite3"))


def migrated_database(path: Path) -> Path:
    """A SQLite file with every migration applied, to be copied."""
    migrate(SqliteDatabase(path))
    return path


def migrate(database: Database) -> None:
    """Apply every migration, in a process of its own."""
    command = ["manage.py", "migrate", "--no-input", "-v", "0"]
    env = environment({"DOWNSTREAM_URL": "http://127.0.0.1:9"}, database)
    done = run_python(command, cwd=ROOT, env=env, timeout=START_PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


def _ports() -> Iterator[int]:
    """Those of this test process: none that one beside it chooses at the same time, and none again soon."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = list(range(10240 + number, 32768, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))
    random.shuffle(own)
    return itertools.cycle(own)


_own_ports = _ports()


def free_port() -> int:
    """Below the range that outgoing connections take their ports from: one of those could be in the way, or
    a connect to a port without a listener could meet itself."""
    while True:
        port = next(_own_ports)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def copied(template: Path | Database, directory: Path) -> Database:
    """A path names a SQLite file; a copy of one lies in the directory."""
    if isinstance(template, PostgresDatabase):
        return template.copy()
    source = SqliteDatabase(template) if isinstance(template, Path) else template
    return source.copy(directory)


class Gateway:
    """A running gateway. `stop` ends it with SIGTERM, by its own pid; a second SIGTERM would not let streams end."""

    def __init__(
        self,
        settings: Mapping[str, str],
        template: Path | Database,
        directory: Path,
        server: str = SERVER,
        ulimit: str = "",
        shared: bool = False,
        fresh: bool = False,
    ) -> None:
        """template: is copied, or used itself where it is shared; a path names a SQLite file. ulimit: options of the
        shell's own `ulimit`, such as "-n 200", for this gateway alone. fresh: by an interpreter of its own, not of the
        nursery."""
        self.settings = dict(settings)
        self._command = COMMANDS[server]
        self._ulimit = ulimit
        self._fresh = fresh or bool(ulimit)
        self._log_file = directory / "gateway.log"
        self._seen = 0
        self._database: Database
        if shared:
            assert not isinstance(template, Path)
            self._database = template
        else:
            self._database = copied(template, directory)
        for _attempt in range(3):  # the port may be taken between its choice and its use
            if self._start(free_port()):
                return
        raise AssertionError(f"the gateway does not start:\n{self.log}")

    def start_again(self) -> None:
        """On the same port, once it has ended."""
        assert self._start(self.port), f"the gateway does not start again:\n{self.log}"

    def _start(self, port: int) -> bool:
        self.port = port
        self.url = f"http://127.0.0.1:{self.port}"
        with self._log_file.open("ab") as log:
            self._process = self._process_for([*self._command, str(self.port)], log)
        self.pid = self._process.pid
        self._asked_to_end = False
        return self._wait_until_it_answers()

    def _process_for(self, command: list[str], log: IO[bytes]) -> Started:
        env = environment(self.settings, self._database)
        if not self._fresh:
            return start_python(command, cwd=ROOT, env=env, output=log)
        command = [sys.executable, *command]
        if self._ulimit:
            command = ["sh", "-c", f'ulimit {self._ulimit} && exec "$@"', "sh", *command]
        return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _wait_until_it_answers(self) -> bool:
        until = time.monotonic() + START_PATIENCE
        while time.monotonic() < until:
            if self._process.poll() is not None:
                return False
            with contextlib.suppress(OSError):
                if call(self.port, "GET", "/ready").status == 200:
                    if self._is_listening():
                        return True
                    break
            time.sleep(0.02)
        self.stop()
        return False

    def _is_listening(self) -> bool:
        """Not if another process has taken the port meanwhile, and has answered in this one's place."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        found = {
            f"socket:[{each[9]}]"
            for each in lines
            if each[1].endswith(f":{self.port:04X}") and each[3] == "0A"
        }
        return not found.isdisjoint(self.open_files())

    # -- looking inside ----------------------------------------------------------------------

    @property
    def log(self) -> str:
        return self._log_file.read_text(encoding="utf-8", errors="replace")

    def new_log(self) -> str:
        """What was logged since the last call."""
        text = self.log
        seen, self._seen = self._seen, len(text)
        return text[seen:]

    def events(self, request_id: str, count: int = 1, timeout: float = PATIENCE) -> list[dict[str, Any]]:
        """The audit rows of one request, once the background writer has written so many."""
        until = time.monotonic() + timeout
        while len(rows := self._rows(request_id)) < count:
            assert time.monotonic() < until, f"{len(rows)} audit rows of {request_id}, {count} were expected"
            time.sleep(0.02)
        return rows

    def event(self, request_id: str) -> dict[str, Any]:
        """The one audit row of a request."""
        (row,) = self.events(request_id)
        return row

    @property
    def database(self) -> Path:
        """Its SQLite file."""
        assert isinstance(self._database, SqliteDatabase), "this gateway has no SQLite file"
        return self._database.path

    def _rows(self, request_id: str) -> list[dict[str, Any]]:
        return self._database.rows(EVENT_TABLE, request_id)

    def open_files(self) -> list[str]:
        """What its descriptors point to, from /proc."""
        names = []
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                names.append(os.readlink(descriptor))
            except FileNotFoundError:
                continue
        return names

    def memory_bytes(self) -> int:
        """Resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def is_running(self) -> bool:
        return self._process.poll() is None

    def terminate(self, number: int = signal.SIGTERM) -> None:
        """Ask it to end, and do not wait."""
        self._asked_to_end = True
        if self._process.poll() is None:
            self._process.send_signal(number)

    def stop(self, timeout: float = 20.0) -> int:
        """Ask it to end, unless that has been done, and wait; its exit status."""
        if not self._asked_to_end:
            self.terminate()
        return self.wait(timeout)

    def wait(self, timeout: float = 20.0) -> int:
        """Until it has ended; its exit status."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError("the gateway did not end on SIGTERM") from None
