"""The fuzzers as hypothesis runs them: by name, each a function of the settings to run it with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from tests.continuation.splice.playbook import (
    DONE,
    ID,
    ID2,
    chunk,
    content,
    event,
    reasoning,
    role,
    tokens,
    usage,
)
from tests.fuzz.machine import SpliceMachine
from tests.fuzz.targets import CUT, TARGETS

LINES = [b"data: {}", b"data:x", b"data", b"data:", b": c", b":", b"event: error", b"event", b"id: 1", b"foo", b"",
         b"", b"datax", b"\xef\xbb\xbf", b"data: " + b"y" * 20, b": " + b"y" * 70]  # fmt: skip
ID_LINES = [b"id", b"id:", b"id: 77", b"idx", b"i", b"retry: 5", b"id: " + b"7" * 70]
LINE_ENDS = [b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n"]
CALL = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}
EVENTS = [
    role(), content("abc "), content("def"), reasoning("hm "), content("#"), content("END"), chunk(CALL),
    chunk({"function_call": {"name": "f"}}), chunk({}, "stop"), chunk({}, ""), chunk({"content": "?"}, "abort"),
    usage(9, 9), content("x", usage=tokens(9, 1)), event({"error": "boom"}), event([]), b"event: error\n\n", DONE,
    b": ping\n\n", b"\n", b"data: {\n\n", b"data: ", content("y" * 300), content("b", ID2),
    chunk({}, "stop", ident=ID2),
    event({**ID, "choices": [{"index": 1, "delta": {"content": "o"}}]}), b"\r", b"\xff", content("</think>"),
]  # fmt: skip
CHUNK = [
    b"{", b"}", b"[", b"]", b":", b",", b'"choices"', b'"delta"', b'"content"', b'"reasoning"', b'"tool_calls"',
    b'"finish_reason"', b'"index"', b'"usage"', b'"completion_tokens"', b'"error"', b'"code"', b'"id"', b'"\\ud83d"',
    b"0", b"1", b"-1e999", b"NaN", b"null", b"true", b'"stop"', b'"abort"', b'"x"', b"1" * 30, b"\xf0\x9f",
]  # fmt: skip
TEXT = [
    "\0",
    "\0",
    "<think>",
    "</think>",
    "<thi",
    "nk>",
    "\n",
    " ",
    "a",
    "b",
    "aab",
    "#",
    "E",
    "ND",
    "r",
    "w" * 45,
]


def joined(pieces: list[bytes], most: int = 40) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(pieces) | st.binary(max_size=3), max_size=most).map(b"".join)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["stop", "abort"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["choices", "delta", "content", "reasoning", "tool_calls", "usage", "index", "error", "code",
                         "finish_reason", "completion_tokens", "id", "token_ids", "message", "logprobs"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
BYTES: dict[str, st.SearchStrategy[bytes]] = {
    "decoder": st.tuples(
        st.binary(min_size=1, max_size=1), joined([*LINES, *LINE_ENDS, *LINE_ENDS, CUT])
    ).map(b"".join),
    "numbering": st.tuples(
        st.binary(min_size=1, max_size=1), joined([*LINES, *ID_LINES, *LINE_ENDS, *LINE_ENDS, CUT])
    ).map(b"".join),
    "chunks": joined(CHUNK) | VALUES.map(lambda value: event(value)[6:-2]),
    "seam": st.lists(st.sampled_from(TEXT), max_size=30).map(lambda pieces: "".join(pieces).encode()),
    "splice": st.tuples(st.binary(min_size=4, max_size=4), joined([*EVENTS, CUT])).map(b"".join),
}


Wrap = Callable[[Any], Any]
Fuzzer = Callable[[settings, Wrap], None]


def _of_bytes(name: str) -> Fuzzer:
    def run(chosen: settings, seeded: Wrap) -> None:
        seeded(chosen(given(BYTES[name])(TARGETS[name])))()

    return run


def _stateful(chosen: settings, seeded: Wrap) -> None:
    machine = seeded(type("Machine", (SpliceMachine,), {}))
    run_state_machine_as_test(machine, settings=settings(chosen, stateful_step_count=20))


# To be called with the settings, and with hypothesis's seed(...) or anything that leaves its argument as it is.
FUZZERS: dict[str, Fuzzer] = {"stateful": _stateful} | {name: _of_bytes(name) for name in TARGETS}
