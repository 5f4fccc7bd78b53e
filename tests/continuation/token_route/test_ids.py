"""The token route's arithmetic: batches, markers, end of turn, stop strings, one kind of delta each."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuation.splice.pieces import Field, Piece, Pieces, text_in
from continuation.token_route.ids import (
    Batch,
    Batches,
    ChatChunks,
    StopText,
    ends_with_opening,
    generate_body,
    seeded_state,
    thoughts_before,
)


def generated(*ids: int, finish: str | None = None, stop: Any = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": finish, "stop_reason": stop, "token_ids": list(ids)}]}


def batches_of(
    chunks: list[dict[str, Any]], size: int = 8, markers: list[tuple[int, ...]] | None = None
) -> list[Batch]:
    batches = Batches(size, markers or [])
    return [batch for chunk in chunks if (batch := batches.take(chunk))]


def test_the_first_chunk_goes_out_at_once_and_batches_grow() -> None:
    chunks = [generated(n) for n in range(1, 40)] + [generated(40, 99, finish="stop")]
    found = batches_of(chunks)
    assert [len(batch.ids) for batch in found] == [1, 2, 4, 8, 8, 8, 8, 1]
    assert [token for batch in found for token in batch.ids] == list(range(1, 41))


@given(st.integers(1, 3000), st.integers(1, 32))
def test_calls_are_bounded(chunks: int, size: int) -> None:
    found = batches_of([generated(n) for n in range(chunks - 1)] + [generated(7, 99, finish="stop")], size)
    assert len(found) <= math.ceil(chunks / size) + 3


def test_batches_grow_with_a_long_answer() -> None:
    found = batches_of([generated(n) for n in range(8000)])
    assert max(len(batch.ids) for batch in found) == 32
    assert len(found) < 8000 / 16


def test_the_rest_goes_together_with_the_finish() -> None:
    found = batches_of([generated(1), generated(2), generated(3, finish="length")])
    assert [(batch.ids, batch.finish) for batch in found] == [((1,), None), ((2, 3), "length")]


@pytest.mark.parametrize(
    ("finish", "stop", "kept"),
    [("stop", None, (1, 2)), ("stop", 99, (1, 2)), ("stop", "END", (1, 2, 99)), ("length", None, (1, 2, 99))],
)
def test_only_an_end_of_turn_token_is_dropped(finish: str, stop: Any, kept: tuple[int, ...]) -> None:
    (batch,) = batches_of([generated(1, 2, 99, finish=finish, stop=stop)])
    assert batch.ids == kept
    assert batch.chunk["choices"][0]["token_ids"] == list(kept)
    assert batch.stop == (stop if isinstance(stop, str) else None)


def test_a_marker_is_never_cut_in_two() -> None:
    marker = (50, 51, 52)
    chunks = [generated(n) for n in (1, 50, 51, 52, 2, 3, 50, 4)] + [generated(5, finish="length")]
    found = batches_of(chunks, size=2, markers=[marker])
    assert [token for batch in found for token in batch.ids] == [1, 50, 51, 52, 2, 3, 50, 4, 5]
    for batch in found:
        assert 50 not in batch.ids or batch.ids[batch.ids.index(50) :][:3] == marker or batch.ids[-1] != 50
    assert any(marker == batch.ids[at : at + 3] for batch in found for at in range(len(batch.ids)))


def test_odd_chunks_are_taken() -> None:
    assert batches_of([{}, {"choices": []}, {"choices": None}, generated(), generated(1)])[0].ids == (1,)


def said(text: str) -> Pieces:
    return [Piece(Field.CONTENT, text)] if text else []


@pytest.mark.parametrize("shown", [False, True])
def test_text_ends_at_the_stop_string_whatever_the_pieces(shown: bool) -> None:
    text = "some text END and more"
    for cut in range(text.index("END") + 3):  # what came before the last batch did not hold all of it
        stop = StopText(["END", "never"], shown=shown)
        told = stop.feed(said(text[:cut])) + stop.end(said(text[cut:]), "END")
        assert text_in(told) == ("some text END" if shown else "some text ")


def test_without_a_stop_nothing_is_lost_and_at_most_a_stops_length_is_late() -> None:
    stop = StopText(["END"], shown=False)
    assert text_in(stop.feed(said("abcdef"))) == "abcd"
    assert text_in(stop.end(said("g"), None)) == "efg"
    assert text_in(StopText([], shown=False).feed(said("abc"))) == "abc"


def derendered(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    nothing = {"role": None, "content": None, "reasoning": None, "tool_calls": None}
    choice = {"index": 0, "delta": {**nothing, **delta}, "finish_reason": finish, "token_ids": None}
    return {"id": "generate-1", "created": 5, "usage": None, "choices": [choice]}


def told(
    chat: ChatChunks, chunk: dict[str, Any], finish: str | None = None, stop: str | None = None
) -> list[Any]:
    found = chat.of(chunk, Batch({}, (), finish, stop))
    return [(one["choices"][0]["delta"], one["choices"][0]["finish_reason"]) for one in found]


def chat(*stops: str, tool: bool = False) -> ChatChunks:
    return ChatChunks(stops, stop_shown=False, tool_call_seen=tool)


def test_a_delta_of_several_kinds_is_split_and_its_nulls_are_dropped() -> None:
    calls = [
        {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": None}},
        {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": "{}"}},
    ]
    assert told(chat(), derendered(reasoning="r", content="c", tool_calls=calls), "length") == [
        ({"reasoning": "r"}, None),
        ({"content": "c"}, None),
        ({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f"}}]}, None),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}, "length"),
    ]


def test_a_finish_without_text_is_a_chunk_of_its_own_and_nothing_else_is_nothing() -> None:
    assert told(chat(), derendered(), "stop") == [({}, "stop")]
    assert told(chat(), derendered()) == []
    assert told(chat(), {}) == []


def test_the_finish_is_generates_but_for_a_stop_after_a_tool_call() -> None:
    call = {"index": 0, "function": {"arguments": "{}"}}
    assert told(chat(tool=True), derendered("tool_calls"), "length") == [({}, "length")]
    assert told(chat(tool=True), derendered("stop"), "stop") == [({}, "tool_calls")]
    assert told(chat(), derendered("tool_calls", tool_calls=[call]), "stop")[-1][1] == "tool_calls"
    assert told(chat("END", tool=True), derendered("tool_calls"), "stop", "END") == [({}, "stop")]


def test_text_that_waits_for_a_stop_string_comes_before_what_follows_it() -> None:
    chunks = chat("STOP")
    assert told(chunks, derendered(reasoning="think")) == [({"reasoning": "th"}, None)]
    assert told(chunks, derendered(content="yes!")) == [
        ({"reasoning": "ink"}, None),
        ({"content": "y"}, None),
    ]
    assert told(chunks, derendered(content=" STOP"), "stop", "STOP") == [({"content": "es! "}, "stop")]


RENDERED = {
    "token_ids": [1],
    "sampling_params": {"max_tokens": 10, "min_tokens": 3, "top_k": 5},
    "model": "m",
    "x": 1,
}


def test_generate_is_asked_with_the_prefix_and_the_rest_of_the_budget() -> None:
    body = generate_body(RENDERED, [1, 2], [3, 4, 5, 6])
    assert body is not None
    assert body["token_ids"] == [1, 2, 3, 4, 5, 6]
    assert body["sampling_params"] == {"max_tokens": 6, "min_tokens": 0, "top_k": 5}
    assert (body["stream"], body["output_mode"], body["x"]) == (True, "tokens", 1)
    assert RENDERED["sampling_params"]["max_tokens"] == 10  # type: ignore[index]


def test_with_nothing_left_generate_is_not_asked() -> None:
    assert generate_body(RENDERED, [1], list(range(10))) is None
    assert generate_body({"sampling_params": None}, [1], [2]) is not None


def test_the_opening_is_looked_for_at_the_end_of_the_prompt() -> None:
    assert ends_with_opening([1, 2, 90, 10], [90])
    assert ends_with_opening([1, 90, 91], [90, 91])
    assert not ends_with_opening([90, 1, 2, 3], [90])
    assert not ends_with_opening([1], [])


def test_thoughts_are_counted_up_to_the_closing() -> None:
    assert thoughts_before([1, 2, 9, 3], [9]) == 2
    assert thoughts_before([1, 8, 9, 3], [8, 9]) == 1
    assert thoughts_before([1, 2], [9]) is None
    assert thoughts_before([1, 2], []) is None


def test_a_seeded_state_has_shown_what_was_carried() -> None:
    assert seeded_state([5, 6], ["call-1"]) == {
        "role_sent": True,
        "output_token_ids": [5, 6],
        "output_chunk_lens": [1, 1],
        "tools_streamed": True,
        "last_tool_call_ids": ["call-1"],
    }


def test_log_probabilities_go_with_their_tokens() -> None:
    def with_logprobs(*ids: int, finish: str | None = None) -> dict[str, Any]:
        chunk = generated(*ids, finish=finish)
        chunk["choices"][0]["logprobs"] = {"content": [{"token": str(one)} for one in ids]}
        return chunk

    chunks = [with_logprobs(1), with_logprobs(2), with_logprobs(3), with_logprobs(4, 99, finish="stop")]
    for batch in batches_of(chunks):
        told = batch.chunk["choices"][0]["logprobs"]["content"]
        assert [one["token"] for one in told] == [str(one) for one in batch.ids]


def test_the_client_sees_ids_and_log_probabilities_once_and_only_if_it_asked() -> None:
    chunk = derendered(reasoning="r", content="c")
    chunk["choices"][0]["logprobs"] = {"content": [7]}
    for shown, ids in ((False, [None, None]), (True, [[4, 5], None])):
        found = ChatChunks([], stop_shown=False, tool_call_seen=False, ids_shown=shown).of(
            chunk, Batch({}, (4, 5), None, None)
        )
        assert [one["choices"][0].get("token_ids") for one in found] == ids
        assert [one["choices"][0]["logprobs"] for one in found] == [{"content": [7]}, None]


def with_tokens(text: str, *names: str, **delta: Any) -> dict[str, Any]:
    """Derendered from one batch, whose tokens are `names`."""
    chunk = derendered(**({"content": text} if text else {}), **delta)
    chunk["choices"][0]["logprobs"] = {"content": [{"token": name, "logprob": -1.0} for name in names]}
    return chunk


def shown_with(chunks: ChatChunks, chunk: dict[str, Any], *ids: int, **ended: Any) -> list[Any]:
    """(text, names of the tokens, ids) of what is shown."""
    batch = Batch({}, ids, ended.get("finish"), ended.get("stop"))
    choices = [one["choices"][0] for one in chunks.of(chunk, batch)]
    return [
        (
            "".join(text for text in choice["delta"].values() if isinstance(text, str)),
            [entry["token"] for entry in (choice["logprobs"] or {"content": []})["content"]],
            choice.get("token_ids", []),
        )
        for choice in choices
    ]


def asking(*stops: str) -> ChatChunks:
    return ChatChunks(stops, stop_shown=False, tool_call_seen=False, ids_shown=True)


def test_the_tokens_of_text_that_waits_for_a_stop_string_wait_with_it() -> None:
    chunks = asking("STOP")
    assert shown_with(chunks, with_tokens("one two", "one", " two"), 1, 2) == [
        ("one ", ["one", " two"], [1, 2])
    ]
    assert shown_with(chunks, with_tokens(" ST", " S", "T"), 3, 4) == [("two", [], [])]
    told = shown_with(chunks, with_tokens("ART", "A", "RT"), 5, 6, finish="length")
    assert told == [(" START", [" S", "T", "A", "RT"], [3, 4, 5, 6])]


def test_the_tokens_of_a_stop_string_are_not_shown() -> None:
    chunks = asking("STOP")
    assert shown_with(chunks, with_tokens("one", "one"), 1) == []
    told = shown_with(
        chunks, with_tokens(" STOP it", " ", "ST", "OP", " it"), 2, 3, 4, 5, finish="stop", stop="STOP"
    )
    assert told == [("one ", ["one", " "], [1, 2])]


def test_the_tokens_of_a_delta_of_several_kinds_go_with_their_kind() -> None:
    calls = [{"index": 0, "function": {"arguments": "{}"}}]
    chunk = with_tokens("Yes", "Hm", "</think>", "Yes", "{}", reasoning="Hm", tool_calls=calls)
    told = shown_with(asking(), chunk, 1, 2, 3, 4, finish="stop")
    assert told == [("Hm", ["Hm"], [1]), ("Yes", ["</think>", "Yes"], [2, 3]), ("", ["{}"], [4])]


def test_tokens_that_show_nothing_yet_go_with_the_text_that_they_begin() -> None:
    chunks = asking()
    assert shown_with(chunks, with_tokens("", ""), 1) == []
    assert shown_with(chunks, with_tokens("樱", "樱"), 2) == [("樱", ["", "樱"], [1, 2])]
    assert shown_with(chunks, with_tokens("", "", ""), 3, 4, finish="length") == [("", ["", ""], [3, 4])]
