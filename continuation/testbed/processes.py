"""What the demo and the drill run: a simulated engine, and a gateway with a database of its own.

Started, waited for, and ended by their own pids.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
from django.conf import settings

START_SECONDS = 60.0
STOP_SECONDS = 10.0
LOG_LINES = 15
# The engine serves one name, and requests ask for it: the strategy does not come from it.
SERVED_NAME = "any-name"
_MANAGE = (sys.executable, "manage.py")
_POLL_SECONDS = 0.05
_ASK_SECONDS = 5.0


class CannotGoOn(Exception):
    """Why the demo or the drill cannot go on, in words for the terminal."""


def start_simulator(engine: str, token_delay_ms: float, directory: Path) -> tuple[Child, str]:
    """With its URL. It is Qwen-like, in the manner of `engine`, and serves SERVED_NAME. Raises CannotGoOn."""
    about = ["--engine", engine, "--template", "qwen", "--model", SERVED_NAME]
    command = [*_MANAGE, "simulate_engine", *about, "--token-delay-ms", f"{token_delay_ms:g}"]
    child = Child("simulator", command, environment({}), directory)
    with _stopped_by_trouble(child):
        return child, str(json.loads(_awaited(child, "READY "))["url"])


def start_gateway(environment: Mapping[str, str], directory: Path) -> tuple[Child, str]:
    """With its URL; on a free port. Raises CannotGoOn."""
    child = Child("gateway", [*_MANAGE, "serve", "--port", "0"], environment, directory)
    with _stopped_by_trouble(child):
        url = _awaited(child, " serving on ")
        child.wait_until(partial(_is_ready, url))
        return child, url


def gateway_environment(
    downstream: str, engine: str, model: str, idle_seconds: float, database: Path
) -> dict[str, str]:
    """engine and model are CONTINUATION_ENGINE and CONTINUATION_MODEL; database is an SQLite file."""
    return environment(
        {
            "DOWNSTREAM_URL": downstream,
            "CONTINUATION_MODEL": model,
            "CONTINUATION_ENGINE": engine,
            "STALL_IDLE_TIMEOUT_SECONDS": f"{idle_seconds:g}",
            "DATABASE_URL": f"sqlite:///{database}",
            "SECRET_KEY": secrets.token_urlsafe(40),
        }
    )


def manage(environment: Mapping[str, str], *arguments: str) -> None:
    """Run one of Django's commands to its end. Raises CannotGoOn."""
    run(f"manage.py {arguments[0]}", [*_MANAGE, *arguments], environment)


def migrate(environment: Mapping[str, str]) -> None:
    """Raises CannotGoOn."""
    manage(environment, "migrate", "--no-input", "-v", "0")


@contextmanager
def _stopped_by_trouble(child: Child) -> Iterator[None]:
    try:
        yield
    except BaseException:
        child.stop()
        raise


def _awaited(child: Child, mark: str) -> str:
    """What follows `mark` in a line of its output. Raises CannotGoOn."""
    child.wait_until(lambda: _said(child, mark) is not None)
    return _said(child, mark) or ""


def _said(child: Child, mark: str) -> str | None:
    """None while there is no such line, or only the beginning of one."""
    lines = child.log.read_text("utf-8", "replace").splitlines(keepends=True)
    whole = (line for line in lines if mark in line and line.endswith("\n"))
    return next((line.partition(mark)[2].strip() for line in whole), None)


def _is_ready(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/ready", trust_env=False, timeout=_ASK_SECONDS).status_code == 200
    return False


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Of this process, but for the gateway's settings: neither the shell nor a .env file changes what is shown.

    An empty value stands for the default, and keeps what `.env` says for the same name away.
    """
    names = {name for name in dir(settings) if name.isupper()} | {"DATABASE_URL"}
    emptied = {name: "" for name in os.environ if name.removesuffix("_FILE") in names}
    fixed = {"DJANGO_SETTINGS_MODULE": "gatewaysite.settings", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **emptied, **fixed, **changes}


def run(name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a command to its end. Raises CannotGoOn with the end of its output."""
    done = subprocess.run(
        command,
        cwd=settings.BASE_DIR,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for the process that has started it, which ends it then
    )
    if done.returncode:
        raise CannotGoOn(_told(f"{name} ended with status {done.returncode}", done.stdout))


class Child:
    """A process that runs until it is stopped; its output goes to `<directory>/<name>.log`."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], directory: Path
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=settings.BASE_DIR,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until(self, ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Raises CannotGoOn when the process ends first, or is not ready in time."""
        until = time.monotonic() + seconds
        while not ready():
            if not self.is_running:
                raise self.failure(f"ended with status {self._process.returncode}")
            if time.monotonic() > until:
                raise self.failure(f"was not ready within {seconds:g} s")
            time.sleep(_POLL_SECONDS)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        if self.is_running:
            self._process.terminate()
        if not self.wait(STOP_SECONDS):
            self._process.kill()
            self._process.wait()

    def failure(self, what: str) -> CannotGoOn:
        return CannotGoOn(_told(f"the {self.name} {what}", self.log.read_bytes()))


def _told(what: str, output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()[-LOG_LINES:]
    return f"{what}; the last lines of its log:\n" + "\n".join(f"  {line}" for line in lines or ["(empty)"])
