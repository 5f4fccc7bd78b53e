"""The ledger as a playbook: what streams do and what Redis answers is written down; no Redis, no loop, no clock."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from cryptography.fernet import Fernet

from continuation.resume.log import Entry, Limits, State
from continuation.resume.store.hot import HotLog
from continuation.resume.store.redis import account as accounts
from continuation.resume.store.redis import ledger as ledgers
from continuation.resume.store.redis.account import (
    REQUEST_BYTES,
    Account,
    Begun,
    Fact,
    HandedOver,
    Lost,
    Presence,
    RequestPieces,
    StopWanted,
    Terms,
    Visible,
)
from continuation.resume.store.redis.health import LATE_SECONDS, PATIENCE
from continuation.resume.store.redis.ledger import Flush, Ledger
from continuation.resume.store.redis.scripts import APPEND, CREATE, DROP, REQUEST, Command, keys_of
from continuation.resume.store.redis.sealing import Seal
from tests.continuation.resume.streams import event, events, new_id, parts

NAMES = {CREATE.sha: "create", APPEND.sha: "append", REQUEST.sha: "request", DROP.sha: "drop"}
LIMITS = Limits(ttl=60.0, grace=30.0)
SPOILT = ValueError("WRONGTYPE")
# Of the arguments of APPEND.
FROM, UNTIL, TTL, OLDEST, STATE, OWNER, FIRST_ENTRY = 2, 3, 4, 6, 7, 10, 12


def name_of(command: Command) -> str:
    return NAMES[str(command[1])] if command[0] == "EVALSHA" else str(command[0])


def arguments_of(command: Command) -> tuple[Any, ...]:
    assert command[0] == "EVALSHA"
    return command[3 + int(command[2]) :]


class Play:
    """One process's ledger, whose clock stands still until `wait`."""

    def __init__(self, limits: Limits = LIMITS, keys: Sequence[str] = ()) -> None:
        self.time = 100.0
        self.limits = limits
        self.terms = Terms("me", limits, Seal(keys), lambda: self.time, lambda: 1e9 + self.time)
        self.ledger = Ledger(self.terms)
        self.flush: Flush | None = None

    def wait(self, seconds: float) -> None:
        self.time += seconds

    def begins(self, request: bytes = b"") -> Account:
        log = HotLog(new_id(), self.limits, self.ledger.held, gated=True)
        account = Account(self.terms, log, RequestPieces(request), is_beginning=True)
        self.ledger.add(account)
        return account

    def begun(self, request: bytes = b"") -> Account:
        account = self.begins(request)
        self.write_all()
        return account

    def appends(self, account: Account, entries: Sequence[Entry]) -> list[Fact]:
        log_of(account).append(entries)
        return self.ledger.note_appended(account, entries)

    def ends(self, account: Account, state: State = State.FINISHED) -> None:
        log_of(account).end(state)
        log_of(account).ended_at = self.terms.date()
        self.ledger.note_new(account)

    def sends(self) -> list[str]:
        """The names of the commands that go to Redis now, without the lease."""
        assert self.flush is None
        self.flush = self.ledger.next_flush()
        return (
            [] if self.flush is None else [name_of(each) for each in self.flush.commands if each[0] != "SET"]
        )

    def sent(self, name: str) -> tuple[Any, ...]:
        """The arguments of the one command of this name that is under way."""
        assert self.flush is not None
        (command,) = (each for each in self.flush.commands if name_of(each) == name)
        return arguments_of(command)

    def answers(self, *answers: Any) -> list[Fact]:
        """Of the flush that is under way: ok to each command if nothing else is said."""
        flush, self.flush = self.flush, None
        assert flush is not None
        found = list(answers) or [b"ok"] * (len(flush.commands) - flush.has_lease)
        return self.ledger.take_answers(flush, [b"OK"] * flush.has_lease + found)

    def write_all(self) -> list[Fact]:
        facts: list[Fact] = []
        while self.ledger.has_unwritten:
            self.sends()
            facts += self.answers()
        return facts


def log_of(account: Account) -> HotLog:
    assert isinstance(account.log, HotLog)
    return account.log


def without_waits(facts: Iterable[Fact]) -> list[Fact]:
    return [Visible(fact.stream_id, fact.until) if isinstance(fact, Visible) else fact for fact in facts]


# -- what is new -> commands ---------------------------------------------------------------------------


