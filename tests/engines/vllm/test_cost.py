"""What the token route costs: calls, and the gateway's own work, as an answer grows long."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import Report
from tests.engines.cutting import Stage, stage
from tests.engines.reading import Answer, ask, chat
from tests.engines.vllm.conftest import Vllm

pytestmark = pytest.mark.engine

LONG = 8000
BATCH = 8
CUT_AFTER = 40
CARRIED = {"render_generate": 1, "token_exact": 1}


@pytest.fixture(scope="module")
def long_vllm(vllm: Vllm) -> int:
    """With room for long answers; what comes after the dialogue that was learnt is no language."""
    overrides = '{"max_position_embeddings": 16384}'
    return vllm("tiny", "--max-model-len", "9000", "--", "--hf-overrides", overrides).ready().port


@pytest.fixture(params=[{"render_generate": 1}, CARRIED], ids=["tokenized text", "carried ids"])
def long_stage(
    request: pytest.FixtureRequest, long_vllm: int, template: Path, tmp_path: Path
) -> Iterator[Stage]:
    ports = (long_vllm, long_vllm)
    settings = {"DERENDER_BATCH_CHUNKS": str(BATCH)}
    with stage(ports, template, tmp_path, "vllm", "qwen3.6", request.param, **settings) as found:
        yield found


def test_an_8000_token_answer_costs_few_calls_and_work_in_step_with_its_length(
    long_stage: Stage, report: Report, request: pytest.FixtureRequest
) -> None:
    spent: list[tuple[int, float]] = []

    def on_event(answer: Answer) -> None:
        spent.append((len(answer.events), _cpu_seconds(long_stage.gateway.pid)))

    started = time.monotonic()
    body = chat(0, max_tokens=LONG, ignore_eos=True)
    got = ask(long_stage.gateway.port, body, {"X-Cut-After": str(CUT_AFTER), "X-Cut-How": "reset"}, on_event)
    seconds = time.monotonic() - started
    assert got.faults() == []
    assert got.finishes == ["length"]
    assert got.usage["completion_tokens"] == LONG

    second = long_stage.of_leg2(got)
    generated = [each for each in second if each.path.endswith("/generate")]
    derendered = [each for each in second if each.path.endswith("/derender")]
    assert len(generated) == 1
    chunks = sum(b'"token_ids"' in event for event in generated[0].events)
    assert len(derendered) <= math.ceil(chunks / BATCH) + 3

    ours = [(events, cpu) for events, cpu in spent if events > CUT_AFTER]
    first, last = ours[0][1], ours[-1][1]
    middle = next(cpu for events, cpu in ours if events >= (ours[0][0] + ours[-1][0]) / 2)
    halves = middle - first, last - middle
    sent = sum(len(each.body) for each in derendered)
    report.note(
        f"{request.node.callspec.id}, {LONG} tokens: {chunks} chunks, {len(derendered)} derender calls, "
        f"{seconds:.0f} s, the gateway's CPU {last - first:.2f} s, of it {halves[0]:.2f} s in the first half and "
        f"{halves[1]:.2f} s in the second; {sent / 1e6:.1f} MB sent to be derendered"
    )
    assert halves[1] < 2 * halves[0] + 0.5


@pytest.mark.parametrize("dialogue", [0, 1, 2, 3])
def test_a_short_answer_costs_few_calls_too(long_stage: Stage, dialogue: int) -> None:
    got = long_stage.ask(dialogue, {"X-Cut-After": "12", "X-Cut-How": "eof"})
    assert got.faults() == []
    second = long_stage.of_leg2(got)
    chunks = sum(
        bool(choice.get("token_ids"))
        for each in second
        if each.path.endswith("/generate")
        for event in each.events
        if b"[DONE]" not in event
        for choice in json.loads(event.removeprefix(b"data: "))["choices"]
    )
    calls = sum(each.path.endswith("/derender") for each in second)
    assert 0 < calls <= math.ceil(chunks / BATCH) + 3


def _cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
