"""Would SGLang's `input_ids` continue more answers than text does? Asked of the engine itself, without the gateway.

It takes ids in place of the rendered prompt, but never tells those of an answer while it streams it, so they can
only come from tokenizing the text again: the very tokens that SGLang makes of the text itself. What does help is to
hand over less, up to a place where no token can straddle, and to drop what is then told again; but that needs an
engine that tells it again the same, which no sampling promises, and there is no third leg. Hence text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from engines.dialogues import DIALOGUES
from tests.engines.conftest import Report
from tests.engines.cutting import in_most_events
from tests.engines.processes import EngineProcess, post
from tests.engines.reading import MODEL, Answer, ask, chat
from tests.engines.sglang.conftest import Sglang

pytestmark = pytest.mark.engine

SPOKEN = [number for number, each in enumerate(DIALOGUES) if not each.tools]
WIDE_AT_END = re.compile(r"[^\x00-\x7f\s]+\Z")


@dataclass(frozen=True, slots=True)
class Half:
    """A beginning of an answer."""

    dialogue: int
    reasoning: str
    content: str

    @property
    def text(self) -> str:
        return self.reasoning + "</think>" + self.content if self.content else self.reasoning

    def shortened(self) -> Half:
        """Without the wide characters at its end, which the engine is then to tell again."""
        if self.content:
            return Half(self.dialogue, self.reasoning, WIDE_AT_END.sub("", self.content))
        return Half(self.dialogue, WIDE_AT_END.sub("", self.reasoning), "")

    def joined(self, more: Answer) -> tuple[str, str]:
        return self.reasoning + more.reasoning, self.content + more.content


def test_ids_of_the_text_continue_just_the_cuts_that_the_text_itself_does(
    sglang: Sglang, report: Report
) -> None:
    engine = sglang().ready()
    exact: dict[str, set[tuple[int, str]]] = {"text": set(), "ids": set(), "ids, less handed over": set()}
    cuts = Counter[str]()
    for dialogue in SPOKEN:
        whole = in_most_events(engine.port, chat(dialogue))
        want = whole.reasoning, whole.content
        rendered = post(engine.url, "/tokenize", {"model": MODEL, "messages": chat(dialogue)["messages"]})
        for half in _halves(dialogue, whole):
            cuts["all"] += 1
            place = dialogue, half.text
            shorter = half.shortened()
            got = {
                "text": half.joined(_by_text(engine, half)),
                "ids": half.joined(_by_ids(engine, half, rendered["tokens"])),
                "ids, less handed over": shorter.joined(_by_ids(engine, shorter, rendered["tokens"])),
            }
            for name, told in got.items():
                if told == want:
                    exact[name].add(place)
    told = "; ".join(f"{name} {len(places)}" for name, places in exact.items())
    report.note(f"SGLang asked by hand, thinking left on, {cuts['all']} cuts, identical with: {told}")
    assert exact["ids"] == exact["text"]
    assert exact["text"] < exact["ids, less handed over"]


def _halves(dialogue: int, whole: Answer) -> Iterator[Half]:
    for after in range(1, len(whole.events)):
        first = Answer("", events=whole.events[:after])
        if first.finishes:
            return
        if first.reasoning or first.content:
            yield Half(dialogue, first.reasoning, first.content)


def _by_text(engine: EngineProcess, half: Half) -> Answer:
    message = {"role": "assistant", "content": half.text}
    body = chat(half.dialogue, continue_final_message=True)
    return ask(engine.port, body | {"messages": [*body["messages"], message]})


def _by_ids(engine: EngineProcess, half: Half, rendered: list[int]) -> Answer:
    """The message only tells SGLang's parser whether the thinking is over."""
    asked = {"model": MODEL, "prompt": half.text, "add_special_tokens": False}
    ids = [*rendered, *post(engine.url, "/tokenize", asked)["tokens"]]
    message = {"role": "assistant", "content": "</think>" if half.content else "<think>"}
    body = chat(half.dialogue, continue_final_message=True, input_ids=ids)
    return ask(engine.port, body | {"messages": [*body["messages"], message]})
