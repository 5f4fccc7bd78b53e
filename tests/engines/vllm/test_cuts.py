"""Greedy answers of the dialogues, cut at every event, on each route."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.dialogues import DIALOGUES
from tests.engines.conftest import Report
from tests.engines.cutting import Cut, Stage, every_cut, merged, stage
from tests.engines.processes import EngineProcess
from tests.engines.vllm.conftest import Vllm

pytestmark = pytest.mark.engine

TITLE = "vLLM 0.32, Qwen-like"
ALL = range(len(DIALOGUES))
SPOKEN = [number for number, each in enumerate(DIALOGUES) if not each.tools]
CARRIED = {"render_generate": 1, "token_exact": 1}
TOKENIZED = {"render_generate": 1, "token_exact": 0}
BUILT_IN = {"render_generate": 0, "token_exact": 0}
RECOMMENDED = BUILT_IN | {"reasoning_end": "\n"}
BEFORE_TEXT = "before any text"
# Identical and all cuts in the four dialogues without tools, with the best form of request that was measured by hand.
LEAST = {
    "C word boundary": (95, 95),
    "C inside a word": (21, 21),
    "C inside a character": (7, 8),
    "C after white space": (13, 20),
    "C only line breaks": (4, 4),
    "R word boundary": (62, 80),
    "R inside a word": (16, 17),
    "R inside a character": (10, 10),
    "R at its end": (4, 4),
}


@pytest.fixture(scope="module")
def pair(vllm: Vllm) -> tuple[int, int]:
    engines: list[EngineProcess] = [vllm(), vllm()]
    first, second = (engine.ready().port for engine in engines)
    return first, second


@pytest.fixture(scope="module")
def carried(
    pair: tuple[int, int], template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    with stage(pair, template, tmp_path_factory.mktemp("carried"), "vllm", "qwen3.6", CARRIED) as found:
        found.record(ALL)
        found.learn_ids(ALL)
        yield found


def test_with_carried_ids_every_cut_is_continued_identically_inside_tool_calls_too(
    carried: Stage, report: Report
) -> None:
    cuts = every_cut(carried, ALL)
    report.cuts(TITLE, "carried ids", cuts)
    _failed_before_any_text(cuts)
    assert _imperfect(cuts) == []
    assert _routes(carried, cuts) == {"carried-ids"}
    assert any(cut.kind == "in a tool call" for cut in cuts)
    assert [cut.label for cut in _with_text(cuts) if _wrong_usage(carried, cut)] == []


def test_events_of_several_tokens_are_continued_identically_with_carried_ids(carried: Stage) -> None:
    """They may end in the middle of a character whose first tokens are among the ids, but not in the text."""
    whole = {dialogue: carried.first.recorded[str(dialogue)] for dialogue in ALL}
    try:
        for size in (2, 3):
            for dialogue in ALL:
                carried.first.recorded[str(dialogue)] = merged(whole[dialogue], size)
            cuts = every_cut(carried, [1, 3])
            assert _imperfect(cuts) == []
    finally:
        carried.first.recorded |= {str(dialogue): events for dialogue, events in whole.items()}


def test_on_the_token_route_from_text_every_cut_but_in_a_tool_call_is_continued_identically(
    pair: tuple[int, int], template: Path, tmp_path: Path, carried: Stage, report: Report
) -> None:
    with stage(pair, template, tmp_path, "vllm", "qwen3.6", TOKENIZED) as tokenized:
        tokenized.record(ALL)
        tokenized.inside, tokenized.ids, tokenized.closing = carried.inside, carried.ids, carried.closing
        cuts = every_cut(tokenized, ALL)
        report.cuts(TITLE, "tokenized text", cuts)
        _failed_before_any_text(cuts)
        called = [cut for cut in cuts if cut.kind == "in a tool call"]
        assert called
        assert [cut.label for cut in called if not cut.failed_whole()] == []
        cuts = [cut for cut in cuts if cut.kind != "in a tool call"]
        assert _imperfect(cuts) == []
        assert _routes(tokenized, cuts) == {"render-generate"}
        assert [cut.label for cut in _with_text(cuts) if _wrong_usage(tokenized, cut)] == []


def test_with_chat_continue_as_many_cuts_as_can_be_are_continued_identically(
    pair: tuple[int, int], template: Path, tmp_path: Path, carried: Stage, report: Report
) -> None:
    with stage(pair, template, tmp_path, "vllm", "qwen3.6", RECOMMENDED) as built_in:
        built_in.record(SPOKEN)
        built_in.inside, built_in.ids = carried.inside, carried.ids
        built_in.between, built_in.closing = carried.between, carried.closing
        cuts = every_cut(built_in, SPOKEN)
        report.cuts(TITLE, "chat-continue", cuts)
        _failed_before_any_text(cuts)
        assert _routes(built_in, cuts) == {"chat-continue"}
        assert [cut.label for cut in cuts if cut.verdict == "failed" and not cut.failed_whole()] == []
        assert [(cut.label, cut.faults()) for cut in cuts if cut.verdict != "failed" and cut.faults()] == []
        assert [(cut.label, cut.difference()) for cut in cuts if cut.verdict in ("space", "moved")] == []
        assert _less_exact_than(LEAST, cuts) == {}
        _counted_by_events(built_in, cuts)


def _counted_by_events(set_: Stage, cuts: list[Cut]) -> None:
    """Where each event of leg 1 was a token the budget is never overrun, and what the answer has cost is told exactly.

    The prompt of leg 2 is not the first one with the partial behind it: this template writes an open thinking twice.
    A reasoning at its end is sent closed, so that no leg has written the closing token.
    """
    open_ = [cut for cut in _with_text(cuts) if cut.kind != "R at its end"]
    counted = [cut for cut in open_ if set_.tokens_shown(cut) == cut.text_events()]
    assert len(counted) > 50
    assert [(cut.label, cut.spent()) for cut in counted if cut.spent() < cut.text_events()] == []
    wrong = [
        (cut.label, [text for text in cut.wrong_counts() if text.startswith("completion_tokens")])
        for cut in counted
        if cut.verdict == "identical" and cut.spent() == cut.text_events()
    ]
    assert [each for each in wrong if each[1]] == []


def _with_text(cuts: list[Cut]) -> list[Cut]:
    return [cut for cut in cuts if cut.kind != BEFORE_TEXT]


def _failed_before_any_text(cuts: list[Cut]) -> None:
    """Nothing is there to be continued; the client is told so."""
    early = [cut for cut in cuts if cut.kind == BEFORE_TEXT]
    assert early
    assert all(cut.failed_whole() and cut.verdict == "failed" for cut in early)


def _imperfect(cuts: list[Cut]) -> list[tuple[str, ...]]:
    return [
        (cut.label, cut.verdict, cut.difference(), *cut.faults())
        for cut in _with_text(cuts)
        if cut.verdict != "identical" or cut.faults()
    ]


def _routes(set_: Stage, cuts: list[Cut]) -> set[str]:
    rows = [set_.gateway.event(cut.got.request_id) for cut in _with_text(cuts)]
    return {row["route"] for row in rows}


def _wrong_usage(set_: Stage, cut: Cut) -> list[str]:
    """Differences from the uninterrupted answer's, but for one of vLLM's own.

    It does not count reasoning tokens that show no text, as the first ones of a character do not; the continuation
    counts them. So where there are such, reasoning_tokens lies between vLLM's number and the number of ids.
    """
    wrong = cut.wrong_usage()
    ids = set_.ids[cut.dialogue]
    told = cut.want.usage["completion_tokens_details"]["reasoning_tokens"]
    counted = cut.got.usage.get("completion_tokens_details", {}).get("reasoning_tokens", -1)
    thought = ids.index(set_.closing)
    if thought > told and told <= counted <= thought:
        wrong = [text for text in wrong if not text.startswith("completion_tokens_details")]
    return wrong


def _less_exact_than(least: dict[str, tuple[int, int]], cuts: list[Cut]) -> dict[str, str]:
    """Kinds of which more places were missed, or a larger part of more places.

    A place counts once: an answer that is cut while it is written may come in fewer events, and is cut further on.
    """
    places = {(cut.kind, cut.dialogue, cut.first.reasoning, cut.first.content) for cut in cuts}
    missed = {
        (cut.kind, cut.dialogue, cut.first.reasoning, cut.first.content)
        for cut in cuts
        if cut.verdict != "identical"
    }
    everything, wrong = Counter(place[0] for place in places), Counter(place[0] for place in missed)
    return {
        kind: f"{everything[kind] - wrong[kind]} of {everything[kind]}"
        for kind, (good, of) in least.items()
        if not everything[kind] or wrong[kind] * of > (of - good) * max(of, everything[kind])
    }
