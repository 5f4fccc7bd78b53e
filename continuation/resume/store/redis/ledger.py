"""What Redis has of all streams of this process: what is new becomes commands, their answers become facts.

A log in memory is the source, and an account says up to where Redis has it. One flush at a time is under way, with what
is new of all streams in one go; whatever fails is simply still new. Readers see an entry once Redis has it, unless
Redis is late: then all is shown at once, until a flush has been acknowledged in time again.

Nothing here waits, and no clock is known but the ones that are passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from continuation.resume.log import Entry, Held, State
from continuation.resume.store.redis.account import Account, Fact, Share, Terms, Visible
from continuation.resume.store.redis.health import Condition, Health
from continuation.resume.store.redis.scripts import Command, lease_of

# Of one flush: bytes of all streams, and streams.
FLUSH_BYTES = 2**18
FLUSH_STREAMS = 200
LEASE_SECONDS = 5.0


@dataclass(slots=True)
class Flush:
    """has_lease: its first command renews the lease. whole: nothing that was new is left out."""

    commands: list[Command] = field(default_factory=list)
    has_lease: bool = False
    dropped: list[Account] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    whole: bool = True

    @property
    def to_seal(self) -> list[Account]:
        """Of these, the request's next piece is to be sealed before it can be sent."""
        return [share.account for share in self.shares if share.seals]


