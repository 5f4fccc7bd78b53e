"""Bytes of a stream become numbered events: read by a browser, and by openai's client, they say what they said."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from openai._streaming import SSEDecoder

from continuation.resume.log import Entry, State
from continuation.resume.numbering import Numbering, closing, ending_of
from tests.continuation.resume.eventsource import blocks_without_data, dispatched
from tests.continuation.splice.playbook import DONE, chunk, content, role
from tests.continuation.splice.recorded import body_of, unchunked
from tests.harness.gateway import ROOT

LARGE = 2**20
LINE_ENDS = [b"\n", b"\r", b"\r\n"]
DATA = ROOT / "tests" / "data"
STREAMS = [
    str(path.relative_to(DATA))
    for path in sorted(DATA.rglob("*"))
    if path.suffix in (".sse", ".rawhttp") or (path.suffix == ".http" and b"\ndata: " in path.read_bytes())
]


def numbered(*pieces: bytes, limit: int = LARGE, last: int = 0) -> tuple[list[Entry], bytes]:
    """The entries and the comments of a stream that comes in these pieces, and is over."""
    numbering = Numbering(limit, last)
    entries, comments = [], b""
    for piece in pieces:
        more, said = numbering.feed(piece)
        entries += more
        comments += said
    entries += numbering.finish()
    assert numbering.last == (entries[-1].number if entries else last)
    return entries, comments


def sent(entries: Sequence[Entry]) -> bytes:
    return b"".join(entry.data for entry in entries)


def one_by_one(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def by_openai(stream: bytes) -> list[tuple[str | None, str, str | None]]:
    return [(one.id, one.data, one.event) for one in SSEDecoder().iter_bytes(iter([stream]))]


def is_unchanged(stream: bytes, entries: Sequence[Entry]) -> None:
    """But for the ids, which count."""
    told, events = dispatched(sent(entries)), dispatched(stream)
    assert [one.said for one in told] == [one.said for one in events]
    assert [one.id for one in told] == [b"%d" % (number + 1) for number in range(len(events))]
    assert [one.told for one in told] == [1] * len(events)
    assert blocks_without_data(sent(entries)) == 0
    assert [one[0] for one in by_openai(sent(entries))] == [one.id.decode() for one in told]


# -- events -----------------------------------------------------------------------------------------


def test_an_event_gets_its_number_as_the_first_line_of_its_block_and_is_else_as_it_was() -> None:
    entries, comments = numbered(role() + content("a"), content("b"), DONE)
    assert entries == [
        Entry(1, 0, b"id: 1\n" + role()),
        Entry(2, 0, b"id: 2\n" + content("a")),
        Entry(3, 0, b"id: 3\n" + content("b")),
        Entry(4, 0, b"id: 4\n" + DONE),
    ]
    assert comments == b""


def test_numbers_go_on_from_where_another_process_has_come_to() -> None:
    entries, _ = numbered(content("a") + content("b"), last=41)
    assert [entry.number for entry in entries] == [42, 43]
    assert entries[0].data == b"id: 42\n" + content("a")


def test_an_event_comes_when_its_blank_line_has_come() -> None:
    numbering = Numbering(LARGE)
    assert numbering.feed(b"data: x") == ([], b"")
    assert numbering.feed(b"\n") == ([], b"")
    assert numbering.feed(b"\n") == ([Entry(1, 0, b"id: 1\ndata: x\n\n")], b"")


EVENTS: dict[str, tuple[bytes, list[bytes]]] = {
    "no space": (b"data:x\n\n", [b"data:x"]),
    "several data lines": (b"data: x\ndata: y\ndata\n\n", [b"data: x\ndata: y\ndata"]),
    "empty data": (b"data:\n\ndata\n\ndata: \n\n", [b"data:", b"data", b"data: "]),
    "a name": (b"event: error\ndata: x\n\n", [b"event: error\ndata: x"]),
    "a name behind the data": (b"data: x\nevent: error\n\n", [b"data: x\nevent: error"]),
    "a retry": (b"retry: 3000\ndata: x\n\n", [b"retry: 3000\ndata: x"]),
    "a field that nobody knows": (b"foo: bar\ndata: x\n\n", [b"foo: bar\ndata: x"]),
    "a comment inside": (b": why\ndata: x\n:because\n\n", [b": why\ndata: x\n:because"]),
    "an id of the engine's": (b"id: 7\ndata: x\n\n", [b"data: x"]),
    "an id behind the data": (b"data: x\nid: 7\n\n", [b"data: x"]),
    "several ids": (b"id: 7\ndata: x\nid:8\nid\nid:\n\n", [b"data: x"]),
    "something like an id": (b"identity: 7\nidx\ndata: id: 3\n\n", [b"identity: 7\nidx\ndata: id: 3"]),
    "no id, for it is no line": (b"data: x\\nid: 4\n\n", [b"data: x\\nid: 4"]),
    "a name without data": (b"event: ping\n\ndata: x\n\nevent: ping\n\n", [b"data: x"]),
    "an id without data": (b"id: 7\n\ndata: x\n\nid\n\n", [b"data: x"]),
    "a retry without data": (b"retry: 7\n\ndata: x\n\n", [b"data: x"]),
    "blank lines": (b"\n\n\ndata: x\n\n\n\n\ndata: y\n\n\n", [b"data: x", b"data: y"]),
    "a byte order mark": (b"\xef\xbb\xbfdata: x\n\n", [b"data: x"]),
    "another one is part of a field": (b"data: x\n\n\xef\xbb\xbfdata: y\n\n", [b"data: x"]),
    "line ends that are none": (
        "data: a\u2028b\u2029c\x85d\x0be\x0cf\n\n".encode(),
        ["data: a\u2028b\u2029c\x85d\x0be\x0cf".encode()],
    ),
    "no text": (b"data: \xff\xfe\0\n\n", [b"data: \xff\xfe\0"]),
    "the end": (b"data: [DONE]\n\n", [b"data: [DONE]"]),
}


@pytest.mark.parametrize("end", LINE_ENDS)
@pytest.mark.parametrize("name", EVENTS)
def test_whatever_a_block_says_its_data_gets_one_number(name: str, end: bytes) -> None:
    written, blocks = EVENTS[name]
    stream = written.replace(b"\n", end)
    entries, _ = numbered(stream)
    assert [entry.data for entry in entries] == [
        b"id: %d\n%s\n\n" % (number, block) for number, block in enumerate(blocks, 1)
    ]
    if name != "no text":  # openai's client reads nothing but UTF-8
        is_unchanged(stream, entries)
    assert numbered(*one_by_one(stream)) == numbered(stream)
    for at in range(len(stream) + 1):
        assert numbered(stream[:at], stream[at:]) == numbered(stream), at


@pytest.mark.parametrize(
    "stream",
    [
        b"data: a\r\ndata: b\rdata: c\n\r\ndata: d\n\ndata: e\r\rdata: f\r\n\n",
        b"data: a\rid: 7\n\ndata: b\n\n",  # without that line CR and LF would be one line end
        b"data: a\r\nid\r\rdata: b\rid:\n\r\ndata: c\r\n\r\n",
        b": x\r: y\n\r\ndata: a\r\r\n\ndata: b\n\n",
    ],
)
def test_line_ends_may_be_mixed(stream: bytes) -> None:
    entries, comments = numbered(stream)
    is_unchanged(stream, entries)
    assert b"\r" not in sent(entries)
    assert numbered(*one_by_one(stream)) == (entries, comments)
    for at in range(len(stream) + 1):
        assert numbered(stream[:at], stream[at:]) == (entries, comments), at


def test_a_crlf_that_is_cut_leaves_no_blank_line_behind() -> None:
    numbering = Numbering(LARGE)
    first, _ = numbering.feed(b"data: x\r\n\r")
    second, _ = numbering.feed(b"\ndata: y\r\n\r")
    assert sent(first + second) == b"id: 1\ndata: x\n\nid: 2\ndata: y\n\n"


# -- comments ---------------------------------------------------------------------------------------


COMMENTS: dict[str, tuple[bytes, bytes, int]] = {
    "alone": (b": ping\n\n", b": ping\n", 0),
    "without a word": (b":\n\n", b":\n", 0),
    "in a run": (b": a\n\n: b\n: c\n\n:d\n\n", b": a\n: b\n: c\n:d\n", 0),
    "between events": (b"data: x\n\n: a\n\ndata: y\n\n", b": a\n", 2),
    "before and behind": (b": a\n\ndata: x\n\n: b\n\n", b": a\n: b\n", 1),
    "beside what has no data": (b": a\nevent: ping\nid: 3\n: b\n\n", b": a\n: b\n", 0),
    "and a line that only has a colon in it": (b"x: a\n\n: b\n\n", b": b\n", 0),
    "that says data": (b": data: x\n\n", b": data: x\n", 0),
}


@pytest.mark.parametrize("end", LINE_ENDS)
@pytest.mark.parametrize("name", COMMENTS)
def test_comments_become_lines_of_their_own(name: str, end: bytes) -> None:
    written, said, count = COMMENTS[name]
    stream = written.replace(b"\n", end)
    entries, comments = numbered(stream)
    assert (len(entries), comments) == (count, said)
    assert numbered(*one_by_one(stream)) == (entries, comments)
    assert blocks_without_data(comments + sent(entries)) == 0


def test_what_is_left_of_a_stream_that_was_cut_is_an_event_if_it_has_data() -> None:
    assert numbered(b"data: x\n\ndata: y")[0][1:] == [Entry(2, 0, b"id: 2\ndata: y\n\n")]
    assert numbered(b"data: y\r")[0] == [Entry(1, 0, b"id: 1\ndata: y\n\n")]
    assert numbered(b"id: 7\ndata: y\r\n")[0] == [Entry(1, 0, b"id: 1\ndata: y\n\n")]
    assert numbered(b": y\n")[0] == numbered(b"event: y")[0] == numbered(b"\n")[0] == numbered()[0] == []
    assert numbered(b"\xef\xbb")[0] == []


# -- events that are too large ----------------------------------------------------------------------


def parts_of(*pieces: bytes, limit: int = 50) -> list[Entry]:
    entries, _ = numbered(*pieces, limit=limit)
    by_number: dict[int, list[Entry]] = {}
    for entry in entries:
        by_number.setdefault(entry.number, []).append(entry)
    assert list(by_number) == list(range(1, len(by_number) + 1))
    for parts in by_number.values():
        assert [part.part for part in parts] == list(range(len(parts)))
        assert [part.open for part in parts] == [True] * (len(parts) - 1) + [False]
    return entries


TOO_LARGE = b"data: " + b"y" * 100 + b"\n\n"


def test_an_event_that_is_too_large_has_one_number_and_comes_as_it_comes() -> None:
    entries = parts_of(b"data: a\n\n", TOO_LARGE[:60], TOO_LARGE[60:80], TOO_LARGE[80:] + b"data: b\n\n")
    assert entries == [
        Entry(1, 0, b"id: 1\ndata: a\n\n"),
        Entry(2, 0, b"id: 2\n" + TOO_LARGE[:60], open=True),
        Entry(2, 1, TOO_LARGE[60:80], open=True),
        Entry(2, 2, TOO_LARGE[80:]),
        Entry(3, 0, b"id: 3\ndata: b\n\n"),
    ]


def test_one_that_comes_whole_is_one_part() -> None:
    stream = b"data: a\n\n" + TOO_LARGE + TOO_LARGE + b"data: b\n\n"
    entries = parts_of(stream)
    assert [(entry.number, entry.part, entry.open) for entry in entries] == [
        (number, 0, False) for number in (1, 2, 3, 4)
    ]
    is_unchanged(stream, entries)


def test_a_part_is_there_before_the_event_has_ended() -> None:
    numbering = Numbering(50)
    assert numbering.feed(TOO_LARGE[:51])[0] == [Entry(1, 0, b"id: 1\n" + TOO_LARGE[:51], open=True)]
    assert numbering.feed(b"z")[0] == [Entry(1, 1, b"z", open=True)]
    assert numbering.last == 1


@pytest.mark.parametrize("end", LINE_ENDS)
def test_it_may_be_cut_anywhere(end: bytes) -> None:
    large = b"event: big\n: why\ndata: " + b"y" * 60 + b"\ndata:\ndata: " + b"z" * 30 + b"\n\n"
    stream = (b"data: a\n\n" + large + b": ping\n\ndata: b\n\n" + large + b"data: [DONE]\n\n").replace(
        b"\n", end
    )
    whole = parts_of(stream)
    is_unchanged(stream, whole)
    for at in range(len(stream) + 1):
        is_unchanged(stream, parts_of(stream[:at], stream[at:]))
    for size in (1, 2, 3, 7, 49, 50, 51):
        is_unchanged(stream, parts_of(*_in_pieces(stream, size)))


def test_an_id_of_the_engine_inside_it_does_not_count_wherever_it_is_cut() -> None:
    large = (
        b"id: 77\nevent: e\ndata: " + b"y" * 60 + b"\nid: 88\ndata: x\nid\nidx: 1\nid:" + b"9" * 60 + b"\n\n"
    )
    for end in LINE_ENDS:
        stream = (b"data: a\n\n" + large + b"data: b\n\n").replace(b"\n", end)
        for at in range(len(stream) + 1):
            is_unchanged(stream, parts_of(stream[:at], stream[at:]))
        for size in (1, 2, 3, 7):
            is_unchanged(stream, parts_of(*_in_pieces(stream, size)))


def test_an_id_that_does_not_end_is_not_gathered() -> None:
    numbering = Numbering(50)
    numbering.feed(TOO_LARGE[:100])
    numbering.feed(b"\nid: ")
    for _ in range(1000):
        assert numbering.feed(b"7" * 1000) == ([], b"")
    assert len(numbering._large._seen) < 10
    entries, _ = numbering.feed(b"\ndata: x\n\n")
    assert sent(entries) == b":\ndata: x\n\n"


def test_a_comment_that_is_too_large_gets_no_number() -> None:
    stream = b"data: a\n\n: " + b"c" * 200 + b"\n\ndata: b\n\n"
    for size in (1, 7, 60, 1000):
        is_unchanged(stream, parts_of(*_in_pieces(stream, size)))


def test_data_behind_such_a_comment_is_an_event() -> None:
    stream = b"data: a\n\n: " + b"c" * 200 + b"\nxdata: no\ndata: b\ndata\n\ndata: c\n\n"
    for size in (1, 2, 3, 7, 60, 100, 1000):
        is_unchanged(stream, parts_of(*_in_pieces(stream, size)))


def test_a_stream_that_is_cut_in_it_ends_it() -> None:
    for cut in (60, 106, 107):
        entries, _ = numbered(TOO_LARGE[:cut], limit=50)
        assert entries[-1].open is False
        assert len(dispatched(sent(entries))) == 1
        assert blocks_without_data(sent(entries)) == 0
    entries, _ = numbered(b": " + b"c" * 100, limit=50)
    assert entries == []


@pytest.mark.parametrize("part", [b"data: x", b"data: x\n", b"data: x\r\n", b"data: x\r"])
def test_a_part_that_stays_the_last_is_closed_without_a_blank_line_too_many(part: bytes) -> None:
    stream = b"id: 1\n" + part + closing(part)
    assert [one.data for one in dispatched(stream)] == [b"x"]
    assert blocks_without_data(stream) == 0


def test_an_event_of_exactly_the_limit_is_kept_whole() -> None:
    event = b"data: " + b"y" * 43 + b"\n\n"
    assert len(event) == 51
    for pieces in ([event], one_by_one(event)):
        assert numbered(*pieces, limit=50)[0] == [Entry(1, 0, b"id: 1\n" + event)]


# -- endings ----------------------------------------------------------------------------------------


ERROR = b'data: {"error": {"message": "m"}}\n\n'


@pytest.mark.parametrize(
    ("newest", "state"),
    [
        (b"id: 7\n" + DONE, State.FINISHED),
        (b"id: 7\n" + ERROR, State.FAILED),
        (b"id: 7\nevent: error\ndata: x y\n\n", None),  # not one that the gateway sends
        (b'id: 7\nevent: error\ndata: {"message": "m"}\n\n', State.FAILED),
        (b"id: 7\n" + content("[DONE]"), None),
        (b"id: 7\n" + chunk({}, "stop"), None),
        (b"id: 7\ndata: {", None),
        (b'"}}\n\n', None),
        (b"", None),
    ],
)
def test_an_ending_is_known_by_its_event(newest: bytes, state: State | None) -> None:
    assert ending_of(newest) is state


# -- what engines have sent -------------------------------------------------------------------------


@cache
def _stream(name: str) -> bytes:
    raw = (DATA / name).read_bytes()
    match Path(name).suffix:
        case ".rawhttp":
            return unchunked(raw)
        case ".http":
            return body_of(raw)
    return raw


def _in_pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def test_there_are_recorded_streams() -> None:
    assert len(STREAMS) > 25


@pytest.mark.parametrize("end", LINE_ENDS)
@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_stream_says_what_it_said_however_it_is_cut(name: str, end: bytes) -> None:
    stream = _stream(name).replace(b"\n", end)
    events = dispatched(stream)
    whole = numbered(stream)
    entries, _ = whole
    assert len(entries) in (len(events), len(events) + 1)  # its last may be cut
    is_unchanged(stream, entries[: len(events)])
    read = by_openai(sent(entries))
    assert [one[1].encode() for one in read[: len(events)]] == [one.data for one in events]
    assert numbered(*one_by_one(stream)) == whole
    for size in (2, 3, 5, 1000):
        assert numbered(*_in_pieces(stream, size)) == whole
    start = stream[:800]  # some events; of the whole it takes too long
    expected = numbered(start)
    for at in range(len(start) + 1):
        assert numbered(start[:at], start[at:]) == expected


def test_openais_client_reads_the_numbered_stream_with_comments_in_between() -> None:
    numbering, read = Numbering(LARGE), []
    stream = b": hi\n\n" + role() + b": ping\n\n\n\n: ping\n\n" + content("a") + chunk({}, "stop") + DONE
    for piece in one_by_one(stream):
        entries, comments = numbering.feed(piece)
        read.append(sent(entries) + comments)
    events = list(SSEDecoder().iter_bytes(iter(read)))
    assert [(one.id, one.data) for one in events] == [
        ("1", role()[6:-2].decode()),
        ("2", content("a")[6:-2].decode()),
        ("3", chunk({}, "stop")[6:-2].decode()),
        ("4", "[DONE]"),
    ]
