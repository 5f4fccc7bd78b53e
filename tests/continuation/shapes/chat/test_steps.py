"""A body that is parsed in steps is planned as one that is parsed whole."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuation import plan as planning
from continuation.plan import Choice, Guarded, Passthrough, plan
from continuation.shapes.chat.steps import TooManyValuesError, read_in_steps, slices
from continuation.shapes.chat.usage import Conversation, Estimator
from continuation.shapes.encoding import parse
from continuation.vocabulary import PassReason
from strategies.types import StrategyBook

LEAST = 64
ESTIMATOR = Estimator()
PIECES = st.sampled_from(
    ["a", "word ", "杭", "\U00020000", "\U0001f600", "\ud83d", '"', "\\", "\n", " ", ",[{:", "é"]
)
LONG = st.lists(PIECES, min_size=20, max_size=200).map("".join)
TEXTS = st.text() | LONG
NAMES = st.sampled_from(["a", "text", "content"]) | TEXTS
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda v: st.lists(v, max_size=4) | st.dictionaries(NAMES, v, max_size=4),
    max_leaves=8,
)
CONTENTS = TEXTS | st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}) | VALUES, max_size=3
)
CALLS = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"arguments": TEXTS}) | VALUES}), max_size=2
)
MESSAGES = st.fixed_dictionaries(
    {"content": CONTENTS},
    optional={
        "role": TEXTS,
        "reasoning": CONTENTS,
        "reasoning_content": CONTENTS,
        "tool_calls": CALLS | VALUES,
    },
)
SPOILERS = [
    b"",
    b"\x00",
    b"\xff",
    b"\x80\x80\x80\x80",
    b"\xe6\x9d",
    b"\xf0\x9f\x98",
    b"\xef\xbb\xbf",
    b'"',
    b"\\",
]
SPOILERS += [
    b"\\u",
    b"\\ud83d",
    b"\\u00e",
    b"\\x",
    b",",
    b"]",
    b"[",
    b"}",
    b"{",
    b":",
    b"\n",
    b"NaN",
    b"1" * 40,
    b" " * 99,
]
REQUESTS = st.fixed_dictionaries(
    {"stream": st.sampled_from([True, True, True, " "])},
    optional={
        "messages": st.lists(MESSAGES | VALUES, max_size=6) | VALUES,
        "tools": st.lists(VALUES, max_size=6) | VALUES,
        "model": TEXTS,
        "stop": st.lists(TEXTS, max_size=6) | VALUES,
        "max_tokens": st.integers(0, 9).map(lambda n: " " * 99 + str(n)),
        "response_format": st.fixed_dictionaries({"type": st.sampled_from(["text", " " * 99])}) | VALUES,
        "stream_options": VALUES,
        "other": VALUES,
    },
)


def written(value: Any, *, ascii_only: bool, spaced: bool = False) -> bytes:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=99 if spaced else None)
    return text.encode("utf-8", "surrogatepass")


def planned(body: bytes, *, step: int) -> Guarded | Passthrough:
    """step: 0 where it is parsed whole."""
    read, whole = planning.read_in_steps, planning.WHOLE_BYTES
    inline, planning.INLINE_BYTES = planning.INLINE_BYTES, 0
    try:
        if step:
            planning.WHOLE_BYTES = 0
            planning.read_in_steps = lambda data, most: read_in_steps(data, most, step)
        return plan(body, False, StrategyBook(), Choice("some-model", "", 10**8))
    finally:
        planning.read_in_steps, planning.WHOLE_BYTES, planning.INLINE_BYTES = read, whole, inline


@given(REQUESTS, st.booleans(), st.booleans(), st.integers(LEAST, 100))
def test_a_plan_in_steps_is_that_of_the_whole(
    request_: dict[str, Any], ascii_only: bool, spaced: bool, step: int
) -> None:
    body = written(request_, ascii_only=ascii_only, spaced=spaced)
    assert planned(body, step=step) == planned(body, step=0)


@given(st.data(), REQUESTS, st.booleans())
def test_what_is_spoiled_is_planned_in_steps_as_whole(
    data: st.DataObject, request_: dict[str, Any], ascii_only: bool
) -> None:
    body = written(request_, ascii_only=ascii_only)
    at = data.draw(st.integers(0, len(body)))
    put = data.draw(st.sampled_from(SPOILERS))
    spoiled = body[:at] + put + body[at + data.draw(st.integers(0, 3)) :]
    assert planned(spoiled, step=LEAST) == planned(spoiled, step=0)


@given(
    st.binary(max_size=300)
    | st.lists(st.sampled_from([b'"', b"\\", b"\\u", b"d83d", b"de00", b"\x80", b"\xe6"])).map(b"".join)
)
def test_a_text_is_the_same_in_slices(content: bytes) -> None:
    assert b"".join(slices(content, 0, len(content), 16)) == content
    quoted = b'"' + content + b'"'
    try:
        whole = json.loads(quoted.decode("utf-8", "replace"))
    except ValueError:
        return
    found = [
        json.loads((b'"' + piece + b'"').decode("utf-8", "replace"))
        for piece in slices(content, 0, len(content), 16)
    ]
    assert "".join(found) == whole


@pytest.mark.parametrize("before", range(20))
@pytest.mark.parametrize(
    "one", ["\U0001f600", "杭", "é", "\n", "\\", '"', '\\"', "\ud83d", "\ud83d\ud83d\ude00a"]
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_text_may_be_cut_anywhere(before: int, one: str, ascii_only: bool) -> None:
    request = {
        "stream": True,
        "messages": [{"content": "x" * before + one * 100}],
        "tools": [{"a": {"b": one * 200}}],
    }
    body = written(request, ascii_only=ascii_only)
    found = planned(body, step=LEAST)
    assert isinstance(found, Guarded)
    assert found.conversation == Conversation.of(parse(body), ESTIMATOR)


@pytest.mark.parametrize(
    "array",
    [
        b"[,1]",
        b"[1,]",
        b"[1,,2]",
        b"[%s,1]" % (b" " * 99),
        b"[1,%s,2]" % (b" " * 99),
        b"[1,%s]" % (b" " * 99),
    ],
)
def test_a_comma_without_a_value_is_no_json(array: bytes) -> None:
    body = b'{"stream":true,"messages":%s}' % array.replace(b"1", b"1" * 99)
    assert planned(body, step=LEAST) == planned(body, step=0) == Passthrough(PassReason.NOT_JSON)


def test_what_a_client_says_is_no_stand_in() -> None:
    found = read_in_steps(written({"messages": [{"content": "ab" * 99}] * 5}, ascii_only=True), 99, LEAST)
    stand_ins = [*found.long, *(name[:32] for name in found.long)]
    body = written(
        {"stream": True, "messages": [{"content": one} for one in [*stand_ins, "cd" * 99]]}, ascii_only=True
    )
    assert planned(body, step=LEAST) == planned(body, step=0)
    again = read_in_steps(body, 99, LEAST)
    assert not {*again.long} & {*found.long}


def test_values_are_counted_before_anything_is_parsed() -> None:
    with pytest.raises(TooManyValuesError):
        read_in_steps(b"[" + b"x," * 10, 9)


def test_long_texts_and_arrays_leave_only_stand_ins() -> None:
    said = [{"role": "user", "content": "杭州 a" * 99, "name": "b" * 20}] * 9
    found = read_in_steps(
        written({"messages": said, "x" * 99: {"y" * 99: "z" * 99}}, ascii_only=False), 99, LEAST
    )
    assert len(found.long) == 9
    assert [message["name"] for message in found.value["messages"]] == ["b" * 20] * 9
    assert found.value["x" * 99] == {"y" * 99: "z" * 99}
