"""Hostile amounts cost work in proportion: four times as much of it costs about four times the CPU, not sixteen."""

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from continuation.shapes.encoding import parse
from continuation.splice.actions import Send
from continuation.splice.course import Phase
from continuation.splice.leg import Leg
from continuation.vocabulary import Failure
from strategies.engines import Engine
from strategies.types import CompiledStrategy
from tests.continuation.splice.playbook import DONE, ID, ID2, Play, chunk, content, event, reasoning, tokens

EXACT = CompiledStrategy("e", "e", Engine.VLLM, token_exact=True)
PART = chunk({"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]})
IDS = event(
    {**ID, "choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": [7]}], "usage": tokens(1, 1)}
)
CALLED = {"buffer_tool_calls": True, "buffer_limit": 2**30}
TINY = b"data: 1\n\n"
READ = 2**16


def fed(play: Play, stream: bytes, read: int = READ) -> Play:
    sent = [play.sent]
    for at in range(0, len(stream), read):
        actions = play.splice.received(stream[at : at + read], 1.0) + play.splice.idle_expired(1.0)
        sent += [action.data for action in actions if isinstance(action, Send)]
        play.does(action for action in actions if not isinstance(action, Send))
    play.sent = b"".join(sent)
    return play


def broken(start: bytes = content("Once. "), **options: Any) -> Play:
    play = Play(**options).reads(start).ends(Failure.DISCONNECT)
    play.splice.leg2_opened(200, 1.0)
    return play


WORK: dict[str, Callable[[int], Play]] = {
    "a line of 1024 n bytes in reads of 1 KiB": lambda n: fed(Play(), content("y" * 1024 * n), 1024),
    "n tiny events in large reads": lambda n: fed(Play(), TINY * 20 * n),
    "n tiny events, each in a read of its own": lambda n: fed(Play(), TINY * 10 * n, len(TINY)),
    "bytes one by one": lambda n: fed(Play(), TINY * n, 1),
    "n pieces of text": lambda n: fed(Play(), content("y") * 4 * n),
    "n pieces of text with ids": lambda n: fed(Play({}, EXACT), IDS * 2 * n),
    "blank lines": lambda n: fed(Play(), b"\n" * 2000 * n),
    "comments": lambda n: fed(Play(), b":\r\n\r\n" * 400 * n),
    "a comment without end": lambda n: fed(Play(), b":" * 4000 * n, 1024),
    "data lines of one event": lambda n: fed(Play(), b"data:1\n" * 100 * n, 1024),
    "parts of a call that is held": lambda n: fed(Play(**CALLED), content("x") + PART * 4 * n),
    "parts of a call that is held, read by read": lambda n: fed(
        Play(**CALLED), content("x") + PART * 2 * n, len(PART)
    ),
    "events that are too large": lambda n: fed(Play(event_limit=200), content("y" * 300) * 4 * n, 1024),
    "an event that is too large": lambda n: fed(Play(event_limit=200), b"data: " + b"y" * 4000 * n, 512),
    "pieces of leg 2": lambda n: fed(broken(), content("y", ID2) * 2 * n),
    "pieces of leg 2 that repeat leg 1": lambda n: fed(
        broken(content("ab " * 4 * n)), content("ab ", ID2) * 3 * n
    ),
    "pieces of leg 2 that may be a token": lambda n: fed(
        broken(reasoning("hm")), (reasoning("</thi", ID2) + reasoning("x", ID2)) * n
    ),
    "calls of leg 2 that are held": lambda n: fed(broken(**CALLED), PART * 2 * n),
}


def seconds(work: Callable[[int], Play], size: int) -> float:
    start = time.process_time()
    work(size)
    return time.process_time() - start


@pytest.mark.parametrize("name", WORK)
def test_four_times_as_much_is_not_sixteen_times_the_work(name: str) -> None:
    seconds(WORK[name], 100)
    small, large = (min(seconds(WORK[name], size) for _ in range(2)) for size in (400, 1600))
    assert large < 9 * small + 0.05, f"{small:.3f} s of CPU became {large:.3f} s"


def test_a_line_of_3_mib_in_reads_of_1_kib_passes() -> None:
    stream = content("y" * 3 * 2**20) + chunk({}, "stop") + DONE
    play = fed(Play(), stream, 1024)
    assert play.splice.phase is Phase.DONE
    assert play.sent == stream


def test_a_hundred_thousand_tiny_events_pass() -> None:
    stream = TINY * 100_000 + chunk({}, "stop") + DONE
    play = fed(Play(), stream)
    assert play.splice.phase is Phase.DONE
    assert play.sent == stream


def test_a_partial_of_single_characters_is_kept_at_little_more_than_their_size() -> None:
    leg, characters = Leg(2**30), 20_000
    one = parse(content("海").removeprefix(b"data: "))
    tracemalloc.start()
    try:
        for _ in range(characters):
            one["choices"][0]["delta"]["content"] = chr(0x6D77)  # a text of its own
            leg.absorb(one)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(leg.partial.content) == characters
    assert kept < 2 * characters + 2**17  # two bytes each; as separate texts they would take some eighty
