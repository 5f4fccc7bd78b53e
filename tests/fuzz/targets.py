"""Fuzzers that take bytes: each is a function that raises AssertionError, or anything else, on a finding.

hypothesis gives them random bytes and pieces of streams; atheris, where it is installed, bytes that lead to code that
none has led to yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from continuation.plan import Guarded
from continuation.resume.log import Entry
from continuation.resume.numbering import Numbering
from continuation.shapes.chat.asking import Unasked
from continuation.shapes.chat.chunks import error_code, error_message, is_client_error, is_error, usage_of
from continuation.shapes.chat.usage import Estimator, delivered, joined_usage
from continuation.shapes.encoding import event_of, parse
from continuation.shapes.sse import Event, EventDecoder, closed
from continuation.splice.actions import Action, CloseLeg, OpenLeg, OpenTokens, Send
from continuation.splice.course import Phase
from continuation.splice.leg import Leg
from continuation.splice.machine import Splice
from continuation.splice.options import Options
from continuation.splice.pieces import Field, Piece
from continuation.splice.rewrite import Rewriter
from continuation.splice.seam import RestartDeparted, Seam
from continuation.vocabulary import Failure
from strategies.engines import Engine
from strategies.types import GENERIC, CompiledStrategy, Fallback, Partial
from tests.continuation.resume.eventsource import blocks_without_data, dispatched
from tests.fuzz.reading import LINE_END, blocks

CUT = b"\xfe"  # between two reads; in no text, for it is no UTF-8
STRATEGIES = (
    GENERIC,
    CompiledStrategy("t", "t", open="<think>\n", template_trims=True, may_think_again=True),
    CompiledStrategy("e", "e", Engine.VLLM, token_exact=True, without_scale_out=Fallback.CHAT),
)


def decoder(data: bytes) -> None:
    """However they are cut, bytes give the events that the standard says, and none is lost or changed."""
    limit = (16, 64, 2**20)[data[0] % 3] if data else 16
    reads = data[1:].split(CUT)
    stream = b"".join(reads)
    found, of = [], EventDecoder(limit)
    for read in reads:
        found += of.feed(read)
        while of.overflowed:
            found += of.skip()
        assert len(of.pending) <= limit
    expected = [
        (one.data, one.name)
        for one in blocks(stream)
        if one.whole and one.size <= limit and (one.data is not None or one.name)
    ]
    assert [(one.data, one.name) for one in found if one.data is not None or one.name] == expected
    kept = b"".join(event.raw for event in found) + of.pending
    assert kept == stream.removeprefix(b"\xef\xbb\xbf")
    last = of.finish()
    if last is not None:
        again = EventDecoder(2**30).feed(
            b"\n" + closed(last.raw)
        )  # where no byte order mark is taken for one
        assert [one.data for one in again if one.data is not None] == [last.data] * (last.data is not None)


def numbering(data: bytes) -> None:
    """However they are cut, bytes become events with the numbers 1, 2, 3 ... that say what they said."""
    limit = (16, 64, 2**20)[data[0] % 3] if data else 16
    reads = data[1:].split(CUT)
    stream = b"".join(reads)
    entries, comments = _numbered(reads, limit)
    told = dispatched(b"".join(entry.data for entry in entries))
    # What the stream left open is ended.
    events = [one for one in blocks(stream + b"\n\n") if one.data is not None]
    assert [one.data for one in told] == [one.data for one in events]
    assert [(one.id, one.told) for one in told] == [(b"%d" % (at + 1), 1) for at in range(len(events))]
    assert blocks_without_data(b"".join(entry.data for entry in entries)) == 0
    assert {entry.number for entry in entries} == set(range(1, len(events) + 1))
    for one, said, event in zip(told, dispatched(stream + b"\n\n"), events, strict=True):
        assert one.said == said.said or event.size > limit
    silent = [one for one in blocks(stream) if one.data is None and one.whole and one.size <= limit]
    lines = [line for one in silent for line in LINE_END.split(one.raw) if line.startswith(b":")]
    assert comments == b"".join(line + b"\n" for line in lines)
    again, comments_again = _numbered([stream[at : at + 1] for at in range(len(stream))], limit)
    assert comments_again == comments
    told_again = dispatched(b"".join(entry.data for entry in again))
    assert [(one.data, one.id, one.told) for one in told_again] == [
        (one.data, one.id, one.told) for one in told
    ]
    if all(event.size <= limit for event in events):
        assert again == entries


def _numbered(reads: list[bytes], limit: int) -> tuple[list[Entry], bytes]:
    of, entries, comments = Numbering(limit), list[Entry](), b""
    for read in reads:
        more, said = of.feed(read)
        entries += more
        comments += said
        assert len(of._decoder.pending) <= limit
        assert len(of._large._seen) < 10
    entries += of.finish()
    assert all(entry.data for entry in entries)
    assert not entries or not entries[-1].open
    for entry, following in pairwise(entries):
        expected = (entry.number, entry.part + 1) if entry.open else (entry.number + 1, 0)
        assert following.cursor == expected
    return entries, comments


def chunks(data: bytes) -> None:
    """Whatever the JSON of an event is, it is read and written again, or refused with a ValueError."""
    try:
        value = parse(data)
    except ValueError:
        return
    event = Event(b"data: " + data + b"\n\n", data)
    is_error(event, value), error_message(value), error_code(value), is_client_error(value)
    if not isinstance(value, dict):
        return
    leg = Leg(100)
    for _ in range(2):
        leg.absorb(value)
    copy = leg.copy()
    copy.take_identity(leg)
    assert copy.partial == leg.partial
    assert len(leg.partial.reasoning) + len(leg.partial.content) <= 100
    before = delivered(
        leg.last_usage,
        leg.usage_current,
        leg.partial.reasoning,
        leg.partial.content,
        Estimator(),
        least=leg.least_tokens,
        reasoning_events=leg.reasoning_events,
        others=leg.others,
    )
    assert before.reasoning <= before.completion
    usage = joined_usage(before, usage_of(value), 7, leg.has_reasoning, leg.last_usage)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    for asked in (False, True):
        try:
            Unasked(ids=asked, usage=asked, running_usage=asked).shown(value)
            seam = Seam(GENERIC, leg.partial, (), stop_shown=False)
            told = Rewriter(leg, seam, (lambda counts: counts) if asked else None).chunk(value)
            for shown in (*told[0], *told[1], event_of(value)):
                json.loads(shown.removeprefix(b"data: "))
        except (ValueError, RecursionError):  # nested too deeply to be written: the splice expects these
            return
        except RestartDeparted:
            pass


def seam(data: bytes) -> None:
    """The seam invents nothing, keeps the order, and loses but what it is there to swallow."""
    before, _, after = data.decode("utf-8", "replace").partition("\0")
    stops = ("#END", "aab", "\n\n")
    thinking = before.startswith("r")
    partial = Partial(before, "") if thinking else Partial("", before)
    pieces = [piece for piece in after.split("\0") if piece]
    for strategy in STRATEGIES:
        of = Seam(strategy, partial, stops, stop_shown=len(pieces) % 2 == 0, exact=strategy.takes_tokens)
        field = Field.REASONING if thinking else Field.CONTENT
        try:
            shown = [out.text for piece in pieces for out in of.feed(Piece(field, piece))]
            shown += [out.text for out in of.flush()]
        except RestartDeparted:
            continue
        assert _is_subsequence("".join(shown), "".join(pieces))
        assert of.flush() == []
        if strategy.takes_tokens and of.stopped_at is None and "</think>" not in after:
            assert "".join(shown) == "".join(pieces)


def _is_subsequence(text: str, of: str) -> bool:
    left: Iterator[str] = iter(of)
    return all(character in left for character in text)


def splice(data: bytes) -> None:
    """Both legs are `data`: options, the reads of leg 1, how it ends, the reads of leg 2, how that ends."""
    head, body = data[:4].ljust(4, b"\0"), data[4:]
    leg1, _, leg2 = body.partition(b"\xff")
    _Streamed(head).play([*leg1.split(CUT)], [*leg2.split(CUT)])


class _Streamed:
    def __init__(self, head: bytes) -> None:
        usage = ({}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True})[
            head[0] % 3
        ]
        request: dict[str, Any] = {"model": "m", "stream": True, "messages": [], "stream_options": usage}
        request |= {"stop": ["#END"]} if head[0] & 64 else {}
        request |= {"max_tokens": 20} if head[0] & 128 else {}
        self.options = Options(
            enabled=head[1] % 8 != 7,
            event_limit=(2**20, 200)[head[1] & 8 and 1],
            partial_limit=(2**20, 50)[head[1] & 16 and 1],
            buffer_tool_calls=bool(head[1] & 32),
            buffer_limit=(2**20, 100)[head[1] & 64 and 1],
        )
        self.failures = [(Failure.EOF, Failure.DISCONNECT)[head[2] >> bit & 1] for bit in (0, 1)]
        plan = Guarded.of(json.dumps(request).encode(), request, STRATEGIES[head[3] % len(STRATEGIES)])
        self.splice = Splice(plan, self.options, "r", datetime(2026, 1, 1, tzinfo=UTC), 0.0)
        self.sent = b""
        self.asked = 0

    def does(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(data):
                    assert data
                    self.sent += data
                case OpenLeg():
                    json.loads(action.body)
                    self.asked += 1
                case OpenTokens():
                    self.asked += 1
                case CloseLeg():
                    pass

    def play(self, leg1: list[bytes], leg2: list[bytes]) -> None:
        splice = self.splice
        splice.leg1_opened(0.0)
        for read in leg1:
            if not self.asked:
                self.does(splice.received(read, 1.0))
                self._within_limits(len(read))
        if not splice.ended and not self.asked:
            self.does(splice.leg_ended(self.failures[0], 2.0))
        if not splice.ended:
            splice.leg2_opened(200, 3.0)
            for read in leg2:
                self.does(splice.received(read, 4.0))
                self._within_limits(len(read))
        self.does(splice.leg_ended(self.failures[1], 5.0))
        self._ended()

    def _within_limits(self, read: int) -> None:
        splice, options = self.splice, self.options
        if splice.ended:
            return
        for leg in filter(None, (splice.course.first, splice.course.second)):
            assert len(leg._decoder._buffer) <= options.event_limit + read
            assert len(leg.shelf._bytes) <= options.buffer_limit

    def _ended(self) -> None:
        splice = self.splice
        assert splice.ended
        assert self.asked <= 1
        last = blocks(self.sent)[-1]
        assert last.whole
        if splice.phase is Phase.DONE:
            assert last.data == b"[DONE]", last
        else:
            told = json.loads((last.data or b"").decode("utf-8", "replace"))
            assert told["error"], last
        record = splice.record()
        if record is not None:
            json.dumps(record.extra)
            assert record.reason != "internal_error", "a fault of our own"


TARGETS: dict[str, Callable[[bytes], None]] = {
    "decoder": decoder,
    "numbering": numbering,
    "chunks": chunks,
    "seam": seam,
    "splice": splice,
}