class Ledger:
    """Whatever returns facts has changed its own books already; the caller performs them."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.held = Held()
        self.health = Health()
        self.accounts: dict[str, Account] = {}
        self.handed: set[str] = set()  # this process does not take them back
        self._new: dict[str, Account] = {}
        self._dropped: dict[str, Account] = {}
        self._is_lease_due = True
        self._is_under_way = False

    @property
    def has_place(self) -> bool:
        """Whether the limits let another stream in."""
        limits = self.terms.limits
        return self.held.streams < limits.streams and self.held.bytes < limits.total_bytes

    @property
    def has_unwritten(self) -> bool:
        return bool(self._new or self._dropped)

    @property
    def is_due(self) -> bool:
        """Whether there is something to send."""
        return self.has_unwritten or self._is_lease_due

    # -- what the streams do -----------------------------------------------------------------------

    def add(self, account: Account) -> None:
        self.accounts[account.stream_id] = account
        self.held.bytes += len(account.request.data)
        self.note_new(account)

    def note_new(self, account: Account) -> None:
        """Something of it is new."""
        if self.accounts.get(account.stream_id) is account:
            self._new[account.stream_id] = account

    def note_all_new(self) -> None:
        """Redis may have forgotten all of it."""
        for account in self.accounts.values():
            self.note_new(account)
        self.note_lease_due()

    def note_silent(self, seconds: float) -> None:
        """Ask of each running stream that has written nothing for a while whether it is still ours and wanted."""
        silent_since = self.terms.now() - seconds
        for account in self.accounts.values():
            if account.runs and account.answered_at < silent_since:
                self.note_new(account)

    def note_lease_due(self) -> None:
        self._is_lease_due = True

    def note_appended(self, account: Account, entries: Sequence[Entry]) -> list[Fact]:
        """The log has these entries now."""
        facts: list[Fact] = []
        log, seal, now = account.log, self.terms.seal, self.terms.now()
        if self.health.is_late or account.is_behind:
            facts.append(Visible(log.stream_id, log.appended, waits=(0.0,)))
        else:
            account.unseen.append((log.appended, now))
            if self._is_under_way and seal.encrypts:  # there is time
                account.sealed |= {entry.cursor: seal.close(entry.data) for entry in entries}
        self.note_new(account)
        return facts

    def hand_over(self, account: Account) -> None:
        """Once all of it is written it is nobody's, for another process to take."""
        if account.runs:
            account.is_handed = True
            self.handed.add(account.stream_id)
            self.note_new(account)

    def drop(self, account: Account) -> None:
        """No trace of it stays in Redis; nor here, once it is forgotten."""
        if self.accounts.get(account.stream_id) is account:
            self._dropped[account.stream_id] = account

    def forget(self, account: Account) -> bool:
        """Whether it was there."""
        if self.accounts.get(account.stream_id) is not account:
            return False
        del self.accounts[account.stream_id]
        self._new.pop(account.stream_id, None)
        account.unseen.clear()
        account.sealed.clear()
        self._clear_request(account)
        return True

    def _clear_request(self, account: Account) -> None:
        self.held.bytes -= len(account.request.data)
        account.request.clear()

    # -- what is new -> commands -------------------------------------------------------------------

    def next_flush(self) -> Flush | None:
        """None if nothing is new. Its answers, or that they do not come, are to be reported before the next one."""
        flush, room = Flush(), FLUSH_BYTES
        if self._is_lease_due:
            self._is_lease_due, flush.has_lease = False, True
            flush.commands.append(("SET", lease_of(self.terms.owner), "1", "PX", int(LEASE_SECONDS * 1000)))
        flush.dropped = list(self._dropped.values())[:FLUSH_STREAMS]
        flush.commands += [account.drop() for account in flush.dropped]
        while self._new:
            if room <= 0 or len(flush.shares) >= FLUSH_STREAMS:
                flush.whole = False
                break
            account = self._new.pop(next(iter(self._new)))
            share = account.share()
            room -= share.size
            flush.shares.append(share)
            flush.commands += share.commands
            flush.whole &= share.until >= account.log.appended
        if not flush.commands:
            return None
        self._is_under_way = True
        self.health.note_sent(self.terms.now())
        return flush

    # -- answers -> facts --------------------------------------------------------------------------

    def take_answers(self, flush: Flush, answers: Sequence[Any]) -> list[Fact]:
        """Of a flush that was answered whole; an exception is the answer of a command that met a spoilt key."""
        self._is_under_way = False
        now, left = self.terms.now(), iter(answers)
        if flush.has_lease:
            next(left)
        for account in flush.dropped:
            next(left)
            if self._dropped.get(account.stream_id) is account:
                del self._dropped[account.stream_id]
        facts: list[Fact] = []
        for share in flush.shares:
            found = [next(left) for _ in share.commands]
            if not share.account.log.gone:
                facts += self._take_share(share, found, now)
        self.health.note_answered(now, whole=flush.whole)
        if self.health.is_away:  # it has answered: ask at once how fast it is now
            self.note_lease_due()
        return facts

    def _take_share(self, share: Share, answers: Sequence[Any], now: float) -> list[Fact]:
        account = share.account
        facts, is_due = account.take_answers(share, answers, now)
        if account.label is not None and account.label.state is not State.RUNNING:
            self._clear_request(account)
        if is_due:
            self.note_new(account)
        return facts

    def break_off(self) -> None:
        """No answers will come to the flush that is under way. What it held is new again at `note_all_new`."""
        self._is_under_way = False
        self.health.note_broken_off()

    # -- whether Redis is late ---------------------------------------------------------------------

    def patience_left(self) -> float | None:
        """Seconds until the flush under way is to be judged; None if none is."""
        return self.health.patience_left(self.terms.now())

    def judge(self) -> list[Fact]:
        """No patience is left, and the answers are not there."""
        now = self.terms.now()
        if self.health.judge(now) is Condition.AWAY:
            return self._give_up_waiting(now)
        return self._show_all(now)

    def mark_away(self, trouble: str) -> list[Fact]:
        now = self.terms.now()
        self.health.mark_away(now, trouble)
        return self._give_up_waiting(now)

    def _give_up_waiting(self, now: float) -> list[Fact]:
        beginning = [account for account in self.accounts.values() if account.is_beginning]
        return [*self._show_all(now), *(account.end_beginning(False) for account in beginning)]

    def _show_all(self, now: float) -> list[Fact]:
        facts: list[Fact] = []
        for account in self.accounts.values():
            account.sealed.clear()
            if account.unseen:
                facts.append(account.show_all(now))
        return facts
