"""One stream's account: what Redis has of it. What is new becomes commands, answers become facts."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from continuation.resume.log import Cursor, Entry, Limits, State
from continuation.resume.store.redis.health import PATIENCE
from continuation.resume.store.redis.scripts import (
    APPEND,
    CREATE,
    DROP,
    END_PART,
    REQUEST,
    Command,
    Keys,
    Value,
    call,
    cursor_of,
    id_of,
    keys_of,
)
from continuation.resume.store.redis.sealing import Seal

logger = logging.getLogger(__name__)

# Bytes of one stream's entries in one flush.
STREAM_BYTES = 2**16
# Bytes of one piece of a request. A request that is larger than the second figure is not waited for.
REQUEST_BYTES = 2**16
AWAITED_BYTES = 2**18
# Seconds: how often the expiry of what runs is put off; how long a new one lasts until that has been done once.
RENEWAL_SECONDS = 5.0
CREATED_SECONDS = 15.0

_ZERO: Cursor = (0, 0)


# -- facts ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Visible:
    """Readers may see the log up to here. waits: seconds that each of its appends has waited for that."""

    stream_id: str
    until: Cursor
    waits: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Begun:
    """is_written: whether Redis has all that a new stream waits for; else it will not have it soon."""

    stream_id: str
    is_written: bool


@dataclass(frozen=True, slots=True)
class StopWanted:
    """Somebody, in any process, wants the stream stopped."""

    stream_id: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Another process has taken the stream over, which has the same up to `at`."""

    stream_id: str
    at: Cursor


@dataclass(frozen=True, slots=True)
class HandedOver:
    """All of the stream is written, and it is nobody's."""

    stream_id: str


Fact = Visible | Begun | StopWanted | Lost | HandedOver


# -- what an account is made of ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """What all accounts of a process share. now: seconds of a clock that is never set; date: seconds since 1970."""

    owner: str
    limits: Limits
    seal: Seal
    now: Callable[[], float]
    date: Callable[[], float]

    @property
    def first_ttl(self) -> int:
        """Milliseconds, of a log whose stream may not come to be."""
        return int(min(CREATED_SECONDS, self.limits.ttl + self.limits.grace) * 1000)


class Source(Protocol):
    """What an account reads of its log in memory."""

    @property
    def stream_id(self) -> str: ...
    @property
    def state(self) -> State: ...
    @property
    def leg2_from(self) -> int: ...
    @property
    def started_at(self) -> float: ...
    @property
    def ended_at(self) -> float | None: ...
    @property
    def gone(self) -> bool: ...
    @property
    def appended(self) -> Cursor: ...
    @property
    def trimmed(self) -> Cursor: ...
    @property
    def oldest(self) -> Cursor: ...
    @property
    def first(self) -> int: ...
    def since(self, cursor: Cursor, most: int | None = None) -> list[Entry]: ...


class Presence(Enum):
    """Whether Redis has a log of the stream."""

    ABSENT = auto()
    THERE = auto()
    SPOILT = auto()  # its keys hold something else


@dataclass(frozen=True, slots=True)
class Label:
    """What `meta` says of a stream, besides where it stands. owner: empty once it is handed over."""

    state: State
    leg2_from: int
    owner: str


