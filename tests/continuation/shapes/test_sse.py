"""Bytes to events: wherever the reads are cut, the same events come out, with the bytes as received."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuation.shapes.sse import Event, EventDecoder, closed, comment_line

LIMIT = 2**20


def decoded(*reads: bytes, limit: int = LIMIT) -> list[Event]:
    decoder = EventDecoder(limit)
    return [event for read in reads for event in decoder.feed(read)]


def told_by(events: list[Event]) -> list[bytes]:
    return [event.data for event in events if event.data is not None]


def by_bytes(stream: bytes) -> list[bytes]:
    return [stream[i : i + 1] for i in range(len(stream))]


def test_plain_events_keep_their_bytes() -> None:
    stream = b'data: {"a":1}\n\ndata: [DONE]\n\n'
    assert decoded(stream) == [Event(b'data: {"a":1}\n\n', b'{"a":1}'), Event(b"data: [DONE]\n\n", b"[DONE]")]
    assert decoded(*by_bytes(stream)) == decoded(stream)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_end_in_lf_cr_or_crlf_wherever_the_reads_are_cut(end: bytes) -> None:
    stream = b"data: one" + end + b"data: two" + end + end + b"data: three" + end + end
    for cut in range(len(stream) + 1):
        events = decoded(stream[:cut], stream[cut:])
        assert told_by(events) == [b"one\ntwo", b"three"], cut
        whole = b"".join(event.raw for event in events)
        assert stream.startswith(whole)
        assert stream[len(whole) :] in (b"", b"\n")
    assert told_by(decoded(*by_bytes(stream))) == [b"one\ntwo", b"three"]


def test_an_event_that_ends_in_cr_is_complete_at_once() -> None:
    decoder = EventDecoder(LIMIT)
    assert [e.data for e in decoder.feed(b"data: x\r\r")] == [b"x"]
    assert decoder.feed(b"\ndata: y\r\n\r\n") == [Event(b"\n"), Event(b"data: y\r\n\r\n", b"y")]


def test_the_space_after_the_colon_is_optional_and_only_one_is_dropped() -> None:
    assert [e.data for e in decoded(b"data:{}\n\ndata:[DONE]\n\ndata:  x\n\ndata\n\n")] == [
        b"{}",
        b"[DONE]",
        b" x",
        b"",
    ]


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_one_leading_bom_is_dropped_wherever_it_is_cut(cut: int) -> None:
    stream = b"\xef\xbb\xbfdata: {}\n\n"
    assert decoded(stream[:cut], stream[cut:]) == [Event(b"data: {}\n\n", b"{}")]
    twice = b"\xef\xbb\xbf" + stream
    assert [e.data for e in decoded(twice[:cut], twice[cut:])] == [
        None
    ]  # the second belongs to the field name


def test_a_bom_further_on_is_text() -> None:
    inside = 'data: {"c":"\ufeff"}\n\n'.encode()
    assert decoded(b"data: 1\n\n", inside)[1].raw == inside


def test_the_start_of_a_bom_that_is_none_is_kept() -> None:
    decoder = EventDecoder(LIMIT)
    assert decoder.feed(b"\xef\xbb") == []
    assert [e.raw for e in decoder.feed(b"x: 1\n\n")] == [b"\xef\xbbx: 1\n\n"]


def test_comments_and_bare_blank_lines_are_events_without_data() -> None:
    stream = b": WORKING\n\n:\n\n\ndata: x\n: note\n\n"
    assert [event.data for event in decoded(stream)] == [None, b"x"]
    assert told_by(decoded(*by_bytes(stream))) == [b"x"]
    assert b"".join(event.raw for event in decoded(stream)) == stream


def test_the_event_field_is_read() -> None:
    assert decoded(b'event: error\ndata: {"message":"x"}\n\n')[0].name == "error"
    assert decoded(b"event:error\n\n")[0] == Event(b"event:error\n\n", None, "error")


def test_unicode_separators_split_no_line() -> None:
    text = 'data: {"c":"k\u2028v\u0085w\u2029"}\n\n'.encode()
    assert [event.raw for event in decoded(*by_bytes(text))] == [text]


def test_text_that_looks_like_sse_is_text() -> None:
    stream = b'data: {"c":"data: [DONE]\\n\\ndata: x"}\n\n'
    assert [event.raw for event in decoded(stream)] == [stream]


def test_a_last_event_without_its_blank_line_is_found_at_the_end() -> None:
    for tail in (b"data: x", b"data: x\n", b"data: x\r\n", b"event: e\ndata: x"):
        decoder = EventDecoder(LIMIT)
        assert decoder.feed(tail) == []
        last = decoder.finish()
        assert last is not None
        assert (last.raw, last.data) == (tail, b"x")
        assert decoded(closed(last.raw))[0].data == b"x"
        assert decoder.pending == b""


@pytest.mark.parametrize("tail", [b"", b"\n", b": ping", b"\xef\xbb"])
def test_a_tail_without_a_field_is_no_event(tail: bytes) -> None:
    decoder = EventDecoder(LIMIT)
    decoder.feed(tail)
    assert decoder.finish() is None


def test_an_event_at_the_limit_passes_and_one_beyond_it_overflows() -> None:
    line = b"data: " + b"x" * 100
    decoder = EventDecoder(len(line) + 1)
    assert decoder.feed(line + b"\n") == []
    assert not decoder.overflowed
    assert [e.data for e in decoder.feed(b"\n")] == [b"x" * 100]
    decoder = EventDecoder(len(line))
    assert decoder.feed(b"data: 1\n\n" + line + b"\n") == [Event(b"data: 1\n\n", b"1")]
    assert decoder.overflowed
    assert decoder.pending == line + b"\n"
    assert decoder.feed(b"\n\n") == []
    assert decoder.finish() is None


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_an_event_that_is_given_up_ends_where_its_blank_line_is(end: bytes) -> None:
    large = b"data: " + b"x" * 50 + end + b"data: " + b"y" * 50 + end + end
    stream = b"data: 1" + end + end + large + b"data: 2" + end + end
    for cut in range(len(stream) + 1):
        decoder, got = EventDecoder(60), []
        for read in (stream[:cut], stream[cut:]):
            got += decoder.feed(read)
            while decoder.overflowed:
                got += decoder.skip()
        assert told_by(got) == [b"1", b"2"], cut
        assert b"".join(event.raw for event in got) + decoder.pending == stream
        assert not decoder.skipping


@given(st.binary(max_size=6).map(lambda more: b"data: " + b"x" * 10 + b"\n" + more), st.data())
def test_whether_an_event_is_too_large_does_not_depend_on_the_reads(
    start: bytes, data: st.DataObject
) -> None:
    stream = start + b"\n\ndata: 2\n\n"
    cut = data.draw(st.integers(0, len(stream)))
    whole, pieces = EventDecoder(18), EventDecoder(18)
    whole.feed(stream)
    pieces.feed(stream[:cut])
    pieces.feed(stream[cut:])
    assert whole.overflowed == pieces.overflowed


@pytest.mark.parametrize("silent", [b"\n", b"\r\n", b":\n\n", b"id: 1\r\r", b"a\n:b\r\n\r\n"])
def test_a_flood_that_says_nothing_is_one_event_a_read(silent: bytes) -> None:
    flood = silent * 20_000
    assert decoded(flood) == [Event(flood)]
    assert told_by(decoded(flood + b"data: x\n\n" + flood)) == [b"x"]


def test_a_comment_without_end_is_scanned_once() -> None:
    decoder = EventDecoder(2**22)
    for _ in range(3 * 2**10):
        assert decoder.feed(b":" * 1024) == []
        assert decoder._scanned == len(decoder._buffer)


def test_a_long_line_in_small_reads_is_scanned_once() -> None:
    line = b"data: " + b"x" * (3 * 2**20)
    decoder = EventDecoder(2**22)
    for at in range(0, len(line), 1024):
        assert decoder.feed(line[at : at + 1024]) == []
        assert decoder._scanned == len(decoder._buffer)  # no byte of it is looked at again
    assert [len(event.raw) for event in decoder.feed(b"\n\n")] == [len(line) + 2]


def test_a_hundred_thousand_tiny_events_in_one_read() -> None:
    assert len(decoded(b"data:1\r\n\r\n" * 100_000)) == 100_000


LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data",
        b": c",
        b":",
        b"event: error",
        b"id: 1",
        b"retry: 5",
        b"foo",
        b"",
        b"",
        b"",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(st.lists(st.tuples(LINES, ENDS)), st.data())
def test_any_cutting_into_reads_gives_the_same_data(
    lines: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(line + end for line, end in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reads = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole, pieces = EventDecoder(LIMIT), EventDecoder(LIMIT)
    expected = [*whole.feed(stream), whole.finish()]
    got = [*(event for read in reads for event in pieces.feed(read)), pieces.finish()]

    def told(events: list[Event | None]) -> list[tuple[bytes | None, str]]:
        return [(e.data, e.name) for e in events if e and (e.data is not None or e.name)]

    assert told(got) == told(expected)
    assert b"".join(e.raw for e in got if e) + pieces.pending == stream


def test_a_comment_of_ours_is_one_line_that_belongs_to_the_next_block() -> None:
    assert decoded(comment_line("keepalive") + b"data: x\n\n")[0].data == b"x"
    assert comment_line("keepalive").count(b"\n") == 1
