"""Engines as processes, started with the scripts of engines/, ended by their own pids."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from engines.serving import engines_dir
from tests.harness.gateway import ROOT, free_port

START_PATIENCE = "900"  # seconds; 30 on two cores that nobody shares


class EngineProcess:
    """A running engine; `pids` are the numbers of its processes by name."""

    def __init__(self, engine: str, model: str, log: Path, *more: str, port: int = 0) -> None:
        """engine: vllm or sglang. model: a directory below ENGINES_DIR. more: for the serve script. port 0: any."""
        self.engine = engine
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.pids: dict[str, int] = {}
        self._log = log
        command = [sys.executable, str(ROOT / "engines" / f"serve_{engine}.py"), str(engines_dir() / model)]
        command += [
            "--port",
            str(self.port),
            "--name",
            "tiny-qwen3",
            "--log",
            str(log),
            "--with-parent",
            "--patience",
            START_PATIENCE,
            *more,
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

    def ready(self) -> EngineProcess:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.startswith("READY "):
            said = self._log.read_text()[-3000:] if self._log.exists() else "nothing"
            raise AssertionError(f"{self.engine} does not start; it said:\n{said}")
        self.pids = json.loads(line.removeprefix("READY "))["pids"]
        return self

    def signal(self, process: str, number: int) -> None:
        os.kill(self.pids[process], number)

    def state(self, process: str) -> str:
        """The letter that Linux gives it: T is stopped, Z and X are dead; X also for a pid that is gone."""
        try:
            return Path(f"/proc/{self.pids[process]}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "X"

    def stop(self) -> None:
        for pid in self.pids.values():
            _signal(pid, signal.SIGCONT)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            for pid in self.pids.values():
                _signal(pid, signal.SIGKILL)
            self._process.wait(30)
        assert self._process.stdout
        self._process.stdout.close()


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    """What an endpoint of an engine answers: JSON, or text where it is none."""
    sent = json.dumps(body).encode()
    request = urllib.request.Request(url + path, sent, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        told = answer.read().decode()
    try:
        return json.loads(told)
    except ValueError:
        return told


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
