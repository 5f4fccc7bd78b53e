"""vLLM as often as a module needs it; two at most run at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.engines.processes import EngineProcess

Vllm = Callable[..., EngineProcess]
# What the tiny models in the manner of others are served with.
VARIANTS = {
    "tiny-k3": ("--reasoning-parser", "kimi_k3", "--tool-call-parser", "kimi_k3", "--"),
    "tiny-ds4": ("--reasoning-parser", "deepseek_v4", "--tool-call-parser", "deepseek_v4", "--"),
}
MODES = {
    "tiny-k3": ("--tokenizer-mode", "kimi_k3", "--trust-remote-code"),
    "tiny-ds4": ("--tokenizer-mode", "deepseek_v4"),
}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """Start one: `vllm("tiny-k3", "--no-scale-out")`. It is being started when this returns: call ready()."""
    started: list[EngineProcess] = []

    def start(model: str = "tiny", *more: str) -> EngineProcess:
        log = tmp_path_factory.mktemp("vllm") / f"{model}.log"
        words = [*more, *VARIANTS.get(model, ()), *MODES.get(model, ())]
        started.append(EngineProcess("vllm", model, log, *words))
        return started[-1]

    yield start
    for engine in started:
        engine.stop()