def test_the_lease_is_the_first_command_and_comes_only_when_it_is_due() -> None:
    ledger = Play().ledger
    assert ledger.is_due
    flush = ledger.next_flush()
    assert flush is not None
    assert [command[0] for command in flush.commands] == ["SET"]
    assert ledger.take_answers(flush, [b"OK"]) == []
    assert not ledger.is_due
    assert ledger.next_flush() is None
    ledger.note_lease_due()
    assert ledger.next_flush() is not None


def test_a_new_stream_is_created_with_its_request_and_has_begun_when_that_is_written() -> None:
    play = Play()
    account = play.begins(b"asked for")
    assert play.sends() == ["create", "append", "request"]
    assert play.answers() == [Visible(account.stream_id, (0, 0)), Begun(account.stream_id, True)]
    assert account.presence is Presence.THERE
    assert play.sends() == []


def test_what_is_appended_is_sent_from_where_redis_stands_and_is_visible_once_it_is_written() -> None:
    play = Play()
    account = play.begun()
    assert play.appends(account, events(1, 3)) == []
    play.wait(0.01)
    assert play.appends(account, parts(4, 2)) == []
    assert play.sends() == ["append"]
    sent = play.sent("append")
    assert (sent[FROM], sent[UNTIL]) == ("0-0", "4-1")
    assert sent[FIRST_ENTRY::3] == ("1-0", "2-0", "3-0", "4-0", "4-1")
    assert sent[FIRST_ENTRY + 1 :: 3] == ("d", "d", "d", "o", "d")
    play.wait(0.02)
    [seen] = play.answers()
    assert seen == Visible(account.stream_id, (4, 1), waits=(pytest.approx(0.03), pytest.approx(0.02)))
    assert play.sends() == []


def test_what_comes_while_a_flush_is_under_way_waits_for_the_next_one() -> None:
    play = Play()
    account = play.begun()
    play.appends(account, events(1, 2))
    play.sends()
    play.appends(account, events(3, 4))
    assert without_waits(play.answers()) == [Visible(account.stream_id, (2, 0))]
    assert play.sends() == ["append"]
    assert play.sent("append")[FROM] == "2-0"
    assert without_waits(play.answers()) == [Visible(account.stream_id, (4, 0))]


def test_a_flush_takes_of_one_stream_only_so_much_and_tells_the_end_with_the_last_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounts, "STREAM_BYTES", 250)
    play = Play()
    account = play.begun()
    play.appends(account, events(1, 5, size=98))
    play.ends(account)
    ends = []
    for until in ("2-0", "4-0", "5-0"):
        assert play.sends() == ["append"]
        assert play.flush is not None
        assert play.flush.whole == (until == "5-0")
        assert play.sent("append")[UNTIL] == until
        ends.append(play.sent("append")[STATE])
        play.answers()
    assert ends == ["", "", "finished"]
    assert play.sends() == []


def test_a_flush_takes_of_all_streams_only_so_many_and_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play()
    streams = [play.begun() for _ in range(5)]
    for account in streams:
        play.appends(account, events(1, 1, size=98))
    monkeypatch.setattr(ledgers, "FLUSH_STREAMS", 2)
    assert play.sends() == ["append"] * 2
    assert not play.flush or not play.flush.whole
    play.answers()
    monkeypatch.setattr(ledgers, "FLUSH_STREAMS", 200)
    monkeypatch.setattr(ledgers, "FLUSH_BYTES", 50)
    assert play.sends() == ["append"]
    play.answers()
    monkeypatch.undo()
    assert play.sends() == ["append"] * 2
    assert play.flush
    assert play.flush.whole


def test_what_is_trimmed_in_memory_is_trimmed_in_redis() -> None:
    play = Play(Limits(events=3))
    account = play.begun()
    play.appends(account, events(1, 3))
    play.write_all()
    play.appends(account, events(4, 5))
    play.sends()
    assert (play.sent("append")[FROM], play.sent("append")[OLDEST]) == ("3-0", "3-0")
    play.answers()
    play.appends(account, events(6, 20))  # some of them are gone before they were sent
    play.sends()
    sent = play.sent("append")
    assert (sent[OLDEST], sent[FIRST_ENTRY::3]) == ("18-0", ("18-0", "19-0", "20-0"))
    play.answers()
    assert play.sends() == []


