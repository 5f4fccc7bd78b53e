"""Models whose renderer never reads `continue_final_message`, with the strategies that are built in for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.dialogues import DIALOGUES
from tests.engines.conftest import Report
from tests.engines.cutting import Cut, every_cut, stage
from tests.engines.processes import EngineProcess
from tests.engines.vllm.conftest import Vllm

pytestmark = pytest.mark.engine

SPOKEN = [number for number, each in enumerate(DIALOGUES) if not each.tools]
ONE = [3]
FAMILIES = {"tiny-k3": "kimi-k3", "tiny-ds4": "deepseek-v4-flash"}
BETWEEN = {
    "kimi-k3": "<|close|>think<|sep|><|open|>response<|sep|>",
    "deepseek-v4-flash": "</think>",
}
CHAT = {"render_generate": 0, "token_exact": 0}


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def variant(request: pytest.FixtureRequest, vllm: Vllm) -> Iterator[tuple[str, int]]:
    """(the model's family, the port of a vLLM that serves one in its manner)"""
    engine: EngineProcess = vllm(request.param)
    yield FAMILIES[request.param], engine.ready().port
    engine.stop()


def test_the_token_route_continues_every_cut_between_two_tokens_identically(
    variant: tuple[str, int], template: Path, tmp_path: Path, report: Report
) -> None:
    family, port = variant
    with stage((port, port), template, tmp_path, "vllm", family) as built_in:
        built_in.record(SPOKEN)
        built_in.learn_ids(SPOKEN, BETWEEN[family])
        cuts = every_cut(built_in, SPOKEN)
        report.cuts(f"vLLM 0.32, in the manner of {family}", "tokenized text", cuts)
        assert {built_in.gateway.event(cut.got.request_id)["route"] for cut in _with_text(cuts)} == {
            "render-generate"
        }
        # DeepSeek-V4's parser waits with a line break that is part of a token: text cannot tell of it, ids can.
        told = [cut for cut in cuts if not built_in.ends_inside_a_token(cut)]
        assert len(told) > len(cuts) * 0.95
        assert _imperfect(told) == []


def test_carried_ids_continue_every_cut_identically(
    variant: tuple[str, int], template: Path, tmp_path: Path, report: Report
) -> None:
    family, port = variant
    with stage((port, port), template, tmp_path, "vllm", family, {"token_exact": 1}) as carried:
        carried.record(SPOKEN)
        cuts = every_cut(carried, SPOKEN)
        report.cuts(f"vLLM 0.32, in the manner of {family}", "carried ids", cuts)
        assert _imperfect(cuts) == []


def test_chat_continue_continues_none_because_the_turn_is_closed(
    variant: tuple[str, int], template: Path, tmp_path: Path, report: Report
) -> None:
    family, port = variant
    with stage((port, port), template, tmp_path, "vllm", family, CHAT) as plain:
        plain.record(ONE)
        cuts = [cut for cut in every_cut(plain, ONE) if cut.kind not in ("before any text", "complete")]
        report.cuts(f"vLLM 0.32, in the manner of {family}", "chat-continue", cuts)
        assert cuts
        assert [cut.label for cut in cuts if cut.verdict == "identical"] == []


@pytest.mark.parametrize(
    ("fallback", "carried"), [("none", 0), ("completions", 0), ("completions", 1)], ids=str
)
def test_a_server_without_the_endpoints_of_the_token_route(
    template: Path, tmp_path: Path, without_scale_out: int, fallback: str, carried: int
) -> None:
    """With carried ids too, which may end inside a character: vLLM would then show the text of the whole prompt."""
    row = {"without_scale_out": fallback, "token_exact": carried}
    with stage((without_scale_out, without_scale_out), template, tmp_path, "vllm", "kimi-k3", row) as bare:
        bare.record(ONE)
        cuts = _with_text(every_cut(bare, ONE))
        rows = [bare.gateway.event(cut.got.request_id) for cut in cuts]
        if fallback == "completions":
            assert _imperfect(cuts) == []
            return
        assert {row["reason"] for row in rows} == {"scale_out_missing"}
        for cut in cuts:
            assert cut.failed_whole()
            assert cut.got.errors[0]["code"] == "scale_out_missing"
            assert (cut.got.reasoning, cut.got.content) == (cut.first.reasoning, cut.first.content)


@pytest.fixture(scope="module")
def without_scale_out(vllm: Vllm) -> Iterator[int]:
    engine: EngineProcess = vllm("tiny-k3", "--no-scale-out")
    yield engine.ready().port
    engine.stop()


def _with_text(cuts: list[Cut]) -> list[Cut]:
    return [cut for cut in cuts if cut.kind != "before any text"]


def _imperfect(cuts: list[Cut]) -> list[tuple[str, ...]]:
    return [
        (cut.label, cut.verdict, cut.difference(), *cut.faults(), *cut.wrong_counts())
        for cut in _with_text(cuts)
        if cut.verdict != "identical" or cut.faults() or cut.wrong_counts()
    ]
