"""Faults as lists of actions: no socket needed."""

import json

import pytest

from continuation.testbed.simulator.faults import KINDS, parse_header
from continuation.testbed.simulator.script import (
    Action,
    AnswerHead,
    Disconnect,
    EndBody,
    HalfClose,
    Reset,
    SendEvent,
    SendPart,
    Wait,
    changes_for,
    script,
)
from tests.continuation.testbed.simulator.helpers import answer, ask, engine, events

USAGE = ask(stream_options={"include_usage": True})


def actions(fault: str, name: str = "vllm") -> list[Action]:
    (found,) = parse_header(fault) or (None,)
    return list(script(answer(engine(name), USAGE), found))


def sent(found: list[Action]) -> list[str]:
    return [action.data.decode() for action in found if isinstance(action, SendEvent)]


MID_STREAM = [name for name, kind in KINDS.items() if kind.mid_stream and name != "truncated"]


def test_without_a_fault_the_answer_is_told_and_ended() -> None:
    found = actions("")
    assert found[0] == AnswerHead()
    assert found[-1] == EndBody()
    assert len(sent(found)) == len(events(engine(), USAGE)) == len(found) - 2


@pytest.mark.parametrize("name", MID_STREAM)
@pytest.mark.parametrize("count", [0, 1, 12, 30])
def test_a_fault_strikes_after_the_events_that_it_names(name: str, count: int) -> None:
    found = actions(f"{name}; after={count}")
    plain = sent(actions(""))
    before = found[1 : 1 + count]
    assert [json.loads(text[6:])["choices"] for text in sent(before)] == [
        json.loads(text[6:])["choices"] for text in plain[:count]
    ]
    assert not isinstance(found[1 + count], SendEvent) or sent(found)[count] != plain[count]


@pytest.mark.parametrize("name", MID_STREAM)
def test_a_fault_strikes_before_the_finish_at_the_latest(name: str) -> None:
    found = actions(f"{name}; after=99999")
    told = "".join(sent(found))
    if name not in ("stall", "stall_with_pings", "malformed"):
        assert '"finish_reason":"stop"' not in told
    assert found != actions("")


@pytest.mark.parametrize("channel", ["reasoning", "content"])
def test_events_of_one_kind_can_be_counted(channel: str) -> None:
    texts = sent(actions(f"disconnect; after=3; in={channel}"))
    assert sum(f'"{channel}":' in text and '"role"' not in text for text in texts) == 3


@pytest.mark.parametrize(
    ("fault", "end"),
    [
        ("reset", [Reset()]),
        ("disconnect", [Disconnect()]),
        ("half_closed", [HalfClose()]),
        ("eof", [EndBody()]),
        ("ending_lost", [Disconnect()]),
        ("hold_open", [Wait(None)]),
        ("truncated", [Disconnect()]),
    ],
)
def test_connections_end_as_asked(fault: str, end: list[Action]) -> None:
    assert actions(fault)[-len(end) :] == end


def test_a_stall_can_end() -> None:
    assert Wait(None) in actions("stall")
    resumed = actions("stall; for=2.5; after=4")
    assert resumed[5] == Wait(2.5)
    assert len(sent(resumed)) == len(sent(actions("")))
    assert actions("stall_with_pings; every=0.2; for=1; after=0")[1] == Wait(1.0, 0.2)


def test_a_cut_character_leaves_its_first_byte() -> None:
    for count in range(60):
        *_, part, end = actions(f"cut_inside_character; after={count}")
        assert isinstance(part, SendPart)
        assert end == Disconnect()
        with pytest.raises(UnicodeDecodeError, match="unexpected end of data"):
            part.data[: part.count].decode()


def test_a_cut_event_is_announced_whole_and_sent_in_part() -> None:
    *_, part, end = actions("cut_inside_event")
    assert isinstance(part, SendPart)
    assert 6 < part.count < len(part.data)
    assert b"\n\n" not in part.data[: part.count]
    assert end == Disconnect()


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_malformed_event_is_well_framed_and_no_json(name: str) -> None:
    for count in (0, 1, 5, 99999):
        texts = sent(actions(f"malformed; after={count}", name))
        broken = [text for text in texts if not readable(text)]
        assert len(broken) == 1
        assert broken[0].startswith("data: ")
        assert broken[0].endswith("\n\n")
        assert texts[-1] == "data: [DONE]\n\n"


def readable(text: str) -> bool:
    data = text.removeprefix("data: ").strip()
    try:
        json.loads(data)
    except ValueError:
        return data == "[DONE]"
    return True


def test_errors_are_told_as_the_engines_tell_them() -> None:
    vllm = sent(actions("error_event; after=2"))
    assert json.loads(vllm[2][6:])["error"]["code"] == 500
    assert vllm[3:] == ["data: [DONE]\n\n"]
    sglang = sent(actions("error_event; after=2", "sglang"))
    assert json.loads(sglang[2][6:])["error"]["object"] == "error"
    assert json.loads(sglang[3][6:])["usage"]["completion_tokens"] >= 1
    assert sglang[4:] == ["data: [DONE]\n\n"]


def test_an_error_can_blame_the_request() -> None:
    for name in ("vllm", "sglang"):
        assert json.loads(sent(actions("client_error_event; after=1", name))[1][6:])["error"]["code"] == 400
        assert (
            json.loads(sent(actions("error_event; code=429; after=1", name))[1][6:])["error"]["code"] == 429
        )


def test_a_named_error_event_has_no_error_key() -> None:
    text = sent(actions("error_event_named; after=1"))[1]
    name, data = text.rstrip("\n").split("\n")
    assert name == "event: error"
    assert "error" not in json.loads(data[6:])


def test_an_abort_is_a_finish_with_usage() -> None:
    texts = sent(actions("aborted; after=3"))
    assert json.loads(texts[3][6:])["choices"][0]["finish_reason"] == "abort"
    assert json.loads(texts[4][6:])["usage"]["completion_tokens"] == 3
    assert texts[5:] == ["data: [DONE]\n\n"]


def test_a_truncated_answer_announces_its_whole_length() -> None:
    head, *rest = actions("truncated; after=5")
    assert isinstance(head, AnswerHead)
    assert head.length == sum(len(text.encode()) for text in sent(actions("")))
    assert len(sent(rest)) == 5
    whole = sent(actions("truncated; form=no_done"))
    assert '"finish_reason":"stop"' in whole[-2]
    assert '"usage"' in whole[-1]


def test_what_changes_the_answer_is_told_beforehand() -> None:
    assert changes_for(parse_header("no_usage")[0]).without_usage
    assert changes_for(parse_header("restart; depart=7")[0]).depart_after == 7
    found = answer(engine(), USAGE)
    found.changes = changes_for(parse_header("no_usage")[0])
    assert not any(event.kind == "usage" for event in found.events())


def test_an_empty_answer_and_a_slow_one() -> None:
    assert actions("empty") == [AnswerHead(), EndBody()]
    assert actions("slow_first_token; delay=3")[:2] == [AnswerHead(), Wait(3.0)]
    assert actions("slow_first_token; delay=3; before=headers")[:2] == [Wait(3.0), AnswerHead()]
