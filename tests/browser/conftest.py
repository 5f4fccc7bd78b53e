"""The JavaScript client and the playground in Debian's chromium, before real gateways and simulated engines:
`make test-browser`. The client's own tests need node alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver import Chrome
from selenium.webdriver.chrome.service import Service

from tests.browser.engines import Engine
from tests.browser.line import Line
from tests.browser.playing import NAME, PASSWORD, Playground
from tests.harness.gateway import ROOT, SERVER, Gateway, environment, migrated_database

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1200,1400",
)
# Slow enough to be broken in mid-answer, and longer than being offline for five seconds.
DELAY_MS, SCALE = 30.0, 2.0
SCRIPT_SECONDS = 90

GatewayFor = Callable[..., Gateway]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("browser")


def program(name: str) -> str:
    """Where it is. Without it a developer's tests are skipped; in the CI they fail."""
    found = shutil.which(name)
    if found is None and os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"{name} is not installed")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(scope="session")
def session_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = program("chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(program("chromedriver")))
    browser.set_script_timeout(SCRIPT_SECONDS)
    yield browser
    browser.quit()


@pytest.fixture
def browser(session_browser: Chrome) -> Iterator[Chrome]:
    """No page may leave an exception that nobody caught, or want what its Content-Security-Policy forbids."""
    yield session_browser
    session_browser.get("about:blank")
    wrong = ("Uncaught", "Content Security Policy")
    found = [
        entry for entry in session_browser.get_log("browser") if any(w in entry["message"] for w in wrong)
    ]
    assert found == []


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """That most tests share."""
    engine = Engine(DELAY_MS, SCALE)
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def oracle() -> Iterator[Engine]:
    """It gives the same answers as the others, without their slowness."""
    engine = Engine(0, SCALE)
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a login for the admin."""
    path = migrated_database(tmp_path_factory.mktemp("database") / "template.sqlite3")
    env = environment({"DOWNSTREAM_URL": "http://127.0.0.1:9"}, path)
    env["DJANGO_SUPERUSER_PASSWORD"] = PASSWORD
    names = ["--username", NAME, "--email", "player@localhost"]
    command = [sys.executable, "manage.py", "createsuperuser", "--no-input", *names]
    subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True)
    return path


@pytest.fixture(scope="session")
def fleet(database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Gateway]]:
    """Running gateways by their settings."""
    running: dict[Any, Gateway] = {}

    def gateway(server: str, settings: dict[str, str]) -> Gateway:
        key = (server, frozenset(settings.items()))
        if key not in running:
            running[key] = Gateway(settings, database, tmp_path_factory.mktemp("gateway"), server)
        return running[key]

    yield gateway
    for one in running.values():
        one.terminate()
    assert {one.stop(60) for one in running.values()} <= {0, -15}


@pytest.fixture
def gateway(
    fleet: Callable[..., Gateway], watched: Callable[[Gateway], Gateway], engine: Engine
) -> GatewayFor:
    """gateway(server="daphne", NAME="value", ...): a running one, before the shared engine if not told another."""

    def running(server: str = SERVER, **settings: str) -> Gateway:
        chosen = {"DOWNSTREAM_URL": engine.url, "CONTINUATION_MODEL": "generic", **settings}
        return watched(fleet(server, chosen))

    return running


@pytest.fixture
def playground(browser: Chrome) -> Callable[[str], Playground]:
    """playground(url of a gateway): its page."""
    return lambda url: Playground(browser, url)


@pytest.fixture
def line() -> Iterator[Callable[[int], Line]]:
    """line(port): a line to there, which can be cut."""
    lines: list[Line] = []

    def to(port: int) -> Line:
        lines.append(Line(port))
        return lines[-1]

    yield to
    for one in lines:
        one.stop()
