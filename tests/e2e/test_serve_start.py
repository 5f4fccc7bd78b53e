"""How `manage.py serve` starts, and what it says when it cannot."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.client import call
from tests.harness.gateway import ROOT, environment, free_port
from tests.harness.nursery import Started as Process
from tests.harness.nursery import run_python, start_python

PATIENCE = 60.0
SETTINGS = {"DOWNSTREAM_URL": "http://127.0.0.1:9", "GATEWAY_ROLE": "proxy"}


class Started:
    def __init__(self, process: "Process", log: Path) -> None:
        self.process, self._log = process, log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, words: str) -> str:
        """The rest of the line in which the log has these words."""
        until = time.monotonic() + PATIENCE
        while not (lines := [line for line in self.log.splitlines() if words in line]):
            assert self.process.poll() is None, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.02)
        return lines[0].split(words, 1)[1].strip()


@contextmanager
def serve(
    directory: Path, *options: str, descriptors: Sequence[int] = (), name: str = "log"
) -> Iterator[Started]:
    command, env = ["manage.py", "serve", *options], environment(SETTINGS, directory / "none.sqlite3")
    with (directory / name).open("wb") as log:
        process = (
            subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=env, stdout=log, stderr=log, pass_fds=descriptors
            )
            if descriptors
            else start_python(command, cwd=ROOT, env=env, output=log)
        )
    started = Started(process, directory / name)
    try:
        yield started
        if process.poll() is None:
            process.terminate()
            assert process.wait(PATIENCE) == 0, started.log
        assert "Traceback" not in started.log, started.log
    finally:
        process.kill()
        process.wait()


def refused(directory: Path, *options: str, **settings: str) -> tuple[int, str]:
    """Status and output of a start that does not succeed."""
    env = environment({**SETTINGS, **settings}, directory / "none.sqlite3")
    done = run_python(["manage.py", "serve", *options], cwd=ROOT, env=env, timeout=PATIENCE)
    return done.returncode, done.stdout + done.stderr


# -- where -----------------------------------------------------------------------------------------


def test_it_says_where_it_serves_and_logs_no_requests(tmp_path: Path) -> None:
    with serve(tmp_path, "-b", "127.0.0.1", "-p", "0") as started:
        url = started.wait_for("serving on ")
        port = int(url.removeprefix("http://127.0.0.1:"))
        assert call(port, "GET", "/health").status == 200
        assert "/health" not in started.log


def test_an_access_log_has_a_line_for_each_request(tmp_path: Path) -> None:
    access = tmp_path / "access.log"
    with serve(tmp_path, "-p", "0", "--access-log", str(access)) as started:
        port = int(started.wait_for("serving on ").rpartition(":")[2])
        call(port, "GET", "/health")
        until = time.monotonic() + PATIENCE
        while '"GET /health" 200' not in access.read_text():
            assert time.monotonic() < until
            time.sleep(0.02)


def test_the_access_log_shows_no_credential_of_a_query(tmp_path: Path) -> None:
    access = tmp_path / "access.log"
    with serve(tmp_path, "-p", "0", "--access-log", str(access)) as started:
        port = int(started.wait_for("serving on ").rpartition(":")[2])
        call(port, "GET", "/v1/streams/abc?token=sec%20ret&last_event_id=7", [("Referer", "/?token=secret")])
        call(port, "GET", "/health?last=1")
        until = time.monotonic() + PATIENCE
        while "/health?last=1" not in (logged := access.read_text()):
            assert time.monotonic() < until
            time.sleep(0.02)
    assert '"GET /v1/streams/abc?token=***&last_event_id=7" 404' in logged
    assert "sec" not in logged + started.log


def ask(connection: socket.socket) -> bytes:
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        return ask(connection).startswith(b"HTTP/1.1 200 ")


def test_a_socket_file_is_served_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serve(tmp_path, "-u", str(path)) as started:
        assert started.wait_for("serving on ") == f"unix:{path}"
        assert answers(path)
        status, output = refused(tmp_path, "-u", str(path))
        assert status == 1
        assert f"CommandError: cannot listen on {path}: Cannot acquire lock" in output
        assert answers(path)
    assert [entry.name for entry in tmp_path.iterdir() if "socket" in entry.name] == []


def test_a_socket_file_that_a_crash_has_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serve(tmp_path, "-u", str(path), name="first") as crashed:
        crashed.wait_for("serving on ")
        crashed.process.kill()
        crashed.process.wait()
    assert path.exists()
    with serve(tmp_path, "-u", str(path), name="second") as started:
        started.wait_for("serving on ")
        assert answers(path)


def test_a_socket_that_was_inherited_is_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port, descriptor = listening.getsockname()[1], listening.fileno()
        with serve(tmp_path, "--fd", str(descriptor), descriptors=[descriptor]) as started:
            started.wait_for("serving on ")
            assert call(port, "GET", "/health").status == 200


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_ipv6(tmp_path: Path) -> None:
    with serve(tmp_path, "-b", "::1", "-p", "0") as started:
        url = started.wait_for("serving on ")
        assert url.startswith("http://[::1]:")
        with socket.create_connection(("::1", int(url.rpartition(":")[2])), timeout=PATIENCE) as connection:
            assert ask(connection).startswith(b"HTTP/1.1 200 ")


# -- when it cannot --------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, output = refused(tmp_path, "-p", str(port))
    assert (status, output) == (
        1,
        f"CommandError: cannot listen on 127.0.0.1:{port}: Address already in use\n",
    )


def test_an_address_that_is_none_of_ours_is_told_in_one_line(tmp_path: Path) -> None:
    status, output = refused(tmp_path, "-b", "192.0.2.1", "-p", str(free_port()))
    assert status == 1
    assert output.count("\n") == 1
    assert "cannot listen on 192.0.2.1:" in output


def test_a_socket_file_that_cannot_be_is_told_in_one_line(tmp_path: Path) -> None:
    status, output = refused(tmp_path, "-u", str(tmp_path / "nowhere" / "socket"))
    assert status == 1
    assert output == f"CommandError: cannot listen on {tmp_path}/nowhere/socket: No such file or directory\n"


def test_a_descriptor_that_cannot_be_is_told_by_its_number(tmp_path: Path) -> None:
    assert refused(tmp_path, "--fd", "77") == (
        1,
        "CommandError: cannot listen on descriptor 77: Bad file descriptor\n",
    )


@pytest.mark.parametrize("port", ["http", "65536", "-1"])
def test_a_port_that_is_none_is_told(tmp_path: Path, port: str) -> None:
    status, output = refused(tmp_path, f"--port={port}")
    assert status == 2
    assert f"'{port}' is no port; allowed: 0 to 65535" in output


def test_errors_of_the_system_checks_stop_the_start_without_a_traceback(tmp_path: Path) -> None:
    status, output = refused(tmp_path, "-p", "0", MAX_CONTINUATION_BODY_MB="200")
    assert status == 1
    assert "(continuation.E002) MAX_CONTINUATION_BODY_MB (200) is above MAX_REQUEST_BODY_MB (100)." in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "name,value,allowed",
    [
        ("CLIENT_STALL_TIMEOUT_SECONDS", "0", "a number of seconds, more than 0"),
        ("CLIENT_HEAD_TIMEOUT_SECONDS", "0", "a number of seconds, more than 0"),
        ("CLIENT_BODY_TIMEOUT_SECONDS", "-1", "a number of seconds, more than 0"),
        ("CLIENT_BODY_BYTES_PER_SECOND", "fast", "a number, 0 or more"),
        ("GRACEFUL_SHUTDOWN_TIMEOUT_SECONDS", "soon", "a number of seconds, 0 or more, or nothing"),
    ],
)
def test_a_wrong_setting_stops_the_start_and_is_named(
    tmp_path: Path, name: str, value: str, allowed: str
) -> None:
    status, output = refused(tmp_path, "-p", "0", **{name: value})
    assert status == 1
    assert f"{name}: '{value}' is not allowed; allowed is {allowed}" in output
    assert "Traceback" not in output
