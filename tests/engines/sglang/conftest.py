"""SGLang as often as a module needs it; two at most run at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.engines.processes import EngineProcess

Sglang = Callable[[], EngineProcess]


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sglang]:
    """Start one. It is being started when this returns: call ready()."""
    started: list[EngineProcess] = []

    def start() -> EngineProcess:
        log = tmp_path_factory.mktemp("sglang") / "sglang.log"
        started.append(EngineProcess("sglang", "tiny", log))
        return started[-1]

    yield start
    for engine in started:
        engine.stop()
