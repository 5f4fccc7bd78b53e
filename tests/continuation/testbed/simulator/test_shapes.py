"""The simulator's events, key for key, against streams that real engines wrote."""

import json
from typing import Any

import pytest

from continuation.testbed.simulator.engine import SimulatedEngine
from continuation.testbed.simulator.faults import build
from continuation.testbed.simulator.script import SendEvent, script
from tests.continuation.testbed.simulator.helpers import WEATHER, answer, ask, chunks, engine, events, told
from tests.harness.gateway import ROOT

RECORDED = ROOT / "tests" / "data" / "simulator"
USAGE = {"stream_options": {"include_usage": True}}
ALL_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def skeleton(value: Any) -> Any:
    """Keys in their order, and the kinds of values."""
    match value:
        case dict():
            return tuple((key, skeleton(item)) for key, item in value.items())
        case list():
            return ("list", *sorted({skeleton(item) for item in value}, key=repr))
        case None:
            return None
        case _:
            return type(value).__name__


def recorded(name: str) -> list[dict[str, Any]]:
    return chunks((RECORDED / f"{name}.sse").read_text().splitlines())


def skeletons(rows: list[dict[str, Any]]) -> set[Any]:
    return {skeleton(row) for row in rows}


def words_of(one: SimulatedEngine) -> str:
    """A stop string that the answer will hit in its content."""
    return told(events(one)).content.strip()[10:16]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("chat_usage", USAGE),
        ("chat_continuous_usage", ALL_USAGE | {"max_tokens": 12}),
        ("length", {"max_tokens": 3}),
        ("continue_ok_open_think", USAGE | {"max_tokens": 6}),
    ],
)
def test_vllm_chunks_have_the_recorded_keys(name: str, fields: dict[str, Any]) -> None:
    assert skeletons(chunks(events(engine(), ask(**fields)))) == skeletons(recorded(f"vllm_{name}"))


def test_vllm_chunks_with_a_stop_string_have_the_recorded_keys() -> None:
    one = engine()
    ours = skeletons(chunks(events(one, ask(stop=[words_of(one)], **USAGE))))
    theirs = skeletons(recorded("vllm_stop_string"))
    # Held back text makes the end of the reasoning and the start of the content share a chunk, now and then.
    both = {row for row in theirs if "('content', 'str'), ('reasoning', 'str')" in repr(row)}
    assert len(both) == 1
    assert theirs - both <= ours <= theirs


@pytest.mark.parametrize(
    ("name", "question"), [("tools_one", "Use a tool."), ("tools_two", "Use both tools.")]
)
def test_vllm_tool_calls_have_the_recorded_keys(name: str, question: str) -> None:
    usage = USAGE if name == "tools_two" else {}
    ours = skeletons(chunks(events(engine(), ask(question, tools=[WEATHER], **usage))))
    assert ours == skeletons(recorded(f"vllm_{name}"))


def test_vllm_token_ids_have_the_recorded_keys_and_nothing_is_left_out() -> None:
    rows = chunks(events(engine(), ask("Use a tool.", tools=[WEATHER], return_token_ids=True, **USAGE)))
    assert skeletons(rows) == skeletons(recorded("vllm_token_ids"))
    ids = [number for row in rows for choice in row["choices"] for number in choice.get("token_ids") or []]
    assert len(ids) == rows[-1]["usage"]["completion_tokens"]
    assert len(rows[0]["prompt_token_ids"]) == rows[-1]["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("chat_basic", USAGE | {"max_tokens": 18}),
        ("chat_cont_usage", ALL_USAGE | {"max_tokens": 18}),
        ("badmodel", {"max_tokens": 18, "model": "nope"}),
    ],
)
def test_sglang_chunks_have_the_recorded_keys(name: str, fields: dict[str, Any]) -> None:
    assert skeletons(chunks(events(engine("sglang"), ask(**fields)))) == skeletons(recorded(f"sglang_{name}"))


@pytest.mark.parametrize("name", ["vllm", "sglang"])
@pytest.mark.parametrize("fault", ["error_event", "aborted"])
def test_streams_that_die_in_band_end_as_recorded(name: str, fault: str) -> None:
    actions = script(answer(engine(name), ask(**USAGE)), build(fault, {"in": "content", "after": "9"}))
    blocks = [action.data.decode() for action in actions if isinstance(action, SendEvent)]
    theirs = (RECORDED / f"{name}_{fault}.sse").read_text().splitlines()
    assert [skeleton(row) for row in chunks(blocks)][-2:] == [
        skeleton(row) for row in recorded(f"{name}_{fault}")
    ][-2:]
    assert blocks[-1].strip() == theirs[-1] == "data: [DONE]"
    if fault == "error_event":
        assert set(blocks) & {f"{line}\n\n" for line in theirs if '"error"' in line}


def test_first_and_last_chunks_are_the_recorded_bytes_but_for_ids_times_and_names() -> None:
    for name, file in (("vllm", "vllm_length"), ("sglang", "sglang_badmodel")):
        ours = events(engine(name), ask(max_tokens=3))
        theirs = (RECORDED / f"{file}.sse").read_text().splitlines()
        row, original = chunks([ours[0]])[0], recorded(file)[0]
        renamed = ours[0].data.strip()
        for key in ("id", "created", "model"):
            renamed = renamed.replace(json.dumps(row[key]), json.dumps(original[key]), 1)
        assert renamed == theirs[0]


ERRORS = json.loads((RECORDED / "vllm_errors.json").read_text())
SAME_TEXT = sorted(set(ERRORS) - {"continue_400_think", "scaleout_off_generate", "scaleout_off_tokenize"})


@pytest.mark.parametrize("name", SAME_TEXT)
def test_vllm_errors_are_the_recorded_ones_word_for_word(name: str) -> None:
    one = engine(model="tiny-qwen3", max_model_len=2048)
    refusal = one.chat(ERRORS[name]["request"].strip().encode())
    assert (refusal.status, refusal.body) == (ERRORS[name]["status"], ERRORS[name]["body"])  # type: ignore[union-attr]


def test_the_error_that_tells_the_conversation_is_the_recorded_one() -> None:
    one = engine(model="tiny-qwen3")
    case = ERRORS["continue_400_think"]
    refusal = one.chat(case["request"].encode())
    assert refusal.body == case["body"]  # type: ignore[union-attr]


def test_the_token_route_is_switched_off_as_recorded() -> None:
    case = ERRORS["scaleout_off_generate"]
    assert engine().scale_out_disabled().body == case["body"]


def test_sglang_errors_have_no_wrapper() -> None:
    refusal = engine("sglang").chat(b'{"messages": "ten"}')
    assert list(refusal.body) == ["object", "message", "type", "param", "code"]  # type: ignore[union-attr]
    assert (refusal.status, refusal.body["code"]) == (400, 400)  # type: ignore[union-attr]
