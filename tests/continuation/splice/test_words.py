"""Each word by which a stream is judged, earned by a stream, and what a client reads of it."""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import pytest

from continuation.audit import rows
from continuation.vocabulary import Case, Decision, Failure, Outcome, Reason, Route, failed_message
from strategies.types import CompiledStrategy
from tests.continuation.splice.playbook import (
    DONE,
    ID,
    ID2,
    Play,
    chunk,
    content,
    event,
    finished,
    reasoning,
    role,
    tokens,
)
from tests.continuation.splice.plays import CALL, broken, choice, refused

LONG = "It was the best of times, it was the worst of times, it was the age."


def unreachable(play: Play) -> Play:
    return play.does(play.splice.leg2_unreachable("ConnectionRefusedError", play.now))


def without_endpoints() -> Play:
    play = Play({}, CompiledStrategy("t", "t", render_generate=True)).reads(content("a")).ends()
    return play.does(play.splice.scale_out_missing("/render answers 404", play.now))


def by_ids(*, carried: bool) -> Play:
    strategy = CompiledStrategy("t", "t", render_generate=True, token_exact=carried)
    first = {**ID, "choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [5]}]}
    known = {"prompt_token_ids": [1, 2], "usage": tokens(2, 1)} if carried else {}
    play = Play({}, strategy).reads(event(first | known)).ends()
    return play.leg2(content("b", ID2), chunk({}, "stop", ident=ID2), DONE)


def left(play: Play) -> Play:
    play.splice.client_gone(play.now)
    return play


def rescued(play: Play) -> Play:
    return play.leg2(*finished(content("b", ID2)))


REASONS: dict[Reason, Callable[[], Play]] = {
    Reason.NONE: lambda: rescued(broken(content("a"))),
    Reason.TOOL_CALL_SEEN: lambda: broken(content("a"), CALL),
    Reason.NO_RECOVERABLE_CONTENT: lambda: broken(role()),
    Reason.CONTINUATION_DISABLED: lambda: broken(content("a"), enabled=False),
    Reason.BUDGET_EXHAUSTED: lambda: broken(content("four by four"), body={"max_tokens": 2}),
    Reason.CLIENT_ERROR: lambda: Play().reads(content("a"), event({"error": {"message": "m", "code": 400}})),
    Reason.CLIENT_GONE: lambda: left(Play().reads(content("a"))),
    Reason.MULTIPLE_CHOICES: lambda: broken(choice(0, "a"), choice(1, "b")),
    Reason.SCALE_OUT_MISSING: without_endpoints,
    Reason.ENDING_LOST: lambda: broken(content("a"), chunk({}, "stop")),
    Reason.EVENT_TOO_LARGE: lambda: broken(content("a"), content("x" * 999), event_limit=300),
    Reason.LEG2_UNREACHABLE: lambda: unreachable(broken(content("a"))),
    Reason.LEG2_REFUSED: lambda: refused(broken(content("a"))),
    Reason.LEG2_BROKEN: lambda: broken(content("a")).leg2(content("b", ID2), ended=Failure.EOF),
    Reason.LEG2_EMPTY: lambda: broken(reasoning("a")).leg2(role(ID2), chunk({}, "stop", ident=ID2)),
    Reason.LEG2_RESTARTED: lambda: broken(content(LONG)).leg2(content(LONG[:50], ID2), content("#", ID2)),
    Reason.INTERNAL_ERROR: lambda: (play := Play().reads(content("a"))).does(play.splice.broke(1)),
    Reason.SHUTTING_DOWN: lambda: (play := Play().reads(content("a"))).does(play.splice.shut_down(1)),
    Reason.STOPPED: lambda: (play := Play().reads(content("a"))).does(
        play.splice.given_up(Reason.STOPPED, 1)
    ),
}


FAILURES: dict[Failure, Callable[[], Play]] = {
    Failure.IDLE_TIMEOUT: lambda: rescued(Play(idle_timeout=5).reads(content("a")).waits(5)),
    Failure.DISCONNECT: lambda: rescued(broken(content("a"))),
    Failure.EOF: lambda: rescued(Play().reads(content("a")).ends()),
    Failure.ERROR_EVENT: lambda: rescued(Play().reads(content("a"), event({"error": {"message": "m"}}))),
    Failure.ABORTED: lambda: rescued(Play().reads(content("a"), chunk({}, "abort"))),
    Failure.MALFORMED: lambda: rescued(Play().reads(content("a"), b"data: {half\n\n")),
}


CASES: dict[Case, Callable[[], Play]] = {
    Case.CONTENT_DONE: lambda: rescued(broken(reasoning("r"), content("a"))),
    Case.THINKING_PARTIAL: lambda: rescued(broken(reasoning("r"))),
    Case.TOOL_CALL_SEEN: lambda: broken(content("a"), CALL),
    Case.EMPTY: lambda: broken(role()),
}


DECISIONS: dict[Decision, Callable[[], Play]] = {
    Decision.CONTINUE: lambda: rescued(broken(content("a"))),
    Decision.REFUSE: lambda: broken(role()),
    Decision.COMPLETE: lambda: broken(content("a"), chunk({}, "stop")),
    Decision.NONE: lambda: left(Play().reads(content("a"))),
}


ROUTES: dict[Route, Callable[[], Play]] = {
    Route.NONE: lambda: broken(role()),
    Route.CHAT_CONTINUE: lambda: rescued(broken(content("a"))),
    Route.RENDER_GENERATE: lambda: by_ids(carried=False),
    Route.CARRIED_IDS: lambda: by_ids(carried=True),
}


OUTCOMES: dict[Outcome, Callable[[], Play]] = {
    Outcome.RESCUED: lambda: rescued(broken(content("a"))),
    Outcome.COMPLETED: lambda: broken(content("a"), chunk({}, "stop")),
    Outcome.FAILED: lambda: broken(role()),
    Outcome.CLIENT_GONE: lambda: left(Play().reads(content("a"))),
}


WORDS: list[tuple[str, type[StrEnum], Mapping[Any, Callable[[], Play]]]] = [
    ("reason", Reason, REASONS),
    ("failure", Failure, FAILURES),
    ("case", Case, CASES),
    ("decision", Decision, DECISIONS),
    ("route", Route, ROUTES),
    ("outcome", Outcome, OUTCOMES),
]


@pytest.mark.parametrize("column,words,streams", WORDS, ids=[column for column, _, _ in WORDS])
def test_each_word_of_the_audit_is_earned_by_a_stream_and_is_in_its_row(
    column: str, words: type[StrEnum], streams: Mapping[Any, Callable[[], Play]]
) -> None:
    assert set(streams) == set(words)
    for word, stream in streams.items():
        row = rows.event_of(stream().record)
        assert getattr(row, column) == word
        row.clean_fields(exclude=["strategy"])  # a choice that the column knows


# Where no continuation was sent, and where the failure alone would not explain it.
TOLD_BY_THE_REASON = {
    Reason.TOOL_CALL_SEEN,
    Reason.NO_RECOVERABLE_CONTENT,
    Reason.CONTINUATION_DISABLED,
    Reason.BUDGET_EXHAUSTED,
    Reason.MULTIPLE_CHOICES,
    Reason.EVENT_TOO_LARGE,
    Reason.SCALE_OUT_MISSING,
    Reason.INTERNAL_ERROR,
    Reason.SHUTTING_DOWN,
    Reason.STOPPED,
}


def last_error(stream: bytes) -> dict[str, Any]:
    error = json.loads(stream.rstrip().split(b"data: ")[-1])["error"]
    assert isinstance(error, dict)
    return error


@pytest.mark.parametrize("reason", REASONS)
def test_what_a_client_is_told_of_a_failed_stream_is_the_failure_or_the_reason(reason: Reason) -> None:
    play = REASONS[reason]()
    if reason is Reason.STOPPED:  # its client is gone, and other readers must not take it for finished
        assert play.record.outcome == Outcome.CLIENT_GONE
    elif play.record.outcome != Outcome.FAILED:
        assert b'"error"' not in play.sent
        return
    if reason is Reason.CLIENT_ERROR:
        assert last_error(play.sent)["code"] == 400  # the engine's own
    else:
        expected = reason if reason in TOLD_BY_THE_REASON else play.record.failure
        assert last_error(play.sent)["code"] == expected


def test_each_failure_with_each_reason_has_words_of_its_own() -> None:
    said = {failed_message(failure, reason) for failure in Failure for reason in Reason}
    assert len(said) == len(Failure) * len(Reason)
