"""Engines whose HTTP breaks: in leg 1, in leg 2, and in an answer that is passed through."""

import pytest

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.scenes import WHOLE_LEG2
from tests.harness.client import one_failed_ending, one_whole_answer
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, started
from tests.harness.upstream import Gate, HoldOpen, Pause, Reply, Send, SendRaw, Step, Upstream

# What may follow the chunks of a body but is no chunk: the length is no number, or the chunk is longer than it says.
BAD_FRAMING = [b"zzz\r\nno chunk\r\n", b"3\r\nlonger than three\r\n", b"-1\r\n\r\n", b"\r\n\r\n\r\n"]


def broken_off(bad: bytes, *said: Send, gate: Gate) -> Reply:
    """A leg whose framing breaks while its connection stays open."""
    return Reply([*said, Pause(gate), SendRaw(bad), HoldOpen()])


@pytest.mark.parametrize("bad", BAD_FRAMING)
def test_a_leg_1_whose_framing_breaks_is_continued_at_once(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, bad: bytes
) -> None:
    one, gate = gateway(), Gate()
    upstream.script(broken_off(bad, *started(VLLM, [], ["a"]), gate=gate), WHOLE_LEG2)
    stream = chat(one, body())
    stream.read_until('"a"')
    gate.open()
    one_whole_answer(stream.read_rest(), reasoning="", content="ab", like=VLLM)
    assert one.event(stream.request_id)["failure"] == "disconnect"


def test_a_leg_2_whose_framing_breaks_fails_at_once(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one, gate = gateway(), Gate()
    leg2 = broken_off(BAD_FRAMING[0], *started(VLLM_LEG2, [], ["b"]), gate=gate)
    upstream.script(Reply(started(VLLM, [], ["a"])), leg2)
    stream = chat(one, body())
    stream.read_until('"b"')
    gate.open()
    one_failed_ending(stream.read_rest(), content="ab", code={"eof"})
    assert one.event(stream.request_id)["reason"] == "leg2_broken"


def test_a_passed_through_answer_whose_framing_breaks_looks_cut(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    gate = Gate()
    upstream.script(broken_off(BAD_FRAMING[0], Send(b"some"), gate=gate))
    stream = chat(gateway(), body(continue_final_message=True))
    stream.read_until(b"some")
    gate.open()
    assert stream.read_rest().body == b"some"
    assert not stream.complete


@pytest.mark.parametrize("bad", BAD_FRAMING)
def test_framing_that_breaks_after_done_spoils_nothing(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, bad: bytes
) -> None:
    gate = Gate()
    steps: list[Step] = [*started(VLLM, [], ["a"]), Pause(gate), *ended(VLLM)]
    upstream.script(Reply([*steps, SendRaw(bad), HoldOpen()]))
    stream = chat(gateway(), body())
    stream.read_until('"a"')
    gate.open()
    one_whole_answer(stream.read_rest(), reasoning="", content="a", like=VLLM)


@pytest.mark.parametrize("said", [b"no HTTP at all\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\x00" * 100])
def test_a_leg_2_that_is_no_http_fails(
    gateway: GatewayFor, upstream: Upstream, chat: Chat, said: bytes
) -> None:
    one = gateway()
    upstream.script(Reply(started(VLLM, [], ["a"])), Reply(before=[SendRaw(said), HoldOpen()]))
    stream = chat(one, body()).read_rest()
    one_failed_ending(stream, content="a", code={"eof"})
    assert one.event(stream.request_id)["reason"] == "leg2_unreachable"