def test_the_expiry_is_put_off_now_and_then_and_what_has_ended_expires_from_its_end_on() -> None:
    play = Play()
    account = play.begins()
    play.sends()
    assert play.sent("append")[TTL] == accounts.CREATED_SECONDS * 1000
    play.answers()
    expiries = []
    for number in (1, 2):
        play.appends(account, [event(number)])
        play.sends()
        expiries.append(play.sent("append")[TTL])
        play.answers()
    assert expiries == [90_000, ""]
    play.wait(accounts.RENEWAL_SECONDS)
    play.appends(account, [event(3)])
    play.sends()
    assert play.sent("append")[TTL] == 90_000
    play.answers()
    play.ends(account)
    play.wait(10.0)
    play.sends()
    assert play.sent("append")[TTL] == 50_000


def test_a_silent_stream_is_asked_about_and_one_that_has_ended_is_not() -> None:
    play = Play()
    silent, over = play.begun(), play.begun()
    play.ends(over)
    play.write_all()
    play.wait(1.0)
    play.begun()  # one that has written just now
    play.ledger.note_silent(0.5)
    assert play.sends() == ["append"]
    assert play.flush
    assert [share.account for share in play.flush.shares] == [silent]


def test_a_stream_that_is_dropped_leaves_nothing_behind() -> None:
    play = Play()
    account = play.begun(b"asked for")
    play.appends(account, events(1, 3))
    play.ledger.drop(account)
    assert play.ledger.forget(account)
    assert not play.ledger.forget(account)
    log_of(account).expire()
    assert play.ledger.held.bytes == 0
    assert play.sends() == ["drop"]
    play.answers()
    assert not play.ledger.has_unwritten


def test_an_answer_for_a_stream_that_was_forgotten_meanwhile_says_nothing() -> None:
    play = Play()
    account = play.begun()
    play.appends(account, events(1, 3))
    play.sends()
    play.ledger.forget(account)
    log_of(account).expire()
    assert play.answers() == []


# -- requests ------------------------------------------------------------------------------------------


def test_a_large_request_is_written_piece_by_piece_and_cleared_with_the_streams_end() -> None:
    play = Play()
    account = play.begins(b"x" * (2 * REQUEST_BYTES + 1))
    for index in range(3):
        assert play.sends()[-1] == "request"
        assert play.sent("request")[2:4] == (index, 3)
        has_begun = Begun(account.stream_id, True) in play.answers()
        assert has_begun == (index == 2)
    assert play.sends() == []
    assert play.ledger.held.bytes == len(account.request.data)
    play.ends(account)
    play.write_all()
    assert (account.request.data, play.ledger.held.bytes) == (b"", 0)


def test_one_that_is_very_large_is_not_waited_for() -> None:
    play = Play()
    account = play.begins(b"x" * (accounts.AWAITED_BYTES + 1))
    play.sends()
    assert Begun(account.stream_id, True) in play.answers()
    assert play.sends() == ["append", "request"]


@pytest.mark.parametrize(("answer", "next_index"), [(b"missing", 0), (b"2", 2)])
def test_redis_knows_better_how_many_pieces_it_has(answer: bytes, next_index: int) -> None:
    play = Play()
    play.begins(b"x" * (3 * REQUEST_BYTES))
    play.sends()
    play.answers(b"ok", b"ok", answer)
    play.sends()
    assert play.sent("request")[2] == next_index


def test_with_keys_a_large_piece_is_sealed_elsewhere_before_it_is_sent() -> None:
    play = Play(keys=[Fernet.generate_key().decode()])
    account = play.begins(b"x" * (REQUEST_BYTES + 1))
    assert play.sends() == ["create", "append"]
    assert play.flush
    assert play.flush.to_seal == [account]
    play.answers()
    play.ledger.note_new(account)
    assert play.sends() == ["append"]  # it is not sealed twice
    assert play.flush
    assert play.flush.to_seal == []
    play.answers()
    account.request.note_sealed(0, b"a sealed piece")
    play.ledger.note_new(account)
    assert play.sends() == ["append", "request"]
    assert play.sent("request")[4] == b"a sealed piece"


def test_a_piece_that_is_sealed_too_late_is_sealed_again() -> None:
    request = RequestPieces(b"x" * (2 * REQUEST_BYTES), is_sealing=True)
    request.note_written(1)
    request.note_sealed(0, b"the first piece")
    assert (request.sealed, request.is_sealing) == (None, False)


# -- answers -> facts ----------------------------------------------------------------------------------


