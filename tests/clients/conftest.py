"""Clients as programs use them, read through a real gateway: `make test-clients`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from continuation.testbed.simulator import Config, Simulator
from tests.clients.driving import CLIENTS, Client, Process, Reading, ask_curl, reading_of
from tests.clients.places import node, node_dir, python_dir, python_of
from tests.harness.gateway import Gateway, migrated_database
from tests.harness.upstream import Upstream

MODEL = "Qwen/Qwen3.6-35B-A3B"
SERVED = "served"
STOP_SECONDS = 120.0  # all end at once, on a machine that others use

Ask = Callable[..., Reading]
GatewayFor = Callable[..., Gateway]
SimulatorFor = Callable[..., Simulator]


@pytest.fixture(scope="session")
def installed() -> None:
    """Never skipped: whoever asks for these tests wants them run."""
    wanted = [python_of(python_dir()), node(), node_dir() / "node_modules"]
    missing = [str(place) for place in wanted if not place.exists()]
    assert not missing, f"{', '.join(missing)} not there: run tests/clients/prepare.py"


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One that runs in a thread of its own, for the simulators."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="simulators")
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    loop.close()


@pytest.fixture(scope="session")
def simulators(loop: asyncio.AbstractEventLoop) -> Iterator[SimulatorFor]:
    """simulators(engine, scale=1.0): a running one, with the model's own template."""
    running: dict[tuple[str, float], Simulator] = {}

    def simulator(engine: str, scale: float = 1.0) -> Simulator:
        key = (engine, scale)
        if key not in running:
            config = Config(engine=engine, template="qwen", model=SERVED, scale=scale)  # type: ignore[arg-type]
            running[key] = Simulator(config)
            asyncio.run_coroutine_threadsafe(running[key].start(), loop).result(20)
        return running[key]

    yield simulator
    for one in running.values():
        asyncio.run_coroutine_threadsafe(one.stop(), loop).result(20)


@pytest.fixture
def simulator(simulators: SimulatorFor) -> Iterator[SimulatorFor]:
    """As `simulators`; what it was asked before is forgotten, and no fault is left for the next test."""
    used: list[Simulator] = []

    def fresh(engine: str, scale: float = 1.0) -> Simulator:
        one = simulators(engine, scale)
        one.requests.clear()
        used.append(one)
        return one

    yield fresh
    assert [fault for one in used for fault in one.armed] == []


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, str]], Gateway]]:
    """Running gateways by their settings."""
    running: dict[frozenset[tuple[str, str]], Gateway] = {}
    template = migrated_database(tmp_path_factory.mktemp("database") / "template.sqlite3")

    def gateway(settings: dict[str, str]) -> Gateway:
        key = frozenset(settings.items())
        if key not in running:
            running[key] = Gateway(settings, template, tmp_path_factory.mktemp("gateway"))
        return running[key]

    yield gateway
    for one in running.values():
        one.terminate()
    assert {one.stop(STOP_SECONDS) for one in running.values()} <= {0, -15}


@pytest.fixture
def gateway(fleet: Callable[[dict[str, str]], Gateway], watched: Callable[[Gateway], Gateway]) -> GatewayFor:
    """gateway(url, engine, NAME="value", ...): a running one before that URL, which has logged no trouble."""

    def running(url: str, engine: str, **settings: str) -> Gateway:
        chosen = {
            "DOWNSTREAM_URL": url,
            "CONTINUATION_MODEL": MODEL,
            "CONTINUATION_ENGINE": engine,
            **settings,
        }
        return watched(fleet(chosen))

    return running


@pytest.fixture(scope="session")
def processes(
    installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Process]]:
    """Drivers that run, by name."""
    running: dict[str, Process] = {}
    directory = tmp_path_factory.mktemp("drivers")

    def process(driver: str) -> Process:
        if driver not in running:
            running[driver] = Process(driver, directory)
        return running[driver]

    yield process
    for one in running.values():
        one.stop()
    complaints = {driver: one.complaints for driver, one in running.items() if one.complaints}
    assert complaints == {}, complaints


@pytest.fixture(params=CLIENTS, ids=str)
def client(request: pytest.FixtureRequest) -> Client:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def ask(processes: Callable[[str], Process], tmp_path: Path) -> Ask:
    """ask(client, url, body, fault="", headers={}, retries=0): what the client makes of the answer."""

    def asking(
        client: Client,
        url: str,
        body: dict[str, Any],
        fault: str = "",
        headers: dict[str, str] | None = None,
        retries: int = 0,
    ) -> Reading:
        sent = dict(headers or {})
        if fault:
            sent["X-Simulate-Fault"] = fault
        job = {"way": client.way, "base_url": f"{url}/v1", "retries": retries, "headers": sent, "body": body}
        if client.driver == "curl":
            return ask_curl(job, tmp_path)
        return reading_of(processes(client.driver).ask(job))

    return asking


@pytest.fixture
def scripted(session_upstream: Upstream) -> Iterator[Upstream]:
    """An upstream that answers as told."""
    yield session_upstream
    assert session_upstream.settle() == []
