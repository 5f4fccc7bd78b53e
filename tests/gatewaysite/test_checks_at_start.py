"""What stops a start and what does not: daphne as a process. And the protocols other than http."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import pytest
from asgiref.testing import ApplicationCommunicator

from continuation.lifecycle import Process
from gatewaysite.server import websocket
from gatewaysite.server.lifespan import lifespan
from tests.harness.client import call
from tests.harness.gateway import ROOT, Gateway, environment, free_port, migrated_database
from tests.harness.nursery import Started, start_python

PATIENCE = 60.0


def daphne(
    settings: dict[str, str],
    database: Path,
    log: IO[bytes],
    application: str = "gatewaysite.asgi:application",
) -> tuple[Started, int]:
    port = free_port()
    command = ["-m", "daphne", "-b", "127.0.0.1", "-p", str(port), application]
    return start_python(command, cwd=ROOT, env=environment(settings, database), output=log), port


def refused(settings: dict[str, str], database: Path) -> str:
    """What a start says that does not succeed."""
    with TemporaryFile() as log:
        process, _ = daphne(settings, database, log)
        try:
            assert process.wait(PATIENCE) != 0
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        return log.read().decode()


def test_daphne_does_not_start_with_a_wrong_value(tmp_path: Path) -> None:
    log = refused({"DOWNSTREAM_URL": "http://h", "CONTINUATION_ENABLED": "Flase"}, tmp_path / "none.sqlite3")
    assert "ImproperlyConfigured: wrong settings:" in log
    assert (
        "CONTINUATION_ENABLED: 'Flase' is not allowed; allowed is true or false (also 1/0, yes/no, on/off)"
    ) in log


def test_daphne_does_not_start_while_checks_find_errors_and_all_are_named(tmp_path: Path) -> None:
    log = refused(
        {"MAX_CONTINUATION_BODY_MB": "200", "CSRF_TRUSTED_ORIGINS": "host.example"}, tmp_path / "none.sqlite3"
    )
    assert "ImproperlyConfigured: the system checks found errors:" in log
    assert "(continuation.E001) DOWNSTREAM_URL is not set. Hint: Set it to the base URL of the routing" in log
    assert "(continuation.E002) MAX_CONTINUATION_BODY_MB (200) is above MAX_REQUEST_BODY_MB (100)." in log
    assert "(4_0.E001)" in log  # one of Django's own


class Running:
    def __init__(self, process: Started, port: int, log: Path) -> None:
        self.process, self.port, self._log = process, port, log

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def checks(self) -> tuple[int, Any]:
        answer = call(self.port, "GET", "/ready")
        return answer.status, json.loads(answer.body)["checks"]


def started(settings: dict[str, str], database: Path, log: Path) -> Iterator[Running]:
    with log.open("wb") as file:
        process, port = daphne({"DOWNSTREAM_URL": "http://127.0.0.1:9", **settings}, database, file)
    try:
        until = time.monotonic() + PATIENCE
        while not _listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until
            time.sleep(0.02)
        yield Running(process, port, log)
    finally:
        process.terminate()
        process.wait(PATIENCE)
    text = log.read_text()
    assert "Traceback" not in text, text


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def unmigrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("unmigrated")
    settings = {"REDIS_URL": "redis://127.0.0.1:9", "SECRET_KEY": ""}
    yield from started(settings, directory / "empty.sqlite3", directory / "log")


def test_without_migrations_the_process_starts_and_is_not_ready(unmigrated: Running) -> None:
    assert call(unmigrated.port, "GET", "/health").status == 200
    assert unmigrated.checks() == (503, {"strategies": "not loaded", "database": "ok"})


def test_without_migrations_the_process_proxies(unmigrated: Running) -> None:
    answer = call(unmigrated.port, "GET", "/v1/models")
    assert answer.status == 502  # nobody listens downstream: it was asked
    assert set(json.loads(answer.body)["error"]) == {"message", "type", "code"}


def test_warnings_of_the_checks_are_logged_and_stop_nothing(unmigrated: Running) -> None:
    assert "WARNING gatewaysite.asgi (continuation.W001) SECRET_KEY is not set" in unmigrated.log
    assert (
        "WARNING gatewaysite.asgi (continuation.W005) SECRET_KEY is not set: resume tokens" in unmigrated.log
    )
    assert "redis://" not in unmigrated.log  # a password may stand in it


def test_a_websocket_is_refused_with_403_and_without_a_traceback(unmigrated: Running) -> None:
    handshake = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ]
    assert call(unmigrated.port, "GET", "/ws", handshake).status == 403
    assert "Traceback" not in unmigrated.log


def test_after_the_migrations_the_same_process_becomes_ready(tmp_path: Path) -> None:
    database = tmp_path / "late.sqlite3"
    for process in started({"STRATEGY_REFRESH_SECONDS": "0.1"}, database, tmp_path / "log"):
        assert process.checks()[0] == 503
        migrated_database(database)
        until = time.monotonic() + PATIENCE
        while process.checks() != (200, {"strategies": "ok", "database": "ok"}):
            assert time.monotonic() < until, process.log
            time.sleep(0.02)


# -- protocols other than http ---------------------------------------------------------------------


async def test_a_lifespan_starts_and_its_end_writes_the_audit_last(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    async def close() -> None:
        done.append("downstream closed")

    monkeypatch.setattr(process.downstream, "close", close)
    monkeypatch.setattr(process.audit, "flush", lambda timeout: done.append(f"flushed within {timeout:g} s"))
    server = ApplicationCommunicator(lifespan, {"type": "lifespan"})
    await server.send_input({"type": "lifespan.startup"})
    assert await server.receive_output() == {"type": "lifespan.startup.complete"}
    assert done == []
    await server.send_input({"type": "lifespan.shutdown"})
    assert await server.receive_output() == {"type": "lifespan.shutdown.complete"}
    assert done == ["downstream closed", "flushed within 5 s"]
    await server.wait()


async def test_a_shutdown_that_fails_says_so_and_writes_the_audit_all_the_same(
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    async def close() -> None:
        raise OSError("stuck")

    monkeypatch.setattr(process.downstream, "close", close)
    monkeypatch.setattr(process.audit, "flush", lambda timeout: done.append("flushed"))
    server = ApplicationCommunicator(lifespan, {"type": "lifespan"})
    await server.send_input({"type": "lifespan.shutdown"})
    assert await server.receive_output() == {"type": "lifespan.shutdown.failed", "message": "OSError: stuck"}
    assert done == ["flushed"]
    await server.wait()


async def test_a_websocket_that_is_gone_already_is_no_trouble() -> None:
    server = ApplicationCommunicator(websocket.refuse, {"type": "websocket", "path": "/ws", "headers": []})
    await server.send_input({"type": "websocket.disconnect", "code": 1006})
    await asyncio.wait_for(server.future, 5)
    assert await server.receive_nothing()


@pytest.mark.parametrize("package", ["redis", "hiredis"])
def test_redis_without_its_extra_is_told_in_a_line(tmp_path: Path, package: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{package!r}] = None")
    settings = {"DOWNSTREAM_URL": "http://127.0.0.1:9", "REDIS_URL": "redis://127.0.0.1:9"}
    command = [sys.executable, "manage.py", "check"]
    env = environment(settings, tmp_path / "none.sqlite3") | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"(continuation.E003) REDIS_URL is set, but the package {package} is not installed." in done.stderr
    assert "Traceback" not in done.stderr


def test_a_start_at_which_nothing_can_be_continued_says_so(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    template = migrated_database(tmp_path_factory.mktemp("database") / "template.sqlite3")
    warned = "CONTINUATION_MODEL is not set and no strategy has served names"
    for settings, says in (({}, True), ({"CONTINUATION_MODEL": "any"}, False)):
        one = Gateway({"DOWNSTREAM_URL": "http://127.0.0.1:9", **settings}, template, tmp_path)
        one.stop()
        assert (warned in one.new_log()) is says
        one.database.unlink()
        (tmp_path / "gateway.log").unlink()
