"""Every answer of the dialogues, cut at every event and continued through the gateway."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engines.forwarder import WAYS, Exchange, Forwarder
from tests.engines.processes import post
from tests.engines.reading import MODEL, Answer, ask, chat, kind_of, verdict
from tests.harness.gateway import TROUBLE, Gateway

# So many answers at a time: with more, the engine has less time for each, and none is done sooner.
AT_ONCE = 4
# So many times an answer is asked for at most, until it has twice come in as many events as ever: one for each token.
RECORDINGS = 8
# Every so-manieth cut is made in an answer that is being written, the others in one that was recorded.
LIVE = 7
TEXTS = ("reasoning", "reasoning_content", "content")


@dataclass
class Stage:
    """A gateway between two engines, or between twice the same, with a forwarder before each."""

    gateway: Gateway
    first: Forwarder
    second: Forwarder
    references: dict[int, Answer] = field(default_factory=dict)
    inside: dict[int, set[tuple[str, str]]] = field(default_factory=dict)
    ids: dict[int, list[int]] = field(default_factory=dict)
    between: str = ""
    closing: int = -1
    _after_each: dict[int, list[str]] = field(default_factory=dict)

    def ask(self, dialogue: int, headers: Mapping[str, str] | None = None, **more: Any) -> Answer:
        return ask(self.gateway.port, chat(dialogue, **more), dict(headers or {}))

    def of_leg1(self, answer: Answer) -> Exchange:
        return self.first.exchanges[answer.request_id][0]

    def of_leg2(self, answer: Answer) -> list[Exchange]:
        return self.second.exchanges.get(f"{answer.request_id}-leg2", [])

    def record(self, dialogues: Collection[int]) -> None:
        """Uninterrupted answers: as the client gets them, and as the engine sends them to be cut."""
        for dialogue in dialogues:
            self.references[dialogue] = reference = self.ask(dialogue)
            assert reference.faults() == [], (dialogue, reference.faults())
            asked = self.of_leg1(reference).body
            best = in_most_events(_port(self.first), asked)
            # Whether SGLang shows a line break between two tool calls depends on how its tokens come together.
            assert verdict(best, reference) in ("identical", "space"), "greedy answers differ"
            self.first.recorded[str(dialogue)] = best.events

    def learn_ids(self, dialogues: Collection[int], between: str = "</think>") -> None:
        """The answers' ids, and which texts end between the tokens of one character; on vLLM.

        between: what comes between reasoning and content; `closing` is the first id of it.
        """
        asked = {"model": MODEL, "prompt": between, "add_special_tokens": False}
        self.between, self.closing = between, post(self.first.url, "/tokenize", asked)["tokens"][0]
        for dialogue in dialogues:
            told = in_most_events(_port(self.first), chat(dialogue, return_token_ids=True))
            self.inside[dialogue] = set(_between_tokens(told))
            self.ids[dialogue] = [token for choice in told.choices for token in choice.get("token_ids") or ()]

    def ends_inside_a_token(self, cut: Cut) -> bool:
        """Whether the engine had shown a part of its newest token only: a parser may wait with white space."""
        return self.tokens_shown(cut) is None

    def tokens_shown(self, cut: Cut) -> int | None:
        """How many of the ids make up the text that was shown; None if that ends inside one of them."""
        shown = cut.first.reasoning + (self.between + cut.first.content if cut.first.content else "")
        texts = self._texts(cut.dialogue)
        return texts.index(shown) + 1 if shown in texts else None

    def _texts(self, dialogue: int) -> list[str]:
        """What had been generated after each of the ids."""
        if dialogue not in self._after_each:
            ids = self.ids[dialogue]
            asked = ({"model": MODEL, "tokens": ids[:size]} for size in range(1, len(ids)))
            self._after_each[dialogue] = [
                post(self.first.url, "/detokenize", each)["prompt"] for each in asked
            ]
        return self._after_each[dialogue]


def in_most_events(port: int, asked: bytes | dict[str, Any]) -> Answer:
    takes: list[Answer] = []
    for _ in range(RECORDINGS):
        takes.append(ask(port, asked))
        lengths = [len(take.events) for take in takes]
        if lengths.count(max(lengths)) > 1:
            break
    return max(takes, key=lambda take: len(take.events))


def _port(forwarder: Forwarder) -> int:
    return int(forwarder.url.rpartition(":")[2])


def _between_tokens(answer: Answer) -> Iterator[tuple[str, str]]:
    reasoning = content = ""
    for choice in answer.choices:
        more = choice["delta"].get("reasoning") or "", choice["delta"].get("content") or ""
        reasoning, content = reasoning + more[0], content + more[1]
        if (
            not any(more)
            and (reasoning or content)
            and choice.get("token_ids")
            and not choice["finish_reason"]
        ):
            yield reasoning, content


@contextmanager
def stage(
    engines: tuple[int, int],
    template: Path,
    directory: Path,
    engine: str,
    model: str,
    row: Mapping[str, Any] | None = None,
    **settings: str,
) -> Iterator[Stage]:
    """engines: ports of the two. The rest is as for gateway_between."""
    first, second = Forwarder(engines[0], cutting=True), Forwarder(engines[1], cutting=False)
    try:
        with gateway_between(
            first.url, second.url, template, directory, engine, model, row, **settings
        ) as found:
            yield Stage(found, first, second)
    finally:
        first.stop()
        second.stop()


@contextmanager
def gateway_between(
    downstream: str,
    continuation: str,
    template: Path,
    directory: Path,
    engine: str,
    model: str,
    row: Mapping[str, Any] | None = None,
    **settings: str,
) -> Iterator[Gateway]:
    """row: columns of the built-in strategy `model-engine` to be set first; nothing else is changed of it."""
    database = directory / "template.sqlite3"
    database.write_bytes(template.read_bytes())
    if row:
        _set(database, f"{model}-{engine}", row)
    configured = {
        "DOWNSTREAM_URL": downstream,
        "CONTINUATION_URL": continuation,
        "CONTINUATION_MODEL": model,
        "CONTINUATION_ENGINE": engine,
        **settings,
    }
    gateway = Gateway(configured, database, directory)
    try:
        yield gateway
        assert gateway.is_running()
        assert not TROUBLE.findall(gateway.log), gateway.log[-3000:]
    finally:
        gateway.stop()


def _set(database: Path, name: str, columns: Mapping[str, Any]) -> None:
    assignments = ", ".join(f"{column} = ?" for column in columns)
    connection = sqlite3.connect(database)
    try:
        changed = connection.execute(
            f"UPDATE strategies_strategy SET {assignments} WHERE name = ?", [*columns.values(), name]
        )
        assert changed.rowcount == 1, f"no strategy {name}"
        connection.commit()
    finally:
        connection.close()


@dataclass
class Cut:
    """One answer that was cut after `after` events, and what the client got."""

    dialogue: int
    after: int
    way: str
    kind: str
    verdict: str
    first: Answer
    got: Answer
    want: Answer
    second: list[Exchange]

    @property
    def label(self) -> str:
        return f"dialogue {self.dialogue}, {self.way} after event {self.after} ({self.kind})"

    def faults(self) -> list[str]:
        """What is wrong with the form of it, whatever it says."""
        found = self.got.faults()
        kept = [call["ids"] for call in self.first.tool_calls]
        if kept != [call["ids"] for call in self.got.tool_calls[: len(kept)]]:
            found.append(f"ids of tool calls became {[call['ids'] for call in self.got.tool_calls]}")
        if not self.got.reasoning.startswith(self.first.reasoning):
            found.append("the reasoning does not begin as it did")
        if not self.got.content.startswith(self.first.content):
            found.append("the content does not begin as it did")
        return found

    def wrong_usage(self) -> list[str]:
        """What the client is told of tokens, where it is not what the uninterrupted answer told."""
        got, want = self.got.usage, self.want.usage
        return [f"{name} {got.get(name)}, not {want[name]}" for name in want if got.get(name) != want[name]]

    def wrong_counts(self) -> list[str]:
        """The same of what is paid for: tokens in and out."""
        return [text for text in self.wrong_usage() if not text.startswith("completion_tokens_details")]

    def text_events(self) -> int:
        """How many events with text the client had of leg 1."""
        deltas = [choice["delta"] for choice in self.first.choices]
        return sum(any(delta.get(name) for name in TEXTS) for delta in deltas)

    def spent(self) -> int:
        """What leg 1 has cost of the budget, by what leg 2 was left of it."""
        asked, *_ = [each for each in self.second if b"continue_final_message" in each.body]
        return int(chat(self.dialogue)["max_tokens"]) - int(json.loads(asked.body)["max_tokens"])

    def failed_whole(self) -> bool:
        """Whether a failure was told as one: a single error, last of all, and no [DONE]."""
        return len(self.got.errors) == 1 and "[DONE]" not in self.got.data and not self.got.broken

    def difference(self) -> str:
        """The first place where the two differ, with what is around it."""
        for name in ("reasoning", "content"):
            got, want = getattr(self.got, name), getattr(self.want, name)
            if got != want:
                at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), 0)
                start = max(0, at - 15)
                return f"{name}: {got[start : at + 25]!r}, not {want[start : at + 25]!r}"
        return f"{self.got.tool_calls} {self.got.finishes} {self.got.errors}"


def every_cut(set_: Stage, dialogues: Collection[int]) -> list[Cut]:
    """Every event of every answer but the last ones, which come when it is finished already."""
    jobs = [
        (dialogue, after, WAYS[(after + dialogue) % len(WAYS)])
        for dialogue in dialogues
        for events in [set_.first.recorded[str(dialogue)]]
        for after in range(1, len(events))
        if not Answer("", events=events[:after]).finishes
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda job: _cut(set_, *job), jobs))
    return [cut for cut in found if cut is not None]


def merged(events: list[bytes], size: int) -> list[bytes]:
    """The same answer as a busy engine would send it: so many tokens to an event, as long as they are of one field."""
    told: list[dict[str, Any]] = []
    room = 0
    for chunk in Answer("", events=events).chunks:
        last = told[-1]["choices"] if told else []
        choice = next(iter(chunk["choices"]), None)
        if room and choice and last and not choice["finish_reason"] and _same_field(last[0], choice):
            for name, text in choice["delta"].items():
                last[0]["delta"][name] = last[0]["delta"].get(name, "") + text
            last[0]["token_ids"] = [*(last[0].get("token_ids") or ()), *(choice.get("token_ids") or ())]
            told[-1]["usage"] = chunk["usage"]
            room -= 1
        else:
            told.append(chunk)
            room = size - 1
    return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in told] + [b"data: [DONE]\n\n"]


def _same_field(before: dict[str, Any], after: dict[str, Any]) -> bool:
    names = set(before["delta"]) | set(after["delta"])
    return len(names) <= 1 and names <= {"reasoning", "content"}


def _cut(set_: Stage, dialogue: int, after: int, way: str) -> Cut | None:
    """None for an answer that was over before it was to be cut: a live one may come in fewer events."""
    headers = {"X-Cut-After": str(after), "X-Cut-How": way}
    if (after + dialogue) % LIVE:
        headers["X-Replay"] = str(dialogue)
    got = set_.ask(dialogue, headers)
    assert got.status == 200, (dialogue, after, got.status, got.events)
    leg1 = set_.of_leg1(got)
    first, want = Answer("", events=leg1.events), set_.references[dialogue]
    if not leg1.was_cut or first.finishes:
        assert "X-Replay" not in headers
        return None
    inside = (first.reasoning, first.content) in set_.inside.get(dialogue, ())
    kind = kind_of(first, want, inside)
    return Cut(dialogue, after, way, kind, verdict(got, want), first, got, want, set_.of_leg2(got))


@dataclass
class Table:
    """How many cuts of each kind were continued identically, on each route."""

    counts: dict[str, dict[str, Counter[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Counter))
    )

    def add(self, route: str, cuts: Collection[Cut]) -> None:
        for cut in cuts:
            self.counts[cut.kind][route].update([cut.verdict, "all"])

    def lines(self, title: str) -> list[str]:
        """As Markdown."""
        routes = list(dict.fromkeys(route for by_route in self.counts.values() for route in by_route))
        lines = [f"| {title} | {' | '.join(routes)} |", "| --- |" + " --- |" * len(routes)]
        for kind in sorted(self.counts):
            cells = [_cell(self.counts[kind].get(route)) for route in routes]
            lines.append(f"| {kind} | {' | '.join(cells)} |")
        return lines


def _cell(counts: Counter[str] | None) -> str:
    if counts is None:
        return "-"
    others = [
        f"{number} {word}" for word, number in sorted(counts.items()) if word not in ("all", "identical")
    ]
    return f"{counts['identical']} of {counts['all']}" + (f" ({', '.join(others)})" if others else "")
