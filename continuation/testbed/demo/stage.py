"""What the demo runs: the simulator, and the gateway with a database of its own."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from continuation.testbed.processes import (
    Child,
    gateway_environment,
    manage,
    migrate,
    start_gateway,
    start_simulator,
)

STALL_SECONDS = 2


@dataclass(frozen=True, slots=True)
class DemoChoices:
    """What the command line said. model is CONTINUATION_MODEL; token_delay is in milliseconds."""

    engine: str
    model: str
    token_delay: float


@dataclass(frozen=True, slots=True)
class DemoStage:
    """URLs without a trailing slash; password is that of the admin's user `demo`."""

    gateway: str
    simulator: str
    children: tuple[Child, Child]
    database: Path
    password: str


@contextmanager
def stage(choices: DemoChoices) -> Iterator[DemoStage]:
    """All that is made lies in one directory, which is deleted at the end. Raises CannotGoOn."""
    with ExitStack() as closing:
        directory = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="continuation-demo-")))
        simulator, engine_url = start_simulator(choices.engine, choices.token_delay, directory)
        closing.callback(simulator.stop)
        password, database = secrets.token_hex(4), directory / "demo.sqlite3"
        env = gateway_environment(engine_url, choices.engine, choices.model, STALL_SECONDS, database)
        _prepare_database(env, password)
        gateway, url = start_gateway(env, directory)
        closing.callback(gateway.stop)
        yield DemoStage(url, engine_url, (gateway, simulator), database, password)


def _prepare_database(env: Mapping[str, str], password: str) -> None:
    migrate(env)
    user = ["--username", "demo", "--email", "demo@example.org"]
    manage({**env, "DJANGO_SUPERUSER_PASSWORD": password}, "createsuperuser", "--no-input", *user)
