"""Each process of SGLang is killed, asked to end, or stopped while it writes; another SGLang continues the answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.faults import Scene, read_through_a_kill, scene_of
from tests.engines.sglang.conftest import Sglang

pytestmark = pytest.mark.engine

PROCESSES = ("main", "scheduler", "detokenizer")


@pytest.fixture(scope="module")
def scene(sglang: Sglang, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene_of("sglang", sglang, template, tmp_path_factory.mktemp("faults")) as found:
        yield found


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
    got, whole = read_through_a_kill(scene, "scheduler")
    assert (got.reasoning, got.content, got.finishes) == (whole.reasoning, whole.content, whole.finishes)
    assert len(got.ids) == 1
    assert len(got.usages) == 1
