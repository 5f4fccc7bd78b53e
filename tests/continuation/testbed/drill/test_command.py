"""manage.py drill over real processes: it passes where the gateway does its work, and fails where it does not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from redis import Redis

from continuation.testbed.drill import plot
from continuation.testbed.drill.campaign import Choices, Result
from continuation.testbed.drill.kinds import KINDS
from continuation.testbed.drill.sampling import Sample
from continuation.testbed.drill.wire import Address, Connection
from continuation.testbed.simulator import Config
from tests.e2e.test_simulated import running
from tests.harness.gateway import ROOT, Gateway, free_port, migrated_database
from tests.harness.nursery import INTERPRETER, run_python
from tests.harness.redis import RedisServer

COMMAND = ["manage.py", "drill"]
DRILL = [sys.executable, *COMMAND]
PATIENCE = 300.0  # seconds; two cores may be shared by many
QUICK = ["--token-delay-ms", "2", "--idle-timeout", "2"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **INTERPRETER}
    return run_python([*COMMAND, *QUICK, *arguments], cwd=ROOT, env=env, timeout=PATIENCE)


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    told = json.loads(done.stdout)
    assert isinstance(told, dict)
    return told


@pytest.fixture(scope="module")
def small() -> subprocess.CompletedProcess[str]:
    return run("--streams", "20", "--total", str(len(KINDS) + 4), "--seed", "11", "--json")


# -- it passes ---------------------------------------------------------------------------------------


def test_a_small_drill_breaks_streams_in_every_way_and_finds_nothing_wrong(
    small: subprocess.CompletedProcess[str],
) -> None:
    told = result(small)
    assert told["wrong_streams"] == []
    assert (small.returncode, told["wrong"], told["stopped"]) == (0, 0, False)
    assert told["done"] == len(KINDS) + 4
    assert set(told["by_fault"]) == set(KINDS)
    assert told["outcomes"]["rescued"] >= 10
    assert told["outcomes"]["failed as due"] >= 4
    assert told["left_out"] == []


def test_its_audit_rows_were_compared_and_its_gateway_was_measured(
    small: subprocess.CompletedProcess[str],
) -> None:
    told = result(small)
    outcomes = told["outcomes"]
    left = sum(sum(told["by_fault"][kind].values()) for kind in ("client_leaves", "client_leaves_leg2"))
    assert told["audit_rows"] == (
        outcomes["rescued"] + outcomes["completed"] + outcomes["failed as due"] + left
    )
    assert all(sample["memory_mb"] > 10 and sample["descriptors"] > 3 for sample in told["samples"])
    assert told["latency"]["first_p50_ms"] > 0
    assert told["latency"]["seam_p50_ms"] > 0


def test_progress_goes_to_stderr_and_json_alone_to_stdout(small: subprocess.CompletedProcess[str]) -> None:
    assert small.stdout.count("\n") == 1
    assert "asking for the uninterrupted answers ...\n" in small.stderr
    assert "Traceback" not in small.stderr


def test_a_drill_of_another_manner_with_chosen_faults_shows_a_table() -> None:
    done = run(
        "--engine", "sglang", "--streams", "12", "--total", "12", "--seed", "5", "--faults", "reset,aborted"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.split()]
    assert rows[0][:2] == ["fault", "streams"]
    assert [row[:2] for row in rows[1:4]] == [["reset", "6"], ["aborted", "6"], ["all", "12"]]
    assert "12 streams in 0:" in done.stdout
    assert "seed 5: 0 wrong" in done.stdout


def test_clients_come_back_to_a_log_in_redis(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        chosen = ["--faults", "client_returns,client_returns_leg2", "--redis", server.url, "--json"]
        done = run("--streams", "10", "--total", "20", "--seed", "7", *chosen)
        with closing(Redis.from_url(server.url)) as asked:
            logs = asked.keys("continuation:{*")
    finally:
        server.stop()
    told = result(done)
    assert told["wrong_streams"] == []
    assert (done.returncode, told["done"]) == (0, 20)
    assert told["outcomes"]["rescued"] >= 5
    assert logs


def test_nothing_is_left_of_a_drill_that_is_stopped(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*DRILL, *QUICK, "--streams", "8", "--minutes", "60", "--seed", "3", "--json"]
    drill = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert drill.stdout
    assert drill.stderr
    try:
        while " open" not in (line := drill.stderr.readline()):
            assert line
        drill.send_signal(signal.SIGTERM)
        told, _ = drill.communicate(timeout=PATIENCE)
        assert drill.returncode == 130
        assert json.loads(told)["stopped"] is True
        assert json.loads(told)["wrong"] == 0
        assert list(tmp_path.glob("continuation-drill-*")) == []
        assert processes_that_name(tmp_path) == []
    finally:
        drill.kill()
        drill.communicate()


def processes_that_name(directory: Path) -> list[int]:
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if str(directory).encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
    return found


# -- it fails ----------------------------------------------------------------------------------------


def test_without_a_gateway_broken_answers_are_wrong_and_whole_ones_are_not_rescued() -> None:
    """The injector itself is asked, as if it were a gateway that does nothing."""
    port = str(free_port())
    alone = ["--gateway", f"http://127.0.0.1:{port}", "--listen", port]
    done = run(*alone, "--streams", "8", "--total", "16", "--seed", "2", "--faults", "reset,eof", "--json")
    told = result(done)
    assert done.returncode == 1
    assert told["wrong"] == told["outcomes"]["wrong"] == 16
    assert told["audit_rows"] is None
    assert all(one["request_id"] == f"drill-2-{one['number']}" for one in told["wrong_streams"])


def test_clients_that_cannot_come_back_are_found() -> None:
    """The injector's answers are not resumable."""
    port = str(free_port())
    alone = ["--gateway", f"http://127.0.0.1:{port}", "--listen", port, "--json"]
    done = run(*alone, "--streams", "4", "--total", "4", "--seed", "2", "--faults", "client_returns")
    told = result(done)
    assert (done.returncode, told["wrong"]) == (1, 4)
    assert all("not resumable: X-Resume is ''" in str(one["troubles"]) for one in told["wrong_streams"])


