"""Each process of SGLang is killed, asked to end, or stopped while it writes; another SGLang continues the answer."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.cutting import gateway_between
from tests.engines.faults import STALL_SECONDS, Scene, Victim, slowed
from tests.engines.openai_reader import Reading, read
from tests.engines.sglang.conftest import Sglang

pytestmark = pytest.mark.engine

PROCESSES = ("main", "scheduler", "detokenizer")


@pytest.fixture(scope="module")
def scene(sglang: Sglang, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("faults")
    victim = Victim("sglang", directory / "victim.log")
    try:
        victim.start()
        survivor = sglang().ready()
        with gateway_between(
            victim.url,
            survivor.url,
            template,
            directory,
            "sglang",
            "qwen3.6",
            STALL_IDLE_TIMEOUT_SECONDS=STALL_SECONDS,
        ) as gateway:
            yield Scene(gateway, victim, survivor.port)
    finally:
        victim.stop()


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("moment", ["in the reasoning", "in the content"])
def test_the_answer_of_an_sglang_that_is_stopped_is_continued_identically(
    scene: Scene, process: str, moment: str
) -> None:
    answer = scene.strike(process, "SIGSTOP", moment)
    assert scene.gateway.event(answer.request_id)["failure"] == "idle_timeout"


@pytest.mark.parametrize("process", PROCESSES)
def test_the_answer_of_an_sglang_that_is_killed_is_continued_identically(scene: Scene, process: str) -> None:
    scene.strike(process, "SIGKILL", "in the content")


def test_an_sglang_that_is_asked_to_end_finishes_its_answer_itself(scene: Scene) -> None:
    scene.strike("main", "SIGTERM", "in the reasoning", rescued=False)


@pytest.mark.parametrize("process", PROCESSES[1:])
def test_the_answer_of_an_sglang_whose_other_processes_are_asked_to_end_is_continued_identically(
    scene: Scene, process: str
) -> None:
    scene.strike(process, "SIGTERM", "in the reasoning")


def test_the_openai_client_notices_nothing_of_a_kill(scene: Scene) -> None:
    engine = scene.victim.ready()
    whole = read(scene.survivor_port, 0)
    killed: list[int] = []
    with slowed(engine):

        def kill(so_far: Reading) -> None:
            if not killed and len(so_far.content) > 25:
                engine.signal("scheduler", signal.SIGKILL)
                killed.append(len(so_far.content))

        got = read(scene.gateway.port, 0, kill)
    scene.victim.spoilt = True
    assert killed
    assert killed[0] < len(whole.content)
    assert (got.reasoning, got.content, got.finishes) == (whole.reasoning, whole.content, whole.finishes)
    assert len(got.ids) == 1
    assert len(got.usages) == 1
