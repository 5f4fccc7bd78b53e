"""What stands in the bytes is what comes out, however they were cut."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuation.clients.resumable import NotUnderstood, decoding
from continuation.clients.resumable.decoding import Block, BlockDecoder
from tests.continuation.clients.resumable.scripted import RECORDED, TEXTS, chunk


def blocks(*reads: bytes) -> list[Block]:
    decoder = BlockDecoder()
    return [block for read in reads for block in decoder.feed(read)]


STREAM = b"".join(RECORDED)
WHOLE = blocks(STREAM)


def test_each_block_has_its_id_and_its_data() -> None:
    assert [block.id for block in WHOLE] == [str(n) for n in range(1, len(RECORDED) + 1)]
    assert [json.loads(block.data) for block in WHOLE[:-1]] == [chunk(text) for text in TEXTS]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cuts_give_the_same(places: list[int]) -> None:
    edges = [0, *sorted(places), len(STREAM)]
    assert blocks(*(STREAM[a:b] for a, b in pairwise(edges))) == WHOLE


def test_byte_by_byte_gives_the_same() -> None:
    assert blocks(*(STREAM[n : n + 1] for n in range(len(STREAM)))) == WHOLE


@pytest.mark.parametrize(
    "text,found",
    [
        (b"data: a\n\n", [Block("a")]),
        (b"data:a\r\rdata:b\r\n\r\n", [Block("a"), Block("b")]),
        (b"data: a\ndata\ndata:  b\n\n", [Block("a\n\n b")]),
        (b"id: 1\nevent: e\ndata: a\n\ndata: b\n\n", [Block("a", "1", "e"), Block("b")]),
        (b"id: 1\0\ndata: a\n\n", [Block("a")]),
        (b"id:1\nid: 2\ndata: a\n\n", [Block("a", "2")]),
        (b"id\ndata: a\n\n", [Block("a", "")]),
        (b": comment\n\nid: 4\n\nretry: 3\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", [Block("a")]),
        (b"\xef\xbbdata: a\n\n", []),
        (b"\xef\xbb\xbf\n\ndata: a\n\n", [Block("a")]),
        ("data: a\u2028b\u0085c\x0b\x0c\x1c\n\n".encode(), [Block("a\u2028b\u0085c\x0b\x0c\x1c")]),
        (b"data: \xff\n\n", [Block("\ufffd")]),
        (b"data: never ended\n", []),
        (b"\n\n\n", []),
    ],
)
def test_the_format(text: bytes, found: list[Block]) -> None:
    assert blocks(text) == found
    assert blocks(*(text[n : n + 1] for n in range(len(text)))) == found


@pytest.mark.parametrize(
    "line",
    [
        b"data: " + b"x" * 90,
        b"data: " + b"x" * 40 + b"\n" + b"data: " + b"x" * 60,
        b"data:\n" * 20,
    ],
)
def test_an_event_has_a_limit(monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    monkeypatch.setattr(decoding, "EVENT_BYTES", 90)
    assert len(blocks(*[b"data: " + b"x" * 60 + b"\n\n"] * 5)) == 5
    assert blocks(*[b": comment\n"] * 100) == []
    with pytest.raises(NotUnderstood):
        blocks(line)


def test_a_long_line_is_put_together_once() -> None:
    """Not at each read: that would be work in step with the square of its length."""
    decoder = BlockDecoder()
    reads = [b"data: ", *[b"x" * 100] * 50]
    assert [found for read in reads for found in decoder.feed(read)] == []
    assert len(decoder._rest) == len(reads)
    assert list(decoder.feed(b"\n\n")) == [Block("x" * 5000)]
    assert decoder._rest == []


def test_it_needs_no_django_and_nothing_else_of_the_project() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('aiohttp', 'channels', 'orjson', 'strategies')));"
        "import continuation.clients.resumable;"
        "print(*(m for m in sys.modules if m.startswith('continuation')))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    ours = set(run.stdout.split()) - {"continuation", "continuation.clients"}
    assert {name for name in ours if not name.startswith("continuation.clients.resumable")} == set()
    assert "continuation.clients.resumable.core" in ours
