"""The processes of a drill: a simulated engine if no other is named, and a gateway with a database of its own."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from continuation.testbed.processes import (
    SERVED_NAME,
    CannotGoOn,
    Child,
    gateway_environment,
    migrate,
    start_gateway,
    start_simulator,
)

SIMULATED = ("vllm", "sglang")
SIMULATED_MODEL = "qwen3.6"
_ASK_SECONDS = 10.0
# How long a stream that has ended can be resumed: longer than a client stays away, and its memory is soon free again.
KEPT_SECONDS = "10"
# What no gateway may write into its log, whatever its clients and engines do.
_TROUBLE = re.compile(
    r"Traceback|never retrieved|ignored GeneratorExit|was never awaited|was destroyed but it is pending"
    r"|ResourceWarning|Unclosed (?:client|connection|response)|Exception ignored|database is locked"
)


@dataclass(frozen=True, slots=True)
class DrilledEngine:
    """Where it is, the name under which requests ask for its model, and what the gateway's settings say about it."""

    url: str
    name: str
    model: str
    manner: str


def simulated_engine(manner: str, delay_ms: float, directory: Path) -> tuple[Child, DrilledEngine]:
    """Raises CannotGoOn."""
    child, url = start_simulator(manner, delay_ms, directory)
    return child, DrilledEngine(url, SERVED_NAME, SIMULATED_MODEL, manner)


def other_engine(url: str, model: str) -> DrilledEngine:
    """What an engine that runs already says about itself; `model` overrides its name. Raises CannotGoOn."""
    try:
        listed = _asked(f"{url}/v1/models")
        name = str(listed["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as trouble:
        raise CannotGoOn(f"{url}/v1/models does not tell which model it serves: {trouble!r:.200}") from None
    return DrilledEngine(url, name, model or name, _manner(url))


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

    @property
    def pid(self) -> int | None:
        return self.child.pid if self.child is not None else None

    def troubles(self) -> list[str]:
        """Lines of its log that tell of a bug."""
        if self.child is None:
            return []
        lines = self.child.log.read_text("utf-8", "replace").splitlines()
        return [line.strip()[:200] for line in lines if _TROUBLE.search(line)]


def own_gateway(
    engine: DrilledEngine, downstream: str, idle_seconds: float, directory: Path, redis: str = ""
) -> Gateway:
    """redis: REDIS_URL. Raises CannotGoOn."""
    database = directory / "drill.sqlite3"
    env = gateway_environment(downstream, engine.manner, engine.model, idle_seconds, database)
    env |= {"RESUME_TTL_SECONDS": KEPT_SECONDS} | ({"REDIS_URL": redis} if redis else {})
    migrate(env)
    child, url = start_gateway(env, directory)
    return Gateway(url, child, database)