@dataclass(slots=True)
class RequestPieces:
    """A request, and how many of its pieces Redis has. sealed: the next one, encrypted; is_sealing: not there yet."""

    data: bytes
    written: int = 0
    sealed: bytes | None = None
    is_sealing: bool = False

    @property
    def count(self) -> int:
        return -(-len(self.data) // REQUEST_BYTES)

    @property
    def is_whole(self) -> bool:
        return self.written >= self.count

    @property
    def is_awaited(self) -> bool:
        return len(self.data) <= AWAITED_BYTES and not self.is_whole

    def next_piece(self) -> bytes:
        start = self.written * REQUEST_BYTES
        return self.data[start : start + REQUEST_BYTES]

    def note_sealed(self, index: int, sealed: bytes) -> None:
        """index: how many pieces Redis had when the sealing began."""
        self.is_sealing = False
        if self.written == index:
            self.sealed = sealed

    def note_written(self, count: int) -> None:
        self.written, self.sealed = count, None

    def clear(self) -> None:
        self.data, self.sealed = b"", None


@dataclass(slots=True)
class Share:
    """One stream's part of a flush: its commands, and what Redis has if they are answered with ok."""

    account: Account
    until: Cursor
    label: Label
    trimmed: Cursor
    commands: list[Command] = field(default_factory=list)
    clears: bool = False
    creates: bool = False
    renews: bool = False
    seals: bool = False  # the request's next piece is to be sealed before it can be sent
    piece: bytes | None = None
    size: int = 0


@dataclass(slots=True, eq=False)
class Account:
    """One stream of this process. at: up to where Redis has it; label and trimmed: what else Redis knows of it."""

    terms: Terms
    log: Source
    request: RequestPieces
    epoch: int = 1
    at: Cursor = _ZERO
    presence: Presence = Presence.ABSENT
    label: Label | None = None
    trimmed: Cursor = _ZERO
    renewed_at: float = -math.inf
    answered_at: float = -math.inf
    is_beginning: bool = False  # somebody waits for all of its beginning to be written
    is_handed: bool = False
    is_behind: bool = False  # its readers do not wait for Redis, until that has it all again
    unseen: deque[tuple[Cursor, float]] = field(
        default_factory=deque
    )  # what readers wait for, and since when
    sealed: dict[Cursor, bytes] = field(default_factory=dict)
    keys: Keys = field(init=False)

    def __post_init__(self) -> None:
        self.keys = keys_of(self.log.stream_id)

    @property
    def stream_id(self) -> str:
        return self.log.stream_id

    @property
    def runs(self) -> bool:
        return self.log.ended_at is None and not self.log.gone and not self.is_handed

    # -- what is new -> commands -------------------------------------------------------------------

    def drop(self) -> Command:
        """No trace of the stream stays."""
        keys = self.keys
        return call(DROP, (keys.meta, keys.log, keys.request, keys.reader), self.terms.owner, self.epoch)

    def share(self) -> Share:
        entries = self.log.since(self.at, STREAM_BYTES)
        until = entries[-1].cursor if entries else self.at
        share = Share(self, until, self._label_at(until), self.log.trimmed)
        if self.presence is Presence.SPOILT:
            share.clears = True
            share.commands.append(("DEL", *astuple(self.keys)))
        if self.presence is not Presence.THERE:
            share.creates = True
            share.commands.append(self._create())
        share.commands.append(self._append(share, entries))
        self._add_request(share)
        share.size = sum(len(entry.data) for entry in entries) + len(share.piece or b"")
        return share

    def _label_at(self, until: Cursor) -> Label:
        """The end is written with the last entries; until then the stream runs, as its readers in Redis see it."""
        if until >= self.log.appended:
            return self._newest_label
        return Label(State.RUNNING, self.log.leg2_from, self.terms.owner)

    @property
    def _newest_label(self) -> Label:
        return Label(self.log.state, self.log.leg2_from, "" if self.is_handed else self.terms.owner)

    def _create(self) -> Command:
        log, keys, terms = self.log, self.keys, self.terms
        values = (terms.owner, self.epoch, terms.first_ttl, log.first, log.leg2_from, repr(log.started_at))
        return call(CREATE, (keys.meta, keys.log, keys.request), *values)

    def _append(self, share: Share, entries: Sequence[Entry]) -> Command:
        log, keys, label, seal = self.log, self.keys, share.label, self.terms.seal
        said: tuple[Value, ...] = ("", "", "", "")
        if label != self.label:
            ended_at = repr(log.ended_at) if log.ended_at else ""
            said = (label.state.value, label.leg2_from, ended_at, label.owner)
        oldest = id_of(log.oldest) if share.trimmed != self.trimmed else ""
        values = [
            *(self.terms.owner, self.epoch, id_of(self.at), id_of(share.until), self._ttl(share)),
            *(log.first, oldest, *said, f"{share.until[0]}-{END_PART}"),
        ]
        for entry in entries:
            sealed = self.sealed.pop(entry.cursor, None) or seal.close(entry.data)
            values += (id_of(entry.cursor), "o" if entry.open else "d", sealed)
        return call(APPEND, (keys.meta, keys.log, keys.request), *values)

    def _ttl(self, share: Share) -> Value:
        """Milliseconds, empty for as before."""
        terms, ended_at = self.terms, self.log.ended_at
        is_renewed = terms.now() - self.renewed_at < RENEWAL_SECONDS
        if share.label == self.label and is_renewed and self.at != _ZERO:
            return ""
        if self.is_beginning:
            return terms.first_ttl
        share.renews = True
        limits = terms.limits
        left = limits.ttl + limits.grace if ended_at is None else limits.ttl - (terms.date() - ended_at)
        return max(1, int(left * 1000))

    def _add_request(self, share: Share) -> None:
        request, seal = self.request, self.terms.seal
        if not self.runs or request.is_whole or request.is_sealing:
            return
        if request.sealed is None and seal.encrypts and len(request.data) > REQUEST_BYTES:
            request.is_sealing = share.seals = True
            return
        share.piece = seal.close(request.next_piece()) if request.sealed is None else request.sealed
        keys = (self.keys.meta, self.keys.request)
        values = (self.terms.owner, self.epoch, request.written, request.count, share.piece)
        share.commands.append(call(REQUEST, keys, *values))

    # -- answers -> facts --------------------------------------------------------------------------

    def take_answers(self, share: Share, answers: Sequence[Any], now: float) -> tuple[list[Fact], bool]:
        """The facts, and whether there is more to be written at once."""
        self.answered_at = now
        if b"lost" in answers:
            logger.warning("stream %s is another process's now", self.stream_id)
            return [Lost(self.stream_id, self.at)], False
        if any(isinstance(answer, Exception) for answer in answers):
            # Its keys are cleared and written again: now, or if that has not helped, with what comes next.
            return self._mark_spoilt(now), not share.clears
        left = iter(answers)
        if share.clears:
            next(left)
        if share.creates:
            next(left)
        self.presence = Presence.THERE
        facts, is_due = self._take_append(share, next(left), now)
        if share.piece is not None:
            is_due |= self._take_piece(next(left))
        if self.is_beginning and self.presence is Presence.THERE and not self.request.is_awaited:
            facts.append(self.end_beginning(True))
        return facts, is_due

    def _take_append(self, share: Share, answer: bytes, now: float) -> tuple[list[Fact], bool]:
        if answer == b"missing":
            self._mark_missing()
            return [self.show_all(now)], True
        if answer not in (b"ok", b"stop"):
            self.at, self.label, self.trimmed = cursor_of(answer), None, _ZERO
            return [], True
        facts, is_due = self._note_written(share, now)
        if answer == b"stop":
            facts.append(StopWanted(self.stream_id))
        return facts, is_due

    def _note_written(self, share: Share, now: float) -> tuple[list[Fact], bool]:
        self.at, self.label, self.trimmed = share.until, share.label, share.trimmed
        if share.renews:
            self.renewed_at = now
        facts: list[Fact] = [self._show(min(self.at, self.log.appended), now)]
        if self.unseen and now - self.unseen[0][1] > PATIENCE:  # Redis is in time, and not with this stream
            self.is_behind = True
            facts.append(self.show_all(now))
        if self.at < self.log.appended:
            return facts, True
        self.is_behind = False
        self.sealed.clear()  # also what was trimmed before it was sent
        if self.is_handed and not share.label.owner:
            return [*facts, HandedOver(self.stream_id)], False
        return facts, self.label != self._newest_label or self.trimmed != self.log.trimmed

    def _take_piece(self, answer: bytes) -> bool:
        """Whether another piece is to be written."""
        request = self.request
        match answer:
            case b"ok":
                request.note_written(request.written + 1)
            case b"missing":
                request.note_written(0)
            case _:
                request.note_written(int(answer))
        return not request.is_whole

    def _mark_missing(self) -> None:
        """Redis has nothing of it, and will not have it all in a moment."""
        self.is_behind = True
        self.presence, self.at, self.label, self.trimmed = Presence.ABSENT, _ZERO, None, _ZERO
        self.renewed_at = -math.inf
        self.request.note_written(0)

    def _mark_spoilt(self, now: float) -> list[Fact]:
        if self.presence is not Presence.SPOILT:
            logger.warning("stream %s: its keys in Redis hold something else", self.stream_id)
        self._mark_missing()
        self.presence = Presence.SPOILT
        return [self.show_all(now)]

    # -- what readers see --------------------------------------------------------------------------

    def show_all(self, now: float) -> Visible:
        return self._show(self.log.appended, now)

    def _show(self, until: Cursor, now: float) -> Visible:
        waits = []
        while self.unseen and self.unseen[0][0] <= until:
            waits.append(now - self.unseen.popleft()[1])
        return Visible(self.stream_id, until, tuple(waits))

    def end_beginning(self, is_written: bool) -> Begun:
        self.is_beginning = False
        return Begun(self.stream_id, is_written)
