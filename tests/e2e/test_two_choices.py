"""Answers of two choices."""

import json
from typing import Any

import pytest

from tests.e2e.asking import asking_usage, body
from tests.e2e.conftest import Chat, GatewayFor
from tests.harness.gateway import Gateway
from tests.harness.shapes import VLLM, joined
from tests.harness.upstream import DONE, Cut, Gate, HoldOpen, Pause, Reply, Send, Upstream, event


def of(index: int, text: str = "", finish: str | None = None) -> Send:
    """An event of one of several choices."""
    one = {"index": index, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return event({"id": VLLM.id, "object": "chat.completion.chunk", "choices": [one]})


TURNS = [of(0, "a"), of(1, "b"), of(0, "c", "stop"), of(1, "d"), of(1, "e"), of(1, "", "length")]


@pytest.mark.parametrize("said", [TURNS[:2], TURNS[:3], TURNS[:5]], ids=["neither", "one", "all-but-the-end"])
@pytest.mark.parametrize(
    "end", [[], [DONE], [VLLM.usage(9, 5), DONE], [Cut()]], ids=["eof", "done", "usage", "cut"]
)
def test_two_choices_that_break_off_end_failed_and_are_not_continued(
    plain: Gateway, upstream: Upstream, chat: Chat, said: list[Send], end: list[Any]
) -> None:
    """A second request would be beyond the script."""
    gate = Gate()
    upstream.script(Reply([*said, Pause(gate), *end]))
    stream = chat(plain, asking_usage(n=2))
    stream.read_until(said[-1].data)
    gate.open()
    stream.read_rest()
    assert (stream.complete, stream.all("X-Continuation")) == (True, ["guarded"])
    counted = joined([one for one in end if isinstance(one, Send) and one is not DONE])
    assert stream.body.startswith(joined(said) + counted + b'data: {"error":')
    assert last_error(stream.body)["code"] == "multiple_choices"
    assert b"[DONE]" not in stream.body
    assert plain.event(stream.request_id)["reason"] == "multiple_choices"


def test_two_choices_are_waited_for_however_long_they_are_silent(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    upstream.script(Reply([*TURNS[:3], Pause(0.8), *TURNS[3:], HoldOpen()]))
    stream = chat(gateway(STALL_IDLE_TIMEOUT_SECONDS="0.4"), body(n=2)).read_rest()
    assert (stream.body, stream.complete) == (joined([*TURNS, DONE]), True)


def last_error(stream: bytes) -> Any:
    return json.loads(stream.rstrip().split(b"data: ")[-1])["error"]


def test_two_choices_that_come_in_turns_arrive_with_both_ends_and_one_usage(
    plain: Gateway, upstream: Upstream, chat: Chat
) -> None:
    steps = [*TURNS, VLLM.usage(9, 5), DONE]
    upstream.script(Reply(steps))
    stream = chat(plain, asking_usage(n=2)).read_rest()
    assert (stream.body, stream.complete) == (joined(steps), True)