def test_a_stream_that_another_process_has_is_lost_and_certain_up_to_what_was_written() -> None:
    play = Play()
    account = play.begun()
    play.appends(account, events(1, 3))
    play.write_all()
    play.appends(account, events(4, 6))
    play.sends()
    assert play.answers(b"lost") == [Lost(account.stream_id, (3, 0))]
    assert not play.ledger.has_unwritten


def test_a_stop_that_somebody_wants_comes_with_what_was_written() -> None:
    play = Play()
    account = play.begun()
    play.appends(account, events(1, 1))
    play.sends()
    assert without_waits(play.answers(b"stop")) == [
        Visible(account.stream_id, (1, 0)),
        StopWanted(account.stream_id),
    ]


def test_what_redis_has_forgotten_is_written_again_from_the_first_entry_and_nobody_waits_for_it() -> None:
    play = Play()
    account = play.begun(b"asked for")
    play.appends(account, events(1, 3))
    play.write_all()
    play.appends(account, events(4, 4))
    play.sends()
    assert without_waits(play.answers(b"missing")) == [Visible(account.stream_id, (4, 0))]
    assert play.appends(account, events(5, 5)) == [Visible(account.stream_id, (5, 0), waits=(0.0,))]
    assert play.sends() == ["create", "append", "request"]
    assert play.sent("append")[FIRST_ENTRY::3] == ("1-0", "2-0", "3-0", "4-0", "5-0")
    play.answers()
    assert play.appends(account, events(6, 6)) == []  # its readers wait for Redis again


def test_where_redis_stands_elsewhere_than_the_ledger_says_redis_is_right() -> None:
    """A flush was carried out whose answer got lost."""
    play = Play()
    account = play.begun()
    play.appends(account, events(1, 3))
    play.sends()
    assert play.answers(b"2-0") == []
    play.sends()
    assert play.sent("append")[FIRST_ENTRY::3] == ("3-0",)
    assert without_waits(play.answers()) == [Visible(account.stream_id, (3, 0))]


def test_a_spoilt_key_is_cleared_and_written_again_and_troubles_no_other_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play = Play()
    spoilt, healthy = play.begun(), play.begun()
    for account in (spoilt, healthy):
        play.appends(account, events(1, 2))
    play.sends()
    with caplog.at_level(logging.WARNING):
        facts = play.answers(SPOILT, b"ok")
    assert without_waits(facts) == [Visible(spoilt.stream_id, (2, 0)), Visible(healthy.stream_id, (2, 0))]
    assert len(caplog.messages) == 1
    assert spoilt.presence is Presence.SPOILT
    assert play.sends() == ["DEL", "create", "append"]
    assert play.flush
    assert set(play.flush.commands[0][1:]) >= {keys_of(spoilt.stream_id).meta, keys_of(spoilt.stream_id).log}
    assert play.sent("append")[FIRST_ENTRY::3] == ("1-0", "2-0")
    play.answers()
    assert spoilt.presence is Presence.THERE


def test_one_that_stays_spoilt_is_tried_again_only_with_what_comes_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play = Play()
    account = play.begun()
    play.appends(account, events(1, 1))
    play.sends()
    play.answers(SPOILT)
    play.sends()
    play.answers(b"ok", SPOILT, SPOILT)
    assert play.sends() == []
    assert len([text for text in caplog.messages if "something else" in text]) == 1
    play.appends(account, events(2, 2))
    assert play.sends() == ["DEL", "create", "append"]


def test_a_stream_is_handed_over_once_all_of_it_is_written() -> None:
    play = Play()
    account = play.begun()
    play.appends(account, events(1, 2))
    play.ledger.hand_over(account)
    play.sends()
    assert (play.sent("append")[STATE], play.sent("append")[OWNER]) == ("running", "")
    assert without_waits(play.answers()) == [
        Visible(account.stream_id, (2, 0)),
        HandedOver(account.stream_id),
    ]
    assert account.stream_id in play.ledger.handed


def test_one_that_takes_several_flushes_is_nobodys_only_with_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounts, "STREAM_BYTES", 100)
    play = Play()
    account = play.begun()
    play.appends(account, events(1, 2, size=98))
    play.ledger.hand_over(account)
    play.sends()
    assert play.sent("append")[STATE] == ""  # as before
    assert without_waits(play.answers()) == [Visible(account.stream_id, (1, 0))]
    play.sends()
    assert (play.sent("append")[STATE], play.sent("append")[OWNER]) == ("running", "")
    assert play.answers()[-1] == HandedOver(account.stream_id)


