"""Simulated engines as processes, which can be killed; and what one of them answers when nothing breaks."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from typing import Any

from tests.harness.gateway import ROOT

MODEL = "served"
# The template keeps contents as they are, so that an answer can be continued from any character.
MANNERS = ["--engine", "vllm", "--template", "generic", "--model", MODEL]
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Told:
    """An answer's two texts, as they must stand on the page."""

    reasoning: str
    content: str


class Engine:
    """A simulator in a process of its own. A token takes `delay_ms`; `scale` makes answers longer."""

    def __init__(self, delay_ms: float, scale: float) -> None:
        paced = ["--token-delay-ms", str(delay_ms), "--scale", str(scale)]
        self._process = subprocess.Popen(
            [sys.executable, "manage.py", "simulate_engine", *MANNERS, *paced],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        word, _, about = self._process.stdout.readline().partition(" ")
        assert word == "READY", "the simulator does not start"
        self.url: str = json.loads(about)["url"]

    def ask(self, prompt: str) -> Told:
        """Without the gateway, and at once."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}]}
        message = self._call("POST", "/v1/chat/completions", body)["choices"][0]["message"]
        return Told(message["reasoning"], message["content"])

    def open_streams(self) -> int:
        return int(self._call("GET", "/simulator/state")["open_streams"])

    def legs(self) -> list[int]:
        """Of the chat requests so far, which leg each is."""
        found = self._call("GET", "/simulator/requests")["requests"]
        return [request["leg"] for request in found if request["leg"]]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)

    def kill(self) -> None:
        """With SIGKILL, as the kernel does it to who takes too much memory."""
        self._process.kill()
        self._process.wait(SECONDS)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(SECONDS)
        assert self._process.stdout
        self._process.stdout.close()
