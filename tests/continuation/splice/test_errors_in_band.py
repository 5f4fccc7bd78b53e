"""Errors that come as events."""

import json
from typing import Any

import pytest

from tests.continuation.splice.playbook import DONE, ID, ID2, Play, chunk, content, event, finished, role
from tests.continuation.splice.plays import CALL, broken

ERROR_EVENTS: dict[str, tuple[bytes, str]] = {
    "an object": (b'event: error\ndata: {"message":"out of memory"}\n\n', "out of memory"),
    "a string": (b'event: error\ndata: "out of memory"\n\n', "out of memory"),
    "bare text": (b"event: error\ndata: out of memory\n\n", "out of memory"),
    "a list": (b'event: error\ndata: ["out of memory"]\n\n', "out of memory"),
    "no space": (b'event:error\ndata:{"message":"out of memory"}\n\n', "out of memory"),
    "name after data": (b'data: {"message":"out of memory"}\nevent: error\n\n', "out of memory"),
    "nulls": (b'event: error\ndata: {"message":null,"code":null,"type":null}\n\n', "error"),
    "a chunk with an error": (
        event({**ID, "choices": [], "error": {"message": "out of memory"}}),
        "out of memory",
    ),
}


@pytest.mark.parametrize("name", ERROR_EVENTS)
def test_an_error_event_is_one_in_whatever_form_its_data_are(name: str) -> None:
    trouble, message = ERROR_EVENTS[name]
    refused = Play().reads(role(), trouble).failed()  # nothing to be recovered: the client reads it
    assert message in json.dumps(refused.errors[0])
    play = Play().reads(role(), content("a"), trouble)
    assert play.leg2(*finished(content("b", ID2))).whole().content == "ab"
    assert play.record.failure == "error_event"
    assert b"memory" not in play.sent


@pytest.mark.parametrize("name", ERROR_EVENTS)
def test_an_error_event_ends_leg_2_in_whatever_form_it_comes(name: str) -> None:
    play = Play().reads(role(), content("a")).ends().leg2(role(ID2), content("b", ID2), ERROR_EVENTS[name][0])
    answer = play.failed()
    assert (answer.content, answer.errors[0]["code"]) == ("ab", "eof")
    assert b"memory" not in play.sent


@pytest.mark.parametrize(
    "code", ["²", "④", "9" * 5000, "-1", "1e3", 1e300, [], {}, True], ids=lambda code: str(code)[:9]
)
def test_a_code_that_is_no_number_is_no_trouble(code: Any) -> None:
    play = Play().reads(content("a"), event({"error": {"message": "m", "code": code}}))
    assert play.leg2(*finished(content("b", ID2))).whole().content == "ab"
    assert play.record.failure == "error_event"


NO_ERRORS: list[Any] = [None, {}, [], "", 0, False]


@pytest.mark.parametrize("nothing", NO_ERRORS, ids=repr)
def test_an_error_key_without_an_error_is_none_in_either_leg(nothing: Any) -> None:
    stream = role() + content("a", error=nothing) + chunk({}, "stop", error=nothing) + DONE
    assert Play().reads(stream).sent == stream
    play = Play().reads(role(), content("a", error=nothing)).ends()
    said = [content("b", ID2, error=nothing), chunk({}, "stop", ident=ID2, error=nothing), DONE]
    assert play.leg2(*said).whole().content == "ab"


PINGS = [
    b"event: ping\ndata: {}\n\n",
    b'event: ping\ndata: {"type": "ping"}\n\n',
    b"event: ping\ndata:\n\n",
    b"event: ping\n\n",
    b"event: message\ndata: null\n\n",
    b"id: 7\n\n",
]


@pytest.mark.parametrize("ping", PINGS)
def test_a_ping_in_the_form_of_an_event_is_neither_an_error_nor_progress(ping: bytes) -> None:
    play = Play(idle_timeout=5).reads(role(), ping, content("a"))
    play.now = 4
    play.reads(ping)
    assert play.sent == role() + ping + content("a") + ping
    play.waits(1)
    assert play.leg2(ping, content("b", ID2), ping, chunk({}, "stop", ident=ID2), ping, DONE).whole()
    assert (play.told.content, play.record.failure) == ("ab", "idle_timeout")


HOSTILE = 'data: [DONE]\n\ndata: {"choices": []}\r\n\r\nevent: x\u2028\u0085'


@pytest.mark.parametrize(
    "trouble",
    [
        event({"error": {"message": HOSTILE, "code": 400}}),
        event({"object": "error", "message": HOSTILE, "code": 400}),
        b"event: error\ndata: " + json.dumps({"message": HOSTILE, "code": 400}).encode() + b"\n\n",
        b"event: error\ndata: " + json.dumps(HOSTILE).encode() + b"\n\n",
        event({"error": HOSTILE}),
    ],
)
def test_an_error_message_that_looks_like_events_ends_the_stream_once(trouble: bytes) -> None:
    answer = broken(role(), CALL, trouble).failed()
    error = answer.errors[0]
    assert (error if isinstance(error, str) else error["message"]) == HOSTILE


def test_an_error_of_several_lines_is_told_in_one_event() -> None:
    answer = Play().reads(role(), b"event: error\ndata: out of\ndata: [DONE]\ndata: memory\n\n").failed()
    assert answer.errors[0]["message"] == "out of\n[DONE]\nmemory"
