"""The processes of a drill: a simulated engine if no other is named, and a gateway with a database of its own."""

from __future__ import annotations

import json
import random
import re
import secrets
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from django.core.management import get_commands

from continuation.demo.children import Child, DemoFailed, environment, run

MANAGE = (sys.executable, "manage.py")
SIMULATED = ("vllm", "sglang")
SERVED_NAME = "any-name"
SIMULATED_MODEL = "qwen3.6"
_ATTEMPTS = 3
_ASK_SECONDS = 10.0
# What no gateway may write into its log, whatever its clients and engines do.
_TROUBLE = re.compile(
    r"Traceback|never retrieved|ignored GeneratorExit|was never awaited|was destroyed but it is pending"
    r"|ResourceWarning|Unclosed (?:client|connection|response)|Exception ignored|database is locked"
)


@dataclass(frozen=True, slots=True)
class Engine:
    """Where it is, the name under which requests ask for its model, and what the gateway is told about it."""

    url: str
    name: str
    model: str
    manner: str


def simulated_engine(manner: str, delay_ms: float, directory: Path) -> tuple[Child, Engine]:
    """Raises DemoFailed."""
    about = ["--engine", manner, "--template", "qwen", "--model", SERVED_NAME]
    command = [*MANAGE, "simulate_engine", *about, "--token-delay-ms", f"{delay_ms:g}"]
    child = Child("simulator", command, environment({}), directory)
    try:
        child.wait_until(lambda: _ready_line(child) is not None)
    except BaseException:
        child.stop()
        raise
    url = json.loads((_ready_line(child) or "").removeprefix("READY "))["url"]
    return child, Engine(url, SERVED_NAME, SIMULATED_MODEL, manner)


def _ready_line(child: Child) -> str | None:
    lines = child.log.read_text("utf-8", "replace").splitlines(keepends=True)
    return next((line for line in lines if line.startswith("READY ") and line.endswith("\n")), None)


def other_engine(url: str, model: str) -> Engine:
    """What an engine that runs already says about itself; `model` overrides its name. Raises DemoFailed."""
    try:
        listed = _asked(f"{url}/v1/models")
        name = str(listed["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as trouble:
        raise DemoFailed(f"{url}/v1/models does not tell which model it serves: {trouble!r:.200}") from None
    return Engine(url, name, model or name, _manner(url))


def _manner(url: str) -> str:
    """vllm or sglang; "" where neither can be told."""
    for manner, path in (("vllm", "/version"), ("sglang", "/server_info"), ("sglang", "/get_server_info")):
        with suppress(httpx.HTTPError, ValueError):
            if "version" in _asked(url + path):
                return manner
    return ""


def _asked(url: str) -> Any:
    answer = httpx.get(url, trust_env=False, timeout=_ASK_SECONDS)
    answer.raise_for_status()
    return answer.json()


@dataclass(frozen=True, slots=True)
class Gateway:
    """child and database are None for a gateway that the drill has not started itself."""

    url: str
    child: Child | None = None
    database: Path | None = None
    server: str = ""

    @property
    def pid(self) -> int | None:
        return self.child.pid if self.child is not None else None

    def troubles(self) -> list[str]:
        """Lines of its log that tell of a bug."""
        if self.child is None:
            return []
        lines = self.child.log.read_text("utf-8", "replace").splitlines()
        return [line.strip()[:200] for line in lines if _TROUBLE.search(line)]


def start_gateway(engine: Engine, downstream: str, idle_seconds: float, directory: Path) -> Gateway:
    """On a free port; another one is tried if something else has taken it by then. Raises DemoFailed."""
    database = directory / "drill.sqlite3"
    env = environment(
        {
            "DOWNSTREAM_URL": downstream,
            "CONTINUATION_MODEL": engine.model,
            "CONTINUATION_ENGINE": engine.manner,
            "STALL_IDLE_TIMEOUT_SECONDS": f"{idle_seconds:g}",
            "DATABASE_URL": f"sqlite:///{database}",
            "SECRET_KEY": secrets.token_urlsafe(40),
        }
    )
    run("manage.py migrate", [*MANAGE, "migrate", "--no-input", "-v", "0"], env)
    for attempt in range(_ATTEMPTS):
        port = _free_port()
        server, command = _command(port)
        child = Child("gateway", command, env, directory)
        url = f"http://127.0.0.1:{port}"
        try:
            child.wait_until(partial(_is_ready, url))
        except BaseException as trouble:
            child.stop()
            taken = isinstance(trouble, DemoFailed) and b"in use" in child.log.read_bytes()
            if not taken or attempt == _ATTEMPTS - 1:
                raise
        else:
            return Gateway(url, child, database, server)
    raise AssertionError("the last attempt returns or raises")


def _command(port: int) -> tuple[str, Sequence[str]]:
    """Of the gateway's own server where it has one, else of daphne."""
    if "serve" in get_commands():
        return "serve", [*MANAGE, "serve", "--bind", "127.0.0.1", "--port", str(port)]
    daphne = [sys.executable, "-m", "daphne", "-b", "127.0.0.1", "-p", str(port)]
    return "daphne", [*daphne, "--access-log", "/dev/null", "gatewaysite.asgi:application"]


def _free_port() -> int:
    """Below the range from which outgoing connections take theirs, which could come in between."""
    while True:
        port = random.randrange(10240, 32768)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _is_ready(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/ready", trust_env=False, timeout=5).status_code == 200
    return False
