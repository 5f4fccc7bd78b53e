"""A state machine of hypothesis: one stream with everything that can happen to it, told to two splices at once.

One gets each event in a read of its own, the other the same bytes cut anywhere. Both must come to the same end, and
that end must agree with what was said, as `reading` understands it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import event as tally
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from continuation.splice.course import Phase
from continuation.vocabulary import Failure
from strategies.engines import Engine
from strategies.types import GENERIC, CompiledStrategy, Fallback
from tests.continuation.splice.playbook import DONE, ID, ID2, Play, Told, chunk, event, tokens, told
from tests.fuzz.reading import Said, blocks, said, words

Texts = tuple[str, str]  # reasoning, content
STOP = "#END"
STRATEGIES = [
    GENERIC,
    CompiledStrategy("trims", "t", open="<think>\n", template_trims=True),
    CompiledStrategy("again", "a", may_think_again=True),
    CompiledStrategy("k3", "k", open="<|open|>", close="<|close|>", content_open="<|say|>"),
    CompiledStrategy("exact", "e", Engine.VLLM, token_exact=True, without_scale_out=Fallback.CHAT),
    CompiledStrategy("ids", "i", Engine.VLLM, render_generate=True),
]
USAGE: list[dict[str, Any]] = [
    {},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]
SMALL_EVENTS, SMALL_PARTIAL = 700, 200
PIECES = [
    "<think>",
    "</think>",
    "<thi",
    "nk>",
    "</th",
    "ink>",
    "<|close|>",
    "<|say|>",
    "#",
    "E",
    "ND",
    " ",
    "\n",
]
BLANK = [b"\n", b"\n\n\n", b": ping\n\n", b":\n:\n\n", b"id: 7\n\n", b"retry: 1\n\n", b"foo\n\n"]
ODD: list[Any] = [
    {"choices": []},
    {"choices": None},
    {"choices": [None, 3]},
    {"choices": [{"delta": None, "index": None}]},
    {"choices": [{"delta": "text", "finish_reason": 0}]},
    {"usage": {"completion_tokens": "x", "completion_tokens_details": 3}},
    {"odd": 1},
    [],
    7,
    None,
    "text",
]
KINDS = st.sampled_from(
    [
        "content", "content", "content", "reasoning", "both names", "pieces", "space", "role", "empty", "ids",
        "call", "part", "function", "call with text", "call with finish", "usage", "counted", "counted low",
        "second choice", "odd", "silent", "lines", "large", "large with finish", "surrogate", "list",
        "finish", "done", "error", "named error", "client error", "abort", "malformed", "garbage", "no end",
    ]
)  # fmt: skip
HARMLESS = st.sampled_from(
    ["content", "reasoning", "pieces", "space", "role", "empty", "ids", "call", "part", "counted", "silent"]
)
LINE_ENDS = [b"\n", b"\n", b"\r\n", b"\r"]


@dataclass
class Leg:
    """All bytes of one leg, and whether it is over."""

    ident: dict[str, Any]
    stream: bytearray = field(default_factory=bytearray)
    pending: bytearray = field(default_factory=bytearray)  # what the second splice has not got yet
    over: bool = False


class SpliceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.total = 0
        self.repeats = False
        self.gone = False
        self.cut_off = False
        self.leg1, self.leg2 = Leg(ID), Leg(ID2)
        self.leg = self.leg1

    @initialize(
        strategy=st.sampled_from(STRATEGIES),
        usage=st.sampled_from(USAGE),
        more=st.sampled_from([{}, {}, {"max_tokens": 300}, {"max_tokens": 9}, {"return_token_ids": True}]),
        stops=st.sampled_from([{}, {"stop": STOP}, {"stop": [STOP], "include_stop_str_in_output": True}]),
        enabled=st.sampled_from([True] * 9 + [False]),
        held=st.booleans(),
        held_limit=st.sampled_from([0, 500, 2**20]),
        event_limit=st.sampled_from([2**20, 2**20, SMALL_EVENTS]),
        partial_limit=st.sampled_from([2**20, 2**20, SMALL_PARTIAL]),
        line_end=st.sampled_from(LINE_ENDS),
        bom=st.booleans(),
        start=st.lists(HARMLESS, max_size=5),
        data=st.data(),
    )
    def begins(
        self,
        strategy: CompiledStrategy,
        usage: Any,
        more: Any,
        stops: Any,
        line_end: bytes,
        bom: bool,
        start: list[str],
        data: st.DataObject,
        **rest: Any,
    ) -> None:
        self.line_end = line_end
        self.limit, self.held_limit = rest["event_limit"], rest["held_limit"]
        options = {
            "enabled": rest["enabled"],
            "buffer_tool_calls": rest["held"],
            "buffer_limit": rest["held_limit"],
            "event_limit": rest["event_limit"],
            "partial_limit": rest["partial_limit"],
            "idle_timeout": 5.0,
        }
        self.partial_limit = rest["partial_limit"]
        body = {**usage, **more, **stops}
        self.plays = [Play(body, strategy, **options) for _ in range(2)]
        self.first, self.second = self.plays
        if bom:
            self.leg1.stream += b"\xef\xbb\xbf"
            self.leg1.pending += b"\xef\xbb\xbf"
            self.first.reads(b"\xef\xbb\xbf")
        for kind in start:
            self.tell(self.atom(kind, data))

    # -- what is said --------------------------------------------------------------------------

    def word(self) -> str:
        self.number += 1
        return f"w{self.number}."

    def chunk(self, delta: Any, finish: str | None = None, **more: Any) -> bytes:
        return chunk(delta, finish, ident=self.leg.ident, **more)

    def call(self, arguments: str, **more: Any) -> dict[str, Any]:
        made: dict[str, Any] = {"index": 0, "function": {"arguments": arguments}}
        return {"tool_calls": [made | more]}

    def atom(self, kind: str, data: st.DataObject) -> bytes:
        """The bytes of one thing that an engine, or what stands before it, may say; lines end in LF here."""
        match kind:
            case "content":
                return self.chunk({"content": f"{self.word()} {self.word()}"})
            case "reasoning":
                return self.chunk({"reasoning": f"{self.word()} "})
            case "both names":
                text = self.word()
                return self.chunk({"reasoning": text, "reasoning_content": text})
            case "pieces":
                field = data.draw(st.sampled_from(["content", "reasoning"]))
                return self.chunk({field: "".join(data.draw(st.lists(st.sampled_from(PIECES), max_size=3)))})
            case "space":
                return self.chunk({"content": data.draw(st.sampled_from([" ", "\n", "\n\n", " \n "]))})
            case "role":
                return self.chunk({"role": "assistant", "content": ""})
            case "empty":
                return self.chunk(data.draw(st.sampled_from([None, {}, {"content": ""}, {"content": None}])))
            case "ids":
                return self.ids(data.draw(st.integers(0, 2)))
            case "call":
                return self.chunk(self.call("", id=f"c{self.word()}", type="function"))
            case "part":
                return self.chunk(self.call(self.word()))
            case "function":
                return self.chunk({"function_call": {"name": "f", "arguments": self.word()}})
            case "call with text":
                return self.chunk({"content": self.word(), **self.call(self.word())})
            case "call with finish":
                return self.chunk(self.call(self.word()), "tool_calls")
            case "usage":
                return event({**self.leg.ident, "choices": [], "usage": tokens(9, self.count())})
            case "counted":
                return self.chunk({"content": self.word()}, usage=tokens(9, self.count()))
            case "counted low":
                return self.chunk({"content": self.word()}, usage=tokens(9, 1))
            case "second choice":
                other = {"index": 1, "delta": {"content": "other"}, "finish_reason": None}
                return event({**self.leg.ident, "choices": [other]})
            case "odd":
                return event(data.draw(st.sampled_from(ODD)))
            case "silent":
                return data.draw(st.sampled_from(BLANK))
            case "lines":
                return event({**self.leg.ident, "choices": []}).replace(b", ", b",\ndata: ")
            case "large":
                return self.chunk({"content": "y" * SMALL_EVENTS})
            case "large with finish":
                return self.chunk({"content": "y" * SMALL_EVENTS}, "stop")
            case "surrogate":
                return self.chunk({"content": data.draw(st.sampled_from(["\ud83d", "\ude00", "a\ud83d"]))})
            case "list":
                return self.chunk({"content": [{"type": "text", "text": "parts"}]})
            case "finish":
                return self.chunk(
                    {}, data.draw(st.sampled_from(["stop", "length", "tool_calls", "", "null"]))
                )
            case "done":
                return DONE
            case "error":
                return event({"error": {"message": "boom", "code": 500}})
            case "named error":
                return data.draw(st.sampled_from([b"event: error\n\n", b"event: error\ndata: x\n\n"]))
            case "client error":
                return event({"error": {"message": "bad", "code": 400}})
            case "abort":
                return self.chunk({"content": self.word()}, "abort")
            case "malformed":
                return b'data: {"choices":[{"delta":{"content":"he\n\n'
            case "garbage":
                return data.draw(st.binary(max_size=12))
            case _:
                return self.chunk({"content": self.word()}).rstrip(b"\n")

    def count(self) -> int:
        self.total += 3
        return self.total

    def ids(self, length: int) -> bytes:
        self.total += length
        choice = {"index": 0, "delta": {}, "finish_reason": None, "token_ids": [5] * length}
        return event(
            {
                **self.leg.ident,
                "choices": [choice],
                "usage": tokens(9, self.total),
                "prompt_token_ids": [1, 2],
            }
        )

    # -- what happens --------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self.first.splice.ended

    @property
    def hears(self) -> bool:
        """Whether bytes of the current leg may arrive."""
        return bool(self.first.open) and not self.ended and (self.opened or not self.first.asked)

    @property
    def opened(self) -> bool:
        return self.leg is self.leg2

    def tell(self, said: bytes) -> None:
        """What comes behind the end of a leg may be in the same read."""
        said = said.replace(b"\n", self.line_end)
        self.leg.stream += said
        self.leg.pending += said
        if self.hears:
            self.first.reads(said)

    def catch_up(self, cuts: list[int]) -> None:
        """The second splice gets what the first has got, in other reads."""
        pending = bytes(self.leg.pending)
        at = sorted({0, *(cut % (len(pending) + 1) for cut in cuts), len(pending)})
        self.second.reads(*(pending[a:b] for a, b in pairwise(at)))
        self.leg.pending.clear()

    CUTS = st.lists(st.integers(0, 2**16), max_size=8)

    @precondition(lambda self: self.hears)
    @rule(kinds=st.lists(KINDS, min_size=1, max_size=3), data=st.data())
    def says(self, kinds: list[str], data: st.DataObject) -> None:
        for kind in kinds:
            self.tell(self.atom(kind, data))

    @precondition(lambda self: self.hears)
    @rule(kinds=st.lists(HARMLESS, min_size=2, max_size=8), data=st.data(), cuts=CUTS)
    def says_much(self, kinds: list[str], data: st.DataObject, cuts: list[int]) -> None:
        for kind in kinds:
            self.tell(self.atom(kind, data))
        self.catch_up(cuts)

    @precondition(lambda self: self.hears)
    @rule(seconds=st.sampled_from([0.5, 4.9, 5.0, 60.0]), cuts=CUTS)
    def time_passes(self, seconds: float, cuts: list[int]) -> None:
        self.catch_up(cuts)
        for play in self.plays:
            play.waits(seconds)

    @precondition(lambda self: self.hears)
    @rule(failure=st.sampled_from([Failure.EOF, Failure.DISCONNECT]), cuts=CUTS)
    def leg_ends(self, failure: Failure, cuts: list[int]) -> None:
        self.catch_up(cuts)
        self.leg.over = True
        for play in self.plays:
            play.ends(failure)

    @precondition(lambda self: not self.ended and self.first.asked and not self.opened)
    @rule(how=st.sampled_from(["opened"] * 9 + ["refused", "unreachable", "missing"]), cuts=CUTS)
    def leg_2_answers(self, how: str, cuts: list[int]) -> None:
        self.catch_up(cuts)
        for play in self.plays:
            match how:
                case "opened":
                    play.splice.leg2_opened(200, play.now)
                case "refused":
                    play.does(play.splice.leg2_refused(400, b'{"message": "no"}', play.now))
                case "unreachable":
                    play.does(play.splice.leg2_unreachable("nobody", play.now))
                case _ if play.jobs and not play.legs:
                    play.does(play.splice.scale_out_missing("403", play.now))
                case _:
                    play.does(play.splice.leg2_unreachable("nobody", play.now))
        if how == "opened":
            self.leg = self.leg2
            tally("leg 2 was opened")

    @precondition(lambda self: self.opened and self.hears and not self.leg2.stream)
    @rule(length=st.sampled_from([5, 30, 45, 10**6]), data=st.data())
    def leg_2_starts_over(self, length: int, data: st.DataObject) -> None:
        partial = self.first.splice.course.partial
        whole = data.draw(st.sampled_from([partial.content, partial.reasoning + partial.content]))
        field = "content" if partial.content else "reasoning"
        if whole[:length]:
            self.repeats = True
            self.tell(self.chunk({field: whole[:length]}))

    @precondition(lambda self: not self.ended)
    @rule(how=st.sampled_from(["leaves", "breaks", "shuts down", *["goes on"] * 17]), cuts=CUTS)
    def something_else(self, how: str, cuts: list[int]) -> None:
        if how == "goes on":
            self.tell(self.chunk({"content": self.word()}) if self.hears else b"")
            return
        self.catch_up(cuts)
        self.cut_off = True
        for play in self.plays:
            match how:
                case "leaves":
                    self.gone = True
                    play.splice.client_gone(play.now)
                case "breaks":
                    play.does(play.splice.broke(play.now))
                case _:
                    play.does(play.splice.shut_down(play.now))

    @precondition(lambda self: self.ended)
    @rule(said=st.sampled_from([b"data: 1\n\n", DONE, b"\n"]))
    def nothing_comes_after_the_end(self, said: bytes) -> None:
        splice, now = self.first.splice, self.first.now
        assert splice.received(said, now) == splice.leg_ended(Failure.EOF, now) == splice.broke(now) == []
        assert splice.idle_deadline() is None
        splice.client_gone(now)

    # -- what must hold ------------------------------------------------------------------------

    @invariant()
    def memory_is_bounded(self) -> None:
        for play in getattr(self, "plays", []):
            for leg in filter(None, (play.splice.course.first, play.splice.course.second)):
                assert len(leg._decoder._buffer) <= self.limit + len(self.leg.stream)  # what one read adds
                assert len(leg.shelf._bytes) <= self.held_limit
                partial = leg.leg.partial
                assert len(partial.reasoning) + len(partial.content) <= self.partial_limit
                assert len(leg.leg._ids) * 4 <= self.partial_limit

    @invariant()
    def there_is_one_continuation_at_most(self) -> None:
        for play in getattr(self, "plays", []):
            assert len(play.jobs) <= 1
            assert len(play.legs) <= 1

    @invariant()
    def what_was_sent_is_whole_events(self) -> None:
        for play in getattr(self, "plays", []):
            if play.splice.phase is not Phase.UNFRAMED and not self.first.splice.course.first.has_lost_event:
                assert play.sent.endswith((b"\n", b"\r")) or not play.sent

    def teardown(self) -> None:
        if not hasattr(self, "plays"):
            return
        self.catch_up([7, 11, 13])
        self._run_its_course()
        self._judge()

    def _run_its_course(self) -> None:
        """Leg 1 breaks, leg 2 says a word and finishes; unless something else has happened."""
        if not self.ended and not self.first.asked:
            self.leg_ends(Failure.EOF, [])
        if not self.ended and not self.opened:
            self.leg_2_answers("opened", [])
        if not self.ended:
            self.tell(self.chunk({"content": self.word()}) + self.chunk({}, "stop") + DONE)
            self.catch_up([5])
        if not self.ended:  # the words were part of what came before, which is not whole
            self.leg_ends(Failure.EOF, [])

    # -- the judgement -------------------------------------------------------------------------

    def _judge(self) -> None:
        first, second = self.plays
        assert second.splice.phase is first.splice.phase
        assert second.sent.rstrip(b"\r\n") == first.sent.rstrip(b"\r\n"), (
            "it depends on how the reads are cut"
        )
        assert (second.legs, second.jobs) == (first.legs, first.jobs)
        assert first.open == 0 or self.gone
        if (record := first.splice.record()) is not None:
            json.dumps(record.extra)
            tally(f"{record.outcome} {record.reason}")
        leg1 = said(bytes(self.leg1.stream), self.limit, ended=self.leg1.over)
        leg2 = said(bytes(self.leg2.stream), self.limit, ended=self.leg2.over, to_the_finish=True)
        if leg1.lost and first.splice.course.first.has_lost_event:
            return self._judge_lost(first, leg1)
        self._judge_ending(first, told(first.sent + (b"" if not self.gone else b"\n\n")))
        answer = said(first.sent, 2**30, ended=True)
        shown = "".join(answer.reasoning), "".join(answer.content)
        self._judge_leg1(first, shown, answer.calls, leg1)
        if first.asked:
            self._judge_leg2(first, shown, leg1, leg2)
        self._judge_usage(first, leg1)
        return None

    def _judge_lost(self, play: Play, leg1: Said) -> None:
        """An event was too large to be read: the ending at least is right, and nothing was asked for."""
        assert not play.asked
        finished = play.sent.rstrip(b"\r\n").endswith(b"data: [DONE]")
        assert finished == (play.splice.phase is Phase.DONE)
        if finished:
            assert leg1.finish

    def _judge_ending(self, play: Play, answer: Told) -> None:
        finished = play.splice.phase is Phase.DONE
        if self.gone:
            assert answer.done == 0
            return
        if finished:
            assert (answer.done, answer.errors) == (1, [])
            assert answer.finishes
        else:
            assert (answer.done, len(answer.errors)) == (0, 1)
            record = play.splice.record()
            assert record is not None
            # A choice that nobody asked for may go on when the answer itself has finished.
            assert not answer.finishes or record.reason == "multiple_choices"

    def _judge_leg1(self, play: Play, shown: Texts, calls: list[Any], leg1: Said) -> None:
        """All of leg 1 comes first, or all of it before the calls that were dropped."""
        shelf = play.splice.course.first.shelf
        before = self._of_leg1(play, leg1)
        assert all(text.startswith(start) for text, start in zip(shown, before, strict=True))
        said_calls = [] if shelf.fate == "dropped" else leg1.calls
        assert calls[: len(said_calls)] == said_calls
        if play.asked:
            held = play.splice.options.buffers and shelf.fate != "released: more than the limit"
            assert shelf.fate == "dropped" or not (held and leg1.calls) or play.plan.carries_ids
        else:
            assert (shown, calls) == (before, said_calls)

    def _of_leg1(self, play: Play, leg1: Said) -> Texts:
        if play.splice.course.first.shelf.fate == "dropped":
            return leg1.without_calls()
        return "".join(leg1.reasoning), "".join(leg1.content)

    def _judge_leg2(self, play: Play, shown: Texts, leg1: Said, leg2: Said) -> None:
        before = self._of_leg1(play, leg1)
        rest = [words(text[len(start) :]) for text, start in zip(shown, before, strict=True)]
        told = rest[0] + rest[1]
        assert set(told) <= set(leg2.words), "invented"
        if self.repeats:
            return
        assert len(set(told)) == len(told), "told twice"
        assert not set(told) & set(leg1.words), "told twice"
        second = play.splice.course.second
        if self.cut_off or second is None or second.seam.stopped_at is not None:
            return
        due = leg2.words
        if second.shelf.fate == "dropped":
            reasoning, content = leg2.without_calls()
            due = words(reasoning + content)
        assert set(told) == set(due), "lost at the seam"

    def _judge_usage(self, play: Play, leg1: Said) -> None:
        """Once, unless the engine itself tells it more often behind its finish."""
        plan = play.plan
        alone = sum(1 for one in _chunks(play.sent) if one.get("usage") and not one.get("choices"))
        if plan.asks_usage_always or self.gone:
            return
        if plan.asks_usage and play.splice.phase is Phase.DONE and play.splice.record() is not None:
            in_a_chunk = leg1.counted and not plan.carries_ids
            assert alone == (leg1.usages if in_a_chunk else max(1, leg1.usages))
        if plan.carries_ids and not plan.asks_usage:
            assert alone == 0


def _chunks(stream: bytes) -> Iterator[dict[str, Any]]:
    for block in blocks(stream):
        if block.data and block.data != b"[DONE]":
            value = json.loads(block.data)
            if isinstance(value, dict):
                yield value
