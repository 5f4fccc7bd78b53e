"""JSON objects as bytes: bounded, and rewritten, without being parsed."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continuation.shapes.chat.asking import asking_to_continue
from continuation.shapes.encoding import parse_exact
from continuation.shapes.members import LARGEST_SLICE, Members, has_more_values
from strategies.builders import FIELDS_READ, continuation_body
from strategies.types import GENERIC, Partial

# Small ones: how the pieces stand beside each other is what can go wrong, and large ones take long to be made.
NAMES = st.sampled_from([*FIELDS_READ, "messages", "stream", "model", "tools"]) | st.text(max_size=5)
CHARACTERS = st.sampled_from(['"', "\\", "\n", "{", "[", ",", ":", "}", "a", "\ud83d"])
TEXTS = st.text(max_size=8) | st.lists(CHARACTERS, max_size=12).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda v: st.lists(v, max_size=4) | st.dictionaries(NAMES, v, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=6)
THOROUGHLY = settings(max_examples=100)  # no fuzzer does this


def written(value: Any, *, ascii_only: bool, spaced: bool) -> bytes:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1 if spaced else None)
    return text.encode("utf-8", "surrogatepass" if ascii_only else "replace")


def values_in(value: Any) -> int:
    """Commas and opening brackets."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(0, len(inner) - 1) + sum(map(values_in, inner))


@THOROUGHLY
@given(OBJECTS, st.booleans(), st.booleans())
def test_the_values_of_each_member_are_found_whatever_is_in_the_texts(
    value: dict[str, Any], ascii_only: bool, spaced: bool
) -> None:
    data = written(value, ascii_only=ascii_only, spaced=spaced)
    parsed = parse_exact(data)
    assert Members.of(data).read(parsed) == parsed
    assert parse_exact(Members.of(data).changed({})) == parsed


@THOROUGHLY
@given(OBJECTS, st.booleans())
def test_values_are_counted_outside_of_texts(value: dict[str, Any], ascii_only: bool) -> None:
    data, count = written(value, ascii_only=ascii_only, spaced=False), values_in(value)
    assert has_more_values(data, count - 1)
    assert not has_more_values(data, count)


@THOROUGHLY
@given(OBJECTS, TEXTS, TEXTS, st.booleans(), st.booleans())
def test_leg_2_is_written_as_it_is_built(
    value: dict[str, Any], reasoning: str, said: str, ascii_only: bool, spaced: bool
) -> None:
    data, partial = written(value, ascii_only=ascii_only, spaced=spaced), Partial(reasoning, said)
    body = continuation_body(parse_exact(data), GENERIC, partial, 3)
    assert parse_exact(asking_to_continue(data, GENERIC, partial, 3)) == body


@given(st.binary() | st.lists(st.sampled_from([b'"', b"\\", b"{", b",", b"]", b"a"])).map(b"".join))
def test_what_is_no_json_is_counted_without_a_fault(data: bytes) -> None:
    assert not has_more_values(data, len(data))
    has_more_values(data, 0)


@pytest.mark.parametrize(
    "before", [0, 1, 2, 61, 62, 63, 64, 65, *range(LARGEST_SLICE - 3, LARGEST_SLICE + 3)]
)
@pytest.mark.parametrize("escapes", ["\\", '"', '\\"\\\\"', "\\" * 300_001 + '"'])
def test_an_escape_may_be_cut_anywhere(before: int, escapes: str) -> None:
    value = {"a": "\n" + "x" * before + escapes + ",{[" * 5, "b": [1]}
    data = json.dumps(value).encode()
    assert Members.of(data).value("b") == b"[1]"
    assert not has_more_values(data, 3)
    assert has_more_values(data, 2)


def test_what_is_not_changed_stays_byte_for_byte() -> None:
    data = b'{ "seed" : 123456789012345678901234567890 , "t":1.0e0,"x":NaN,"t" : "\\ud83d",\n"stop" : [ ] }'
    found = Members.of(data).changed({"stop": None, "new": b"[2]"})
    assert (
        found == b'{ "seed" : 123456789012345678901234567890 , "t":1.0e0,"x":NaN,"t" : "\\ud83d","new":[2]}'
    )


def test_of_a_name_that_occurs_twice_the_last_value_counts_and_both_are_changed() -> None:
    found = Members.of(b'{"a":1,"b":2,"\\u0061":3}')
    assert found.read(["a", "c"]) == {"a": 3}
    assert found.changed({"a": b"4"}) == b'{"a":4,"b":2}'
    assert Members.of(b"{ }").changed({"a": b"4"}) == b'{"a":4}'
