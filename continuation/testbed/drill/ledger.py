"""The gateway's audit rows, held against what was due: a row for each stream that needed one, and no other."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from continuation.models import ContinuationEvent

COLUMNS = (
    *("request_id", "outcome", "failure", "decision", "reason"),
    *("reasoning_chars", "content_chars", "leg2_status", "leg2_message", "idle_seconds"),
)
# Seconds after its stream's end in which a row may still come: rows are written in batches, behind the streams.
PATIENCE = 60.0
_MOMENT = 3.0
_BATCH = 5000
_LOCKED_SECONDS = 20.0

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """decides: whether the row is held against `row`; not where the stream is wrong already, or what was due is not
    certain."""

    number: int
    decides: bool
    row: Mapping[str, Any] | None
    since: float


@dataclass(slots=True)
class AuditLedger:
    """Rows and streams meet here in either order; troubles are (number of the stream, what is wrong).

    of_wrong: rows of the streams that were wrong already, by number, to look for the cause.
    """

    database: Path
    expected: dict[str, Expected] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    of_wrong: dict[int, Row] = field(default_factory=dict)
    matched: int = 0
    _last_id: int = 0

    def expect(
        self, request_id: str, number: int, row: Mapping[str, Any] | None, *, decides: bool = True
    ) -> None:
        self.expected[request_id] = Expected(number, decides, row, time.monotonic())

    def fetch(self) -> list[Row]:
        """New rows; asks the database, and is for a thread. Raises sqlite3.Error."""
        table = ContinuationEvent._meta.db_table
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        query = f'SELECT id, {names} FROM "{table}" WHERE id > ? ORDER BY id LIMIT {_BATCH}'
        with closing(sqlite3.connect(self.database, timeout=_LOCKED_SECONDS)) as connection:
            found = connection.execute(query, [self._last_id]).fetchall()
        if found:
            self._last_id = found[-1][0]
        return [dict(zip(COLUMNS, row[1:], strict=True)) for row in found]

    def compare(self, rows: list[Row], *, final: bool = False) -> Iterator[tuple[int | None, str]]:
        """final: nothing more will come."""
        for row in rows:
            request_id = row["request_id"]
            if request_id in self.rows:
                yield None, f"two audit rows for {request_id}"
            self.rows[request_id] = row
        for request_id in [each for each in self.rows if each in self.expected]:
            expected = self.expected.pop(request_id)
            self.matched += 1
            row = self.rows.pop(request_id)
            if expected.decides:
                yield from _compared(row, expected)
            else:
                self.of_wrong[expected.number] = row
        yield from self._overdue(final)

    def _overdue(self, final: bool) -> Iterator[tuple[int | None, str]]:
        old = time.monotonic() - PATIENCE
        for request_id, expected in [*self.expected.items()]:
            if final or expected.since < old:
                del self.expected[request_id]
                if expected.row is not None and expected.decides:
                    yield expected.number, f"no audit row; due was {dict(expected.row)}"
        if final:
            for request_id in self.rows:
                yield None, f"an audit row for {request_id}, which ended before it was judged"
            self.rows.clear()

    @property
    def waits(self) -> bool:
        """Whether a row is due that can still come; for one that decides nothing a moment is enough."""
        moment = time.monotonic() - _MOMENT
        due = (one for one in self.expected.values() if one.row is not None)
        return any(one.decides or one.since > moment for one in due)


def in_words(row: Row) -> str:
    told = (f"{name} {value}" for name, value in row.items() if value is not None and name != "request_id")
    return ", ".join(told)


def _compared(row: Row, expected: Expected) -> Iterator[tuple[int | None, str]]:
    if expected.row is None:
        yield expected.number, f"an audit row for a stream that needed none: {in_words(row)}"
        return
    wrong = {name: (due, row[name]) for name, due in expected.row.items() if row[name] != due}
    if wrong:
        told = "; ".join(f"{name}: wanted {due!r}, got {got!r}" for name, (due, got) in wrong.items())
        yield expected.number, f"audit row: {told}"
