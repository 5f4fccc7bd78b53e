"""The processes of the demo: started, waited for, and ended by their own pids."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from django.conf import settings

START_SECONDS = 60.0
STOP_SECONDS = 10.0
LOG_LINES = 15
_POLL_SECONDS = 0.05


class DemoFailed(Exception):
    """Why the demo cannot go on, in words for the terminal."""


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Of this process, but for the gateway's settings: neither the shell nor a .env file changes the demo.

    An empty value stands for the default, and keeps what `.env` says for the same name away.
    """
    names = {name for name in dir(settings) if name.isupper()} | {"DATABASE_URL"}
    emptied = {name: "" for name in os.environ if name.removesuffix("_FILE") in names}
    fixed = {"DJANGO_SETTINGS_MODULE": "gatewaysite.settings", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **emptied, **fixed, **changes}


def run(name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a command to its end. Raises DemoFailed with the end of its output."""
    done = subprocess.run(
        command,
        cwd=settings.BASE_DIR,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for the demo, which ends its children itself
    )
    if done.returncode:
        raise DemoFailed(_told(f"{name} ended with status {done.returncode}", done.stdout))


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
        """Raises DemoFailed when the process ends first, or is not ready in time."""
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

    def failure(self, what: str) -> DemoFailed:
        return DemoFailed(_told(f"the {self.name} {what}", self.log.read_bytes()))


def _told(what: str, output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()[-LOG_LINES:]
    return f"{what}; the last lines of its log:\n" + "\n".join(f"  {line}" for line in lines or ["(empty)"])