def test_a_flush_that_is_broken_off_is_new_again() -> None:
    play = Play()
    account, dropped = play.begun(), play.begun()
    play.appends(account, events(1, 2))
    play.ledger.drop(dropped)
    play.ledger.forget(dropped)
    assert play.sends() == ["drop", "append"]
    play.flush = None
    play.ledger.break_off()
    assert play.ledger.patience_left() is None
    play.ledger.note_all_new()
    assert play.sends() == ["drop", "append"]
    assert play.sent("append")[FROM] == "0-0"


# -- lateness, by a clock of the test's own ------------------------------------------------------------


def test_a_flush_that_takes_too_long_makes_redis_late_and_then_away() -> None:
    play = Play()
    account, beginning = play.begun(), play.begins()
    play.appends(account, events(1, 1))
    assert play.ledger.patience_left() is None
    play.sends()
    assert play.ledger.patience_left() == pytest.approx(PATIENCE)
    play.wait(PATIENCE)
    assert play.ledger.judge() == [Visible(account.stream_id, (1, 0), waits=(pytest.approx(PATIENCE),))]
    assert (play.ledger.health.is_late, play.ledger.health.is_away) == (True, False)
    assert play.appends(account, events(2, 2)) == [Visible(account.stream_id, (2, 0), waits=(0.0,))]
    assert play.ledger.patience_left() == pytest.approx(LATE_SECONDS - PATIENCE)
    play.wait(LATE_SECONDS - PATIENCE)
    assert play.ledger.judge() == [Begun(beginning.stream_id, False)]
    assert play.ledger.health.is_away
    assert play.ledger.patience_left() is None


def test_one_look_is_enough_where_the_process_itself_was_held_up_for_that_long() -> None:
    play = Play()
    play.begins()
    play.sends()
    play.wait(LATE_SECONDS + 1.0)
    play.ledger.judge()
    assert play.ledger.health.is_away


def test_a_late_redis_is_well_again_when_all_that_is_new_was_written_in_time() -> None:
    play = Play()
    account = play.begun()
    play.appends(account, events(1, 1))
    play.sends()
    play.wait(PATIENCE)
    play.ledger.judge()
    play.appends(account, events(2, 2))
    play.answers()  # this one was late, whatever comes after it
    assert play.ledger.health.is_late
    play.sends()
    play.wait(PATIENCE / 2)
    play.answers()
    assert not play.ledger.health.is_late
    assert play.appends(account, events(3, 3)) == []


def test_a_late_redis_is_not_well_by_a_flush_that_leaves_something_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play()
    account = play.begun()
    play.ledger.mark_away("refused")
    monkeypatch.setattr(accounts, "STREAM_BYTES", 100)
    play.appends(account, events(1, 2, size=98))
    wells = []
    for _ in range(2):
        play.sends()
        play.answers()
        wells.append(not play.ledger.health.is_late)
    assert wells == [False, True]


def test_a_redis_that_was_away_and_answers_slowly_is_asked_again_at_once() -> None:
    play = Play()
    play.ledger.mark_away("refused")
    play.sends()
    play.wait(PATIENCE * 2)
    play.answers()
    assert play.ledger.health.is_away
    assert play.ledger.is_due
    play.sends()
    play.answers()
    assert not play.ledger.health.is_away
    assert not play.ledger.is_due


def test_a_stream_whose_entries_come_too_late_is_behind_although_redis_is_in_time() -> None:
    play = Play()
    account, other = play.begun(), play.begun()
    play.appends(account, events(1, 2))
    play.sends()
    play.answers(b"1-0")
    play.appends(account, events(3, 3))
    play.wait(PATIENCE * 2)
    play.sends()
    play.appends(account, events(4, 4))
    play.wait(PATIENCE * 2)
    facts = play.answers()
    assert without_waits(facts) == [Visible(account.stream_id, (3, 0)), Visible(account.stream_id, (4, 0))]
    assert not play.ledger.health.is_late
    assert play.appends(account, events(5, 5)) == [Visible(account.stream_id, (5, 0), waits=(0.0,))]
    assert play.appends(other, events(1, 1)) == []
    play.write_all()
    assert play.appends(account, events(6, 6)) == []
