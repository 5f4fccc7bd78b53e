"""The bytes of an event stream, in either leg: lines, fields, comments, large events."""

import json
from typing import Any

import pytest

from continuation.vocabulary import Failure
from tests.continuation.splice.playbook import DONE, ID, ID2, Play, chunk, content, finished, role
from tests.continuation.splice.plays import ASKS, broken, prefix_of, untouched, utf8

BOM = b"\xef\xbb\xbf"


def in_reads_of(size: int, stream: bytes) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


SEPARATED = "k\u2028v\u0085w\u2029 渐😀"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 4096])
def test_unicode_separators_end_no_line_in_either_leg(size: int) -> None:
    stream = role() + utf8(SEPARATED)
    play = Play(ASKS).reads(*in_reads_of(size, stream)).ends(Failure.DISCONNECT)
    assert prefix_of(play) == SEPARATED
    leg2 = b"".join(finished(utf8("!" + SEPARATED, ID2)))
    assert play.leg2(*in_reads_of(size, leg2)).whole().content == SEPARATED + "!" + SEPARATED
    assert len(play.told.usages) == 1


def test_a_bom_is_dropped_before_either_leg_and_kept_in_the_text() -> None:
    inside = "\ufeffx\ufeff"
    play = Play().reads(BOM[:1], BOM[1:] + role(), utf8(inside)).ends()
    assert prefix_of(play) == inside
    leg2 = b"".join(finished(utf8(inside, ID2)))
    assert play.leg2(BOM[:2], BOM[2:] + leg2[:1], leg2[1:]).whole().content == inside * 2
    assert not play.sent.startswith(BOM)
    assert (BOM + b"data") not in play.sent


@pytest.mark.parametrize("colon", [b"data:", b"data:  "])
def test_the_space_after_data_may_be_missing_or_double_in_either_leg(colon: bytes) -> None:
    def spaced(stream: bytes) -> bytes:
        return stream.replace(b"data: ", colon)

    play = Play().reads(spaced(role() + content("a"))).ends()
    play.leg2(spaced(b"".join(finished(content("b", ID2)))))
    assert play.whole().content == "ab"
    healthy = spaced(role() + content("a") + chunk({}, "stop")) + b"data:[DONE]\n\n"
    untouched(healthy)


COMMENTS = [
    b": WORKING\n\n",
    b":\n\n",
    b":data: [DONE]\n\n",
    b': {"error": {"message": "no error"}}\n\n',
    b": one\n: two\r\n\r\n",
    ": 渐\u2028\n\n".encode(),
]


@pytest.mark.parametrize("comment", COMMENTS)
def test_a_comment_is_never_data_in_either_leg(comment: bytes) -> None:
    play = Play(idle_timeout=5).reads(role(), comment, content("a"), comment)
    assert play.sent == role() + comment + content("a") + comment
    play.now = 4
    play.reads(comment).waits(1)  # a comment is no progress
    assert play.leg2(comment, *finished(comment, content("b", ID2), comment)).whole().content == "ab"
    assert play.record.failure == "idle_timeout"


def test_a_comment_beside_data_leaves_the_data_alone() -> None:
    play = Play().reads(b": note\n" + content("a")).ends()
    assert play.leg2(*finished(b": note\n" + content("b", ID2))).whole().content == "ab"


def test_three_megabytes_in_one_line_pass_in_small_reads_on_both_legs() -> None:
    text = "x" * (3 * 2**20)
    play = Play().reads(*in_reads_of(1024, role() + content(text))).ends()
    assert prefix_of(play) == text
    leg2 = b"".join(finished(content("y" + text, ID2)))
    assert play.leg2(*in_reads_of(1024, leg2)).whole().content == text + "y" + text


def test_an_event_of_leg_2_without_end_fails_the_stream() -> None:
    play = Play(event_limit=1000).reads(role(), content("a")).ends()
    play.leg2(role(ID2), content("b", ID2), b"data: " + b"y" * 1001)
    assert play.failed().content == "ab"
    assert play.record.reason == "leg2_broken"


def test_text_that_looks_like_an_event_is_text_in_either_leg() -> None:
    text = "data: [DONE]\n\ndata: x\n\nevent: error\n\n: y\r\r"
    play = Play().reads(role(), content(text)).ends()
    assert prefix_of(play) == text
    assert play.leg2(*finished(content("z" + text, ID2))).whole().content == text + "z" + text


HALF_EVENTS = [
    b'data: {"choices":[{"delta":{"content":"he\n\n',
    b'data: {"choices":[{"delta":{"content":"he"}}]}}\n\n',
    b'data: {"choices":[{"delta":{"content":"he"}}]}{"choices":[]}\n\n',
    b"data: <html>502 Bad Gateway: he</html>\n\n",
    b"data: [DONE\n\n",
    b"data: he\n\n",
    b'data: {"choices":[{"delta":\ndata: {"content":"he\n\n',
    b"data: \x00\n\n",
]


@pytest.mark.parametrize("half", HALF_EVENTS)
def test_an_event_that_is_no_json_is_neither_shown_nor_continued_from(half: bytes) -> None:
    play = Play().reads(role() + content("one ") + half + content("lost") + chunk({}, "stop") + DONE)
    assert prefix_of(play) == "one "
    answer = play.leg2(*finished(content("two", ID2))).whole()
    assert answer.content == "one two"
    assert play.record.failure == "malformed"
    assert play.sent.startswith(role() + content("one ") + b"data: {")


SEPARATORS = "\x00\x0b\x0c\x1c\x1d\x1e\x1f\x7f\u0085\u2028\u2029"


@pytest.mark.parametrize("raw", [False, True])
def test_nothing_but_line_ends_ends_a_line(raw: bool) -> None:
    """What Python takes for the end of a line, escaped and - as far as JSON allows it - raw."""
    text = f"a{SEPARATORS[7:] if raw else SEPARATORS}b"

    def said(ident: dict[str, Any]) -> bytes:
        value = {**ident, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
        return b"data: " + json.dumps(value, ensure_ascii=not raw).encode() + b"\n\n"

    play = broken(role(), said(ID), body=ASKS)
    assert play.legs[0]["messages"][-1]["content"] == text
    answer = play.leg2(*finished(content("|", ID2), said(ID2))).whole()
    assert answer.content == f"{text}|{text}"
    assert len(answer.usages) == 1


@pytest.mark.parametrize("name", [b"Data: ", b" data: ", b"data : ", b"xdata: ", b"\tdata: "])
def test_a_field_that_is_only_almost_data_is_none(name: bytes) -> None:
    almost = content("lost").replace(b"data: ", name)
    play = Play().reads(role(), almost, content("a"))
    assert play.sent == role() + almost + content("a")
    assert play.ends().leg2(*finished(almost, content("b", ID2))).whole().content == "ab"
    assert play.legs[0]["messages"][-1]["content"] == "a"


@pytest.mark.parametrize("start", [b": hello\n\n", b"\n", b"\r\n\r\n", b":\r", b"retry: 3000\n\n"])
def test_a_bom_before_something_that_is_no_event_is_dropped_too(start: bytes) -> None:
    bom = b"\xef\xbb\xbf"
    play = Play().reads(bom + start + role() + content("a")).ends()
    assert play.legs[0]["messages"][-1]["content"] == "a"
    assert bom not in play.sent
    play.leg2(bom + start + b"".join(finished(content("b", ID2))))
    assert play.whole().content == "ab"
    assert bom not in play.sent
