"""What the demo runs: the simulator, and the gateway with a database of its own."""

from __future__ import annotations

import json
import random
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from continuation.demo.children import Child, DemoFailed, environment, run

STALL_SECONDS = 2
# The engine serves one name, and requests ask for it: the strategy does not come from it.
SERVED_NAME = "any-name"
_MANAGE = (sys.executable, "manage.py")
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Choices:
    """What the command line said. model is CONTINUATION_MODEL; token_delay is in milliseconds."""

    engine: str
    model: str
    token_delay: float


@dataclass(frozen=True, slots=True)
class Stage:
    """URLs without a trailing slash; password is that of the admin's user `demo`."""

    gateway: str
    simulator: str
    children: tuple[Child, Child]
    database: Path
    password: str


@contextmanager
def stage(choices: Choices) -> Iterator[Stage]:
    """All that is made lies in one directory, which is deleted at the end. Raises DemoFailed."""
    with ExitStack() as closing:
        directory = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="continuation-demo-")))
        simulator = _simulator(choices, directory)
        closing.callback(simulator.stop)
        simulator.wait_until(lambda: _ready_line(simulator) is not None)
        password, database = secrets.token_hex(4), directory / "demo.sqlite3"
        env = _gateway_environment(choices, _url_of(simulator), database, password)
        _prepare_database(env)
        gateway, url = _gateway(env, directory)
        closing.callback(gateway.stop)
        yield Stage(url, _url_of(simulator), (gateway, simulator), database, password)


def _simulator(choices: Choices, directory: Path) -> Child:
    manner = ["--engine", choices.engine, "--template", "qwen", "--model", SERVED_NAME]
    pace = ["--token-delay-ms", f"{choices.token_delay:g}"]
    return Child("simulator", [*_MANAGE, "simulate_engine", *manner, *pace], environment({}), directory)


def _ready_line(simulator: Child) -> str | None:
    lines = simulator.log.read_text("utf-8", "replace").splitlines(keepends=True)
    return next((line for line in lines if line.startswith("READY ") and line.endswith("\n")), None)


def _url_of(simulator: Child) -> str:
    line = _ready_line(simulator) or "READY {}"
    return str(json.loads(line.removeprefix("READY "))["url"])


def _gateway_environment(
    choices: Choices, simulator: str, database: Path, password: str
) -> Mapping[str, str]:
    return environment(
        {
            "DOWNSTREAM_URL": simulator,
            "CONTINUATION_MODEL": choices.model,
            "CONTINUATION_ENGINE": choices.engine,
            "STALL_IDLE_TIMEOUT_SECONDS": str(STALL_SECONDS),
            "DATABASE_URL": f"sqlite:///{database}",
            "SECRET_KEY": secrets.token_urlsafe(40),
            "DJANGO_SUPERUSER_PASSWORD": password,
        }
    )


def _prepare_database(env: Mapping[str, str]) -> None:
    run("manage.py migrate", [*_MANAGE, "migrate", "--no-input", "-v", "0"], env)
    user = ["--username", "demo", "--email", "demo@example.org"]
    run("manage.py createsuperuser", [*_MANAGE, "createsuperuser", "--no-input", *user], env)


def _gateway(env: Mapping[str, str], directory: Path) -> tuple[Child, str]:
    """On a free port; another one is tried if something else has taken it by then."""
    for attempt in range(_ATTEMPTS):
        port = _free_port()
        gateway = Child("gateway", [*_MANAGE, "serve", "-p", str(port)], env, directory)
        url = f"http://127.0.0.1:{port}"
        try:
            gateway.wait_until(partial(_is_ready, url))
        except BaseException as trouble:
            gateway.stop()
            taken = isinstance(trouble, DemoFailed) and b"in use" in gateway.log.read_bytes()
            if not taken or attempt == _ATTEMPTS - 1:
                raise
        else:
            return gateway, url
    raise AssertionError("the last attempt returns or raises")


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
