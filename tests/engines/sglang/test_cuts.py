"""Greedy answers of the dialogues, cut at every event and continued by chat-continue, the one route to SGLang."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.dialogues import DIALOGUES
from tests.engines.conftest import Report
from tests.engines.cutting import Cut, Stage, every_cut, stage
from tests.engines.sglang.conftest import Sglang

pytestmark = pytest.mark.engine

TITLE = "SGLang 0.5.23, Qwen-like"
SPOKEN = [number for number, each in enumerate(DIALOGUES) if not each.tools]
WITH_TOOLS = [number for number, each in enumerate(DIALOGUES) if each.tools]
# Identical and all cuts inside the content, with the best form of request that was measured by hand.
LEAST_IN_CONTENT = (24, 27)


@pytest.fixture(scope="module")
def pair(sglang: Sglang) -> tuple[int, int]:
    engines = [sglang(), sglang()]
    first, second = (engine.ready().port for engine in engines)
    return first, second


def test_with_thinking_left_on_all_but_cuts_beside_wide_characters_are_continued_identically(
    pair: tuple[int, int], template: Path, tmp_path: Path, report: Report
) -> None:
    """The closing tag in the prefix says that thinking is over; the switch would change the prompt before it."""
    cuts = _continued(pair, template, tmp_path, {"thinking_key": ""})
    report.cuts(TITLE, "chat-continue, thinking key empty", cuts)
    # A token may straddle two such characters; the text's own tokens then differ from those of the answer.
    narrow = [cut for cut in cuts if not _beside_wide(cut)]
    assert [(cut.label, cut.difference()) for cut in narrow if cut.verdict != "identical"] == []
    _are_as_many_as_can_be(cuts)


def test_as_built_in_as_many_cuts_as_can_be_are_continued_identically(
    pair: tuple[int, int], template: Path, tmp_path: Path, report: Report
) -> None:
    cuts = _continued(pair, template, tmp_path, {})
    report.cuts(TITLE, "chat-continue, as built in", cuts)
    _are_as_many_as_can_be(cuts)


def test_a_cut_in_a_tool_call_ends_the_answer_as_failed(
    pair: tuple[int, int], template: Path, tmp_path: Path, report: Report
) -> None:
    """SGLang reports no token ids while it streams, and no text can stand for half a tool call."""
    with stage(pair, template, tmp_path, "sglang", "qwen3.6") as built_in:
        built_in.record(WITH_TOOLS)
        cuts = every_cut(built_in, WITH_TOOLS)
        called = [cut for cut in cuts if cut.kind == "in a tool call"]
        assert called
        assert all(cut.failed_whole() for cut in called)
        assert {_reason(built_in, cut) for cut in called} == {"tool_call_seen"}


def _continued(pair: tuple[int, int], template: Path, directory: Path, row: dict[str, str]) -> list[Cut]:
    with stage(pair, template, directory, "sglang", "qwen3.6", row) as built_in:
        built_in.record(SPOKEN)
        cuts = [cut for cut in every_cut(built_in, SPOKEN) if cut.kind != "before any text"]
    assert [(cut.label, cut.faults()) for cut in cuts if cut.faults()] == []
    return cuts


def _are_as_many_as_can_be(cuts: list[Cut]) -> None:
    good, of = LEAST_IN_CONTENT
    content = [cut for cut in cuts if cut.kind.startswith("C ")]
    assert sum(cut.verdict == "identical" for cut in content) * of >= good * len(content)
    reasoning = [cut for cut in cuts if cut.kind.startswith("R ") and not _beside_wide(cut)]
    assert [(cut.label, cut.difference()) for cut in reasoning if cut.verdict != "identical"] == []


def _reason(set_: Stage, cut: Cut) -> str:
    return str(set_.gateway.event(cut.got.request_id)["reason"])


def _beside_wide(cut: Cut) -> bool:
    """Whether a character beside the cut takes several bytes."""
    field = "content" if cut.first.content else "reasoning"
    text, whole = getattr(cut.first, field), getattr(cut.want, field)
    return any(not character.isascii() for character in (text[-1:], whole[len(text) : len(text) + 1]))
