"""Each process of vLLM is killed, asked to end, or stopped while it writes; another vLLM continues the answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.faults import STALL_SECONDS, Scene, read_through_a_kill, scene_of
from tests.engines.vllm.conftest import Vllm

pytestmark = pytest.mark.engine

CARRIED = {"render_generate": 1, "token_exact": 1}
PROCESSES = ("main", "engine", "worker")
# A failure is noticed this long after it is due at most, however busy the machine is.
NOTICED_SECONDS = 5.0


@pytest.fixture(scope="module")
def scene(vllm: Vllm, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene_of("vllm", vllm, template, tmp_path_factory.mktemp("faults"), CARRIED) as found:
        yield found


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
    """The API process reports an error in some runs. In others it says nothing more, for 11 to 25 seconds were seen."""
    answer = scene.strike(process, "SIGTERM", "in the reasoning")
    if process == "main":
        row = scene.gateway.event(answer.request_id)
        assert row["failure"] in ("error_event", "idle_timeout")
        assert row["idle_seconds"] < float(STALL_SECONDS) + NOTICED_SECONDS


def test_the_openai_client_notices_nothing_of_a_kill(scene: Scene) -> None:
    got, whole = read_through_a_kill(scene, "engine")
    assert (got.reasoning, got.content, got.finishes) == (whole.reasoning, whole.content, whole.finishes)
    assert got.usages == whole.usages
    assert len(got.ids) == 1
