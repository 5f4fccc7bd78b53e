"""Each process of vLLM is killed, asked to end, or stopped while it writes; another vLLM continues the answer."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.cutting import gateway_between
from tests.engines.faults import STALL_SECONDS, Scene, Victim, slowed
from tests.engines.openai_reader import Reading, read
from tests.engines.vllm.conftest import Vllm

pytestmark = pytest.mark.engine

CARRIED = {"render_generate": 1, "token_exact": 1}
PROCESSES = ("main", "engine", "worker")


@pytest.fixture(scope="module")
def scene(vllm: Vllm, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("faults")
    victim = Victim("vllm", directory / "victim.log")
    try:
        victim.start()
        survivor = vllm().ready()
        with gateway_between(
            victim.url,
            survivor.url,
            template,
            directory,
            "vllm",
            "qwen3.6",
            CARRIED,
            STALL_IDLE_TIMEOUT_SECONDS=STALL_SECONDS,
        ) as gateway:
            yield Scene(gateway, victim, survivor.port)
    finally:
        victim.stop()


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("moment", ["in the reasoning", "in the content"])
def test_the_answer_of_a_vllm_that_is_stopped_is_continued_identically(
    scene: Scene, process: str, moment: str
) -> None:
    answer = scene.strike(process, "SIGSTOP", moment)
    assert scene.gateway.event(answer.request_id)["failure"] == "idle_timeout"


@pytest.mark.parametrize("process", PROCESSES)
def test_the_answer_of_a_vllm_that_is_killed_is_continued_identically(scene: Scene, process: str) -> None:
    answer = scene.strike(process, "SIGKILL", "in the content")
    failures = {"main": ("disconnect", "eof"), "engine": ("error_event",), "worker": ("error_event",)}
    assert scene.gateway.event(answer.request_id)["failure"] in failures[process]


@pytest.mark.parametrize("process", PROCESSES)
def test_the_answer_of_a_vllm_that_is_asked_to_end_is_continued_identically(
    scene: Scene, process: str
) -> None:
    scene.strike(process, "SIGTERM", "in the reasoning")


def test_the_openai_client_notices_nothing_of_a_kill(scene: Scene) -> None:
    engine = scene.victim.ready()
    whole = read(scene.survivor_port, 0)
    killed: list[int] = []
    with slowed(engine) as standing:

        def kill(so_far: Reading) -> None:
            if not killed and len(so_far.content) > 25:
                with standing():
                    engine.signal("engine", signal.SIGKILL)
                killed.append(len(so_far.content))

        got = read(scene.gateway.port, 0, kill)
    scene.victim.spoilt = True
    assert killed
    assert killed[0] < len(whole.content)
    assert (got.reasoning, got.content, got.finishes, got.usages) == (
        whole.reasoning,
        whole.content,
        whole.finishes,
        whole.usages,
    )
    assert len(got.ids) == 1
