"""The commands of the documentation are run as they are written, but for ports, hosts and the interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from continuation.testbed.simulator import Config
from tests.e2e.test_simulated import running
from tests.harness import nginx
from tests.harness.client import Answer, call
from tests.harness.gateway import ROOT, environment, free_port, migrated_database
from tests.harness.pages import block

PATIENCE = 120.0
CI = os.environ.get("CI") == "true"


def needs(program: str) -> pytest.MarkDecorator:
    """A program of the documentation's reader. The CI has every one of them."""
    return pytest.mark.skipif(shutil.which(program) is None and not CI, reason=f"{program} is not installed")


def changed(text: str, changes: dict[str, str]) -> str:
    """Each of these texts stands in the block, and is replaced; so is the interpreter."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    text = text.replace(".venv/bin/python manage.py", "manage.py")
    return re.sub(r"\bmanage\.py\b", f"{sys.executable} {ROOT / 'manage.py'}", text)


@dataclass
class Shell:
    """Runs blocks in a directory of its own, on a database of its own."""

    directory: Path
    database: Path
    settings: dict[str, str]

    def _options(self) -> dict[str, object]:
        env = environment(self.settings, self.database) | {"PYTHONPATH": str(ROOT)}
        return {"cwd": self.directory, "env": env, "stdin": subprocess.DEVNULL, "text": True}

    def run(self, text: str, status: int = 0) -> str:
        """What a block prints, once it has ended with that status."""
        command = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, **self._options())  # type: ignore[call-overload]
        assert done.returncode == status, f"{text}\n{done.stdout}{done.stderr}"
        return str(done.stdout)

    @contextlib.contextmanager
    def serving(self, text: str, port: int, path: str = "/ready") -> Iterator[Path]:
        """A block whose last command serves; until the end of the context. Its log."""
        log = self.directory / f"{port}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", text],
                stdout=out,
                stderr=out,
                start_new_session=True,
                **self._options(),  # type: ignore[call-overload]
            )
        try:
            until = time.monotonic() + PATIENCE
            while not _answers(port, path):
                assert process.poll() is None, log.read_text("utf-8")
                assert time.monotonic() < until, log.read_text("utf-8")
                time.sleep(0.05)
            yield log
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(PATIENCE)


def _answers(port: int, path: str) -> bool:
    with contextlib.suppress(OSError, ValueError, AssertionError):
        return call(port, "GET", path).status == 200
    return False


@dataclass
class Stage:
    """The quickstart as it stands when both its terminals serve."""

    shell: Shell
    engine: int
    gateway: int
    log: Path

    def text(self, name: str, changes: dict[str, str] | None = None) -> str:
        ports = {":8000": f":{self.gateway}", ":8001": f":{self.engine}"}
        found = block(name)
        return changed(found, {old: new for old, new in ports.items() if old in found} | (changes or {}))

    def saved(self, name: str, text: str) -> Path:
        """A file with that text."""
        file = self.shell.directory / name
        file.write_text(text, "utf-8")
        return file

    def run(self, name: str, changes: dict[str, str] | None = None) -> str:
        return self.shell.run(self.text(name, changes))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("docs")
    shell = Shell(directory, directory / "db.sqlite3", {"SECRET_KEY": "tests-only"})
    engine, gateway = free_port(), free_port()
    beginning = changed(block("quickstart-engine"), {"--port 8001": f"--port {engine}"})
    second = changed(block("quickstart-gateway"), {":8001": f":{engine}", "-p 8000": f"-p {gateway}"})
    with (
        shell.serving(beginning, engine, "/v1/models"),
        shell.serving(second, gateway) as log,
    ):
        yield Stage(shell, engine, gateway, log)


# -- quickstart ------------------------------------------------------------------------------------


@needs("curl")
def test_the_quickstart_rescues_a_stream_and_shows_both_requests(stage: Stage) -> None:
    text = stage.text("quickstart-ask")
    fault = re.search(r" -H 'X-Simulate-Fault: [^']*'", text)
    assert fault
    rescued = Answer.of(stage.shell.run(text).encode())
    unbroken = Answer.of(stage.shell.run(text.replace(fault[0], "")).encode())
    assert (rescued.reasoning, rescued.content) == (unbroken.reasoning, unbroken.content)
    assert re.search(
        r"disconnect content-done, continue chat-continue: rescued", stage.log.read_text("utf-8")
    )
    requests = json.loads(stage.run("quickstart-look"))["requests"]
    assert [each["leg"] for each in requests if each["leg"]][:2] == [1, 2]


@pytest.mark.parametrize(
    "text",
    [block("readme-settings"), block("quickstart-vllm-settings"), block("quickstart-sglang-settings")],
    ids=["README", "vLLM", "SGLang"],
)
def test_the_settings_of_a_beginning_are_in_order(tmp_path: Path, text: str) -> None:
    settings = dict(re.findall(r"^([A-Z_]+)=(\S+)", text, re.MULTILINE))
    assert len(settings) == 4
    shell = Shell(tmp_path, tmp_path / "db.sqlite3", settings)
    assert "no issues" in shell.run(changed("manage.py check --fail-level WARNING", {}))


@pytest.mark.skipif(bool(nginx.is_missing()), reason=nginx.is_missing() or "nginx")
@needs("curl")
def test_a_stream_is_rescued_through_the_documented_router(stage: Stage, tmp_path: Path) -> None:
    port, gateway = free_port(), free_port()
    config = Config(engine="sglang", template="qwen", model="chat", token_delay_ms=1)
    with running(config) as first, running(config) as second:
        hosts = {"engine-a:8000": first.url, "engine-b:8000": second.url}
        changes = {host: url.removeprefix("http://") for host, url in hosts.items()}
        servers = changed(block("router"), changes | {"listen 8080": f"listen 127.0.0.1:{port}"})
        (tmp_path / "nginx").mkdir()
        router = nginx.Nginx(tmp_path / "nginx", servers, port)
        settings = {"DOWNSTREAM_URL": f"http://127.0.0.1:{port}", "SECRET_KEY": "tests-only"}
        settings |= {"CONTINUATION_MODEL": "Qwen/Qwen3.6-35B-A3B", "CONTINUATION_ENGINE": "sglang"}
        database = migrated_database(tmp_path / "db.sqlite3")
        shell = Shell(tmp_path, database, settings)
        serve = changed(f"exec manage.py serve -p {gateway}", {})
        try:
            with shell.serving(serve, gateway) as log:
                text = stage.text("quickstart-ask").replace(f":{stage.gateway}", f":{gateway}")
                answer = Answer.of(shell.run(text).encode())
                assert (answer.finish_reasons, answer.done, answer.errors) == (["stop"], 1, [])
                assert ": rescued" in log.read_text("utf-8")
        finally:
            router.stop()


# -- the other pages -------------------------------------------------------------------------------


@needs("curl")
def test_the_simulator_takes_the_documented_faults(stage: Stage) -> None:
    said = stage.run("simulator-faults")
    assert '"stall"' in said
    call(stage.engine, "DELETE", "/simulator/faults")


@needs("curl")
def test_the_metrics_are_read(stage: Stage) -> None:
    said = stage.run("metrics", {"$METRICS_TOKEN": "a-token"})
    assert "continuation_chat_requests_total" in said


@needs("curl")
def test_a_client_comes_back_for_the_rest(stage: Stage) -> None:
    key = {"$KEY": "a-key"}
    first = stage.run("resumable-ask", key)
    stream = re.search(r"^x-stream-id: (\S+)", first, re.MULTILINE | re.IGNORECASE)
    token = re.search(r"^x-resume-token: (\S+)", first, re.MULTILINE | re.IGNORECASE)
    assert stream
    assert token
    back = {"2a67ddd3c39ee56c82b2acecd5427945": stream[1], "eyJzIjoiMmE2N2Rk...": token[1]}
    rest = stage.run("resumable-return", key | back)
    assert rest.startswith("id: 2\n")
    assert rest.endswith("data: [DONE]\n\n")
    assert first.endswith(rest)


def test_the_python_client_reads_a_whole_answer(stage: Stage) -> None:
    program = stage.saved("client.py", stage.text("resumable-python"))
    lines = stage.shell.run(f"{sys.executable} {program}").splitlines()
    assert lines[0].startswith("1 ")
    assert "'finish_reason': 'stop'" in lines[-1]


@needs("node")
def test_the_javascript_client_reads_a_whole_answer(stage: Stage) -> None:
    script = ROOT / "continuation/static/continuation/resumable.js"
    changes = {
        "/static/continuation/resumable.js": script.as_uri(),
        'url: "/v1': f'url: "http://127.0.0.1:{stage.gateway}/v1',
    }
    program = stage.saved("client.mjs", stage.text("resumable-js", changes))
    lines = stage.shell.run(f"node {program}").splitlines()
    assert len(lines) > 100
    assert lines[0].startswith("1")


def test_a_service_migrates_and_serves(tmp_path: Path) -> None:
    port = free_port()
    settings = {"DOWNSTREAM_URL": "http://127.0.0.1:9", "SECRET_KEY": "tests-only"}
    shell = Shell(tmp_path, tmp_path / "db.sqlite3", settings)
    text = changed(block("operation-serve"), {"-b 0.0.0.0 -p 8000": f"-b 127.0.0.1 -p {port}"})
    with shell.serving(text, port) as log:
        assert "serving on" in log.read_text("utf-8")


def test_strategies_are_loaded_and_taken_along(tmp_path: Path) -> None:
    settings = {"DOWNSTREAM_URL": "http://127.0.0.1:9", "SECRET_KEY": "tests-only"}
    shell = Shell(tmp_path, migrated_database(tmp_path / "db.sqlite3"), settings)
    said = shell.run(changed(block("strategies-commands"), {"NAME ": "generic "}))
    rows = json.loads((tmp_path / "strategies.json").read_text("utf-8"))
    assert f"Installed {len(rows)} object(s)" in said
