"""Compressed answers, charsets, and characters in halves."""

import gzip
import json

import pytest

from tests.e2e.asking import body
from tests.e2e.conftest import Chat, GatewayFor
from tests.e2e.faults import CUT, EOF, Fault
from tests.e2e.scenes import LEG1, LEG2, WHOLE_LEG2
from tests.harness.client import Answer, one_failed_ending, one_whole_answer
from tests.harness.gateway import Gateway
from tests.harness.shapes import VLLM, VLLM_LEG2, ended, joined, started
from tests.harness.upstream import EVENT_STREAM, Reply, Send, Upstream


def test_a_stream_that_is_compressed_all_the_same_is_handed_on_as_it_is(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    steps = [*started(VLLM, [], ["a"]), *ended(VLLM)]
    packed = gzip.compress(b"".join(step.data for step in steps))
    headers = [*EVENT_STREAM, ("Content-Encoding", "gzip")]
    upstream.script(Reply([Send(packed[:40]), Send(packed[40:])], headers=headers))
    stream = chat(gateway(), body(), [("Accept-Encoding", "gzip")]).read_rest()
    assert stream.all("X-Continuation") == ["passthrough; reason=content_encoded"]
    assert (stream.all("Content-Encoding"), stream.body) == (["gzip"], packed)
    assert stream.complete


def test_a_leg_2_that_is_compressed_is_not_read(gateway: GatewayFor, upstream: Upstream, chat: Chat) -> None:
    one = gateway()
    packed = gzip.compress(b"".join(step.data for step in WHOLE_LEG2.steps if isinstance(step, Send)))
    headers = [*EVENT_STREAM, ("Content-Encoding", "gzip")]
    upstream.script(Reply(started(VLLM, [], ["a"])), Reply([Send(packed)], headers=headers))
    stream = chat(one, body()).read_rest()
    one_failed_ending(stream, content="a", code={"eof"})
    assert one.event(stream.request_id)["reason"] == "leg2_refused"


def test_halves_of_characters_reach_neither_the_database_nor_leg_2(
    gateway: GatewayFor, upstream: Upstream, chat: Chat
) -> None:
    one = gateway(AUDIT_STORE_TEXT="true")
    half = Send(VLLM.content("?").data.replace(b'"?"', rb'"\ud83d"'))
    again = Send(VLLM_LEG2.content("?").data.replace(b'"?"', rb'"\ude00"'))
    asked = json.dumps(body()).replace('"any-name"', r'"any\ud83d"').encode()
    legs = (Reply([*started(VLLM, [], ["a"]), half]), Reply([VLLM_LEG2.role(), again, *ended(VLLM_LEG2)]))
    upstream.script(*legs)
    stream = chat(one, asked).read_rest()
    answer = Answer.of(stream.body)
    assert (answer.done, answer.errors, answer.content) == (1, [], "a\ud83d\ude00")
    assert upstream.requests[1].json()["messages"][-1]["content"] == "a"
    row = one.event(stream.request_id)
    assert (row["outcome"], row["partial_text"]) == ("rescued", "a")


MORE = "\u2029 und mehr: 杭州 🎉"


TEXT = "✅ caf\u00e9\u0085k\u2028v 渐😀"


KINDS = ["text/event-stream", "text/event-stream;charset=iso-8859-1", 'text/event-stream; charset="utf-16"']


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", [CUT, EOF], ids=str)
def test_text_is_utf_8_in_both_legs_and_in_between_whatever_the_charset_says(
    plain: Gateway, upstream: Upstream, chat: Chat, kind: str, fault: Fault
) -> None:
    said = (joined(started(VLLM, [], [TEXT])), joined([*started(VLLM_LEG2, [], [MORE]), *ended(VLLM_LEG2)]))
    labelled = [("Content-Type", kind)]
    leg1 = [Send(said[0][at : at + 5]) for at in range(0, len(said[0]), 5)]
    leg2 = [Send(said[1][at : at + 5]) for at in range(0, len(said[1]), 5)]
    upstream.script(Reply([*leg1, *fault.end(VLLM)], headers=labelled), Reply(leg2, headers=labelled))
    stream = chat(plain, body()).read_rest()
    one_whole_answer(stream, reasoning="", content=TEXT + MORE, like=VLLM)
    assert stream.all("Content-Type") == [kind]
    assert upstream.requests[1].json()["messages"][-1]["content"] == TEXT


@pytest.mark.parametrize("named", ["identity", "Identity ", ""])
def test_an_encoding_that_changes_nothing_is_read_along(
    plain: Gateway, upstream: Upstream, chat: Chat, named: str
) -> None:
    headers = [*EVENT_STREAM, ("Content-Encoding", named)]
    upstream.script(Reply(LEG1.steps, headers=headers), Reply(LEG2.steps, headers=headers))
    stream = chat(plain, body()).read_rest()
    assert stream.all("X-Continuation") == ["guarded"]
    one_whole_answer(stream, reasoning="", content="some text", like=VLLM)
