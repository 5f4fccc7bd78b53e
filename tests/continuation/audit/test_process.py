"""The audit over the life of a process: its end, SIGTERM, forks and connections."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.harness.client import call
from tests.harness.gateway import ROOT, environment, free_port, migrated_database
from tests.harness.nursery import run_python

PATIENCE = 60.0
PREAMBLE = """
import os, sys, time
import django
django.setup()
from django.utils import timezone
from continuation import lifecycle
from continuation.audit import writer as audit
from continuation.splice.record import StreamRecord

def note(name, count):
    for number in range(count):
        lifecycle.current().audit.record(StreamRecord(timezone.now(), f"{name}-{number}", "m"))
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return migrated_database(tmp_path_factory.mktemp("database") / "template.sqlite3")


@pytest.fixture
def database(template: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "audit.sqlite3"
    copy.write_bytes(template.read_bytes())
    return copy


def settings_for(database: Path) -> dict[str, str]:
    chosen = environment({"DOWNSTREAM_URL": "http://127.0.0.1:9"}, database)
    return {**chosen, "DJANGO_SETTINGS_MODULE": "gatewaysite.settings"}


def run(script: str, database: Path) -> subprocess.CompletedProcess[str]:
    program = PREAMBLE + textwrap.dedent(script)
    return run_python(["-c", program], cwd=ROOT, env=settings_for(database), timeout=PATIENCE)


def rows(database: Path, name: str) -> int:
    connection = sqlite3.connect(database)
    try:
        found = connection.execute(
            "SELECT COUNT(DISTINCT request_id), COUNT(*) FROM continuation_continuationevent"
            " WHERE request_id LIKE ?",
            (f"{name}-%",),
        )
        distinct, total = found.fetchone()
    finally:
        connection.close()
    assert distinct == total
    return int(total)


def test_a_process_that_ends_writes_what_it_has_noted(database: Path) -> None:
    done = run('note("last", 500)', database)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert rows(database, "last") == 500


def test_a_process_that_ends_by_an_exception_writes_what_it_has_noted(database: Path) -> None:
    done = run('note("last", 50); raise SystemExit(3)', database)
    assert done.returncode == 3
    assert rows(database, "last") == 50


def test_a_process_ends_although_the_database_is_away(database: Path, tmp_path: Path) -> None:
    away = tmp_path / "no-such-directory" / "audit.sqlite3"
    done = run('audit.FLUSH_AT_EXIT_SECONDS = 0.2; note("lost", 7)', away)
    assert done.returncode == 0
    assert "the audit cannot be written now, trying again: OperationalError" in done.stderr
    assert "the process ends with 7 audit rows unwritten" in done.stderr
    assert "Traceback" not in done.stderr


def test_parent_and_child_of_a_fork_each_write_their_own_rows_once(database: Path) -> None:
    done = run(
        """
        note("parent", 300)          # some are queued, some in hand, when the child is made
        child = os.fork()
        if not child:
            assert lifecycle.current().audit.counts() == audit.Counts(0, 0, 0), lifecycle.current().audit.counts()
            note("child", 300)
            sys.exit(0)              # and writes at its exit
        assert os.waitpid(child, 0)[1] == 0
        """,
        database,
    )
    assert done.returncode == 0, done.stderr
    assert rows(database, "parent") == 300
    assert rows(database, "child") == 300


def test_between_batches_no_connection_is_open(database: Path) -> None:
    done = run(
        """
        note("one", 1)
        assert lifecycle.current().audit.flush(20)
        def opened():
            names = []
            for descriptor in os.listdir("/proc/self/fd"):
                try:
                    names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
                except OSError:
                    pass
            return [name for name in names if "audit.sqlite3" in name]
        until = time.monotonic() + 20
        while opened():
            assert time.monotonic() < until, opened()
            time.sleep(0.01)
        note("two", 1)
        assert lifecycle.current().audit.flush(20)
        """,
        database,
    )
    assert done.returncode == 0, done.stderr
    assert rows(database, "one") == rows(database, "two") == 1


def test_sigterm_under_daphne_loses_no_row(database: Path, tmp_path: Path) -> None:
    (tmp_path / "noting.py").write_text(
        textwrap.dedent(
            """
            from gatewaysite.asgi import application as gateway
            from django.utils import timezone
            from continuation import lifecycle
            from continuation.splice.record import StreamRecord

            async def application(scope, receive, send):
                if scope["type"] == "http" and scope["path"] == "/health":
                    for number in range(300):
                        lifecycle.current().audit.record(StreamRecord(timezone.now(), f"term-{number}", "m"))
                await gateway(scope, receive, send)
            """
        )
    )
    port = free_port()
    chosen = settings_for(database)
    process = subprocess.Popen(
        [sys.executable, "-m", "daphne", "-b", "127.0.0.1", "-p", str(port), "noting:application"],
        cwd=tmp_path,
        env={**chosen, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until_it_listens(process, port)
        assert call(port, "GET", "/health").status == 200
        process.send_signal(signal.SIGTERM)
        log, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log, log
    assert rows(database, "term") == 300


def wait_until_it_listens(process: subprocess.Popen[str], port: int) -> None:
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("the server does not listen")
