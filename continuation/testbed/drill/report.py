"""What a drill shows: a progress bar, a table of outcomes by kind of fault, what went wrong, or all of it as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from continuation.testbed.demo.screen import BOLD, DIM, GREEN, RED, Screen
from continuation.testbed.drill.campaign import WRONG_SHOWN, Result, Wrong
from continuation.testbed.drill.judging import DrillOutcome
from continuation.testbed.drill.kinds import KINDS
from continuation.testbed.drill.ledger import in_words
from continuation.testbed.drill.sampling import TOLERANCE, Rates

BAR = 24
# Seconds between two lines where the output is no terminal.
PLAIN_SECONDS = 15.0
_TROUBLES_SHOWN = 4


class Bar:
    """Progress on one line that is written over; where there is no terminal, now and then a new line."""

    def __init__(self, write: Callable[[str], object], columns: int, *, terminal: bool) -> None:
        self._write, self._columns, self._terminal = write, columns, terminal
        self._began: float | None = None
        self._told_at = 0.0
        self._rates = Rates()

    def show(self, result: Result, doing: str, open_: int) -> None:
        if doing:
            self._line(f"{doing} ...")
            return
        now = time.monotonic()
        self._began = self._began or now
        rate = self._rates.per_second(result.done)
        if self._terminal or now - self._told_at >= PLAIN_SECONDS:
            self._told_at = now
            self._line(self._words(result, open_, rate))

    def end(self) -> None:
        if self._terminal:
            self._write("\r\x1b[K")

    def _words(self, result: Result, open_: int, rate: float) -> str:
        share, left = result.share, _left(result, rate)
        full = round(share * BAR)
        bar = f"[{'#' * full}{'-' * (BAR - full)}] {share:4.0%}"
        counts = f"{result.done:,} streams, {open_} open, {rate:.1f}/s, {result.wrong_count} wrong"
        return f"{bar}  {counts}, {_clock(left)} left" if rate else f"{bar}  {counts}"

    def _line(self, text: str) -> None:
        shown = text[: self._columns - 1]
        self._write(f"\r\x1b[K{shown}" if self._terminal else f"{text}\n")


def _left(result: Result, rate: float) -> float:
    """Seconds until time or number is reached, whichever is first."""
    choices, ends = result.choices, [float("inf")]
    if choices.minutes is not None:
        ends.append(choices.minutes * 60 - result.seconds)
    if total := choices.most:
        ends.append((total - result.done) / rate if rate else 0.0)
    return max(0.0, min(ends))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


# -- at the end ------------------------------------------------------------------------------------


def show(result: Result, screen: Screen) -> None:
    choices = result.choices
    screen.line()
    screen.table(table(result))
    screen.line()
    for wrong in result.wrong[:WRONG_SHOWN]:
        _show_wrong(wrong, result, screen)
    if result.wrong_count > WRONG_SHOWN:
        screen.line(f"... and {result.wrong_count - WRONG_SHOWN} more", RED)
    for line in (*_left_out(result), *_measured(result)):
        screen.words(line, DIM)
    screen.line()
    ended = "stopped early, " if result.stopped else ""
    summary = f"{ended}{result.done} streams in {_clock(result.seconds)}, seed {choices.seed}: "
    if result.wrong_count:
        screen.line(f"{summary}{result.wrong_count} WRONG", BOLD, RED)
    else:
        screen.line(f"{summary}0 wrong", BOLD, GREEN)


def table(result: Result) -> list[list[str]]:
    columns = list(DrillOutcome)
    rows = [["fault", "streams", *map(str, columns)]]
    rows += [
        [kind, str(sum(row.values())), *(_number(row[each]) for each in columns)]
        for kind, row in _in_order(result)
    ]
    totals = [_number(result.count(each)) for each in columns]
    return [*rows, ["all", str(result.done), *totals]]


def _number(count: int) -> str:
    return str(count) if count else "-"


def _show_wrong(wrong: Wrong, result: Result, screen: Screen) -> None:
    if wrong.number is None:
        screen.line("WRONG  the gateway", RED)
    else:
        screen.line(f"WRONG  {wrong.kind}, request {wrong.request_id}", RED)
        screen.words(f"  {wrong.place}; again: --seed {result.choices.seed} --only {wrong.number}", DIM)
    for trouble in wrong.troubles[:_TROUBLES_SHOWN]:
        screen.words(f"  {trouble}")
    for noted in _notes(wrong, result):
        screen.words(f"  {noted}", DIM)


def _notes(wrong: Wrong, result: Result) -> list[str]:
    row = result.rows.get(wrong.number) if wrong.number is not None else None
    return [*wrong.noted, *([f"audit row: {in_words(row)}"] if row else [])]


def _left_out(result: Result) -> list[str]:
    told = [f"left out: {each}" for each in result.left_out]
    if unclear := result.count(DrillOutcome.UNCLEAR):
        limit = f"{result.choices.idle_seconds:g} s"
        told.append(
            f"{unclear} unclear: their engine was silent for the limit of {limit}, or nearly, without a fault: the "
            "machine is too busy; fewer --streams, a longer --idle-timeout"
        )
    return told


def _measured(result: Result) -> list[str]:
    lines = []
    for trend in result.trends:
        if trend.change is None:
            continue
        change = f"{trend.first:g} -> {trend.last:g} ({trend.change:+.1%}, {trend.verdict})"
        lines.append(f"{trend.name.replace('_', ' ')}, first and last quarter: {change}")
    told = result.latency
    for name, words in (("first", "to the first event"), ("gap", "between events"), ("seam", "over a seam")):
        if told.get(f"{name}_p50_ms") is not None:
            median, high = told[f"{name}_p50_ms"], told[f"{name}_p99_ms"]
            lines.append(f"milliseconds {words}: {median:.1f} (median), {high:.1f} (99th percentile)")
    if result.audited is not None:
        lines.append(f"audit rows compared: {result.audited}")
    elif result.choices.gateway:
        lines.append("the audit of a gateway that runs elsewhere was not compared")
    return lines


def unsteady(result: Result) -> list[str]:
    """What grew, and what could not be measured, in words."""
    told = []
    for trend in result.trends:
        if trend.change is None:
            told.append(f"{trend.name}: not measured")
        elif trend.grows:
            told.append(f"{trend.name}: grew by {trend.change:.1%}, allowed are {TOLERANCE:.0%}")
    return told


def as_json(result: Result) -> dict[str, Any]:
    choices = result.choices
    return {
        "seed": choices.seed,
        "streams": choices.streams,
        "engine": choices.engine,
        "gateway": choices.gateway or "serve",
        "faults": list(choices.kinds),
        "seconds": round(result.seconds, 2),
        "stopped": result.stopped,
        "done": result.done,
        "wrong": result.wrong_count,
        "outcomes": {str(each): result.count(each) for each in DrillOutcome},
        "by_fault": {kind: dict(row) for kind, row in _in_order(result)},
        "wrong_streams": [_wrong(each, result) for each in result.wrong[:WRONG_SHOWN]],
        "left_out": result.left_out,
        "audit_rows": result.audited,
        "latency": result.latency,
        "trends": {t.name: {"first": t.first, "last": t.last, "verdict": t.verdict} for t in result.trends},
        "samples": [sample.shown() for sample in result.samples],
    }


def _in_order(result: Result) -> Sequence[tuple[str, Any]]:
    return [(kind, result.tally[kind]) for kind in KINDS if kind in result.tally]


def _wrong(wrong: Wrong, result: Result) -> dict[str, Any]:
    return {
        "number": wrong.number,
        "fault": wrong.kind,
        "request_id": wrong.request_id,
        "place": wrong.place,
        "troubles": list(wrong.troubles),
        "noted": _notes(wrong, result),
    }