class Dropping:
    """A gateway's neighbour that loses one piece of each answer, in a thread of its own."""

    def __init__(self, gateway: int) -> None:
        self._gateway = Address("127.0.0.1", gateway)
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._accepted, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dropping")
        self._thread.start()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stopped(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    async def _stopped(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        client, gateway = Connection(reader, writer), await self._gateway.connect()
        try:
            head = await client.read_head()
            sent = await client.body(head)
            fields = "".join(f"{name}: {value}\r\n" for name, value in head.fields if name != "connection")
            await gateway.send(f"{head.line}\r\n{fields}connection: close\r\n\r\n".encode() + sent)
            answer = (await gateway.reader.read()).replace(b'"content":" ', b'"content":"', 1)
            await client.send(answer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            gateway.close()
            client.close()


@pytest.fixture
def simulator() -> Iterator[str]:
    with running(Config(engine="vllm", template="qwen", model="served", token_delay_ms=1)) as one:
        yield one.url


def test_a_gateway_that_runs_already_is_drilled_and_one_lost_character_is_found(
    simulator: str, tmp_path: Path
) -> None:
    listen = free_port()
    settings = {
        "DOWNSTREAM_URL": f"http://127.0.0.1:{listen}",
        "CONTINUATION_MODEL": "qwen3.6",
        "CONTINUATION_ENGINE": "vllm",
        "STALL_IDLE_TIMEOUT_SECONDS": "2",
    }
    gateway = Gateway(settings, migrated_database(tmp_path / "template.sqlite3"), tmp_path)
    losing = Dropping(gateway.port)
    common = ["--engine", simulator, "--listen", str(listen), "--streams", "6", "--seed", "4", "--faults"]
    try:
        right = run(
            *common, "none,disconnect", "--total", "12", "--gateway", f"http://127.0.0.1:{gateway.port}"
        )
        wrong = run(*common, "none", "--total", "6", "--gateway", losing.url)
    finally:
        losing.stop()
        gateway.stop()
    assert right.returncode == 0, right.stdout + right.stderr
    assert "0 wrong" in right.stdout
    assert "the audit of a gateway that runs elsewhere was not compared" in right.stdout
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert "6 WRONG" in wrong.stdout
    assert "WRONG  none, request drill-4-0" in wrong.stdout
    assert "again: --seed 4 --only 0" in wrong.stdout
    assert "content, character" in wrong.stdout


# -- the command line --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--faults", "rest"],
            "--faults: unknown fault 'rest'; allowed: all, or a comma-separated list of none,",
        ),
        (["--streams", "0"], "--streams: '0' is not allowed; a whole number from 1 to 5000"),
        (["--streams", "many"], "--streams: 'many' is not allowed"),
        (["--minutes", "-1"], "--minutes: '-1' is not allowed; minutes, from 0.01"),
        (["--minutes", "nan"], "--minutes: 'nan' is not allowed"),
        (["--total", "1e3"], "--total: '1e3' is not allowed"),
        (["--seed", "-5"], "--seed: '-5' is not allowed"),
        (["--only", "3,x"], "--only: 'x' is not allowed"),
        (["--idle-timeout", "0"], "--idle-timeout: '0' is not allowed; seconds, from 0.2 to 3600"),
        (
            ["--engine", "tgi"],
            "--engine: 'tgi' is no URL of a server, such as http://127.0.0.1:8000; or one of vllm",
        ),
        (["--gateway", "localhost:8000"], "--gateway: 'localhost:8000' is no URL of a server"),
        (["--gateway", "http://127.0.0.1:1"], "--gateway needs --listen PORT"),
        (
            ["--gateway", "http://127.0.0.1:1", "--listen", "9", "--redis", "redis://x"],
            "--redis is for a gateway that",
        ),
        (["--continuation-model", "x"], "--continuation-model is for an --engine that is a URL"),
        (
            ["--engine", "http://127.0.0.1:9"],
            "http://127.0.0.1:9/v1/models does not tell which model it serves",
        ),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(arguments: list[str], told: str) -> None:
    with pytest.raises(CommandError) as refused:
        call_command("drill", *arguments)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_picture_without_matplotlib_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plot, "is_available", lambda: False)
    with pytest.raises(CommandError, match=r"--plot needs matplotlib: pip install"):
        call_command("drill", "--plot", str(tmp_path / "soak.png"))


def test_a_picture_that_could_not_be_kept_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plot, "is_available", lambda: True)
    with pytest.raises(CommandError, match=r"--plot: there is no directory"):
        call_command("drill", "--plot", str(tmp_path / "nowhere" / "soak.png"))


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    told = Result(Choices(kinds=("none",)))
    for second in range(30):
        latency = {"first_p50_ms": 9.0, "gap_p50_ms": 1.0 + second, "gap_p99_ms": 30.0, "seam_p50_ms": None}
        told.samples.append(Sample(second, True, 90.0, 50, 3, None, None, 9, second, 0, latency))
    plot.draw(told, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")


def test_the_help_names_the_faults_and_what_they_do() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(f"  {kind} " in done.stdout and text in done.stdout for kind, text in KINDS.items())
